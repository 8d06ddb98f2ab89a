#include <algorithm>
#include <array>
#include <limits>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>

#include "engine/kernels/cuda/cuda_backend.h"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/memory.h"
#include "engine/kernels/cuda/plan/tiles.h"
#include "engine/kernels/cuda/sm121/launch.h"
#include "engine/kernels/cuda/weights.h"

namespace spark::engine {
namespace cuda {
namespace {

constexpr size_t kStagingBytes = size_t{8} << 20;
constexpr size_t kMaxGraphs = 96;
constexpr int kMaxQuantisingRows = 16;  // rows that a product may quantise itself, once in every block
constexpr int64_t kIndexWorkspaceBytes = int64_t{256} << 20;

// Scratch memory by use. Kernels on one stream run in order, so a slot is reused by the next call of the same
// kind.
enum class Scratch : uint8_t {
  kMhcPartials,
  kExpertCount,
  kExpertItems,
  kExpertRow,
  kExpertWeight,
  kExpertDestination,
  kExpertCodes,
  kExpertScales,
  kExpertXScales,
  kExpertDone,
  kExpertOutputs,
  kExpertArrivals,
  kSharedGate,
  kSharedUp,
  kSharedCodes,
  kSharedScales,
  kSharedOut,
  kIndexScores,
  kIndexBlocks,
  kArgmax,
  kSelectBest,
  kSelectMasses,
  kSelectTotals,
  kDraftRows,
  kDraftProduct,
  kCount,
};

bool supported(const cudaDeviceProp& properties) {
  return (properties.major == 9 && properties.minor == 0) ||
         (properties.major == 12 && properties.minor == 1);
}

// One recorded step.
class Graph {
 public:
  explicit Graph(cudaGraph_t graph) {
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "instantiating a graph");
  }
  ~Graph() { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream), "launching a graph"); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

class Backend final : public CudaBackend {
 public:
  explicit Backend(const CudaOptions& options) : options_(options) {
    check(cudaSetDevice(options.device), "choosing the device");
    cudaDeviceProp properties = {};
    check(cudaGetDeviceProperties(&properties, options.device), "reading the device's properties");
    info_ = {.name = properties.name,
             .compute_major = properties.major,
             .compute_minor = properties.minor,
             .multiprocessors = properties.multiProcessorCount,
             .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
             .l2_bytes = properties.l2CacheSize,
             .shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin)};
    if (!supported(properties)) {
      throw Error(info_.name + " has compute capability " + std::to_string(properties.major) + "." +
                      std::to_string(properties.minor),
                  "CUDA backend", "this build has code for 9.0 (H100, H200) and 12.1 (GB10)");
    }
    limits_.multiprocessors = properties.multiProcessorCount;
    limits_.shared_bytes = properties.sharedMemPerBlockOptin;
    limits_.max_cluster = 8;
    limits_.max_attention_cluster = properties.major == 9 ? 16 : 8;
    limits_.block_scaled_mma = properties.major == 12;
    stream_ = std::make_unique<Stream>();
    mix_side_.stream = std::make_unique<Stream>();
    shared_side_.stream = std::make_unique<Stream>();
    arena_ = std::make_unique<Arena>();
    staging_ = std::make_unique<Staging>(kStagingBytes);
    store_ = std::make_unique<WeightStore>(*arena_, *staging_, *stream_, limits_, options.pack_rows_from);
  }

  ~Backend() override { cudaStreamSynchronize(stream_->get()); }

  std::string name() const override { return "cuda"; }
  const CudaDeviceInfo& device() const override { return info_; }
  int64_t allocated_bytes() const override { return arena_->reserved_bytes(); }

  // ---- memory ----

  void* allocate(size_t bytes, const std::string& purpose) override {
    return arena_->allocate(bytes, purpose);
  }

  void upload(void* to, const void* from_host, size_t bytes) override {
    join();
    staging_->upload(stream_->get(), to, from_host, bytes);
    chained_ = false;
  }

  void download(void* to_host, const void* from, size_t bytes) override {
    join();
    staging_->download(stream_->get(), to_host, from, bytes);
    chained_ = false;
  }

  void synchronise() override {
    join();
    stream_->wait();
    check(cudaGetLastError(), "on the device");
  }

