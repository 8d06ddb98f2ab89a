// One call of one operation with all its data, so that any backend can run it: on its own memory, with
// poisoned outputs, whole or in pieces of the batch.
//
//   Problem p = ...;                                  // a case builds it, see cases.h
//   Device reference(reference_backend), candidate(cuda_backend);
//   Results expected = reference.run(p, whole(p), 0xA5);
//   Results actual = candidate.run(p, {3, 1, 5}, 0xFF);
//   std::string trouble = compare(p, expected_twice, actual);
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/kernels/backend.h"

namespace spark::engine::cases {

enum class Kind : uint8_t { kBytes, kBf16, kF32, kInt32 };
enum class Role : uint8_t {
  kInput,
  kOutput,  // poisoned before the call
  kState,   // read and written: caches, streams
};

// How an output is compared with the reference. |a - b| <= ulps * (BF16 or FP32 unit in the last place) +
// row_max * (largest magnitude of the reference in the row) + absolute; and no more than `fraction` of the
// elements may differ at all. All zero: exact.
struct Check {
  double ulps = 0;
  double row_max = 0;
  double absolute = 0;
  double fraction = 1;
  bool skip = false;  // judged by Problem::verify alone
};
inline constexpr Check kExact{.fraction = 0};

struct Tensor {
  std::string name;
  Kind kind = Kind::kBytes;
  Role role = Role::kInput;
  std::vector<uint8_t> bytes;  // contents; for outputs only the size counts
  size_t row_bytes = 0;        // of one row of the batch; 0: shared by all rows
  Check check = kExact;
  size_t check_row = 0;  // elements per row for Check::row_max; 0: row_bytes
};

struct HostWeight {
  WeightFormat format = WeightFormat::kBf16;
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;

  Weight view() const { return {format, rows, cols, data.data(), scales.empty() ? nullptr : scales.data()}; }
};
struct HostExpert {
  HostWeight w1, w3, w2;
};

// The rows of a step. Rows of a sequence are contiguous; first_row and last_row are derived for each piece.
struct HostSteps {
  std::vector<int32_t> token, position, sequence, window_start;
  std::vector<uint8_t> is_image;

  void add(int32_t seq, int32_t pos, int32_t tok = 0, int32_t start = 0, bool image = false);
  int32_t rows() const { return static_cast<int32_t>(sequence.size()); }
};

// What an issue function sees: pointers into the backend's memory for the rows of one piece.
class Call {
 public:
  Backend& backend;
  int32_t rows = 0;
  int32_t first = 0;  // row of the batch where this piece starts
  StepRows step;

  template <typename T>
  T* data(int tensor) const {
    return reinterpret_cast<T*>(tensors.at(static_cast<size_t>(tensor)));
  }
  const Weight* weight(int index) const { return &weights.at(static_cast<size_t>(index)); }
  const ExpertBank* bank() const { return bank_; }

  std::vector<uint8_t*> tensors;
  std::vector<Weight> weights;
  const ExpertBank* bank_ = nullptr;
};

struct Problem;
using Results = std::vector<std::vector<uint8_t>>;  // contents of every tensor afterwards

struct Problem {
  int32_t rows = 0;
  std::vector<Tensor> tensors;
  std::vector<HostWeight> weights;
  std::vector<HostExpert> experts;
  std::optional<HostSteps> steps;
  bool splittable = true;  // pieces of the batch, in order, give the same results
  std::function<void(const Call&)> issue;
  // Further judgement of the candidate's own results; an empty string is praise.
  std::function<std::string(const Problem&, const Results&)> verify;

  int add(Tensor tensor);
  template <typename T>
  int input(const std::string& name, Kind kind, const std::vector<T>& values, size_t row_elements = 0) {
    const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
    return add(
        {name, kind, Role::kInput, {begin, begin + values.size() * sizeof(T)}, row_elements * sizeof(T)});
  }
  template <typename T>
  int state(const std::string& name, Kind kind, const std::vector<T>& values, Check check,
            size_t row_elements = 0) {
    const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
    return add({name,
                kind,
                Role::kState,
                {begin, begin + values.size() * sizeof(T)},
                row_elements * sizeof(T),
                check});
  }
  // An output of `rows` rows of so many elements.
  int output(const std::string& name, Kind kind, size_t row_elements, Check check);
};

size_t element_bytes(Kind kind);
template <typename T>
std::vector<T> values_of(const std::vector<uint8_t>& bytes) {
  const auto* begin = reinterpret_cast<const T*>(bytes.data());
  return {begin, begin + bytes.size() / sizeof(T)};
}

// Runs problems on a backend, reusing its memory from one to the next (backends never free any).
class Device {
 public:
  explicit Device(Backend& backend) : backend_(backend) {}
  Backend& backend() { return backend_; }

  // `pieces`: row counts that add up to problem.rows. Throws std::runtime_error when the backend writes
  // outside its outputs.
  Results run(const Problem& problem, const std::vector<int32_t>& pieces, uint8_t poison);

 private:
  struct Slab {
    uint8_t* base;
    size_t size;
  };
  uint8_t* take(size_t bytes);
  void check_guards();
  StepRows upload_steps(const HostSteps& steps, int32_t first, int32_t count);
  template <typename T>
  const T* upload(const std::vector<T>& values);

  Backend& backend_;
  std::vector<Slab> slabs_;
  size_t slab_ = 0;
  size_t used_ = 0;
  std::vector<uint8_t*> guards_;
};

std::vector<int32_t> whole(const Problem& problem);
std::vector<int32_t> one_by_one(const Problem& problem);
std::vector<int32_t> random_pieces(const Problem& problem, uint64_t seed);

// The elements that the operation specifies: those that two runs of the reference with different poison agree
// on, without padding rows.
std::vector<std::vector<bool>> specified(const Problem& problem, const Results& a, const Results& b);

// Empty when the candidate is right, else the first differences.
std::string compare(const Problem& problem, const Results& expected,
                    const std::vector<std::vector<bool>>& mask, const Results& actual);
// Empty when all specified elements have the same bits.
std::string compare_bits(const Problem& problem, const Results& expected,
                         const std::vector<std::vector<bool>>& mask, const Results& actual);

}  // namespace spark::engine::cases
