#include "engine/kernels/cuda/launch_chain.h"

#include <algorithm>

namespace spark::engine::cuda {

Launch LaunchChain::next() {
  const Launch on = {.stream = stream_.get(), .dependent = dependent_ && chained_, .device = device_};
  ++launches_;
  if (!on.dependent) settled_ = launches_ - 1;
  chained_ = true;
  return on;
}

Launch LaunchChain::beside(Side& side) {
  if (!beside_) return next();
  const Launch on = {
      .stream = side.stream->get(), .dependent = dependent_ && side.chained, .device = device_};
  side.chained = true;
  return on;
}

void LaunchChain::note(Place& place) const {
  check(cudaEventRecord(place.event.get(), stream_.get()), "recording an event");
  place.launches = launches_;
}

// In a recorded graph the first launch of a fork would have two predecessors: the place, and what the stream
// ran last. Such a launch starts when both have ended, 1.5 us later, and what waits behind it with it.
void LaunchChain::forget_past(const Side& side) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(side.stream->get(), &status), "asking whether a step is recorded");
  if (status != cudaStreamCaptureStatusActive) return;
  check(cudaStreamUpdateCaptureDependencies(side.stream->get(), nullptr, nullptr, 0,
                                            cudaStreamSetCaptureDependencies),
        "ordering streams");
}

void LaunchChain::fork(Side& side, bool early) {
  if (!beside_) return;
  note(side.forked);
  fork_at(side, side.forked, early);
}

void LaunchChain::fork_at(Side& side, const Place& place, bool early) {
  if (!beside_) return;
  // What ran there is complete at this place if a launch before it has waited for it.
  if (early && !side.busy && place.launches >= side.joined_before) forget_past(side);
  check(cudaStreamWaitEvent(side.stream->get(), place.event.get(), 0), "ordering streams");
  side.chained = true;  // behind what the main chain launched last
  side.busy = true;
}

void LaunchChain::join(Side& side) {
  if (!side.busy) return;
  check(cudaEventRecord(side.joined.get(), side.stream->get()), "recording an event");
  check(cudaStreamWaitEvent(stream_.get(), side.joined.get(), 0), "ordering streams");
  side.busy = false;
  side.joined_before = launches_ + 1;
}

}  // namespace spark::engine::cuda
