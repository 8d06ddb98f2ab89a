#include "engine/kernels/cuda/products.h"

#include <algorithm>
#include <optional>

#include "engine/kernels/cuda/sm121/launch.h"
#include "engine/kernels/cuda/weights.h"

namespace spark::engine::cuda {
namespace {

StreamGemmParams params_of(const PreparedWeight& w) {
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

void apply(const DirectLaunch& plan, const LinearSplit& split, StreamGemmParams& p) {
  p.shard_blocks = split.shard_blocks;
  p.row_warps = plan.row_warps;
  p.warp_shards = plan.warp_shards;
  p.shard_chunks = plan.shard_chunks;
}

LinearShape shape_of(const PreparedWeight& w) {
  return {.rows = w.rows,
          .cols = w.cols,
          .activation_bytes = w.layout == Layout::kFp8 ? 1 : 2,
          .weight_bytes = w.layout == Layout::kBf16 ? 2 : 1};
}

// The plan of a launch that makes the codes of its rows itself.
std::optional<DirectLaunch> plan_inside(const DeviceLimits& device, const LinearArgs& args) {
  const PreparedWeight& w = WeightStore::prepared(*args.weight);
  if (w.layout != Layout::kFp8 || !device.sm90 || args.y == nullptr) return std::nullopt;
  const LinearShape shape = shape_of(w);
  return plan_direct_rows(shape, split_linear(shape), args.rows, device);
}

// The kernels of one format. `direct`, `wide`, `prefill`: for few rows, many, and a prompt's, or null;
// `tall`: of packed weights, or null.
struct Kernels {
  void (*stream)(const Launch&, const LinearLaunch&, const StreamGemmParams&) = nullptr;
  void (*direct)(const Launch&, const DirectLaunch&, const StreamGemmParams&) = nullptr;
  void (*wide)(const Launch&, const WideLaunch&, const StreamGemmParams&) = nullptr;
  void (*tall)(const Launch&, const TallLaunch&, const StreamGemmParams&) = nullptr;
  void (*prefill)(const Launch&, const StreamGemmParams&) = nullptr;
};

bool reads_prompt(const LinearShape& shape, int rows) {
  return rows >= kMinPrefillRows && shape.cols % kTileCols == 0 &&
         (!shape.rowwise || shape.rows_per_group % kPrefillWeightRows == 0);
}

// Cuts the rows of the step into launches and runs them; `aim` points a piece at its inputs and outputs.
template <class Aim>
void run_rows(const DeviceLimits& device, const LinearShape& shape, const StreamGemmParams& params, int rows,
              const Where& where, const Kernels& kernels, const Aim& aim) {
  const LinearSplit split = split_linear(shape);
  if (kernels.prefill != nullptr && reads_prompt(shape, rows)) {
    StreamGemmParams p = params;
    p.rows = rows;
    p.shard_blocks = split.shard_blocks;
    aim(p, 0);
    return kernels.prefill(where(), p);
  }
  const int weights = params.second_tiles == nullptr ? 1 : 2;
  for (int first = 0; first < rows;) {
    StreamGemmParams p = params;
    const int left = rows - first;
    if (const auto tall = kernels.tall != nullptr ? plan_tall(shape, split, left, kPackedTileBytes, device)
                                                  : std::nullopt) {
      p.rows = std::min(tall->rows_per_launch, left);
      p.shard_blocks = split.shard_blocks;
      p.row_groups = tall->row_groups;
      p.ring_slots = tall->slots;
      p.ring_offset = static_cast<uint32_t>(tall->ring_offset);
      p.barrier_offset = static_cast<uint32_t>(tall->barrier_offset);
      aim(p, first);
      kernels.tall(where(), *tall, p);
    } else if (const auto wide =
                   kernels.wide != nullptr ? plan_wide(shape, split, left, weights, device) : std::nullopt) {
      p.rows = std::min(wide->rows_per_launch, left);
      p.shard_blocks = split.shard_blocks;
      p.row_warps = wide->row_teams;
      p.shard_warps = wide->shard_teams;
      p.warp_shards = wide->team_shards;
      p.row_groups = wide->row_groups;
      p.cluster = wide->cluster;
      p.ring_offset = static_cast<uint32_t>(wide->ring_offset);
      p.reduce_offset = static_cast<uint32_t>(wide->reduce_offset);
      p.first_reduce_offset = static_cast<uint32_t>(wide->first_reduce_offset);
      p.barrier_offset = static_cast<uint32_t>(wide->barrier_offset);
      aim(p, first);
      kernels.wide(where(), *wide, p);
    } else if (const auto direct =
                   kernels.direct != nullptr ? plan_direct(shape, split, left, device) : std::nullopt) {
      p.rows = left;
      apply(*direct, split, p);
      aim(p, first);
      kernels.direct(where(), *direct, p);
    } else {
      const LinearLaunch plan = plan_linear(shape, split, left, device);
      p.rows = std::min(plan.rows_per_launch, left);
      p.shard_blocks = split.shard_blocks;
      p.row_groups = plan.row_groups;
      p.row_warps = plan.row_warps;
      p.shard_warps = plan.shard_warps;
      p.cluster = plan.cluster;
      p.ring_offset = static_cast<uint32_t>(plan.ring_offset);
      p.reduce_offset = static_cast<uint32_t>(plan.reduce_offset);
      p.persistent = plan.persistent;
      aim(p, first);
      kernels.stream(where(), plan, p);
    }
    first += p.rows;
  }
}

// One of the two formats that are kept as in the checkpoint.
void run_plain(const Where& where, const LinearArgs& args, const PreparedWeight& w) {
  launch_linear_plain(where(), w,
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

}  // namespace

bool quantises_inside(const DeviceLimits& device, const LinearArgs& args, const QuantiseArgs& quantise) {
  const PreparedWeight& w = WeightStore::prepared(*args.weight);
  if (w.layout != Layout::kFp8 || quantise.out.codes != args.x_q.codes || quantise.rows != args.rows ||
      quantise.cols != w.cols || args.rows > kMaxQuantisingRows) {
    return false;
  }
  const LinearShape shape = shape_of(w);
  // The streaming product does it; the direct one where the rows fit.
  const bool direct = device.sm90 && plan_direct(shape, split_linear(shape), args.rows, device).has_value();
  return !direct || plan_inside(device, args).has_value();
}

bool normalises_inside(const DeviceLimits& device, const LinearArgs& args, const RmsNormArgs& norm) {
  return norm.y == nullptr && norm.y_q.codes != nullptr && norm.y_q.codes == args.x_q.codes &&
         norm.rows == args.rows && norm.cols == WeightStore::prepared(*args.weight).cols &&
         plan_inside(device, args).has_value();
}

void run_normed_linear(const DeviceLimits& device, const Where& where, const NormedLinear& args) {
  const PreparedWeight& w = WeightStore::prepared(*args.product.weight);
  const DirectLaunch plan = plan_inside(device, args.product).value();
  const NormParams norm = norm_params(args.norm);
  DirectRowsParams p;
  p.product = params_of(w);
  apply(plan, split_linear(shape_of(w)), p.product);
  p.product.rows = args.product.rows;
  p.product.x = norm.x;
  p.product.x_stride = norm.x_stride;
  p.product.quantised_codes = norm.codes;
  p.product.quantised_scales = norm.scales;
  p.product.y = args.product.y;
  p.product.y_stride = args.product.y_stride;
  p.product_blocks = plan.grid;
  p.norm_weight = norm.weight;
  p.eps = norm.eps;
  if (args.second != nullptr) {
    p.second = norm_params(*args.second);
    SPARK_CHECK(p.second.cols <= plan.warps * 256);  // a block's warps hold a row
  }
  if (args.window != nullptr) p.window = window_params(*args.window);
  if (args.rope != nullptr) {
    p.cos_sin = args.rope->cos_sin;
    p.head_width = args.rope->width;
    p.pairs = args.rope->pairs;
  }
  launch_direct_rows_norm(where(), plan, p);
}

void run_linear(const DeviceLimits& device, const Where& where, const LinearArgs& args,
                const LinearExtras& extras) {
  const PreparedWeight& w = WeightStore::prepared(*args.weight);
  const PreparedWeight* w2 = extras.second == nullptr ? nullptr : &WeightStore::prepared(*extras.second);
  if (w2 != nullptr && (w.layout != Layout::kFp8 || w2->layout != Layout::kFp8 || w2->rows != w.rows ||
                        w2->cols != w.cols || args.y == nullptr)) {
    run_linear(device, where, args, {});
    LinearArgs other = args;
    other.weight = extras.second;
    other.y = extras.second_y;
    return run_linear(device, where, other, {});
  }
  if (w.layout == Layout::kF32 || w.layout == Layout::kPlainBf16) return run_plain(where, args, w);
  if (w.layout == Layout::kFp4) {
    return device.block_scaled_mma ? sm121::launch_linear_fp4(where(), args, w)
                                   : launch_linear_fp4(where(), args, w);
  }
  const bool codes = w.layout == Layout::kFp8;
  StreamGemmParams params = params_of(w);
  params.y_stride = args.y_stride;
  if (const auto plan = extras.quantise != nullptr ? plan_inside(device, args) : std::nullopt) {
    DirectRowsParams p;
    p.product = params;
    apply(*plan, split_linear(shape_of(w)), p.product);
    p.product.rows = args.rows;
    p.product.x = extras.quantise->x;
    p.product.quantised_codes = args.x_q.codes;
    p.product.quantised_scales = args.x_q.scales;
    p.product.y = args.y;
    p.product_blocks = plan->grid;
    return launch_direct_rows_quantise(where(), *plan, p);
  }
  params.settles = settles(args);
  if (w2 != nullptr) params.second_tiles = w2->tiles, params.second_scales = w2->scales;
  const auto aim = [&](StreamGemmParams& p, int first) {
    if (extras.quantise != nullptr) {
      p.x = extras.quantise->x + first * w.cols;
      p.quantised_codes = args.x_q.codes + first * w.cols;
      p.quantised_scales = args.x_q.scales + first * (w.cols / 32);
    } else if (codes) {
      p.x_codes = args.x_q.codes + first * w.cols;
      p.x_scales = args.x_q.scales + first * (w.cols / 32);
    } else {
      p.x = args.x + first * w.cols;
    }
    if (args.y != nullptr) p.y = args.y + first * args.y_stride;
    if (extras.second_y != nullptr) p.second_y = extras.second_y + first * args.y_stride;
    if (args.y_f32 != nullptr) p.y_f32 = args.y_f32 + first * args.y_stride;
  };
  Kernels kernels;
  if (codes && device.block_scaled_mma) {
    kernels.stream = sm121::launch_stream_fp8;
  } else if (codes && !device.sm90) {
    kernels.stream = launch_stream_fp8;
  } else if (codes) {
    kernels = {launch_stream_fp8, launch_direct_fp8, extras.quantise == nullptr ? launch_wide_fp8 : nullptr};
    kernels.prefill = launch_prefill_fp8;
  } else if (w.layout == Layout::kPacked) {
    kernels.stream = launch_stream_packed;
    if (device.sm90) kernels.tall = launch_tall_packed;
  } else {
    kernels = {launch_stream_bf16, device.sm90 ? launch_direct_bf16 : nullptr, nullptr};
    if (device.sm90) kernels.prefill = launch_prefill_bf16;
  }
  run_rows(device, shape_of(w), params, args.rows, where, kernels, aim);
}

bool combines_directly(const DeviceLimits& device, const ExpertsArgs& args) {
  const PreparedWeight& w = WeightStore::prepared(args.shared->w2);
  return w.layout == Layout::kFp8 && device.sm90 && args.step.rows <= kDirectRows &&
         plan_direct(shape_of(w), split_linear(shape_of(w)), args.step.rows, device).has_value();
}

void run_direct_combine(const DeviceLimits& device, const Where& where, const ExpertsArgs& args,
                        const QuantisedRows& t, const RoutedSum& routed) {
  const PreparedWeight& w = WeightStore::prepared(args.shared->w2);
  const LinearSplit split = split_linear(shape_of(w));
  const DirectLaunch plan = plan_direct(shape_of(w), split, args.step.rows, device).value();
  StreamGemmParams p = params_of(w);
  apply(plan, split, p);
  p.rows = args.step.rows;
  p.x_codes = t.codes;
  p.x_scales = t.scales;
  p.y = args.y;
  p.y_stride = args.hidden;
  p.combine = routed;
  launch_direct_combine(where(), plan, p);
}

bool settles(const LinearArgs& args) {
  const Layout layout = WeightStore::prepared(*args.weight).layout;
  return layout == Layout::kBf16 || layout == Layout::kPacked;
}

void run_grouped_linear(const DeviceLimits& device, const Where& where, const GroupedLinearArgs& args) {
  const PreparedWeight& w = WeightStore::prepared(*args.weight);
  if (w.layout != Layout::kFp8 || w.rows % args.groups != 0) {
    throw Error("grouped projection of " + std::to_string(w.rows) + " rows in " +
                    std::to_string(args.groups) + " groups",
                "CUDA backend", "the weight is FP8 and its rows are whole groups");
  }
  if (w.rows / args.groups % kTileRows != 0) {
    return launch_linear_plain(where(), w,
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
  Kernels kernels = {launch_stream_fp8_bf16, launch_direct_fp8_bf16, launch_wide_fp8_bf16};
  if (device.sm90) {
    kernels.prefill = launch_prefill_fp8_bf16;
  } else {
    kernels.wide = nullptr;
  }
  run_rows(device, shape, p, args.rows, where, kernels, [&](StreamGemmParams& piece, int first) {
    piece.x = args.x + first * piece.x_stride;
    piece.y = args.y + first * w.rows;
  });
}

}  // namespace spark::engine::cuda
