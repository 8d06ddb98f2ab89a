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

void LaunchChain::note(const Event& place) const {
  check(cudaEventRecord(place.get(), stream_.get()), "recording an event");
}

void LaunchChain::fork(Side& side) {
  if (!beside_) return;
  note(side.forked);
  fork_at(side, side.forked);
}

void LaunchChain::fork_at(Side& side, const Event& place) {
  if (!beside_) return;
  check(cudaStreamWaitEvent(side.stream->get(), place.get(), 0), "ordering streams");
  side.chained = true;  // behind what the main chain launched last
  side.busy = true;
}

void LaunchChain::join(Side& side) {
  if (!side.busy) return;
  check(cudaEventRecord(side.joined.get(), side.stream->get()), "recording an event");
  check(cudaStreamWaitEvent(stream_.get(), side.joined.get(), 0), "ordering streams");
  side.busy = false;
}

}  // namespace spark::engine::cuda
