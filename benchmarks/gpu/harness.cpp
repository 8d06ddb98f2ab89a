#include "harness.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/error.h"
#include "common/table.h"
#include "engine/numeric/bf16.h"

namespace spark::bench_gpu {
namespace {

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace

double time_graph(CudaBackend& backend, const std::function<void()>& body, int repeats, int rounds) {
  try {
    return backend.time_graph(body, repeats, rounds);
  } catch (const Error& error) {
    std::printf("not measured: %s\n", error.describe().c_str());
    return -1;
  }
}

int copies_for(const CudaBackend& backend, int64_t bytes) {
  const int64_t wanted = 6 * std::max<int64_t>(backend.device().l2_bytes, int64_t{50} << 20);
  return static_cast<int>(std::clamp<int64_t>((wanted + bytes - 1) / bytes, 2, 64));
}

float Random::normal() {
  // Sum of twelve uniforms: close enough, and no transcendental functions.
  float sum = -6;
  for (int i = 0; i < 12; ++i) sum += static_cast<float>(next() >> 40) * 0x1p-24f;
  return sum;
}

uint16_t* random_bf16(engine::Backend& backend, int64_t count, float sigma, uint64_t seed) {
  Random random(seed);
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (uint16_t& v : values) v = engine::float_to_bf16(sigma * random.normal());
  return place(backend, values);
}

engine::QuantisedRows random_codes(engine::Backend& backend, int64_t rows, int64_t cols, uint64_t seed) {
  const uint16_t* x = random_bf16(backend, rows * cols, 1, seed);
  const engine::QuantisedRows q = {reserve<uint8_t>(backend, rows * cols),
                                   reserve<uint8_t>(backend, rows * cols / 32)};
  backend.quantise(
      {.rows = static_cast<int32_t>(rows), .cols = static_cast<int32_t>(cols), .x = x, .out = q});
  return q;
}

int streams_of(int rows) {
  return rows <= 6 ? 1 : rows / 6;
}

namespace {

Steps make_rows(engine::Backend& backend, int rows, int context, int streams) {
  Steps result;
  result.streams = streams;
  const int each = rows / result.streams;
  std::vector<int32_t> token, position, sequence, first, last, start;
  Random random(3);
  for (int t = 0; t < rows; ++t) {
    const int s = std::min(t / each, result.streams - 1);
    token.push_back(random.below(32000));
    position.push_back(context - each + t - s * each);
    sequence.push_back(s);
    first.push_back(s * each);
    last.push_back(s == result.streams - 1 ? rows - 1 : (s + 1) * each - 1);
    start.push_back(0);
  }
  result.step = {.rows = rows,
                 .token = place(backend, token),
                 .position = place(backend, position),
                 .sequence = place(backend, sequence),
                 .first_row = place(backend, first),
                 .last_row = place(backend, last),
                 .window_start = place(backend, start),
                 .is_image = place(backend, std::vector<uint8_t>(static_cast<size_t>(rows)))};
  return result;
}

}  // namespace

Steps make_steps(engine::Backend& backend, int rows, int context) {
  return make_rows(backend, rows, context, streams_of(rows));
}

Steps make_prompt(engine::Backend& backend, int rows, int context) {
  return make_rows(backend, rows, context, 1);
}

std::vector<int32_t> distinct(Random& random, int count, int n) {
  std::vector<int32_t> all;
  std::vector<bool> taken(static_cast<size_t>(n));
  while (static_cast<int>(all.size()) < std::min(count, n)) {
    const int i = random.below(n);
    if (taken[static_cast<size_t>(i)]) continue;
    taken[static_cast<size_t>(i)] = true;
    all.push_back(i);
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::string table_of(std::span<const Measurement> measurements) {
  Table table({{"operation"},
               {"rows", Align::kRight},
               {"MiB", Align::kRight},
               {"read us", Align::kRight},
               {"us", Align::kRight},
               {"no overlap", Align::kRight},
               {"x read", Align::kRight},
               {"TB/s", Align::kRight},
               {"note"}});
  for (const Measurement& m : measurements) {
    table.add({m.name, std::to_string(m.rows), fixed(static_cast<double>(m.bytes) / (1 << 20), 2),
               m.read_us > 0 ? fixed(m.read_us, 2) : "-", fixed(m.us, 2), fixed(m.plain_us, 2),
               m.read_us > 0 ? fixed(m.us / m.read_us, 2) : "-",
               m.us > 0 ? fixed(static_cast<double>(m.bytes) / m.us * 1e-6, 2) : "-", m.note});
  }
  return table.text();
}

std::string summary_of(std::span<const Measurement> measurements) {
  Table table({{"operation"},
               {"MiB", Align::kRight},
               {"read", Align::kRight},
               {"us at 1", Align::kRight},
               {"6", Align::kRight},
               {"12", Align::kRight},
               {"24", Align::kRight},
               {"48 rows", Align::kRight},
               {"x read at 6", Align::kRight},
               {"at 48", Align::kRight},
               {"6, no overlap", Align::kRight}});
  std::vector<std::string> names;
  for (const Measurement& m : measurements) {
    if (std::find(names.begin(), names.end(), m.name) == names.end()) names.push_back(m.name);
  }
  for (const std::string& name : names) {
    const auto at = [&](int rows) -> const Measurement* {
      for (const Measurement& m : measurements) {
        if (m.name == name && m.rows == rows) return &m;
      }
      return nullptr;
    };
    const auto us = [&](int rows) { return at(rows) == nullptr ? "-" : fixed(at(rows)->us, 2); };
    const auto share = [&](int rows) {
      const Measurement* m = at(rows);
      return m == nullptr || m->read_us <= 0 ? "-" : fixed(m->us / m->read_us, 2);
    };
    const Measurement* six = at(6);
    if (six == nullptr) continue;
    table.add({name, fixed(static_cast<double>(six->bytes) / (1 << 20), 1),
               six->read_us > 0 ? fixed(six->read_us, 2) : "-", us(1), us(6), us(12), us(24), us(48),
               share(6), share(48), fixed(six->plain_us, 2)});
  }
  return table.text();
}

Json json_of(std::span<const Measurement> measurements) {
  Json all = Json::array();
  for (const Measurement& m : measurements) {
    all.push_back({{"name", m.name},
                   {"rows", m.rows},
                   {"bytes", m.bytes},
                   {"flops", m.flops},
                   {"read_us", m.read_us},
                   {"us", m.us},
                   {"plain_us", m.plain_us},
                   {"note", m.note}});
  }
  return all;
}

namespace {

std::string left_out_of(std::span<const StepResult> results) {
  std::string text;
  for (const StepResult& r : results) {
    if (r.without.empty()) continue;
    Table split({{"left out, TP" + std::to_string(r.ranks) + ", " + std::to_string(r.rows) + " rows"},
                 {"saves us", Align::kRight}});
    for (const auto& [name, us] : r.without) split.add({name, fixed(r.step_us - us, 0)});
    text += "\n" + split.text();
  }
  return text;
}

}  // namespace

std::string table_of(std::span<const StepResult> results) {
  Table table({{"ranks", Align::kRight},
               {"rows", Align::kRight},
               {"step ms", Align::kRight},
               {"no overlap", Align::kRight},
               {"drafter", Align::kRight},
               {"GB", Align::kRight},
               {"floor ms", Align::kRight},
               {"x floor", Align::kRight},
               {"experts, last layer", Align::kRight}});
  for (const StepResult& r : results) {
    table.add({std::to_string(r.ranks), std::to_string(r.rows), fixed(r.step_us * 1e-3, 3),
               fixed(r.plain_us * 1e-3, 3), fixed(r.draft_us * 1e-3, 3),
               fixed(static_cast<double>(r.bytes) * 1e-9, 2), fixed(r.floor_us * 1e-3, 3),
               fixed(r.step_us / r.floor_us, 2), std::to_string(r.distinct_experts)});
  }
  return table.text() + left_out_of(results);
}

std::string prefill_table_of(std::span<const StepResult> results) {
  Table table({{"ranks", Align::kRight},
               {"rows", Align::kRight},
               {"ms", Align::kRight},
               {"tokens/s", Align::kRight}});
  for (const StepResult& r : results) {
    table.add({std::to_string(r.ranks), std::to_string(r.rows), fixed(r.step_us * 1e-3, 2),
               fixed(r.rows / r.step_us * 1e6, 0)});
  }
  return table.text() + left_out_of(results);
}

Json json_of(std::span<const StepResult> results) {
  Json all = Json::array();
  for (const StepResult& r : results) {
    Json without = Json::object();
    for (const auto& [name, us] : r.without) without[name] = us;
    all.push_back({{"ranks", r.ranks},
                   {"rows", r.rows},
                   {"step_us", r.step_us},
                   {"plain_us", r.plain_us},
                   {"draft_us", r.draft_us},
                   {"bytes", r.bytes},
                   {"floor_us", r.floor_us},
                   {"distinct_experts", r.distinct_experts},
                   {"without_us", without}});
  }
  return all;
}

}  // namespace spark::bench_gpu
