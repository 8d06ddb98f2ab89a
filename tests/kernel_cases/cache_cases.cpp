#include <algorithm>

#include "kernel_cases/cache_layout.h"
#include "kernel_cases/cases.h"
#include "kernel_cases/random.h"

namespace spark::engine::cases {
namespace {

// Three sequences at different positions and a padding row in between.
HostSteps mixed_steps(int32_t a, int32_t b) {
  HostSteps steps;
  for (int32_t p = 0; p < a; ++p) steps.add(1, 250 + p);  // across a block border
  steps.add(-1, 0);
  for (int32_t p = 0; p < b; ++p) steps.add(0, p);
  steps.add(2, 301);
  return steps;
}

constexpr CacheShape kShape{.sequences = 3, .tokens = 512};

Problem angles_problem(int32_t back, int32_t pairs) {
  Problem p;
  for (const int32_t position : {1, 2, 100, 4095, 131071, 1048574, 1048575}) {
    if (!p.steps) p.steps.emplace();
    p.steps->add(static_cast<int32_t>(p.steps->sequence.size()), position);
  }
  p.rows = p.steps->rows();
  std::vector<float> freq;
  for (int32_t i = 0; i < pairs; ++i)
    freq.push_back(static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / pairs)));
  const int f = p.input("freq", Kind::kF32, freq);
  const int out = p.output("cos_sin", Kind::kF32, static_cast<size_t>(2 * pairs), {.absolute = 2e-7});
  p.issue = [=](const Call& call) {
    call.backend.rope_angles({.step = call.step,
                              .back = back,
                              .pairs = pairs,
                              .freq = call.data<float>(f),
                              .cos_sin = call.data<float>(out)});
  };
  return p;
}

Problem rope_problem(int32_t rows, int32_t heads, int32_t width, int32_t pairs, bool inverse) {
  Random random(static_cast<uint64_t>(61 + width + rows));
  Problem p;
  p.rows = rows;
  const auto row = static_cast<size_t>(heads * width);
  const int angles =
      p.input("cos_sin", Kind::kF32, random_angles(random, rows, pairs), static_cast<size_t>(2 * pairs));
  const int x = p.state("x", Kind::kBf16, bf16_rows(random, rows, row),
                        {.ulps = 1, .row_max = 1e-6, .fraction = 0.02}, row);
  p.issue = [=](const Call& call) {
    call.backend.rope({.rows = call.rows,
                       .heads = heads,
                       .width = width,
                       .pairs = pairs,
                       .inverse = inverse,
                       .cos_sin = call.data<float>(angles),
                       .x = call.data<uint16_t>(x)});
  };
  return p;
}

Problem window_problem(int32_t width, int32_t pairs, bool to_records) {
  Random random(static_cast<uint64_t>(71 + width));
  Problem p;
  p.steps = mixed_steps(9, 5);
  p.rows = p.steps->rows();
  const auto n = static_cast<size_t>(width);
  CacheShape shape = kShape;
  shape.record_bytes = window_record_bytes(width);
  const CacheTensors cache = add_cache(p, random, "window", shape, {}, true);
  const int angles =
      p.input("cos_sin", Kind::kF32, random_angles(random, p.rows, pairs), static_cast<size_t>(2 * pairs));
  const int kv = p.input("kv", Kind::kBf16, bf16_rows(random, p.rows, n), n);
  const int records = p.output("records", Kind::kBytes, static_cast<size_t>(shape.record_bytes), kExact);
  p.issue = [=](const Call& call) {
    call.backend.window_write({.step = call.step,
                               .width = width,
                               .pairs = pairs,
                               .cos_sin = call.data<float>(angles),
                               .kv = call.data<uint16_t>(kv),
                               .cache = cache.view(call),
                               .records = to_records ? call.data<uint8_t>(records) : nullptr});
  };
  return p;
}

Problem pool_problem(int32_t width, int32_t ring) {
  Random random(static_cast<uint64_t>(81 + width));
  Problem p;
  p.steps = mixed_steps(9, 5);
  p.steps->add(3, 7);  // closes a pair whose first half was stored by an earlier step
  p.rows = p.steps->rows();
  const auto n = static_cast<size_t>(width);
  const auto rows = static_cast<size_t>(p.rows);
  const int kv = p.input("kv", Kind::kF32, f32_values(random, rows * n), n);
  const int score = p.input("score", Kind::kF32, f32_values(random, rows * n, 4), n);
  const int state =
      p.state("state", Kind::kF32, f32_values(random, 4 * static_cast<size_t>(ring) * 2 * n), kExact);
  const int pooled = p.output("pooled", Kind::kBf16, n, {.ulps = 1, .row_max = 1e-6, .fraction = 0.02});
  p.issue = [=](const Call& call) {
    call.backend.pool_pairs({.step = call.step,
                             .width = width,
                             .ring = ring,
                             .kv = call.data<float>(kv),
                             .score = call.data<float>(score),
                             .state = call.data<float>(state),
                             .pooled = call.data<uint16_t>(pooled)});
  };
  return p;
}

