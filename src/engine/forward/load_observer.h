// Told how loading a model goes, on the thread that loads.
#pragma once

#include <cstdint>
#include <string>

namespace spark::engine {

// How weights that the backend copies come from disk. kAuto: directly when they are a gigabyte or more, from
// the map otherwise, where the page cache may have them still.
enum class WeightReading : uint8_t { kAuto, kDirect, kMapped };

class LoadObserver {
 public:
  virtual ~LoadObserver() = default;
  // What begins now; the one before has ended.
  virtual void on_phase(const std::string& name) = 0;
  // Bytes of weights handed to the backend so far, and of all there are. Comes often.
  virtual void on_weights(uint64_t done, uint64_t total) = 0;
};

}  // namespace spark::engine
