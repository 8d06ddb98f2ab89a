#include "engine/forward/step_calls.h"

#include <utility>

namespace spark::engine {
namespace {

class Writing {
 public:
  explicit Writing(ByteWriter& out) : out_(out) {}
  template <typename T>
  void operator()(T value) requires std::is_arithmetic_v<T> {
    out_.number(value);
  }
  void operator()(const std::vector<int32_t>& values) { out_.array(std::span<const int32_t>(values)); }
  template <typename T, typename Each>
  void list(std::vector<T>& values, Each each) {
    out_.number(static_cast<uint32_t>(values.size()));
    for (T& value : values) each(value);
  }

 private:
  ByteWriter& out_;
};

class Reading {
 public:
  explicit Reading(ByteReader& in) : in_(in) {}
  template <typename T>
  void operator()(T& value) requires std::is_arithmetic_v<T> {
    value = in_.number<T>();
  }
  void operator()(std::vector<int32_t>& values) { values = in_.array<int32_t>(); }
  template <typename T, typename Each>
  void list(std::vector<T>& values, Each each) {
    const auto count = in_.number<uint32_t>();
    for (uint32_t i = 0; i < count; ++i) each(values.emplace_back());
  }

 private:
  ByteReader& in_;
};

template <size_t Kind = 0>
StepCall read_kind(size_t kind, ByteReader& in) {
  if constexpr (Kind < std::variant_size_v<StepCall>) {
    if (kind != Kind) return read_kind<Kind + 1>(kind, in);
    std::variant_alternative_t<Kind, StepCall> call;
    Reading reading(in);
    call.fields(reading);
    return call;
  } else {
    throw Error("names call " + std::to_string(kind) + ", which does not exist", "a message between ranks");
  }
}

}  // namespace

void write_call(ByteWriter& out, const StepCall& call) {
  out.number(static_cast<uint8_t>(call.index()));
  Writing writing(out);
  // Reading and writing share `fields`, which therefore takes a call that may change; writing changes
  // nothing.
  std::visit([&](auto& each) { each.fields(writing); }, const_cast<StepCall&>(call));
}

StepCall read_call(std::span<const uint8_t> bytes) {
  ByteReader in(bytes);
  const auto kind = in.number<uint8_t>();
  StepCall call = read_kind(kind, in);
  if (!in.at_end()) throw Error("goes on after its end", "a message between ranks");
  return call;
}

}  // namespace spark::engine
