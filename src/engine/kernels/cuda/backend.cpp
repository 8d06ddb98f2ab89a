#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <utility>

#include "engine/kernels/cuda/cuda_backend.h"
#include "engine/kernels/cuda/devices.h"
#include "engine/kernels/cuda/index_cluster.h"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/launch_chain.h"
#include "engine/kernels/cuda/memory.h"
#include "engine/kernels/cuda/plan/tiles.h"
#include "engine/kernels/cuda/products.h"
#include "engine/kernels/cuda/recorder.h"
#include "engine/kernels/cuda/sm121/launch.h"
#include "engine/kernels/cuda/weights.h"

namespace spark::engine {
namespace cuda {
namespace {

constexpr size_t kStagingBytes = size_t{8} << 20;
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

class Backend final : public CudaBackend {
 public:
  explicit Backend(const CudaOptions& options) : options_(options) {
    choose_device(options.device, info_, limits_);
    chain_ = std::make_unique<LaunchChain>(options, limits_);
    arena_ = std::make_unique<Arena>();
    staging_ = std::make_unique<Staging>(kStagingBytes);
    store_ =
        std::make_unique<WeightStore>(*arena_, *staging_, chain_->stream(), limits_, options.pack_rows_from);
  }

  ~Backend() override { cudaStreamSynchronize(stream()); }

  std::string name() const override { return "cuda"; }
  const CudaDeviceInfo& device() const override { return info_; }
  int64_t allocated_bytes() const override { return arena_->reserved_bytes(); }

  // ---- memory ----

  void* allocate(size_t bytes, const std::string& purpose) override {
    return arena_->allocate(bytes, purpose);
  }

  void upload(void* to, const void* from_host, size_t bytes) override {
    join();
    staging_->upload(stream(), to, from_host, bytes);
    chain_->interrupt();
  }

  void download(void* to_host, const void* from, size_t bytes) override {
    join();
    staging_->download(stream(), to_host, from, bytes);
    chain_->interrupt();
  }

  void synchronise() override {
    join();
    chain_->stream().wait();
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
    chain_->interrupt();
  }
  const uint8_t* synthetic_bytes(int64_t bytes, uint64_t seed) override {
    auto* memory =
        static_cast<uint8_t*>(arena_->allocate(static_cast<size_t>(round_up(bytes, 8)), "benchmark"));
    launch_fill(main(), Fill::kE4m3, memory, round_up(bytes, 8), seed, 0, 1);
    chain_->interrupt();
    return memory;
  }
  void* native_stream() override {
    join();
    return stream();
  }

  // ---- recording ----

  void run_recorded(uint64_t key, const std::function<void()>& body) override {
    join();
    if (recorder_.run(key, stream(), body, [this](const std::function<void()>& b) { return capture(b); })) {
      chain_->interrupt();
    }
    join();
  }

  double time_graph(const std::function<void()>& body, int repeats, int rounds) override {
    body();
    synchronise();
    const Graph graph(capture([&] {
      for (int i = 0; i < repeats; ++i) body();
    }));
    graph.launch(stream());
    const double best = time_of(graph, stream(), repeats, rounds);
    chain_->interrupt();
    return best;
  }

  // ---- linear ----

  void quantise(const QuantiseArgs& args) override {
    forget_collapsed(args.out.codes);
    flush();
    waiting_.quantise = args;
  }

  void linear(const LinearArgs& args) override {
    if (waiting_.norm && !waiting_.product && normalises_inside(limits_, args, *waiting_.norm)) {
      waiting_.product = args;
      return;
    }
    if (settles(args)) launch_late_mix();
    LinearExtras extras;
    std::optional<QuantiseArgs> quantise;
    if (waiting_.quantise && quantises_inside(limits_, args, *waiting_.quantise)) {
      quantise = std::exchange(waiting_.quantise, std::nullopt);
      extras.quantise = &*quantise;
    }
    run_linear(
        limits_, [this] { return main(); }, args, extras);
    if (settles(args)) chain_->settles();
  }

  void grouped_linear(const GroupedLinearArgs& args) override {
    run_grouped_linear(
        limits_, [this] { return main(); }, args);
    launch_late_mix();
  }

