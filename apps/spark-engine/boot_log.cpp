#include "boot_log.h"

#include <cmath>

#include "common/clock.h"
#include "common/log.h"

namespace spark::app {
namespace {

double milliseconds_exact(double seconds) {
  return std::round(seconds * 1000) / 1000;
}

}  // namespace

BootLog::BootLog(engine::BootGate& gate) : gate_(gate), started_s_(monotonic_s()), phase_s_(started_s_) {}

void BootLog::begin(const std::string& phase) {
  end();
  phase_ = phase;
  phase_s_ = monotonic_s();
  gate_.set_phase(phase);
}

void BootLog::end() {
  if (weights_) {
    weights_->finish();
    weights_.reset();
  }
  if (!phase_.empty()) {
    log_info("boot: " + phase_, {{"seconds", milliseconds_exact(monotonic_s() - phase_s_)}});
  }
  phase_.clear();
}

void BootLog::finish() {
  end();
  log_info("boot: ready", {{"seconds", milliseconds_exact(monotonic_s() - started_s_)}});
}

void BootLog::on_weights(uint64_t done, uint64_t total) {
  if (!weights_) weights_.emplace("loading weights", total);
  weights_->update(done);
  const int percent = total > 0 ? static_cast<int>(done * 100 / total) : 100;
  if (percent == percent_) return;
  percent_ = percent;
  gate_.set_phase(phase_ + ", " + std::to_string(percent) + "% of the weights");
}

}  // namespace spark::app