  bool keeps_host(WeightFormat) const override { return false; }
  bool host_memory() const override { return false; }
  Weight place(const Weight& host) override { return store_->place(host); }
  ExpertBank place_experts(std::span<const ExpertWeights> host) override {
    return store_->place_experts(host);
  }
  Weight synthetic_weight(WeightFormat format, int64_t rows, int64_t cols, uint64_t seed) override {
    return store_->synthetic(format, rows, cols, seed);
  }
  ExpertBank synthetic_experts(int experts, int64_t hidden, int64_t width, uint64_t seed) override {
    return store_->synthetic_experts(experts, hidden, width, seed);
  }
  int64_t weight_bytes(const Weight& weight) const override { return WeightStore::prepared(weight).bytes; }

  void fill_random(void* to, int64_t bytes, uint64_t seed) override {
    join();
    launch_fill(main(), Fill::kBytes, to, bytes, seed, 0, 1);
    chained_ = false;
  }
  const uint8_t* synthetic_bytes(int64_t bytes, uint64_t seed) override {
    auto* memory =
        static_cast<uint8_t*>(arena_->allocate(static_cast<size_t>(round_up(bytes, 8)), "benchmark"));
    launch_fill(main(), Fill::kE4m3, memory, round_up(bytes, 8), seed, 0, 1);
    chained_ = false;
    return memory;
  }
  void* native_stream() override {
    join();
    return stream_->get();
  }

  // ---- recording ----

  void run_recorded(uint64_t key, const std::function<void()>& body) override {
    const auto found = graphs_.find(key);
    join();
    if (found != graphs_.end() && found->second.graph != nullptr) {
      recent_.splice(recent_.begin(), recent_, found->second.place);
      found->second.graph->launch(stream_->get());
      chained_ = false;
      return;
    }
    if (found == graphs_.end()) {
      // The first run is plain: scratch memory grows to its size, and shapes that occur once cost no graph.
      recent_.push_front(key);
      graphs_[key].place = recent_.begin();
      if (graphs_.size() > kMaxGraphs) {
        graphs_.erase(recent_.back());
        recent_.pop_back();
      }
      body();
      join();
      return;
    }
    found->second.graph = std::make_unique<Graph>(capture(body));
    found->second.graph->launch(stream_->get());
    chained_ = false;
  }

