#include "engine/kernels/cuda/backend_impl.h"

namespace spark::engine {
namespace cuda {

namespace {

constexpr size_t kStagingBytes = size_t{8} << 20;

}  // namespace

Backend::Backend(const CudaOptions& options) : options_(options) {
  choose_device(options.device, info_, limits_);
  chain_ = std::make_unique<LaunchChain>(options, limits_);
  arena_ = std::make_unique<Arena>();
  scratch_ = std::make_unique<ScratchMemory>(*arena_);
  staging_ = std::make_unique<Staging>(kStagingBytes);
  store_ =
      std::make_unique<WeightStore>(*arena_, *staging_, chain_->stream(), limits_, options.pack_rows_from);
}

Backend::~Backend() {
  cudaStreamSynchronize(stream());
}

void Backend::upload(void* to, const void* from_host, size_t bytes) {
  join();
  collapsed_codes_ = nullptr;  // they may be what is written
  staging_->upload(stream(), to, from_host, bytes);
  chain_->interrupt();
}

void Backend::download(void* to_host, const void* from, size_t bytes) {
  join();
  staging_->download(stream(), to_host, from, bytes);
  chain_->interrupt();
}

void Backend::synchronise() {
  join();
  chain_->stream().wait();
  check(cudaGetLastError(), "on the device");
}

void Backend::fill_random(void* to, int64_t bytes, uint64_t seed) {
  join();
  launch_fill(main(), Fill::kBytes, to, bytes, seed, 0, 1);
  chain_->interrupt();
}

const uint8_t* Backend::synthetic_bytes(int64_t bytes, uint64_t seed) {
  auto* memory =
      static_cast<uint8_t*>(arena_->allocate(static_cast<size_t>(round_up(bytes, 8)), "benchmark"));
  launch_fill(main(), Fill::kE4m3, memory, round_up(bytes, 8), seed, 0, 1);
  chain_->interrupt();
  return memory;
}

void* Backend::native_stream() {
  join();
  collapsed_codes_ = nullptr;  // whoever asks may write the rows
  return stream();
}

void Backend::run_recorded(uint64_t key, const std::function<void()>& body) {
  join();
  if (recorder_.run(key, stream(), body, [this](const std::function<void()>& b) { return capture(b); })) {
    chain_->interrupt();
  }
  join();
}

double Backend::time_graph(const std::function<void()>& body, int repeats, int rounds) {
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

void Backend::quantise(const QuantiseArgs& args) {
  forget_collapsed(args.out.codes);
  flush();
  waiting_.quantise = args;
}

void Backend::linear(const LinearArgs& args) {
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

void Backend::grouped_linear(const GroupedLinearArgs& args) {
  run_grouped_linear(
      limits_, [this] { return main(); }, args);
  launch_late_mix();
}

void Backend::rms_norm(const RmsNormArgs& args) {
  forget_collapsed(args.y_q.codes);
  if (waiting_.norm && !waiting_.second_norm && !waiting_.product && waiting_.norm->rows == args.rows &&
      independent(*waiting_.norm, args)) {
    waiting_.second_norm = args;
    return;
  }
  flush();
  waiting_.norm = args;
}

void Backend::embed(const EmbedArgs& args) {
  join();
  launch_embed(main(), args, WeightStore::prepared(*args.table));
  written(args.h);
  written(args.pre);
}

void Backend::mhc_mix(const MhcMixArgs& args) {
  require_streams(args.streams);
  if (waiting_.expand && !waiting_.mix && waiting_.expand->h == args.h) {
    waiting_.mix = args;
    return;
  }
  launch_mix(args);
}

void Backend::mhc_collapse(const MhcCollapseArgs& args) {
  require_four(args.streams);
  if (waiting_.expand && waiting_.expand->h == args.h && waiting_.expand->rows == args.rows &&
      (!waiting_.mix || waiting_.mix->pre != args.pre)) {
    const MhcExpandArgs expand = *std::exchange(waiting_.expand, std::nullopt);
    const std::optional<MhcMixArgs> mix = std::exchange(waiting_.mix, std::nullopt);
    const Launch on = main();
    launch_mhc_expand_collapse(
        on, expand, args,
        {.streams = settled_before(args.h), .coefficients = mix_settled() && settled_before(args.pre)});
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

void Backend::mhc_expand(const MhcExpandArgs& args) {
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

void Backend::gather_rows(const GatherRowsArgs& args) {
  launch_late_mix();
  launch_gather_rows(main(), args);
  written(args.out);
}

void Backend::engram_inject(const EngramInjectArgs& args) {
  join();
  launch_engram_inject(main(), args);
  written(args.h);
}

void Backend::rope(const RopeArgs& args) {
  const bool of_product = waiting_.product && !waiting_.rope && !args.inverse &&
                          waiting_.product->y == args.x && waiting_.product->rows == args.rows &&
                          waiting_.product->y_stride == int64_t{args.heads} * args.width;
  if (!of_product) flush();
  waiting_.rope = args;
}

void Backend::window_write(const WindowWriteArgs& args) {
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

void Backend::pool_pairs(const PoolPairsArgs& args) {
  const Launch pool = main();
  const Launch store = main();
  launch_pool_pairs(pool, store, args);
}

void Backend::entry_write(const EntryWriteArgs& args) {
  launch_entry_write(main(), args);
  written(args.main_cache.base);
}

void Backend::sparse_attention(const SparseAttentionArgs& args) {
  const Launch on = main();
  const bool window = settled_before(args.window_cache.base);
  launch_sparse_attention(
      on, args,
      {.window = window || args.window_end == nullptr,
       .all_window = window,
       .selected = settled_before(args.selected) && settled_before(args.main_cache.base)});
  chain_->settles();
  launch_late_mix();
}

void Backend::route(const RouteArgs& args) {
  launch_late_mix();
  flush();
  waiting_.route = args;
}

void Backend::flush() {
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

void Backend::launch_product(const Waiting& waiting, const WindowWriteArgs* window) {
  run_normed_linear(limits_, [this] { return main(); },
                    {.norm = *waiting.norm,
                     .product = *waiting.product,
                     .second = waiting.second_norm ? &*waiting.second_norm : nullptr,
                     .rope = waiting.rope ? &*waiting.rope : nullptr,
                     .window = window});
}

void Backend::launch_mix(const MhcMixArgs& args) {
  const int64_t columns = int64_t{args.streams} * args.hidden;
  float* partials = scratch<float>(Scratch::kMhcPartials, mix_scratch(args.rows, columns));
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
  // A launch that joins starts when the coefficients are there, and may read them at once.
  mix_settles_ = options_.side_stream && starts_early(args.rows);
  if (mix_settles_) launch_settle(beside(mix_side_));
  pending_pre_ = args.pre;
}

void Backend::join(LaunchChain::Side& side) {
  flush();
  if (&side == &mix_side_) {
    launch_late_mix();
    pending_pre_ = nullptr;
  }
  chain_->join(side);
}

cudaGraph_t Backend::capture(const std::function<void()>& body) {
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

}  // namespace cuda

std::unique_ptr<CudaBackend> make_cuda_backend(const CudaOptions& options) {
  return std::make_unique<cuda::Backend>(options);
}

}  // namespace spark::engine
