// Collects the faults of files with very many tensors: keeps the first ones, counts all.
//
//   FaultList faults;
//   faults.add("layers.0.attn_sink", "is missing");
//   faults.throw_if_any(path, "download the checkpoint again");  // one Error that lists up to 50 of them
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/error.h"

namespace spark::engine {

class FaultList {
 public:
  static constexpr size_t kShown = 50;

  void add(std::string where, std::string what) {
    if (++count_ <= kShown) shown_.push_back({std::move(where), std::move(what), {}});
  }

  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  const std::vector<Fault>& shown() const { return shown_; }

  // A single fault becomes the message itself.
  void throw_if_any(const std::string& subject, const std::string& hint) const;

 private:
  size_t count_ = 0;
  std::vector<Fault> shown_;
};

// A name from a file, quoted and escaped so that it cannot disturb a terminal.
std::string quote_name(const std::string& name);

}  // namespace spark::engine
