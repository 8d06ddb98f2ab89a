// Numbers and strings as bytes, little-endian, for what ranks send one another.
//
//   ByteWriter out;
//   out.number<uint32_t>(7);
//   out.text("abc");
//   ByteReader in(out.bytes());
//   in.number<uint32_t>();              // 7; throws Error when the bytes end too early
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "common/error.h"

namespace spark::engine {

class ByteWriter {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    append(&value, sizeof value);
  }
  void block(std::span<const uint8_t> bytes) {
    number(static_cast<uint32_t>(bytes.size()));
    append(bytes.data(), bytes.size());
  }
  void text(const std::string& text) { block({reinterpret_cast<const uint8_t*>(text.data()), text.size()}); }
  // Elements without padding bytes, after their count.
  template <typename T>
  void array(std::span<const T> elements) {
    static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>);
    block({reinterpret_cast<const uint8_t*>(elements.data()), elements.size_bytes()});
  }
  void clear() { bytes_.clear(); }
  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  void append(const void* from, size_t count) {
    const auto* bytes = static_cast<const uint8_t*>(from);
    bytes_.insert(bytes_.end(), bytes, bytes + count);
  }
  std::vector<uint8_t> bytes_;
};

// Reads what may come from anyone: lengths are checked before anything is allocated.
class ByteReader {
 public:
  explicit ByteReader(std::span<const uint8_t> bytes) : rest_(bytes) {}

  template <typename T>
  T number() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    const auto bytes = take(sizeof value);
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::span<const uint8_t> block() { return take(number<uint32_t>()); }
  std::string text() {
    const auto bytes = block();
    return {bytes.begin(), bytes.end()};
  }
  template <typename T>
  std::vector<T> array() {
    const auto bytes = block();
    if (bytes.size() % sizeof(T) != 0) throw Error("holds a broken array", "a message between ranks");
    std::vector<T> elements(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(elements.data(), bytes.data(), bytes.size());
    return elements;
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::span<const uint8_t> take(size_t count) {
    if (count > rest_.size()) throw Error("ends too early", "a message between ranks");
    const auto bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return bytes;
  }
  std::span<const uint8_t> rest_;
};

}  // namespace spark::engine