  void rms_norm(const RmsNormArgs& args) override {
    forget_collapsed(args.y_q.codes);
    if (waiting_.norm && !waiting_.second_norm && !waiting_.product && waiting_.norm->rows == args.rows &&
        independent(*waiting_.norm, args)) {
      waiting_.second_norm = args;
      return;
    }
    flush();
    waiting_.norm = args;
  }

  // ---- streams ----

  void embed(const EmbedArgs& args) override {
    join();
    launch_embed(main(), args, WeightStore::prepared(*args.table));
    written(args.h);
    written(args.pre);
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
      const Launch on = main();
      launch_mhc_expand_collapse(on, expand, args, settled_before(args.h));
      last_mhc_ = chain_->last();
      written(args.h);
      remember_collapsed(args);
      if (mix) late_mix_ = mix;
      if (!starts_early(args.rows)) launch_late_mix();
      return;
    }
    flush();
    if (args.pre == pending_pre_ || late_mix_) join(mix_side_);
    launch_mhc_collapse(main(), args);
    last_mhc_ = chain_->last();
    remember_collapsed(args);
  }

  void mhc_expand(const MhcExpandArgs& args) override {
    require_streams(args.streams);
    join();
    if (args.streams == 4 && expands_and_collapses(args.hidden)) {
      waiting_.expand = args;
    } else {
      launch_mhc_expand(main(), args);
      last_mhc_ = chain_->last();
      written(args.h);
    }
  }

  void stream_mean(const StreamMeanArgs& args) override { launch_stream_mean(main(), args); }
  void gather_rows(const GatherRowsArgs& args) override {
    launch_late_mix();
    launch_gather_rows(main(), args);
    written(args.out);
  }
  void engram_dequantise(const EngramDequantiseArgs& args) override {
    launch_engram_dequantise(main(), args);
  }

  void engram_inject(const EngramInjectArgs& args) override {
    join();
    launch_engram_inject(main(), args);
    written(args.h);
  }

  // ---- attention ----

  void rope_angles(const RopeAnglesArgs& args) override { launch_rope_angles(main(), args); }
  void rope(const RopeArgs& args) override {
    const bool of_product = waiting_.product && !waiting_.rope && !args.inverse &&
                            waiting_.product->y == args.x && waiting_.product->rows == args.rows &&
                            waiting_.product->y_stride == int64_t{args.heads} * args.width;
    if (!of_product) flush();
    waiting_.rope = args;
  }
  void window_write(const WindowWriteArgs& args) override {
    if (waiting_.product && waiting_.second_norm && waiting_.second_norm->y == args.kv &&
        waiting_.second_norm->cols == args.width && waiting_.product->rows == args.step.rows) {
      launch_product(std::exchange(waiting_, Waiting{}), &args);
    } else if (waiting_.rope && !waiting_.product && waiting_.rope->x != args.kv) {
      const RopeArgs rope = *std::exchange(waiting_.rope, std::nullopt);
      launch_rope_and_window_write(main(), rope, args);
    } else {
      launch_window_write(main(), args);
    }
    if (args.records == nullptr) written(args.cache.base);
  }
  void pool_pairs(const PoolPairsArgs& args) override {
    const Launch pool = main();
    const Launch store = main();
    launch_pool_pairs(pool, store, args);
  }
  void entry_write(const EntryWriteArgs& args) override {
    launch_entry_write(main(), args);
    written(args.main_cache.base);
  }
  void sparse_attention(const SparseAttentionArgs& args) override {
    const Launch on = main();
    const bool window = settled_before(args.window_cache.base);
    launch_sparse_attention(
        on, args,
        {.window = window || args.window_end == nullptr,
         .all_window = window,
         .selected = settled_before(args.selected) && settled_before(args.main_cache.base)});
    chain_->settles();
  }

  void index_query(const IndexQueryArgs& args) override { launch_index_query(main(), args); }

  void index_select(const IndexSelectArgs& args) override {
    if (index_cluster_fits(limits_, args)) {
      launch_index_cluster(main(), args);
      written(args.selected);
      return;
    }
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
    written(args.selected);
  }

  // ---- experts ----