Problem entry_problem(int32_t ratio, int32_t width, int32_t key_width, int32_t pairs) {
  Random random(static_cast<uint64_t>(91 + width + ratio));
  Problem p;
  p.steps = mixed_steps(12, 7);
  p.rows = p.steps->rows();
  CacheShape main_shape = kShape;
  main_shape.ratio = ratio;
  main_shape.record_bytes = main_record_bytes(width);
  CacheShape key_shape = main_shape;
  key_shape.record_bytes = index_key_record_bytes(key_width);
  const CacheTensors main_cache = add_cache(p, random, "main", main_shape, {}, true);
  const CacheTensors key_cache = add_cache(p, random, "key", key_shape, {}, true);
  const int angles =
      p.input("cos_sin", Kind::kF32, random_angles(random, p.rows, pairs), static_cast<size_t>(2 * pairs));
  const auto n = static_cast<size_t>(width);
  const auto k = static_cast<size_t>(key_width);
  const int latent = p.input("latent", Kind::kBf16, bf16_rows(random, p.rows, n), n);
  const int key = p.input("key", Kind::kBf16, bf16_rows(random, p.rows, k, 1), k);
  p.issue = [=](const Call& call) {
    call.backend.entry_write({.step = call.step,
                              .ratio = ratio,
                              .width = width,
                              .key_width = key_width,
                              .pairs = pairs,
                              .cos_sin = call.data<float>(angles),
                              .latent = call.data<uint16_t>(latent),
                              .key = call.data<uint16_t>(key),
                              .main_cache = main_cache.view(call),
                              .key_cache = key_cache.view(call)});
  };
  return p;
}

}  // namespace

void add_cache_cases(std::vector<KernelCase>& cases) {
  cases.push_back({"rope_angles/real", [] { return angles_problem(0, 32); }});
  cases.push_back({"rope_angles/ratio 2", [] { return angles_problem(1, 8); }});
  cases.push_back({"rope/tiny", [] { return rope_problem(7, 8, 64, 8, false); }});
  cases.push_back({"rope/inverse", [] { return rope_problem(6, 3, 96, 20, true); }});
  cases.push_back({"rope/real", [] { return rope_problem(2, 64, 512, 32, false); }});
  cases.push_back({"window_write/tiny", [] { return window_problem(64, 8, false); }});
  cases.push_back({"window_write/real", [] { return window_problem(512, 32, false); }});
  cases.push_back({"window_write/records", [] { return window_problem(64, 8, true); }});
  cases.push_back({"pool_pairs/tiny", [] { return pool_problem(64, 8); }});
  cases.push_back({"pool_pairs/real", [] { return pool_problem(512, 8); }});
  cases.push_back({"entry_write/tiny ratio 2", [] { return entry_problem(2, 64, 64, 8); }});
  cases.push_back({"entry_write/tiny ratio 1", [] { return entry_problem(1, 64, 64, 8); }});
  cases.push_back({"entry_write/real", [] { return entry_problem(2, 512, 128, 32); }});
  // Half of a record's pairs or fewer are rotated.
  const auto random_pairs = [](Random& random, int32_t width) {
    return random_multiple(random, 4, width / 2);
  };
  add_random_cases(cases, "rope_angles", [](Random& random) {
    return angles_problem(random.below(2), random_multiple(random, 4, 32));
  });
  add_random_cases(cases, "rope", [random_pairs](Random& random) {
    const int32_t rows = random_rows(random), heads = 1 + random.below(6);
    const int32_t width = random_multiple(random, 32, 128);
    return rope_problem(rows, heads, width, random_pairs(random, width), random.below(2) == 0);
  });
  add_random_cases(cases, "window_write", [random_pairs](Random& random) {
    const int32_t width = random_multiple(random, 32, 256);
    return window_problem(width, random_pairs(random, width), random.below(2) == 0);
  });
  add_random_cases(cases, "pool_pairs",
                   [](Random& random) { return pool_problem(random_multiple(random, 32, 256), 8); });
  add_random_cases(cases, "entry_write", [](Random& random) {
    const int32_t width = random_multiple(random, 32, 256), key_width = random_multiple(random, 32, 128);
    const int32_t pairs = random_multiple(random, 4, std::min(width, key_width) / 2);
    return entry_problem(1 + random.below(2), width, key_width, pairs);
  });
}

}  // namespace spark::engine::cases
