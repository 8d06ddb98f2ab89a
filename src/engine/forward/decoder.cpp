#include "engine/forward/decoder.h"

#include <algorithm>
#include <bit>
#include <exception>

#include "common/error.h"
#include "engine/collective/together.h"
#include "engine/forward/rope_table.h"
#include "model/tensors.h"

namespace spark::engine {
namespace {

// Rows of logits computed and fetched at a time: a prompt may want all of its rows, and 129,280 FP32 values
// each add up.
constexpr int32_t kLogitSlice = 64;
// Entry bounds grow in powers of two from here, so that few distinct steps are recorded.
constexpr int32_t kShortestBound = 256;

// Rows of one sequence within a step.
struct Run {
  int32_t sequence = 0;
  int32_t position = 0;  // of its first row
  size_t first = 0;
  int32_t rows = 0;
  int32_t encoder_only = 0;  // of them, the first
};

std::vector<Run> runs_of(std::span<const StepRow> rows) {
  std::vector<Run> runs;
  for (size_t t = 0; t < rows.size(); ++t) {
    if (t == 0 || rows[t].sequence != rows[t - 1].sequence) {
      runs.push_back({.sequence = rows[t].sequence, .position = rows[t].position, .first = t});
    }
    SPARK_CHECK(rows[t].position == runs.back().position + runs.back().rows);
    ++runs.back().rows;
    if (!rows[t].encoder_only) continue;
    ++runs.back().encoder_only;
    SPARK_CHECK(runs.back().encoder_only == runs.back().rows && !rows[t].wants_logits);
  }
  return runs;
}

std::unique_ptr<Checkpoint> checked(std::unique_ptr<Checkpoint> checkpoint,
                                    const model::ModelConfig& config) {
  std::vector<TensorSpec> expected;
  for (const model::TensorEntry& entry : model::tensor_catalogue(config)) {
    if (!entry.required && !checkpoint->contains(entry.name)) continue;
    expected.push_back({.name = entry.name, .dtype = entry.dtype, .shape = entry.shape});
  }
  checkpoint->check_against(expected);
  if (config.gate_temp != 1.0) {
    throw Error("gate_temp must be 1", checkpoint->folder() + "/config.json",
                "this engine does not scale router logits");
  }
  return checkpoint;
}

const float* upload_frequencies(Backend& backend, const model::ModelConfig& config, bool compressed) {
  const std::vector<float> freq = rope_frequencies(config, compressed);
  float* device = allocate_array<float>(backend, static_cast<int64_t>(freq.size()));
  backend.upload(device, freq.data(), freq.size() * sizeof(float));
  return device;
}

// Those of the wanted reads that the backend copies from.
WeightReads reads_of(const Backend& backend, WeightReads reads) {
  reads.is_copied = [&backend](const model::TensorEntry& tensor) {
    if (tensor.shape.size() != 2) return true;  // vectors always are
    switch (tensor.dtype) {
      case model::Dtype::kBf16:
        return !backend.keeps_host(WeightFormat::kBf16);
      case model::Dtype::kF32:
        return !backend.keeps_host(WeightFormat::kF32);
      case model::Dtype::kI8:
        return !backend.keeps_host(WeightFormat::kFp4);
      default:  // FP8 and the scales
        return !backend.keeps_host(WeightFormat::kFp8);
    }
  };
  return reads;
}

}  // namespace

Decoder::Decoder(std::unique_ptr<Backend> backend, std::unique_ptr<Checkpoint> checkpoint,
                 const model::ModelConfig& config, std::vector<int32_t> token_classes,
                 const CacheLimits& limits, Communicator& communicator, const TableReaderOptions& engram,
                 const WeightReads& reads, CollectiveDtype sums)
    : backend_(std::move(backend)),
      sums_(resolve(sums, backend_->sums_in_double())),
      communicator_(communicator, *backend_),
      checkpoint_(checked(std::move(checkpoint), config)),
      config_(config),
      plan_(model::make_layer_plan(config)),
      split_(model::split_for(config, communicator_.ranks())),
      limits_(limits),
      loader_(*backend_, WeightShards(*checkpoint_, model::tensor_catalogue(config_), split_,
                                      communicator_.rank(), reads_of(*backend_, reads))),
      weights_(load_decoder_weights(loader_, config_, plan_)),
      cache_(*backend_, cache_shape(config_, limits)),
      engram_(*backend_, *checkpoint_, config_, std::move(token_classes), limits.max_sequences,
              limits.max_step_rows, engram),
      arrays_(*backend_, limits.max_step_rows),
      decoder_arrays_(*backend_, limits.max_step_rows),
      runner_(*backend_, communicator_, config_, split_,
              allocate_block_scratch(*backend_, config_, split_, limits.max_step_rows, sums_)),
      index_(allocate_index_scratch(*backend_, config_, limits.max_step_rows)),
      plain_freq_(upload_frequencies(*backend_, config_, false)),
      compressed_freq_(upload_frequencies(*backend_, config_, true)) {
  const int64_t rows = limits.max_step_rows;
  const int64_t slice = std::min(limits.max_step_rows, kLogitSlice);
  if (engram_.tables() > 0) engram_scratch_ = allocate_engram_scratch(*backend_, config_, split_, rows);
  for (float** angles : {&angles_.plain, &angles_.compressed, &angles_.pair}) {
    *angles = allocate_array<float>(*backend_, rows * config_.qk_rope_head_dim);
  }
  aux_ = allocate_array<uint16_t>(*backend_, rows * config_.main_proj_input());
  logit_rows_ = allocate_array<int32_t>(*backend_, rows);
  logit_hidden_ = allocate_array<uint16_t>(*backend_, slice * config_.hidden_size);
  part_logits_ = allocate_array<float>(*backend_, slice * split_.vocabulary, "logits");
  slice_logits_ = part_logits_;
  if (split_.ranks > 1 && communicator_.rank() == 0) {
    slice_logits_ = allocate_array<float>(*backend_, slice * config_.vocab_size, "logits");
  }
  if (plan_.first_decoder_layer >= 0) {
    decoder_window_ = static_cast<int32_t>(config_.sliding_window);
    kept_rows_ = allocate_array<int32_t>(*backend_, rows + kKeptSlice);
    kept_h_ = allocate_array<uint16_t>(*backend_, kKeptSlice * config_.stream_width());
    kept_pre_ = allocate_array<uint16_t>(*backend_, kKeptSlice * config_.hc_mult * 2);
  }
  if (config_.num_nextn_predict_layers > 0) {
    drafter_ = std::make_unique<Drafter>(*backend_, communicator_, config_, split_, loader_, weights_, cache_,
                                         plain_freq_, limits, sums_);
  }
  loader_.finish();
}

void Decoder::open_sequence(int32_t sequence) {
  cache_.open(sequence);
  engram_.truncate(sequence, 0);
}

void Decoder::close_sequence(int32_t sequence) {
  cache_.close(sequence);
  engram_.truncate(sequence, 0);
}

// A prefix may reach to the last token but one. Where rows of prompts skip the decoder it must leave the rows
// that do not: what the decoder and the drafter see of a prompt begins there, cached or not.
int32_t Decoder::start_sequence(int32_t sequence, const SequenceStart& start) {
  SPARK_CHECK(!start.tokens.empty());
  const std::vector<int64_t> contents(start.tokens.begin(), start.tokens.end());
  int32_t most = static_cast<int32_t>(contents.size()) - 1;
  if (decoder_window() > 0) most = std::min(most, start.prompt_tokens - decoder_window());
  const int32_t cached = cache_.open(sequence, {.contents = contents,
                                                .most = std::max(0, most),
                                                .encoder_only = decoder_window() > 0,
                                                .salt = start.cache_salt});
  engram_.truncate(sequence, 0);
  for (const int32_t token : start.tokens.first(static_cast<size_t>(cached))) engram_.append(sequence, token);
  return cached;
}

bool Decoder::has_room(std::span<const SequenceLength> lengths) const {
  std::vector<int32_t> sequences, tokens;
  for (const SequenceLength& wanted : lengths) {
    sequences.push_back(wanted.sequence);
    tokens.push_back(wanted.tokens);
  }
  return cache_.has_room(sequences, tokens);
}

CacheOccupancy Decoder::cache_occupancy() const {
  const CacheGroupUsage main = cache_.usage().of(CacheGroup::kMain);
  return {.blocks = main.blocks, .held = main.in_use, .cached = main.idle};
}

int32_t Decoder::max_drafts() const {
  return drafter_ == nullptr ? 0 : drafter_->block_size();
}

Drafts Decoder::draft(std::span<const DraftRequest> requests) {
  SPARK_CHECK(drafter_ != nullptr);
  return drafter_->draft(requests);
}

void Decoder::set_observer(Observer* observer) {
  observer_ = observer;
  spread_rows_above(spread_above_);  // an observer sees whole arrays
  if (observer == nullptr || observed_gates_ != nullptr) return;
  observed_gates_ = allocate_array<float>(*backend_, limits_.max_step_rows * config_.hc_mult);
  observed_scores_ =
      allocate_array<uint16_t>(*backend_, static_cast<int64_t>(limits_.max_step_rows) * limits_.max_context);
}

void Decoder::check_rows(std::span<const StepRow> rows, const InjectedRows& injected) const {
  SPARK_CHECK(rows.size() <= static_cast<size_t>(limits_.max_step_rows));
  SPARK_CHECK(injected.row.empty() || injected.row.size() == rows.size());
  std::vector<uint8_t> seen(static_cast<size_t>(limits_.max_sequences), 0);
  for (const Run& run : runs_of(rows)) {
    SPARK_CHECK(run.sequence >= 0 && run.sequence < limits_.max_sequences && cache_.is_open(run.sequence));
    SPARK_CHECK(seen[static_cast<size_t>(run.sequence)]++ == 0);
  }
  for (const StepRow& row : rows) {
    SPARK_CHECK(row.token >= 0 && row.token < vocab_size());
    SPARK_CHECK(!row.encoder_only || plan_.first_decoder_layer >= 0);
  }
}

void Decoder::accept_rows(std::span<const StepRow> rows, const InjectedRows& injected) {
  std::vector<int64_t> contents;
  for (const Run& run : runs_of(rows)) {
    contents.clear();
    // What an image put into its rows has no name in the prefix cache.
    if (injected.row.empty()) {
      for (const StepRow& row : rows.subspan(run.first, static_cast<size_t>(run.rows))) {
        contents.push_back(row.token);
      }
    }
    cache_.append(run.sequence, run.position, run.rows, run.encoder_only, contents);
    engram_.truncate(run.sequence, run.position);
    for (size_t t = run.first; t < run.first + static_cast<size_t>(run.rows); ++t) {
      if (!injected.row.empty() && injected.row[t] >= 0) {
        engram_.append_dead(run.sequence);
      } else {
        engram_.append(run.sequence, rows[t].token);
      }
    }
  }
}

// After a failure no sequence may claim rows that never ran: those that were accepted end before their first.
void Decoder::roll_back(std::span<const StepRow> rows) {
  for (const Run& run : runs_of(rows)) {
    if (cache_.length(run.sequence) != run.position + run.rows) continue;
    cache_.append(run.sequence, run.position, 0);
    engram_.truncate(run.sequence, run.position);
  }
}

void Decoder::upload_step(std::span<const StepRow> rows, const InjectedRows& injected) {
  std::vector<EngramRow> engram_rows;
  for (const StepRow& row : rows) engram_rows.push_back({.sequence = row.sequence, .position = row.position});
  engram_.begin_fetch(engram_rows);
  arrays_.clear();
  decoder_arrays_.clear();
  wanted_rows_.clear();
  std::vector<int32_t> kept;
  int32_t longest = 0;
  for (size_t t = 0; t < rows.size(); ++t) {
    const int32_t override_row = injected.row.empty() ? -1 : injected.row[t];
    const RecordRange& records = cache_.records(rows[t].sequence);
    StepArrayRow row{.token = rows[t].token,
                     .position = rows[t].position,
                     .sequence = rows[t].sequence,
                     .window_start = records.encoder_begin,
                     .is_image = override_row >= 0,
                     .override_row = override_row};
    arrays_.add(row);
    if (!rows[t].encoder_only) {
      if (rows[t].wants_logits) wanted_rows_.push_back(static_cast<int32_t>(kept.size()));
      kept.push_back(static_cast<int32_t>(t));
      row.window_start = records.decoder_begin;
      decoder_arrays_.add(row);
    }
    longest = std::max(longest, rows[t].position + 1);
  }
  const uint32_t bound = std::bit_ceil(static_cast<uint32_t>(std::max(longest, kShortestBound)));
  longest_ =
      std::max(longest, static_cast<int32_t>(std::min(bound, static_cast<uint32_t>(limits_.max_context))));
  all_rows_ = arrays_.upload();
  upload_decoder_rows(rows, std::move(kept));
  cache_.upload_tables();
  backend_->upload(logit_rows_, wanted_rows_.data(), wanted_rows_.size() * sizeof(int32_t));
  has_injected_ = !injected.embeddings.empty();
  if (has_injected_) {
    SPARK_CHECK(injected.embeddings.size() <=
                static_cast<size_t>(limits_.max_step_rows) * static_cast<size_t>(config_.hidden_size));
    if (injected_ == nullptr) {
      injected_ = allocate_array<uint16_t>(*backend_, limits_.max_step_rows * config_.hidden_size);
    }
    if (communicator_.rank() == 0) {
      backend_->upload(injected_, injected.embeddings.data(), injected.embeddings.size_bytes());
    }  // else zeros: the ranks' rows are added up
  }
  engram_.finish_fetch();
}

// The rows that run the decoder's layers need arrays of their own when they are not all rows, or when one
// sees less of its window there.
void Decoder::upload_decoder_rows(std::span<const StepRow> rows, std::vector<int32_t> kept) {
  skips_decoder_ = kept.size() < rows.size();
  for (const StepRow& row : rows) {
    const RecordRange& records = cache_.records(row.sequence);
    const int32_t oldest_seen = row.position - narrow(config_.sliding_window) + 1;
    if (records.decoder_begin > std::max(records.encoder_begin, oldest_seen)) skips_decoder_ = true;
  }
  if (!skips_decoder_) return;
  decoder_rows_ = decoder_arrays_.upload();
  kept.resize(rows.size(), 0);
  for (int32_t i = 0; i < kKeptSlice; ++i) kept.push_back(i);
  backend_->upload(kept_rows_, kept.data(), kept.size() * sizeof(int32_t));
}

uint64_t Decoder::recording_key() const {
  const uint64_t decoder_rows = skips_decoder_ ? static_cast<uint64_t>(decoder_rows_.rows) + 1 : 0;
  return static_cast<uint64_t>(all_rows_.rows) | static_cast<uint64_t>(longest_) << 20 | decoder_rows << 41 |
         (has_injected_ ? uint64_t{1} << 62 : 0);
}

// Takes the rows in. What can fail on one rank alone, such as a read of a table, fails here and on all ranks.
void Decoder::agree(std::span<const StepRow> rows, const InjectedRows& injected) {
  std::exception_ptr failure;
  std::string what;
  try {
    accept_rows(rows, injected);
    upload_step(rows, injected);
  } catch (const std::exception& error) {
    failure = std::current_exception();
    what = error.what();
    if (what.empty()) what = "unknown failure";
  }
  const std::string said = communicator_.meet(what);
  if (said.empty()) return;
  roll_back(rows);
  if (failure != nullptr) std::rethrow_exception(failure);
  throw Error(said);
}

std::span<const float> Decoder::run(std::span<const StepRow> rows, const InjectedRows& injected) {
  logits_.clear();
  if (rows.empty()) return logits_;
  check_rows(rows, injected);
  agree(rows, injected);
  together(communicator_, [&] {
    if (observer_ == nullptr && communicator_.recordable()) {
      backend_->run_recorded(recording_key(), [this] { forward(); });
    } else {
      forward();
    }
    download_logits();
  });
  for (const Run& run : runs_of(rows)) cache_.commit(run.sequence);
  return logits_;
}

void Decoder::download_logits() {
  const size_t vocab = static_cast<size_t>(config_.vocab_size);
  if (communicator_.rank() == 0) logits_.resize(wanted_rows_.size() * vocab);
  const int32_t wanted = static_cast<int32_t>(wanted_rows_.size());
  for (int32_t begin = 0; begin < wanted; begin += kLogitSlice) {
    const int32_t count = std::min(kLogitSlice, wanted - begin);
    backend_->gather_rows({.rows = count,
                           .cols = static_cast<int32_t>(config_.hidden_size),
                           .in = runner_.scratch().x,
                           .row = logit_rows_ + begin,
                           .out = logit_hidden_});
    backend_->linear({.rows = count,
                      .x = logit_hidden_,
                      .weight = &weights_.head,
                      .y_f32 = part_logits_,
                      .y_stride = split_.vocabulary});
    if (split_.ranks > 1) {
      communicator_.gather_columns({.part = part_logits_,
                                    .rows = count,
                                    .part_cols = narrow(split_.vocabulary),
                                    .all_cols = narrow(config_.vocab_size),
                                    .element_bytes = sizeof(float),
                                    .all = slice_logits_,
                                    .first_rank_only = true});
    }
    if (communicator_.rank() != 0) continue;
    backend_->download(logits_.data() + static_cast<size_t>(begin) * vocab, slice_logits_,
                       static_cast<size_t>(count) * vocab * sizeof(float));
  }
}

}  // namespace spark::engine