  void route(const RouteArgs& args) override {
    launch_late_mix();
    flush();
    waiting_.route = args;
  }

  void experts(const ExpertsArgs& args) override {
    launch_late_mix();
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
      fork_at(shared_side_, collapsed_, starts_early(args.step.rows));
    } else {
      fork(shared_side_, starts_early(args.step.rows));
    }
    const auto side = [this] { return beside(shared_side_); };
    run_linear(limits_, side,
               {.rows = args.step.rows,
                .x_q = args.x_q,
                .weight = &args.shared->w1,
                .y = gate,
                .y_stride = args.width},
               {.second = &args.shared->w3, .second_y = up});
    launch_swiglu_quantise(side(), gate, up, args.step.rows, args.width, args.limit, t);
    // Few rows: the last product comes behind the routed experts and adds everything up.
    const bool joins = stream && combines_directly(limits_, args);
    if (joins) {
      launch_settle(side());
    } else {
      run_linear(limits_, side,
                 {.rows = args.step.rows,
                  .x_q = t,
                  .weight = &args.shared->w2,
                  .y = shared,
                  .y_stride = args.hidden},
                 {});
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
          join(mix_side_);  // a launch that joins starts late: one of them is enough
          run_direct_combine(limits_, [this] { return main(); }, args, t,
                             {.outputs = work.outputs,
                              .item_done = work.item_done,
                              .sequence = args.step.sequence,
                              .top_k = args.top_k,
                              .early = options_.side_stream});  // it is joined, and the rows have settled
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
    std::optional<RmsNormArgs> second_norm;
    std::optional<LinearArgs> product;  // of the norm's rows
    std::optional<RopeArgs> rope;       // of the product's output, if there is one
    std::optional<RouteArgs> route;
    std::optional<MhcExpandArgs> expand;
    std::optional<MhcMixArgs> mix;
  };

  void flush() {
    const Waiting waiting = std::exchange(waiting_, Waiting{});
    if (waiting.quantise) launch_quantise(main(), *waiting.quantise);
    if (waiting.product) {
      launch_product(waiting, nullptr);
    } else {
      if (waiting.second_norm) {
        launch_rms_norms(main(), *waiting.norm, *waiting.second_norm);
      } else if (waiting.norm) {
        launch_rms_norm(main(), *waiting.norm);
      }
      if (waiting.rope) launch_rope(main(), *waiting.rope);
    }
    if (waiting.route) launch_route(main(), *waiting.route);
    if (waiting.expand) {
      launch_mhc_expand(main(), *waiting.expand);
      last_mhc_ = chain_->last();
      written(waiting.expand->h);
    }
    if (waiting.mix) launch_mix(*waiting.mix);
  }

  // A product with the norms before it, the rotation of its output, and a window write.
  void launch_product(const Waiting& waiting, const WindowWriteArgs* window) {
    run_normed_linear(limits_, [this] { return main(); },
                      {.norm = *waiting.norm,
                       .product = *waiting.product,
                       .second = waiting.second_norm ? &*waiting.second_norm : nullptr,
                       .rope = waiting.rope ? &*waiting.rope : nullptr,
                       .window = window});
  }

  // Notes that the last launch of the main chain writes what `memory` begins.
  void written(const void* memory) { written_[memory] = chain_->last(); }
  // Whether that is complete when the launch that was just taken from the chain starts.
  bool settled_before(const void* memory) const {
    const auto found = written_.find(memory);
    return found == written_.end() || chain_->settled(found->second);
  }

  static bool independent(const RmsNormArgs& first, const RmsNormArgs& second) {
    return second.x != first.y && (first.y == nullptr || second.y != first.y);
  }

  void launch_mix(const MhcMixArgs& args) {
    const int64_t columns = int64_t{args.streams} * args.hidden;
    float* partials =
        scratch<float>(Scratch::kMhcPartials, int64_t{args.rows} * kMixOutputs * mhc_mix_chunks(columns));
    const auto* fn = reinterpret_cast<const float*>(WeightStore::prepared(*args.fn).tiles);
    // Whether the first launch need not wait: the streams are there, and whoever reads the partial sums and
    // the coefficients that it and the second one overwrite is done.
    flush();
    const bool early = options_.side_stream && !mix_side_.busy && chain_->settled(mix_side_.joined_before) &&
                       chain_->settled(last_mhc_) && settled_before(args.h);
    fork(mix_side_, starts_early(args.rows));
    const Launch first = beside(mix_side_);
    const Launch second = beside(mix_side_);
    launch_mhc_mix(first, second, args, fn, partials, early);
    pending_pre_ = args.pre;
  }

