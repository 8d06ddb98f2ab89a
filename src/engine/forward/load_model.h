// From a folder to a model that runs.
//
//   LoadOptions options{.folder = "/models/DeepSeek-V4.1-Flash", .backend = "cpu"};
//   std::unique_ptr<Decoder> model = load_model(options);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/cache/cache_pool.h"
#include "engine/forward/decoder.h"
#include "engine/forward/load_observer.h"
#include "engine/kernels/backend.h"

namespace spark::engine {

struct LoadOptions {
  std::string folder;           // config.json, tokenizer.json, shards
  std::string backend = "cpu";  // one of backend_names()
  int threads = 0;              // of the cpu backend; 0: one per core
  CacheLimits limits;
  TableReaderOptions engram = {};
  WeightReading weight_reading = WeightReading::kAuto;
  LoadObserver* observer = nullptr;
  bool exact_prefill = false;  // all layers for all rows of a prompt
  // With several ranks: steps of more rows spread their residual streams over the ranks. Below, one message
  // each is faster than two.
  int32_t spread_rows_above = 204;
  // How partial sums are added up, with one rank too: kFp64 gives every number of ranks the same results.
  CollectiveDtype collective_dtype = CollectiveDtype::kAuto;
  // Of the group that this is a rank of; outlives the model. Null: alone.
  Communicator* communicator = nullptr;
};

// What a backend does of `asked` (collective_dtype.h), by its name, before there is one.
CollectiveDtype resolved_collective_dtype(CollectiveDtype asked, const std::string& backend);

// The backends of this build.
std::vector<std::string> backend_names();

// Throws Error for a name that is not among them.
std::unique_ptr<Backend> make_backend(const std::string& name, int threads);

// Throws Error when the folder is no valid checkpoint (every fault of its tensors in one message), when
// limits are out of range, or when memory runs out.
std::unique_ptr<Decoder> load_model(const LoadOptions& options);

// The same with a backend of the caller's.
std::unique_ptr<Decoder> load_model(const LoadOptions& options, std::unique_ptr<Backend> backend);

}  // namespace spark::engine
