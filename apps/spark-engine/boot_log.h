// The phases of a start: each is logged with its time when it ends, and told to whoever asks the server
// meanwhile.
//
//   BootLog boot(gate);
//   boot.begin("reading config.json and tokenizer.json");
//   ...
//   boot.finish();      // the last line: how long all took
#pragma once

#include <optional>
#include <string>

#include "common/progress.h"
#include "engine/forward/load_observer.h"
#include "engine/serve/boot_gate.h"

namespace spark::app {

class BootLog : public engine::LoadObserver {
 public:
  explicit BootLog(engine::BootGate& gate);

  void begin(const std::string& phase);
  void finish();

  void on_phase(const std::string& name) override { begin(name); }
  void on_weights(uint64_t done, uint64_t total) override;

 private:
  void end();

  engine::BootGate& gate_;
  std::string phase_;
  double started_s_;
  double phase_s_;
  std::optional<Progress> weights_;
  int percent_ = -1;
};

}  // namespace spark::app