  // Few rows: the coefficients that are made from a collapse's streams are not needed before the next one.
  // They wait until attention, or the router's product, has its place: q-a, q-b and attention each need a
  // multiprocessor's registers and shared memory, and the streams have settled when attention lets go.
  void launch_late_mix() {
    if (!late_mix_) return;
    launch_mix(*std::exchange(late_mix_, std::nullopt));
  }

  // Notes the place in the main chain after which a collapse's rows exist.
  void remember_collapsed(const MhcCollapseArgs& args) {
    if (!options_.side_stream || args.x_q.codes == nullptr) return;
    chain_->note(collapsed_);
    collapsed_codes_ = args.x_q.codes;
  }
  void forget_collapsed(const uint8_t* codes) {
    if (codes == collapsed_codes_) collapsed_codes_ = nullptr;
  }

  // What waits goes first.
  Launch main() {
    flush();
    return chain_->next();
  }
  Launch beside(LaunchChain::Side& side) {
    flush();
    return chain_->beside(side);
  }
  // What runs beside the main chain starts early only for few rows: with more, its many blocks take the room
  // of products that have no weights waiting (2 % of a step of 24 rows, 2.7 of 48).
  static bool starts_early(int rows) { return rows <= kDirectRows; }
  void fork(LaunchChain::Side& side, bool early) {
    flush();
    chain_->fork(side, early);
  }
  void fork_at(LaunchChain::Side& side, const LaunchChain::Place& place, bool early) {
    flush();
    chain_->fork_at(side, place, early);
  }
  void join(LaunchChain::Side& side) {
    flush();
    if (&side == &mix_side_) {
      launch_late_mix();
      pending_pre_ = nullptr;
    }
    chain_->join(side);
  }
  void join() {
    join(mix_side_);
    join(shared_side_);
  }
  cudaStream_t stream() const { return chain_->stream().get(); }

  cudaGraph_t capture(const std::function<void()>& body) {
    join();
    chain_->interrupt();
    collapsed_codes_ = nullptr;  // its event lies outside
    check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed), "recording a step");
    cudaGraph_t graph = nullptr;
    try {
      body();
      join();
    } catch (...) {
      cudaStreamEndCapture(stream(), &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      waiting_ = {};
      late_mix_ = std::nullopt;
      collapsed_codes_ = nullptr;
      mix_side_.busy = shared_side_.busy = false;
      chain_->interrupt();
      throw;
    }
    check(cudaStreamEndCapture(stream(), &graph), "recording a step");
    chain_->interrupt();
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

  struct Buffer {
    void* memory = nullptr;
    size_t bytes = 0;
  };
  CudaOptions options_;
  CudaDeviceInfo info_;
  DeviceLimits limits_;
  std::unique_ptr<LaunchChain> chain_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<WeightStore> store_;
  std::array<Buffer, static_cast<size_t>(Scratch::kCount)> scratch_;
  Recorder recorder_;
  // The mHC coefficients run on one stream, the shared expert on another, because the experts wait for the
  // latter only.
  LaunchChain::Side mix_side_;
  LaunchChain::Side shared_side_;
  LaunchChain::Place collapsed_;
  const uint8_t* collapsed_codes_ = nullptr;  // the rows that collapsed_ stands for
  Waiting waiting_;
  std::optional<MhcMixArgs> late_mix_;
  std::unordered_map<const void*, uint64_t> written_;  // memory -> the launch that wrote it last
  const float* pending_pre_ = nullptr;
  uint64_t last_mhc_ = 0;  // the last launch of the main chain that reads coefficients
};

}  // namespace
}  // namespace cuda

std::unique_ptr<CudaBackend> make_cuda_backend(const CudaOptions& options) {
  return std::make_unique<cuda::Backend>(options);
}

}  // namespace spark::engine