  double time_graph(const std::function<void()>& body, int repeats, int rounds) override {
    body();
    synchronise();
    const Graph graph(capture([&] {
      for (int i = 0; i < repeats; ++i) body();
    }));
    graph.launch(stream_->get());
    const Event start(true), stop(true);
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < rounds; ++i) {
      check(cudaEventRecord(start.get(), stream_->get()), "recording a time");
      graph.launch(stream_->get());
      check(cudaEventRecord(stop.get(), stream_->get()), "recording a time");
      check(cudaEventSynchronize(stop.get()), "waiting for the device");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, start.get(), stop.get()), "reading a time");
      best = std::min(best, 1e3 * static_cast<double>(ms) / repeats);
    }
    chained_ = false;
    return best;
  }

  // ---- linear ----

  void quantise(const QuantiseArgs& args) override {
    forget_collapsed(args.out.codes);
    flush();
    waiting_.quantise = args;
  }

  void linear(const LinearArgs& args) override {
    linear_on([this] { return main(); }, args);
  }

  void grouped_linear(const GroupedLinearArgs& args) override {
    const PreparedWeight& w = WeightStore::prepared(*args.weight);
    if (w.layout != Layout::kFp8 || w.rows % args.groups != 0) {
      throw Error("grouped projection of " + std::to_string(w.rows) + " rows in " +
                      std::to_string(args.groups) + " groups",
                  "CUDA backend", "the weight is FP8 and its rows are whole groups");
    }
    if (w.rows / args.groups % kTileRows != 0) {
      return launch_linear_plain(main(), w,
                                 {.out = w.rows,
                                  .cols = w.cols,
                                  .rows_per_group = w.rows / args.groups,
                                  .x = args.x,
                                  .x_stride = args.groups * w.cols,
                                  .rows = args.rows,
                                  .y = args.y,
                                  .y_stride = w.rows});
    }
    const LinearShape shape = {.rows = w.rows,
                               .cols = w.cols,
                               .activation_bytes = 2,
                               .rowwise = true,
                               .rows_per_group = w.rows / args.groups};
    StreamGemmParams p = params_of(w);
    p.x_stride = args.groups * w.cols;
    p.rows_per_group = static_cast<int>(shape.rows_per_group);
    p.groups = args.groups;
    p.y_stride = w.rows;
    run_rows(
        shape, p, args.rows, [this] { return main(); }, launch_stream_fp8_bf16, launch_direct_fp8_bf16,
        [&](StreamGemmParams& piece, int first) {
          piece.x = args.x + first * piece.x_stride;
          piece.y = args.y + first * w.rows;
        });
  }

  void rms_norm(const RmsNormArgs& args) override {
    forget_collapsed(args.y_q.codes);
    if (waiting_.norm && waiting_.norm->rows == args.rows && independent(*waiting_.norm, args)) {
      const RmsNormArgs first = *std::exchange(waiting_.norm, std::nullopt);
      launch_rms_norms(main(), first, args);
      return;
    }
    flush();
    waiting_.norm = args;
  }

  // ---- streams ----

  void embed(const EmbedArgs& args) override {
    join();
    launch_embed(main(), args, WeightStore::prepared(*args.table));
  }

  void mhc_mix(const MhcMixArgs& args) override {
    require_streams(args.streams);
    if (waiting_.expand && !waiting_.mix && waiting_.expand->h == args.h) {
      waiting_.mix = args;
      return;
    }
    launch_mix(args);
  }

  void mhc_collapse(const MhcCollapseArgs& args) override {
    require_four(args.streams);
    if (waiting_.expand && waiting_.expand->h == args.h && waiting_.expand->rows == args.rows &&
        (!waiting_.mix || waiting_.mix->pre != args.pre)) {
      const MhcExpandArgs expand = *std::exchange(waiting_.expand, std::nullopt);
      const std::optional<MhcMixArgs> mix = std::exchange(waiting_.mix, std::nullopt);
      launch_mhc_expand_collapse(main(), expand, args);
      remember_collapsed(args);
      if (mix) launch_mix(*mix);
      return;
    }
    flush();
    if (args.pre == pending_pre_) join(mix_side_);
    launch_mhc_collapse(main(), args);
    remember_collapsed(args);
  }

  void mhc_expand(const MhcExpandArgs& args) override {
    require_streams(args.streams);
    join();
    if (args.streams == 4) {
      waiting_.expand = args;
    } else {
      launch_mhc_expand(main(), args);
    }
  }

  void stream_mean(const StreamMeanArgs& args) override { launch_stream_mean(main(), args); }
  void gather_rows(const GatherRowsArgs& args) override { launch_gather_rows(main(), args); }
  void engram_dequantise(const EngramDequantiseArgs& args) override {
    launch_engram_dequantise(main(), args);
  }

  void engram_inject(const EngramInjectArgs& args) override {
    join();
    launch_engram_inject(main(), args);
  }

  // ---- attention ----

  void rope_angles(const RopeAnglesArgs& args) override { launch_rope_angles(main(), args); }
  void rope(const RopeArgs& args) override {
    flush();
    waiting_.rope = args;
  }
  void window_write(const WindowWriteArgs& args) override {
    if (waiting_.rope && waiting_.rope->x != args.kv) {
      const RopeArgs rope = *std::exchange(waiting_.rope, std::nullopt);
      launch_rope_and_window_write(main(), rope, args);
      return;
    }
    launch_window_write(main(), args);
  }
  void pool_pairs(const PoolPairsArgs& args) override {
    const Launch pool = main();
    const Launch store = main();
    launch_pool_pairs(pool, store, args);
  }
  void entry_write(const EntryWriteArgs& args) override { launch_entry_write(main(), args); }
  void sparse_attention(const SparseAttentionArgs& args) override { launch_sparse_attention(main(), args); }

  void index_query(const IndexQueryArgs& args) override { launch_index_query(main(), args); }

  void index_select(const IndexSelectArgs& args) override {
    const bool restricted = args.mode == CandidateMode::kRestrict;
    const bool produce = args.mode == CandidateMode::kProduce;
    if (args.scores != nullptr) {
      // All scores, for whoever looks at them; they also serve an unrestricted selection.
      launch_index_scores(main(), args,
                          {.row_end = args.step.rows, .scores = args.scores, .stride = args.max_entries},
                          false);
    }
    IndexWorkspace work;
    work.stride =
        std::max<int64_t>(1, restricted ? int64_t{args.max_blocks} * args.block_size : args.max_entries);
    work.block_stride = produce ? ceil_div(std::max(args.max_entries, 1), args.block_size) : 0;
    const int64_t fit = std::max<int64_t>(8, kIndexWorkspaceBytes / (2 * (work.stride + work.block_stride)));
    const int piece = static_cast<int>(std::min<int64_t>(fit, args.step.rows));
    work.scores = scratch<uint16_t>(Scratch::kIndexScores, piece * work.stride);
    work.block_best = scratch<uint16_t>(Scratch::kIndexBlocks, piece * work.block_stride);
    for (int first = 0; first < args.step.rows; first += piece) {
      work.row_begin = first;
      work.row_end = std::min(first + piece, args.step.rows);
      launch_index_scores(main(), args, work, restricted);
      launch_index_select(main(), args, work);
    }
  }

  // ---- experts ----

  void route(const RouteArgs& args) override {
    flush();
    waiting_.route = args;
  }

  // The launch of the shared expert's last product that adds the routed experts up, where there is one.
  std::optional<DirectLaunch> combine_plan(const ExpertsArgs& args) const {
    const PreparedWeight& w = WeightStore::prepared(args.shared->w2);
    if (w.layout != Layout::kFp8 || limits_.block_scaled_mma || args.step.rows > kDirectRows)
      return std::nullopt;
    const LinearShape shape = {.rows = w.rows, .cols = w.cols};
    return plan_direct(shape, split_linear(shape), limits_);
  }

  void combine_with_shared(const ExpertsArgs& args, const QuantisedRows& t, const ExpertWorkspace& work) {
    const PreparedWeight& w = WeightStore::prepared(args.shared->w2);
    const std::optional<DirectLaunch> plan = combine_plan(args);
    StreamGemmParams p = params_of(w);
    p.rows = args.step.rows;
    p.shard_blocks = split_linear({.rows = w.rows, .cols = w.cols}).shard_blocks;
    p.row_warps = plan->row_warps;
    p.warp_shards = plan->warp_shards;
    p.shard_chunks = plan->shard_chunks;
    p.x_codes = t.codes;
    p.x_scales = t.scales;
    p.y = args.y;
    p.y_stride = args.hidden;
    p.combine = {.outputs = work.outputs,
                 .item_done = work.item_done,
                 .sequence = args.step.sequence,
                 .top_k = args.top_k,
                 .early = options_.side_stream};  // it is joined, and the rows have settled
    launch_direct_combine(main(), *plan, p);
  }

  void experts(const ExpertsArgs& args) override {
    const PreparedExperts& bank = WeightStore::prepared(*args.bank);
    const int64_t rows = args.step.rows;
    uint16_t* gate = scratch<uint16_t>(Scratch::kSharedGate, rows * args.width);
    uint16_t* up = scratch<uint16_t>(Scratch::kSharedUp, rows * args.width);
    uint16_t* shared = scratch<uint16_t>(Scratch::kSharedOut, rows * args.hidden);
    const QuantisedRows t = {.codes = scratch<uint8_t>(Scratch::kSharedCodes, rows * args.width),
                             .scales = scratch<uint8_t>(Scratch::kSharedScales, rows * args.width / 32)};
    const int64_t most = int64_t{std::min(args.step.rows, kMaxLinearRows)} * args.top_k;
    const int64_t stride = expert_codes_stride(bank.width);
    ExpertWorkspace work;
    work.item_count = scratch<int32_t>(Scratch::kExpertCount, 1);
    work.items = scratch<ExpertItem>(Scratch::kExpertItems, most);
    work.item_row = scratch<int32_t>(Scratch::kExpertRow, most * kExpertRows);
    work.item_weight = scratch<float>(Scratch::kExpertWeight, most * kExpertRows);
    work.destination = scratch<int32_t>(Scratch::kExpertDestination, most);
    // Room for either form: plain codes, or blocks of codes and scales.
    work.codes = scratch<uint8_t>(Scratch::kExpertCodes, most * stride / 128 * kRowBlockBytes);
    work.item_done = scratch<uint32_t>(Scratch::kExpertDone, most);
    work.scales = scratch<uint8_t>(Scratch::kExpertScales, most * stride / 32);
    const bool stream = expert_stream_fits(limits_, args, bank);
    if (!stream) {
      work.x_scales =
          scratch<uint32_t>(Scratch::kExpertXScales, most / args.top_k * ceil_div(bank.hidden, 128));
    }
    work.outputs = scratch<uint16_t>(Scratch::kExpertOutputs, most * bank.hidden);
    work.arrivals = scratch<uint32_t>(Scratch::kExpertArrivals, ceil_div(bank.hidden, kDownChannels));

    // The router may run in the launch that makes the work list.
    std::optional<RouteArgs> route;
    if (!stream && waiting_.route && waiting_.route->ids == args.ids &&
        waiting_.route->weights == args.weights && waiting_.route->top_k == args.top_k &&
        args.step.rows <= kRoutedPlanRows) {
      route = std::exchange(waiting_.route, std::nullopt);
    }
    // The shared expert needs nothing but the rows: it starts beside the router when they are known to be as
    // the collapse left them.
    if (args.x_q.codes == collapsed_codes_) {
      fork_at(shared_side_, collapsed_);
    } else {
      fork(shared_side_);
    }
    const auto side = [this] { return beside(shared_side_); };
    linear_on(side,
              {.rows = args.step.rows,
               .x_q = args.x_q,
               .weight = &args.shared->w1,
               .y = gate,
               .y_stride = args.width},
              &args.shared->w3, up);
    launch_swiglu_quantise(side(), gate, up, args.step.rows, args.width, args.limit, t);
    // Few rows: the last product comes behind the routed experts and adds everything up.
    const bool joins = stream && combine_plan(args).has_value();
    if (joins) {
      launch_settle(side());
    } else {
      linear_on(side, {.rows = args.step.rows,
                       .x_q = t,
                       .weight = &args.shared->w2,
                       .y = shared,
                       .y_stride = args.hidden});
    }

    for (int first = 0; first < args.step.rows; first += kMaxLinearRows) {
      const int count = std::min(kMaxLinearRows, args.step.rows - first);
      if (!stream || expert_stream_needs_list(args, count))
        launch_expert_plan(main(), args, first, count, bank.experts, work, route ? &*route : nullptr);
      const uint16_t* shared_rows = shared + int64_t{first} * args.hidden;
      if (stream) {
        launch_expert_stream(main(), args, first, count, bank, work);
        join(shared_side_);
        if (joins) {
          combine_with_shared(args, t, work);
          continue;
        }
        launch_expert_combine(main(), args, first, count, work, shared_rows);
        continue;
      }
      const auto gate_up = limits_.block_scaled_mma ? sm121::launch_expert_gate_up : launch_expert_gate_up;
      const auto down = limits_.block_scaled_mma ? sm121::launch_expert_down : launch_expert_down;
      gate_up(main(), args, first, count, bank, work);
      join(shared_side_);
      down(main(), args, first, count, bank, work, shared_rows);
    }
  }

  // ---- selection ----

  void argmax(const float* logits, int32_t rows, int64_t columns, int32_t* index) override {
    launch_argmax(main(), logits, rows, columns, columns, index,
                  scratch<uint64_t>(Scratch::kArgmax, rows * 64));
  }

  void draft(const DraftArgs& args) override {
    const int rows = args.step.rows;
    uint16_t* m = scratch<uint16_t>(Scratch::kDraftRows, int64_t{rows} * args.rank);
    float* product = scratch<float>(Scratch::kDraftProduct, int64_t{rows} * args.vocab);
    uint64_t* best = scratch<uint64_t>(Scratch::kArgmax, int64_t{rows} * 64);
    const int places = args.block_rows > 0 ? std::min(args.block_rows, rows) : rows;
    const int first = std::max(args.place, 0);
    for (int place = first; place < (args.place < 0 ? places : first + 1); ++place) {
      launch_draft_gather(main(), args, place, WeightStore::prepared(*args.embed), m);
      linear({.rows = rows, .x = m, .weight = args.head, .y_f32 = product, .y_stride = args.vocab});
      const Launch pieces = main();
      const Launch finish = main();
      launch_draft_pick(pieces, finish, args, place, product, WeightStore::prepared(*args.confidence_proj), m,
                        best);
    }
  }

  void select(const SelectArgs& args) override {
    require_vocabulary(args.vocab);
    if (args.rows > 0) launch_select(main(), args, select_workspace(args.rows, args.vocab));
  }

  void verify_drafts(const VerifyArgs& args) override {
    require_vocabulary(args.vocab);
    const int64_t rows = int64_t{args.blocks} * (2 * args.max_drafts + 1);
    if (args.blocks > 0) launch_verify(main(), args, select_workspace(rows, args.vocab));
  }

 private:
  SelectWorkspace select_workspace(int64_t rows, int64_t vocab) {
    return {.best = scratch<uint64_t>(Scratch::kSelectBest, rows * kSelectPieces),
            .masses = scratch<uint64_t>(Scratch::kSelectMasses, rows * vocab),
            .totals = scratch<uint64_t>(Scratch::kSelectTotals, rows)};
  }
  static void require_vocabulary(int64_t vocab) {
    if (vocab >= 1 && vocab <= kMaxMassVocabulary) return;
    throw Error("selection among " + std::to_string(vocab) + " tokens", "CUDA backend",
                "masses of at most " + std::to_string(kMaxMassVocabulary) + " tokens add up within 64 bits");
  }
  static void require_streams(int streams) {
    if (streams >= 1 && streams <= 4) return;
    throw Error(std::to_string(streams) + " residual streams", "CUDA backend",
                "the kernels take one to four");
  }
  static void require_four(int streams) {
    if (streams == 4) return;
    throw Error("collapse of " + std::to_string(streams) + " residual streams", "CUDA backend",
                "the kernel takes four");
  }

  // Operations that wait for the next call, which may take them along in its own launch. At most one kind
  // waits (an expansion perhaps with the mix after it); whatever else is launched goes behind it.
  struct Waiting {
    std::optional<QuantiseArgs> quantise;
    std::optional<RmsNormArgs> norm;
    std::optional<RopeArgs> rope;
    std::optional<RouteArgs> route;
    std::optional<MhcExpandArgs> expand;
    std::optional<MhcMixArgs> mix;
  };

  void flush() {
    const Waiting waiting = std::exchange(waiting_, Waiting{});
    if (waiting.quantise) launch_quantise(main(), *waiting.quantise);
    if (waiting.norm) launch_rms_norm(main(), *waiting.norm);
    if (waiting.rope) launch_rope(main(), *waiting.rope);
    if (waiting.route) launch_route(main(), *waiting.route);
    if (waiting.expand) launch_mhc_expand(main(), *waiting.expand);
    if (waiting.mix) launch_mix(*waiting.mix);
  }

  static bool independent(const RmsNormArgs& first, const RmsNormArgs& second) {
    return second.x != first.y && (first.y == nullptr || second.y != first.y);
  }

  void launch_mix(const MhcMixArgs& args) {
    const int64_t columns = int64_t{args.streams} * args.hidden;
    float* partials =
        scratch<float>(Scratch::kMhcPartials, int64_t{args.rows} * kMixOutputs * mhc_mix_chunks(columns));
    const auto* fn = reinterpret_cast<const float*>(WeightStore::prepared(*args.fn).tiles);
    fork(mix_side_);
    const Launch first = beside(mix_side_);
    const Launch second = beside(mix_side_);
    launch_mhc_mix(first, second, args, fn, partials);
    pending_pre_ = args.pre;
  }

  // Notes the place in the main chain after which a collapse's rows exist.
  void remember_collapsed(const MhcCollapseArgs& args) {
    if (!options_.side_stream || args.x_q.codes == nullptr) return;
    check(cudaEventRecord(collapsed_.get(), stream_->get()), "recording an event");
    collapsed_codes_ = args.x_q.codes;
  }
  void forget_collapsed(const uint8_t* codes) {
    if (codes == collapsed_codes_) collapsed_codes_ = nullptr;
  }

  // The next launch on the main chain. It may overlap its predecessor unless that is a copy or a graph.
  Launch main() {
    flush();
    const Launch on = {
        .stream = stream_->get(), .dependent = options_.dependent_launch && chained_, .device = limits_};
    chained_ = true;
    return on;
  }

  // A stream beside the main one: the mHC coefficients run on one, the shared expert on another, because the
  // experts wait for the latter only.
  struct Side {
    std::unique_ptr<Stream> stream;
    Event forked;
    Event joined;
    bool busy = false;
    bool chained = false;
  };

  // The next launch beside the main chain; fork() comes first.
  Launch beside(Side& side) {
    if (!options_.side_stream) return main();
    flush();
    const Launch on = {.stream = side.stream->get(),
                       .dependent = options_.dependent_launch && side.chained,
                       .device = limits_};
    side.chained = true;
    return on;
  }

  // What is launched beside from here on sees everything launched so far.
  void fork(Side& side) {
    flush();
    if (!options_.side_stream) return;
    check(cudaEventRecord(side.forked.get(), stream_->get()), "recording an event");
    fork_at(side, side.forked);
  }
  // The same for a place in the main chain that was noted before.
  void fork_at(Side& side, const Event& place) {
    flush();
    if (!options_.side_stream) return;
    check(cudaStreamWaitEvent(side.stream->get(), place.get(), 0), "ordering streams");
    side.chained = true;  // behind what the main chain launched last
    side.busy = true;
  }

  // What is launched from here on sees everything launched beside.
  void join(Side& side) {
    flush();
    if (&side == &mix_side_) pending_pre_ = nullptr;
    if (!side.busy) return;
    check(cudaEventRecord(side.joined.get(), side.stream->get()), "recording an event");
    check(cudaStreamWaitEvent(stream_->get(), side.joined.get(), 0), "ordering streams");
    side.busy = false;
  }
  void join() {
    join(mix_side_);
    join(shared_side_);
  }

  cudaGraph_t capture(const std::function<void()>& body) {
    join();
    chained_ = false;
    collapsed_codes_ = nullptr;  // its event lies outside
    check(cudaStreamBeginCapture(stream_->get(), cudaStreamCaptureModeRelaxed), "recording a step");
    cudaGraph_t graph = nullptr;
    try {
      body();
      join();
    } catch (...) {
      cudaStreamEndCapture(stream_->get(), &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      waiting_ = {};
      collapsed_codes_ = nullptr;
      mix_side_.busy = shared_side_.busy = false;
      chained_ = false;
      throw;
    }
    check(cudaStreamEndCapture(stream_->get(), &graph), "recording a step");
    chained_ = false;
    collapsed_codes_ = nullptr;
    return graph;
  }

  template <class T>
  T* scratch(Scratch use, int64_t count) {
    Buffer& buffer = scratch_[static_cast<size_t>(use)];
    const size_t bytes = static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T);
    // Recorded graphs keep the old memory, so it stays.
    if (bytes > buffer.bytes) buffer = {arena_->allocate(bytes, "scratch memory"), bytes};
    return static_cast<T*>(buffer.memory);
  }

  static StreamGemmParams params_of(const PreparedWeight& w) {
    StreamGemmParams p;
    p.tiles = w.tiles;
    p.scales = w.scales;
    p.cols = static_cast<int>(w.cols);
    p.blocks = static_cast<int>(ceil_div(w.cols, kTileCols));
    p.row_tiles = static_cast<int>(padded_row_tiles(w.rows));
    p.tile_stride = static_cast<size_t>(prepared_bytes(w.layout, 32, w.cols) / 2);
    p.out = w.rows;
    p.x_stride = w.cols;
    p.exception_offsets = w.exception_offsets;
    p.exceptions = w.exceptions;
    p.unpack_scale = w.unpack_scale;
    return p;
  }

  // Cuts the rows of the step into launches and runs them; `aim` points a piece at its inputs and outputs.
  // `direct`: the same product for few rows, or null.
  using RunDirect = void (*)(const Launch&, const DirectLaunch&, const StreamGemmParams&);
  template <class Where, class Run, class Aim>
  void run_rows(const LinearShape& shape, const StreamGemmParams& params, int rows, const Where& where,
                const Run& run, RunDirect direct, const Aim& aim) {
    const LinearSplit split = split_linear(shape);
    if (direct != nullptr && rows <= kDirectRows) {
      if (const auto plan = plan_direct(shape, split, limits_)) {
        StreamGemmParams p = params;
        p.rows = rows;
        p.shard_blocks = split.shard_blocks;
        p.row_warps = plan->row_warps;
        p.warp_shards = plan->warp_shards;
        p.shard_chunks = plan->shard_chunks;
        aim(p, 0);
        direct(where(), *plan, p);
        return;
      }
    }
    for (int first = 0; first < rows;) {
      const LinearLaunch plan = plan_linear(shape, split, rows - first, limits_);
      StreamGemmParams p = params;
      p.rows = std::min(plan.rows_per_launch, rows - first);
      p.shard_blocks = split.shard_blocks;
      p.row_groups = plan.row_groups;
      p.row_warps = plan.row_warps;
      p.shard_warps = plan.shard_warps;
      p.cluster = plan.cluster;
      p.ring_offset = static_cast<uint32_t>(plan.ring_offset);
      p.reduce_offset = static_cast<uint32_t>(plan.reduce_offset);
      p.persistent = plan.persistent;
      aim(p, first);
      run(where(), plan, p);
      first += p.rows;
    }
  }

  // `second`: another weight for the same rows, whose product goes to second_y; in the same launch where both
  // are FP8 of one shape.
  template <class Where>
  void linear_on(const Where& where, const LinearArgs& args, const Weight* second = nullptr,
                 uint16_t* second_y = nullptr) {
    const PreparedWeight& w = WeightStore::prepared(*args.weight);
    const PreparedWeight* w2 = second == nullptr ? nullptr : &WeightStore::prepared(*second);
    if (w2 != nullptr && (w.layout != Layout::kFp8 || w2->layout != Layout::kFp8 || w2->rows != w.rows ||
                          w2->cols != w.cols || args.y == nullptr)) {
      linear_on(where, args);
      LinearArgs other = args;
      other.weight = second;
      other.y = second_y;
      return linear_on(where, other);
    }
    if (w.layout == Layout::kF32 || w.layout == Layout::kPlainBf16) {
      return launch_linear_plain(where(), w,
                                 {.out = w.rows,
                                  .cols = w.cols,
                                  .rows_per_group = w.rows,
                                  .x = args.x,
                                  .x_stride = w.cols,
                                  .rows = args.rows,
                                  .y = args.y,
                                  .y_f32 = args.y_f32,
                                  .y_stride = args.y_stride});
    }
    if (w.layout == Layout::kFp4) {
      return limits_.block_scaled_mma ? sm121::launch_linear_fp4(where(), args, w)
                                      : launch_linear_fp4(where(), args, w);
    }
    const bool codes = w.layout == Layout::kFp8;
    const LinearShape shape = {.rows = w.rows,
                               .cols = w.cols,
                               .activation_bytes = codes ? 1 : 2,
                               .weight_bytes = w.layout == Layout::kBf16 ? 2 : 1};
    const bool direct = codes && !limits_.block_scaled_mma && args.rows <= kDirectRows &&
                        plan_direct(shape, split_linear(shape), limits_).has_value();
    // The quantiser of these rows may run inside the streaming product.
    std::optional<QuantiseArgs> source;
    if (codes && !direct && waiting_.quantise && waiting_.quantise->out.codes == args.x_q.codes &&
        waiting_.quantise->rows == args.rows && waiting_.quantise->cols == w.cols &&
        args.rows <= kMaxQuantisingRows) {
      source = std::exchange(waiting_.quantise, std::nullopt);
    }
    StreamGemmParams params = params_of(w);
    params.y_stride = args.y_stride;
    if (w2 != nullptr) params.second_tiles = w2->tiles, params.second_scales = w2->scales;
    const auto aim = [&](StreamGemmParams& p, int first) {
      if (source) {
        p.x = source->x + first * w.cols;
        p.quantised_codes = args.x_q.codes + first * w.cols;
        p.quantised_scales = args.x_q.scales + first * (w.cols / 32);
      } else if (codes) {
        p.x_codes = args.x_q.codes + first * w.cols;
        p.x_scales = args.x_q.scales + first * (w.cols / 32);
      } else {
        p.x = args.x + first * w.cols;
      }
      if (args.y != nullptr) p.y = args.y + first * args.y_stride;
      if (second_y != nullptr) p.second_y = second_y + first * args.y_stride;
      if (args.y_f32 != nullptr) p.y_f32 = args.y_f32 + first * args.y_stride;
    };
    run_rows(shape, params, args.rows, where,
             codes && limits_.block_scaled_mma ? sm121::launch_stream_fp8
             : codes                           ? launch_stream_fp8
             : w.layout == Layout::kPacked     ? launch_stream_packed
                                               : launch_stream_bf16,
             limits_.block_scaled_mma    ? nullptr
             : codes                     ? launch_direct_fp8
             : w.layout == Layout::kBf16 ? launch_direct_bf16
                                         : nullptr,
             aim);
  }

  struct Buffer {
    void* memory = nullptr;
    size_t bytes = 0;
  };
  struct Recorded {
    std::unique_ptr<Graph> graph;
    std::list<uint64_t>::iterator place;
  };

  CudaOptions options_;
  CudaDeviceInfo info_;
  DeviceLimits limits_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<WeightStore> store_;
  std::array<Buffer, static_cast<size_t>(Scratch::kCount)> scratch_;
  std::unordered_map<uint64_t, Recorded> graphs_;
  std::list<uint64_t> recent_;
  Side mix_side_;
  Side shared_side_;
  Event collapsed_;
  const uint8_t* collapsed_codes_ = nullptr;  // the rows that collapsed_ stands for
  Waiting waiting_;
  bool chained_ = false;
  const float* pending_pre_ = nullptr;
};

}  // namespace
}  // namespace cuda

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  int usable = 0;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties = {};
    if (cudaGetDeviceProperties(&properties, i) == cudaSuccess && cuda::supported(properties)) ++usable;
  }
  return usable;
}

std::optional<uint64_t> cuda_free_memory() {
  cudaDeviceProp properties = {};
  size_t free = 0, total = 0;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.integrated != 0 ||
      cudaMemGetInfo(&free, &total) != cudaSuccess) {
    cudaGetLastError();
    return std::nullopt;
  }
  return free;
}

std::unique_ptr<CudaBackend> make_cuda_backend(const CudaOptions& options) {
  return std::make_unique<cuda::Backend>(options);
}

}  // namespace spark::engine
