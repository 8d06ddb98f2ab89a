#include "engine/checkpoint/checkpoint_index.h"

#include <algorithm>
#include <cstdio>
#include <unordered_set>

#include "common/error.h"
#include "engine/checkpoint/fault_list.h"
#include "engine/checkpoint/safetensors_header.h"
#include "engine/checkpoint/strict_sax.h"

namespace spark::engine {
namespace {

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

class IndexReader : public StrictSax {
 public:
  IndexReader(const std::string& path, CheckpointIndex& index)
      : StrictSax("the index", path, "copy or download it again"), index_(index) {}

  bool has_weight_map() const { return has_weight_map_; }

  bool start_object(std::size_t) override {
    if (skipped_ > 0 || state_ == State::kSkip) return skip_deeper();
    switch (state_) {
      case State::kStart:
        state_ = State::kKeys;
        return true;
      case State::kMetadata:
        state_ = State::kMetadataKeys;
        return true;
      case State::kWeightMap:
        state_ = State::kNames;
        return true;
      default:
        return refuse("an object");
    }
  }

  bool start_array(std::size_t) override {
    return skipped_ > 0 || state_ == State::kSkip ? skip_deeper() : refuse("an array");
  }

  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool key(std::string& name) override {
    if (skipped_ > 0) return true;
    if (state_ == State::kNames) return tensor(name);
    after_skip_ = state_;
    if (state_ == State::kMetadataKeys) {
      state_ = name == "total_size" ? take(has_total_size_, name, State::kTotalSize) : State::kSkip;
    } else if (name == "metadata") {
      state_ = take(has_metadata_, name, State::kMetadata);
    } else {
      state_ = name == "weight_map" ? take(has_weight_map_, name, State::kWeightMap) : State::kSkip;
    }
    return true;
  }

  bool string(std::string& text) override {
    if (state_ != State::kShard) return skip_value("a string");
    if (!is_plain_file_name(text)) {
      fail("puts " + quote_name(index_.weight_map.back().first) + " into " + quote_name(text.substr(0, 300)) +
           ", which is not the name of a file beside it");
    }
    index_.weight_map.back().second = std::move(text);
    state_ = State::kNames;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kTotalSize) return skip_value("a number");
    index_.total_size = value;
    state_ = State::kMetadataKeys;
    return true;
  }

  // Some writers give the size as 7608024.0.
  bool number_float(number_float_t value, const std::string&) override {
    if (state_ != State::kTotalSize) return skip_value("a number");
    if (!(value >= 0 && value < 0x1p53 && value == static_cast<double>(static_cast<uint64_t>(value)))) {
      return refuse("a fraction");
    }
    return number_unsigned(static_cast<uint64_t>(value));
  }

  bool null() override { return skip_value("null"); }
  bool boolean(bool) override { return skip_value("a boolean"); }
  bool number_integer(number_integer_t) override { return skip_value("a negative number"); }

 private:
  enum class State {
    kStart,
    kKeys,
    kMetadata,
    kMetadataKeys,
    kTotalSize,
    kWeightMap,
    kNames,
    kShard,
    kSkip,
    kEnd,
  };
  static constexpr size_t kMaxDepth = 64;

  std::string place() const override {
    switch (state_) {
      case State::kMetadata:
        return "\"metadata\" must be an object";
      case State::kTotalSize:
        return "\"total_size\" must be a whole number";
      case State::kWeightMap:
        return "\"weight_map\" must be an object";
      case State::kShard:
        return "the shard of " + quote_name(index_.weight_map.back().first) + " must be a string";
      default:
        return "must be an object";
    }
  }

  State take(bool& seen, const std::string& name, State next) const {
    if (seen) fail("has " + quote_name(name) + " twice");
    seen = true;
    return next;
  }

  bool tensor(std::string& name) {
    if (name.size() > SafetensorsLimits::kNameBytes) {
      fail("has a tensor name of " + std::to_string(name.size()) + " bytes; the limit is " +
           std::to_string(SafetensorsLimits::kNameBytes));
    }
    index_.weight_map.emplace_back(std::move(name), std::string());
    state_ = State::kShard;
    return true;
  }

  bool skip_deeper() {
    if (++skipped_ > kMaxDepth) fail("is nested deeper than " + std::to_string(kMaxDepth) + " levels");
    return true;
  }

  // A scalar: the whole of a skipped value, or a part of one.
  bool skip_value(const char* what) {
    if (skipped_ > 0) return true;
    if (state_ != State::kSkip) return refuse(what);
    state_ = after_skip_;
    return true;
  }

  bool leave() {
    if (skipped_ > 0) {
      if (--skipped_ == 0) state_ = after_skip_;
    } else {
      state_ = state_ == State::kKeys ? State::kEnd : State::kKeys;
    }
    return true;
  }

  CheckpointIndex& index_;
  State state_ = State::kStart;
  State after_skip_ = State::kStart;
  size_t skipped_ = 0;  // open objects and arrays inside a value that does not matter
  bool has_metadata_ = false;
  bool has_total_size_ = false;
  bool has_weight_map_ = false;
};

}  // namespace

CheckpointIndex parse_checkpoint_index(std::string_view json, const std::string& path) {
  CheckpointIndex index;
  IndexReader reader(path, index);
  reader.parse(json);
  if (!reader.has_weight_map())
    throw Error("the index has no \"weight_map\"", path, "copy or download it again");

  FaultList faults;
  std::unordered_set<std::string_view> names;
  names.reserve(index.weight_map.size());
  for (const auto& [name, shard] : index.weight_map) {
    if (!names.insert(name).second) faults.add(quote_name(name), "stands twice in \"weight_map\"");
  }
  faults.throw_if_any(path, "copy or download it again");
  return index;
}

std::string format_checkpoint_index(const CheckpointIndex& index) {
  std::vector<std::pair<std::string, std::string>> sorted = index.weight_map;
  std::sort(sorted.begin(), sorted.end());
  std::string text = "{\n \"metadata\": {";
  if (index.total_size) text += "\n  \"total_size\": " + std::to_string(*index.total_size) + "\n ";
  text += "},\n \"weight_map\": {";
  for (size_t i = 0; i < sorted.size(); ++i) {
    text += (i == 0 ? "\n  " : ",\n  ") + quote_name(sorted[i].first) + ": " + quote_name(sorted[i].second);
  }
  return text + (sorted.empty() ? "}\n}\n" : "\n }\n}\n");
}

std::string shard_name(int shard, int shards) {
  SPARK_CHECK(shard >= 1 && shard <= shards && shards <= 99999);
  char name[64];
  std::snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", shard, shards);
  return name;
}

}  // namespace spark::engine
