#include "kernel_cases/problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>

#include "engine/numeric/bf16.h"

namespace spark::engine::cases {
namespace {

constexpr size_t kAlign = 256;
constexpr size_t kGuard = 256;
constexpr uint8_t kGuardByte = 0x5C;
constexpr size_t kSlabBytes = size_t{16} << 20;

double value_at(const Tensor& tensor, const std::vector<uint8_t>& bytes, size_t i) {
  switch (tensor.kind) {
    case Kind::kBytes:
      return bytes[i];
    case Kind::kBf16: {
      uint16_t bits;
      std::memcpy(&bits, &bytes[2 * i], 2);
      return static_cast<double>(bf16_to_float(bits));
    }
    case Kind::kF32: {
      float value;
      std::memcpy(&value, &bytes[4 * i], 4);
      return static_cast<double>(value);
    }
    case Kind::kInt32: {
      int32_t value;
      std::memcpy(&value, &bytes[4 * i], 4);
      return value;
    }
  }
  return 0;
}

bool same_bits(const Tensor& tensor, const std::vector<uint8_t>& a, const std::vector<uint8_t>& b, size_t i) {
  const size_t size = element_bytes(tensor.kind);
  return std::memcmp(&a[i * size], &b[i * size], size) == 0;
}

double unit_in_last_place(Kind kind, double magnitude) {
  if (kind != Kind::kBf16 && kind != Kind::kF32) return 0;
  const int bits = kind == Kind::kBf16 ? 7 : 23;
  return magnitude == 0 ? 0 : std::ldexp(1.0, std::max(std::ilogb(magnitude), -126) - bits);
}

size_t row_elements(const Tensor& tensor) {
  if (tensor.check_row > 0) return tensor.check_row;
  const size_t count = tensor.bytes.size() / element_bytes(tensor.kind);
  return tensor.row_bytes > 0 ? tensor.row_bytes / element_bytes(tensor.kind) : count;
}

std::string describe(const Tensor& tensor, size_t i, const std::vector<uint8_t>& expected,
                     const std::vector<uint8_t>& actual) {
  std::ostringstream text;
  const size_t row = row_elements(tensor);
  text.precision(9);
  text << tensor.name << "[" << i / row << "][" << i % row << "]: expected " << value_at(tensor, expected, i)
       << ", got " << value_at(tensor, actual, i);
  return text.str();
}

struct Differences {
  size_t elements = 0;
  size_t different = 0;  // in value
  size_t wrong = 0;      // beyond the tolerance
  std::string first;
};

bool acceptable(const Tensor& tensor, double expected, double actual, double row_max) {
  if (std::isnan(expected) || std::isnan(actual)) return std::isnan(expected) && std::isnan(actual);
  if (expected == actual) return true;
  if (std::isinf(expected) || std::isinf(actual)) return false;
  const double ulp = unit_in_last_place(tensor.kind, std::max(std::fabs(expected), std::fabs(actual)));
  const Check& check = tensor.check;
  return std::fabs(expected - actual) <= check.ulps * ulp + check.row_max * row_max + check.absolute;
}

Differences differences(const Tensor& tensor, const std::vector<uint8_t>& expected,
                        const std::vector<bool>& mask, const std::vector<uint8_t>& actual) {
  Differences result;
  const size_t count = tensor.bytes.size() / element_bytes(tensor.kind);
  const size_t row = row_elements(tensor);
  double row_max = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % row == 0) {
      row_max = 0;
      for (size_t k = i; k < std::min(i + row, count); ++k) {
        const double magnitude = std::fabs(value_at(tensor, expected, k));
        if (mask[k] && std::isfinite(magnitude)) row_max = std::max(row_max, magnitude);
      }
    }
    if (!mask[i]) continue;
    ++result.elements;
    if (same_bits(tensor, expected, actual, i)) continue;
    const double e = value_at(tensor, expected, i);
    const double a = value_at(tensor, actual, i);
    if (!(e == a) && !(std::isnan(e) && std::isnan(a))) ++result.different;
    if (acceptable(tensor, e, a, row_max)) continue;
    if (result.wrong++ == 0) result.first = describe(tensor, i, expected, actual);
  }
  return result;
}

}  // namespace

