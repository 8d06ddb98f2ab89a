// The one way to show how far a long piece of work is: a bar on a terminal, a log line now and then
// otherwise.
//
//   Progress progress("loading weights", total_bytes);
//   progress.update(done_bytes);    // often; from one thread
//   progress.finish();              // the last line: how much, how long, how fast
//
// Amounts are bytes. Nothing is shown for work that is over within half a second, except the last line.
#pragma once

#include <cstdint>
#include <string>

namespace spark {

enum class ProgressStyle { kAuto, kBar, kLines };  // kAuto: a bar if stderr is a terminal and logs are text

// "loading weights  43% [########            ] 34.20 GiB of 78.20 GiB, 5.90 GiB/s, 7 s left"
std::string progress_bar(const std::string& what, uint64_t done, uint64_t total, double elapsed_s);

class Progress {
 public:
  Progress(std::string what, uint64_t total, ProgressStyle style = ProgressStyle::kAuto);
  // Ends the bar's line when the work is given up.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(uint64_t done);
  void finish();

 private:
  std::string what_;
  uint64_t total_;
  bool bar_;
  bool shown_ = false;  // a bar stands on the terminal's line
  double began_s_;
  double last_s_;
  uint64_t done_ = 0;
};

}  // namespace spark
