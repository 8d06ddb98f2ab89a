// Recorded steps: CUDA graphs by key, the least recently used go first.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>

namespace spark::engine::cuda {

class Graph {
 public:
  explicit Graph(cudaGraph_t graph);  // takes it
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const;

 private:
  cudaGraphExec_t executable_ = nullptr;
};

class Recorder {
 public:
  // Replays the graph of `key`; without one runs `body` the first time (scratch memory grows to its size, and
  // what occurs once costs no graph) and captures it the second. `capture` records a body. Whether a graph
  // was launched.
  bool run(uint64_t key, cudaStream_t stream, const std::function<void()>& body,
           const std::function<cudaGraph_t(const std::function<void()>&)>& capture);

 private:
  struct Recorded {
    std::unique_ptr<Graph> graph;
    std::list<uint64_t>::iterator place;
  };
  std::unordered_map<uint64_t, Recorded> graphs_;
  std::list<uint64_t> recent_;
};

// Mean time of one of `repeats` replays of a graph, in microseconds; the least over `rounds` such means.
double time_of(const Graph& graph, cudaStream_t stream, int repeats, int rounds);

}  // namespace spark::engine::cuda
