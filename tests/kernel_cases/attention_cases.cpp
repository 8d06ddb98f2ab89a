#include <algorithm>

#include "kernel_cases/cache_layout.h"
#include "kernel_cases/cases.h"
#include "kernel_cases/random.h"

namespace spark::engine::cases {
namespace {

struct AttentionShape {
  int32_t heads = 8;
  int32_t width = 64;
  int32_t pairs = 8;
  int32_t window = 32;
  int32_t max_selected = 40;  // 0: no main cache
  int32_t ratio = 1;
  WindowOrder order = WindowOrder::kOldestFirst;
  bool draft_block = false;  // extra records and a fixed window end
  bool few_rows = false;     // of a draft block: one sequence's
  double q_sigma = 1;
};

// Selected lists: random visible entries, ascending, some rows short, some empty.
std::vector<int32_t> random_selection(Random& random, const HostSteps& steps, const AttentionShape& shape) {
  std::vector<int32_t> all;
  for (int32_t t = 0; t < steps.rows(); ++t) {
    const int32_t visible = (steps.position[static_cast<size_t>(t)] + 1) / shape.ratio;
    std::vector<int32_t> list;
    for (int32_t j = 0; j < visible; ++j) {
      if (random.below(std::max(visible, 1)) < shape.max_selected && t % 6 != 5) list.push_back(j);
    }
    list.resize(std::min(list.size(), static_cast<size_t>(shape.max_selected)));
    list.resize(static_cast<size_t>(shape.max_selected), -1);
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

HostSteps attention_steps(bool draft_block, bool few_rows) {
  HostSteps steps;
  if (draft_block) {
    for (int32_t i = 0; i < 5; ++i) steps.add(1, 301 + i);
    steps.add(-1, 0);
    for (int32_t i = 0; i < 3 && !few_rows; ++i) steps.add(0, 4 + i);
    return steps;
  }
  for (int32_t i = 0; i < 5; ++i) steps.add(0, i);        // window filling up
  for (int32_t i = 0; i < 7; ++i) steps.add(2, 253 + i);  // across a block border
  steps.add(-1, 0);
  steps.add(1, 400, 0, 390);  // a replay start cuts the window
  steps.add(1, 401, 0, 390);
  return steps;
}

Problem attention_problem(const AttentionShape& s) {
  Random random(static_cast<uint64_t>(s.heads * 7 + s.width + s.max_selected + s.window));
  Problem p;
  p.steps = attention_steps(s.draft_block, s.few_rows);
  p.rows = p.steps->rows();
  p.splittable = !s.draft_block;
  const auto row = static_cast<size_t>(s.heads * s.width);
  const auto width = static_cast<size_t>(s.width);
  const CacheShape window_shape{3, 512, 1, window_record_bytes(s.width)};
  const CacheShape main_shape{3, 512, s.ratio, main_record_bytes(s.width)};
  const CacheTensors window =
      add_cache(p, random, "window", window_shape,
                encoded_records(random, window_shape, width, 1, encode_window_record), false);
  CacheTensors main_cache;
  int selected = -1;
  if (s.max_selected > 0) {
    main_cache = add_cache(p, random, "main", main_shape,
                           encoded_records(random, main_shape, width, 1, encode_main_record), false);
    selected = p.input("selected", Kind::kInt32, random_selection(random, *p.steps, s),
                       static_cast<size_t>(s.max_selected));
  }
  const int q =
      p.input("q", Kind::kBf16, bf16_values(random, static_cast<size_t>(p.rows) * row, s.q_sigma), row);
  const int sink = p.input("sink", Kind::kF32, f32_values(random, static_cast<size_t>(s.heads), 2));
  const int angles = p.input("cos_sin", Kind::kF32, random_angles(random, p.rows, s.pairs),
                             static_cast<size_t>(2 * s.pairs));
  int ends = -1;
  int extra = -1;
  if (s.draft_block) {
    std::vector<int32_t> window_end;
    for (int32_t t = 0; t < p.rows; ++t) window_end.push_back(t < 5 ? 300 : 3);
    ends = p.input("window_end", Kind::kInt32, window_end, 1);
    const auto record = static_cast<size_t>(window_record_bytes(s.width));
    std::vector<uint8_t> records(static_cast<size_t>(p.rows) * record);
    for (size_t t = 0; t < static_cast<size_t>(p.rows); ++t)
      encode_window_record(bf16_values(random, width), std::span<uint8_t>(&records[t * record], record));
    extra = p.input("extra", Kind::kBytes, records, record);
  }
  // The inverse rotation mixes neighbours after their rounding.
  const int o = p.output("o", Kind::kBf16, row, {.ulps = 2, .row_max = 0x1p-8, .fraction = 0.1});
  p.issue = [=](const Call& call) {
    SparseAttentionArgs args{.step = call.step,
                             .heads = s.heads,
                             .width = s.width,
                             .pairs = s.pairs,
                             .window = s.window,
                             .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width))),
                             .order = s.order,
                             .q = call.data<uint16_t>(q),
                             .window_cache = window.view(call),
                             .max_selected = s.max_selected,
                             .sink = call.data<float>(sink),
                             .cos_sin = call.data<float>(angles),
                             .o = call.data<uint16_t>(o)};
    if (selected >= 0) {
      args.main_cache = main_cache.view(call);
      args.selected = call.data<int32_t>(selected);
    }
    if (s.draft_block) {
      args.window_end = call.data<int32_t>(ends);
      args.extra = call.data<uint8_t>(extra);
    }
    call.backend.sparse_attention(args);
  };
  return p;
}

}  // namespace

