// Element types of tensors, named as in safetensors files.
//
//   std::optional<Dtype> dtype = dtype_from_name("F8_E8M0");
//   size_t bytes = dtype_bytes(*dtype);        // 1
//   std::string_view name = dtype_name(*dtype);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace spark::model {

enum class Dtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5m2,
  kF8E4m3,
  kF8E8m0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

struct DtypeInfo {
  Dtype dtype;
  std::string_view name;
  size_t bytes;  // per element
};

// Every known type, in the order of the enumeration.
inline constexpr std::array<DtypeInfo, 16> kDtypes = {{
    {Dtype::kBool, "BOOL", 1},
    {Dtype::kU8, "U8", 1},
    {Dtype::kI8, "I8", 1},
    {Dtype::kF8E5m2, "F8_E5M2", 1},
    {Dtype::kF8E4m3, "F8_E4M3", 1},
    {Dtype::kF8E8m0, "F8_E8M0", 1},
    {Dtype::kI16, "I16", 2},
    {Dtype::kU16, "U16", 2},
    {Dtype::kF16, "F16", 2},
    {Dtype::kBf16, "BF16", 2},
    {Dtype::kI32, "I32", 4},
    {Dtype::kU32, "U32", 4},
    {Dtype::kF32, "F32", 4},
    {Dtype::kI64, "I64", 8},
    {Dtype::kU64, "U64", 8},
    {Dtype::kF64, "F64", 8},
}};

constexpr std::string_view dtype_name(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].name;
}
constexpr size_t dtype_bytes(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].bytes;
}

constexpr std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (const DtypeInfo& info : kDtypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace spark::model
