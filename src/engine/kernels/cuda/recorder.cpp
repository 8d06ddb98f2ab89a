#include "engine/kernels/cuda/recorder.h"

#include <algorithm>
#include <limits>

#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/memory.h"

namespace spark::engine::cuda {
namespace {

constexpr size_t kMaxGraphs = 96;

}  // namespace

Graph::Graph(cudaGraph_t graph) {
  const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "instantiating a graph");
}
Graph::~Graph() {
  cudaGraphExecDestroy(executable_);
}
void Graph::launch(cudaStream_t stream) const {
  check(cudaGraphLaunch(executable_, stream), "launching a graph");
}

bool Recorder::run(uint64_t key, cudaStream_t stream, const std::function<void()>& body,
                   const std::function<cudaGraph_t(const std::function<void()>&)>& capture) {
  const auto found = graphs_.find(key);
  if (found == graphs_.end()) {
    recent_.push_front(key);
    graphs_[key].place = recent_.begin();
    if (graphs_.size() > kMaxGraphs) {
      graphs_.erase(recent_.back());
      recent_.pop_back();
    }
    body();
    return false;
  }
  if (found->second.graph == nullptr) {
    found->second.graph = std::make_unique<Graph>(capture(body));
  } else {
    recent_.splice(recent_.begin(), recent_, found->second.place);
  }
  found->second.graph->launch(stream);
  return true;
}

double time_of(const Graph& graph, cudaStream_t stream, int repeats, int rounds) {
  const Event start(true), stop(true);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < rounds; ++i) {
    check(cudaEventRecord(start.get(), stream), "recording a time");
    graph.launch(stream);
    check(cudaEventRecord(stop.get(), stream), "recording a time");
    check(cudaEventSynchronize(stop.get()), "waiting for the device");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start.get(), stop.get()), "reading a time");
    best = std::min(best, 1e3 * static_cast<double>(ms) / repeats);
  }
  return best;
}

}  // namespace spark::engine::cuda