void add_attention_cases(std::vector<KernelCase>& cases) {
  const auto add = [&](const std::string& name, const AttentionShape& shape) {
    cases.push_back({"sparse_attention/" + name, [shape] { return attention_problem(shape); }});
  };
  add("tiny", {});
  add("window only", {.max_selected = 0});
  add("ratio 2", {.ratio = 2});
  add("sharp", {.q_sigma = 20});
  add("many heads", {.heads = 40, .width = 96, .pairs = 16, .max_selected = 100});
  // The whole batch with two blocks a row and 16 heads, pieces of it with four.
  add("every split", {.heads = 33, .width = 32, .pairs = 4, .window = 64, .max_selected = 200});
  // The whole batch with four blocks a row or two, small pieces of it with sixteen.
  add("full width", {.heads = 2, .width = 512, .pairs = 32, .max_selected = 24});
  add("full width, odd list", {.heads = 2, .width = 512, .pairs = 32, .max_selected = 20});
  add("long list", {.heads = 3, .width = 512, .pairs = 32, .window = 128, .max_selected = 896});
  add("one head", {.heads = 1, .width = 32, .pairs = 4, .window = 64, .max_selected = 7});
  add("real", {.heads = 64, .width = 512, .pairs = 32, .window = 128, .max_selected = 200});
  add("draft block", {.max_selected = 0, .order = WindowOrder::kRingSlot, .draft_block = true});
  add("draft block real", {.heads = 24,
                           .width = 512,
                           .pairs = 32,
                           .window = 128,
                           .max_selected = 0,
                           .order = WindowOrder::kRingSlot,
                           .draft_block = true});
  add("ring order", {.order = WindowOrder::kRingSlot});
  add_random_cases(cases, "sparse_attention", [](Random& random) {
    AttentionShape s;
    s.heads = 1 + random.below(12);
    s.width = random_multiple(random, 32, 128);
    s.pairs = random_multiple(random, 4, s.width / 2);
    s.window = random_multiple(random, 16, 64);
    s.draft_block = random.below(3) == 0;
    s.max_selected = s.draft_block || random.below(4) == 0 ? 0 : 1 + random.below(60);
    s.ratio = 1 + random.below(2);
    s.order = s.draft_block || random.below(2) == 0 ? WindowOrder::kRingSlot : WindowOrder::kOldestFirst;
    s.q_sigma = random.below(3) == 0 ? 20 : 1;
    return attention_problem(s);
  });
}

}  // namespace spark::engine::cases
