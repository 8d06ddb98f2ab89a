#include "engine/forward/load_model.h"

#include <algorithm>

#include "common/error.h"
#ifndef SPARK_WITHOUT_CPU_BACKEND  // the GPU checks build where Highway is absent
#include "engine/kernels/cpu/cpu_backend.h"
#endif
#ifdef SPARK_HAS_CUDA_BACKEND
#include "engine/kernels/cuda/cuda_backend.h"
#endif
#include "engine/kernels/reference/reference_backend.h"
#include "model/config_file.h"
#include "text/engram_map.h"

namespace spark::engine {
namespace {

std::vector<int32_t> token_classes(const model::ModelConfig& config, const std::string& folder) {
  if (config.engram_layer_ids.empty()) return {};
  const std::string path = folder + "/tokenizer.json";
  const text::Tokenizer tokenizer = text::Tokenizer::from_file(path);
  text::EngramMap map = text::build_engram_map(tokenizer);
  if (map.class_count != config.engram_compressed_vocab_size) {
    throw Error("collapses to " + std::to_string(map.class_count) + " classes, config.json says " +
                    std::to_string(config.engram_compressed_vocab_size),
                path, "tokenizer.json and config.json must come from the same release");
  }
  // Ids of the model's vocabulary that the tokenizer does not know never occur in text; they share the pad's
  // class.
  const int32_t pad = map.classes.at(static_cast<size_t>(config.engram_pad_token_id));
  map.classes.resize(static_cast<size_t>(config.vocab_size), pad);
  return std::move(map.classes);
}

void check_limits(const CacheLimits& limits, const model::ModelConfig& config) {
  Faults faults;
  const auto at_least_one = [&](int32_t value, const char* name) {
    if (value < 1) faults.push_back({name, "is " + std::to_string(value), "choose 1 or more"});
  };
  at_least_one(limits.max_sequences, "max_sequences");
  at_least_one(limits.max_context, "max_context");
  at_least_one(limits.max_step_rows, "max_step_rows");
  if (limits.max_context > config.max_position_embeddings) {
    faults.push_back({"max_context",
                      "is " + std::to_string(limits.max_context) + ", the model ends at " +
                          std::to_string(config.max_position_embeddings) + " tokens",
                      "lower it"});
  }
  throw_if_any(faults, "the model's limits");
}

// Decoder adds what the backend copies.
WeightReads weight_reads(const LoadOptions& options, const model::ModelConfig& config) {
  constexpr uint64_t kWorthIt = uint64_t{1} << 30;
  WeightReads reads;
  reads.from_bytes = options.weight_reading == WeightReading::kAuto ? kWorthIt : 0;
  reads.is_wanted = options.weight_reading != WeightReading::kMapped;
  reads.stream.queue.use_io_uring = options.engram.queue.use_io_uring;
  if (options.observer == nullptr) return reads;
  const int64_t ranks = options.communicator == nullptr ? 1 : options.communicator->ranks();
  int64_t total = 0;
  for (const model::ComponentBytes& part :
       model::rank_bytes(model::tensor_catalogue(config), model::split_for(config, ranks))) {
    if (part.component == model::Component::kEngramTable || part.component == model::Component::kVision)
      continue;
    total += part.split + part.replicated;
  }
  reads.on_loaded = [observer = options.observer, total](int64_t loaded) {
    observer->on_weights(static_cast<uint64_t>(std::min(loaded, total)), static_cast<uint64_t>(total));
  };
  return reads;
}

}  // namespace

CollectiveDtype resolved_collective_dtype(CollectiveDtype asked, const std::string& backend) {
  return resolve(asked, backend == "cpu" || backend == "reference");
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
#ifdef SPARK_HAS_CUDA_BACKEND
  if (cuda_device_count() > 0) names.push_back("cuda");
#endif
#ifndef SPARK_WITHOUT_CPU_BACKEND
  names.push_back("cpu");
#endif
  names.push_back("reference");
  return names;
}

std::unique_ptr<Backend> make_backend(const std::string& name, int threads) {
#ifndef SPARK_WITHOUT_CPU_BACKEND
  if (name == "cpu") return make_cpu_backend(threads);
#endif
  (void)threads;
#ifdef SPARK_HAS_CUDA_BACKEND
  if (name == "cuda" && cuda_device_count() > 0) return make_cuda_backend({});
#endif
  if (name == "reference") return make_reference_backend();
  std::string known;
  for (const std::string& each : backend_names()) known += (known.empty() ? "" : ", ") + each;
  throw Error("there is no backend \"" + name + "\"", "--backend", "choose one of: " + known);
}

std::unique_ptr<Decoder> load_model(const LoadOptions& options) {
  return load_model(options, make_backend(options.backend, options.threads));
}

std::unique_ptr<Decoder> load_model(const LoadOptions& options, std::unique_ptr<Backend> backend) {
  const auto phase = [&](const char* name) {
    if (options.observer != nullptr) options.observer->on_phase(name);
  };
  phase("reading the checkpoint's headers");
  const model::ModelConfig config = model::load_model_config(options.folder + "/config.json");
  check_limits(options.limits, config);
  auto checkpoint = std::make_unique<Checkpoint>(options.folder);
  phase("mapping tokens to Engram classes");
  std::vector<int32_t> classes = token_classes(config, options.folder);
  phase("loading weights, making room for caches");
  static SoloCommunicator solo;
  auto model = std::make_unique<Decoder>(
      std::move(backend), std::move(checkpoint), config, std::move(classes), options.limits,
      options.communicator == nullptr ? solo : *options.communicator, options.engram,
      weight_reads(options, config), options.collective_dtype);
  model->spread_rows_above(options.spread_rows_above);
  if (options.exact_prefill) model->use_exact_prefill();
  return model;
}

}  // namespace spark::engine