size_t element_bytes(Kind kind) {
  return kind == Kind::kBytes ? 1 : kind == Kind::kBf16 ? 2 : 4;
}

void HostSteps::add(int32_t seq, int32_t pos, int32_t tok, int32_t start, bool image) {
  sequence.push_back(seq);
  position.push_back(pos);
  token.push_back(tok);
  window_start.push_back(start);
  is_image.push_back(image ? 1 : 0);
}

int Problem::add(Tensor tensor) {
  tensors.push_back(std::move(tensor));
  return static_cast<int>(tensors.size()) - 1;
}

int Problem::output(const std::string& name, Kind kind, size_t elements, Check check) {
  const size_t bytes = elements * element_bytes(kind);
  return add(
      {name, kind, Role::kOutput, std::vector<uint8_t>(bytes * static_cast<size_t>(rows)), bytes, check});
}

uint8_t* Device::take(size_t bytes) {
  const size_t needed = (bytes + kAlign - 1) / kAlign * kAlign + kGuard;
  while (slab_ < slabs_.size() && used_ + needed > slabs_[slab_].size) {
    ++slab_;
    used_ = 0;
  }
  if (slab_ == slabs_.size()) {
    const size_t size = std::max(needed, kSlabBytes);
    auto* base = static_cast<uint8_t*>(backend_.allocate(size, "kernel cases"));
    slabs_.push_back({base, size});
    used_ = 0;
  }
  uint8_t* result = slabs_[slab_].base + used_;
  used_ += needed;
  // From the last byte to the next piece of memory: writes past the end show up here.
  const std::vector<uint8_t> guard(needed - bytes, kGuardByte);
  backend_.upload(result + bytes, guard.data(), guard.size());
  guards_.push_back(result + bytes);
  return result;
}

void Device::check_guards() {
  std::vector<uint8_t> guard(kGuard);
  for (const uint8_t* at : guards_) {
    backend_.download(guard.data(), at, guard.size());
    for (const uint8_t byte : guard) {
      if (byte != kGuardByte) throw std::runtime_error("the backend wrote outside its outputs");
    }
  }
}

template <typename T>
const T* Device::upload(const std::vector<T>& values) {
  auto* to = take(values.size() * sizeof(T));
  backend_.upload(to, values.data(), values.size() * sizeof(T));
  return reinterpret_cast<const T*>(to);
}

StepRows Device::upload_steps(const HostSteps& steps, int32_t first, int32_t count) {
  const auto slice = [&](const auto& v) { return std::vector(v.begin() + first, v.begin() + first + count); };
  std::vector<int32_t> first_row(static_cast<size_t>(count));
  std::vector<int32_t> last_row(static_cast<size_t>(count));
  const std::vector<int32_t> sequence = slice(steps.sequence);
  for (int32_t t = 0; t < count; ++t) {
    const auto at = static_cast<size_t>(t);
    first_row[at] = t > 0 && sequence[at] == sequence[at - 1] ? first_row[at - 1] : t;
  }
  for (int32_t t = count - 1; t >= 0; --t) {
    const auto at = static_cast<size_t>(t);
    last_row[at] = t + 1 < count && sequence[at] == sequence[at + 1] ? last_row[at + 1] : t;
  }
  return {.rows = count,
          .token = upload(slice(steps.token)),
          .position = upload(slice(steps.position)),
          .sequence = upload(sequence),
          .first_row = upload(first_row),
          .last_row = upload(last_row),
          .window_start = upload(slice(steps.window_start)),
          .is_image = upload(slice(steps.is_image))};
}

