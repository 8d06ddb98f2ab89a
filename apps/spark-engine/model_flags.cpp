#include <algorithm>

#include "../flag_checks.h"
#include "flag_groups.h"

namespace spark::app {
namespace {

std::string join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

// Who asks for the GPU and does not get it is told why, not only what there is.
CLI::Validator known_backend() {
  return {[](const std::string& name) {
            const std::vector<std::string> known = engine::backend_names();
            if (std::find(known.begin(), known.end(), name) != known.end()) return std::string();
            const std::string has = "choose one of: " + join(known);
            if (name != "cuda") return "there is no backend \"" + name + "\"; " + has;
#ifdef SPARK_HAS_CUDA_BACKEND
            return "no GPU is visible to this process (nvidia-smi tells); without one, " + has;
#else
            return "this program was built without CUDA: build it where nvcc is (script/build cuda); here " +
                   has;
#endif
          },
          "", "backend"};
}

}  // namespace

void add_model_flags(CLI::App& app, EngineFlags& flags) {
  app.add_option("MODEL_DIR", flags.model.folder,
                 "Folder of the checkpoint: config.json, tokenizer.json, shards (required)");
  app.add_option("--served-model-name", flags.served_names,
                 "Names the API knows the model by; the first is in answers")
      ->allow_extra_args(false)  // one name each time, or MODEL_DIR after it would be taken for a name
      ->check(valid_utf8())
      ->default_str("the folder's name");
  app.add_option("--backend", flags.model.backend, "Where to compute: " + join(engine::backend_names()))
      ->capture_default_str()
      ->check(known_backend());
  app.add_option("--threads", flags.model.threads, "Threads of the cpu backend; 0: one per core")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  app.add_option("--max-model-len", flags.max_model_len, "Tokens of one sequence, prompt and answer")
      ->default_str("8192 or the model's end")
      ->check(CLI::Range(kLeastModelLen, 1 << 30));
  app.add_option("--max-num-seqs", flags.model.limits.max_sequences,
                 "Sequences computed at once; others wait")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--max-num-batched-tokens", flags.model.limits.max_step_rows,
                 "Tokens of one step, all sequences together")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 19));
  app.add_option(
         "--generation-config", flags.generation_config,
         "Defaults of requests: auto (generation_config.json of MODEL_DIR, if it has one), vllm (none), "
         "or the folder that has the file")
      ->capture_default_str();
  add_choice(app, "--weight-reads", flags.model.weight_reading,
             {{"auto", engine::WeightReading::kAuto},
              {"direct", engine::WeightReading::kDirect},
              {"map", engine::WeightReading::kMapped}},
             "How weights that the backend copies come from disk: direct (large reads past the page cache), "
             "map, or auto (direct from one GiB on)")
      ->default_str("auto");
  app.add_option("--engram-cache-mib", flags.engram_cache_mib,
                 "Host memory for rows of the Engram tables read lately, of all tables together")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  app.add_flag("--io-uring,!--no-io-uring", flags.model.engram.queue.use_io_uring,
               "Read Engram rows through io_uring where the kernel offers it, else with pread")
      ->default_str("on");
  app.add_flag(
         "--engram-page-cache", flags.engram_page_cache,
         "Keep what is read of the Engram tables in the page cache, too: for a machine whose memory holds "
         "much of them")
      ->default_str("off");
  app.add_flag("--exact-prefill", flags.model.exact_prefill,
               "Run every layer for every token of a prompt, not only the last window's: about half as fast")
      ->default_str("off");
  app.add_option("--max-queued", flags.max_queued, "Sequences that may wait; more are refused with 429")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
}

void settle_step_flags(const CLI::App& app, EngineFlags& flags) {
  int32_t& sequences = flags.model.limits.max_sequences;
  const int32_t tokens = flags.model.limits.max_step_rows;
  if (sequences <= tokens) return;
  if (app.count("--max-num-seqs") > 0) {
    throw CLI::ValidationError("--max-num-seqs", "is " + std::to_string(sequences) + ", above the " +
                                                     std::to_string(tokens) +
                                                     " tokens of a step (--max-num-batched-tokens)");
  }
  sequences = tokens;
}

}  // namespace spark::app