Results Device::run(const Problem& problem, const std::vector<int32_t>& pieces, uint8_t poison) {
  slab_ = used_ = 0;
  guards_.clear();
  std::vector<uint8_t*> base;
  for (const Tensor& tensor : problem.tensors) {
    const bool output = tensor.role == Role::kOutput;
    base.push_back(take(tensor.bytes.size()));
    const std::vector<uint8_t> fill(output ? tensor.bytes.size() : 0, poison);
    backend_.upload(base.back(), output ? fill.data() : tensor.bytes.data(), tensor.bytes.size());
  }
  std::vector<Weight> weights;
  for (const HostWeight& weight : problem.weights) weights.push_back(backend_.place(weight.view()));
  ExpertBank bank;
  if (!problem.experts.empty()) {
    std::vector<ExpertWeights> host;
    for (const HostExpert& e : problem.experts) host.push_back({e.w1.view(), e.w3.view(), e.w2.view()});
    bank = backend_.place_experts(host);
  }
  int32_t first = 0;
  for (const int32_t count : pieces) {
    Call call{backend_, count, first, {}, base, weights, &bank};
    for (size_t i = 0; i < base.size(); ++i)
      call.tensors[i] = base[i] + static_cast<size_t>(first) * problem.tensors[i].row_bytes;
    if (problem.steps) call.step = upload_steps(*problem.steps, first, count);
    problem.issue(call);
    first += count;
  }
  Results results;
  for (size_t i = 0; i < base.size(); ++i) {
    results.emplace_back(problem.tensors[i].bytes.size());
    backend_.download(results.back().data(), base[i], results.back().size());
  }
  check_guards();
  return results;
}

std::vector<int32_t> whole(const Problem& problem) {
  return {problem.rows};
}
std::vector<int32_t> one_by_one(const Problem& problem) {
  return std::vector<int32_t>(static_cast<size_t>(problem.rows), 1);
}
std::vector<int32_t> random_pieces(const Problem& problem, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> pieces;
  for (int32_t left = problem.rows; left > 0; left -= pieces.back())
    pieces.push_back(std::min<int32_t>(left, 1 + static_cast<int32_t>(random() % 11)));
  return pieces;
}

std::vector<std::vector<bool>> specified(const Problem& problem, const Results& a, const Results& b) {
  std::vector<std::vector<bool>> mask;
  for (size_t i = 0; i < problem.tensors.size(); ++i) {
    const Tensor& tensor = problem.tensors[i];
    const size_t size = element_bytes(tensor.kind);
    const size_t count = tensor.bytes.size() / size;
    std::vector<bool> known(count);
    for (size_t k = 0; k < count; ++k) {
      known[k] = same_bits(tensor, a[i], b[i], k);
      if (problem.steps && tensor.row_bytes > 0 && problem.steps->sequence[k * size / tensor.row_bytes] < 0)
        known[k] = false;
    }
    mask.push_back(std::move(known));
  }
  return mask;
}

std::string compare(const Problem& problem, const Results& expected,
                    const std::vector<std::vector<bool>>& mask, const Results& actual) {
  std::ostringstream trouble;
  for (size_t i = 0; i < problem.tensors.size(); ++i) {
    const Tensor& tensor = problem.tensors[i];
    if (tensor.role != Role::kInput && tensor.check.skip) continue;
    const Differences d = differences(tensor, expected[i], mask[i], actual[i]);
    if (tensor.role == Role::kInput) {
      if (d.different > 0) trouble << "input " << tensor.name << " was changed\n";
      continue;
    }
    const double allowed =
        tensor.check.fraction * static_cast<double>(d.elements) + (tensor.check.fraction > 0 ? 3 : 0);
    if (d.wrong > 0)
      trouble << d.wrong << " of " << d.elements << " are beyond the tolerance, first " << d.first << "\n";
    if (static_cast<double>(d.different) > allowed) {
      trouble << tensor.name << ": " << d.different << " of " << d.elements << " differ, at most " << allowed
              << " may\n";
    }
  }
  if (problem.verify) trouble << problem.verify(problem, actual);
  return trouble.str();
}

std::string compare_bits(const Problem& problem, const Results& expected,
                         const std::vector<std::vector<bool>>& mask, const Results& actual) {
  for (size_t i = 0; i < problem.tensors.size(); ++i) {
    const Tensor& tensor = problem.tensors[i];
    if (tensor.role == Role::kInput) continue;
    for (size_t k = 0; k < mask[i].size(); ++k) {
      if (mask[i][k] && !same_bits(tensor, expected[i], actual[i], k))
        return "different bits in " + describe(tensor, k, expected[i], actual[i]) + "\n";
    }
  }
  return {};
}

}  // namespace spark::engine::cases
