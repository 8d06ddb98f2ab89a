#include "engine/checkpoint/safetensors_json.h"

#include <limits>
#include <unordered_set>

#include "engine/checkpoint/fault_list.h"
#include "engine/checkpoint/safetensors_header.h"
#include "engine/checkpoint/strict_sax.h"

namespace spark::engine {
namespace {

class HeaderReader : public StrictSax {
 public:
  HeaderReader(const std::string& path, std::vector<RawTensor>& tensors,
               std::vector<std::pair<std::string, std::string>>& metadata)
      : StrictSax("the header", path,
                  "the file is damaged or not a safetensors file: copy or download it again"),
        tensors_(tensors),
        metadata_(metadata) {}

  [[noreturn]] void fail_start() const { fail("does not start with \"{\""); }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kNames;
        return true;
      case State::kMetadata:
        state_ = State::kMetadataKeys;
        return true;
      case State::kTensor:
        state_ = State::kFields;
        return true;
      default:
        return refuse("an object");
    }
  }

  bool key(std::string& name) override {
    if (state_ == State::kNames) return tensor_or_metadata(name);
    if (state_ == State::kMetadataKeys) return metadata_key(name);
    return field(name);
  }

  bool end_object() override {
    if (state_ == State::kFields) finish_tensor();
    state_ = state_ == State::kNames ? State::kEnd : State::kNames;
    return true;
  }

  bool string(std::string& text) override {
    if (state_ == State::kMetadataValue) {
      metadata_.back().second = std::move(text);
      state_ = State::kMetadataKeys;
      return true;
    }
    if (state_ != State::kDtype) return refuse("a string");
    tensors_.back().dtype = std::move(text);
    state_ = State::kFields;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::kShape) {
      state_ = State::kExtents;
    } else if (state_ == State::kOffsets) {
      state_ = State::kOffset;
      offsets_ = 0;
    } else {
      return refuse("an array");
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kExtents) return extent(value);
    if (state_ != State::kOffset) return refuse("a number");
    if (++offsets_ > 2) return refuse("more");
    (offsets_ == 1 ? tensors_.back().begin : tensors_.back().end) = value;
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffset && offsets_ != 2) return refuse("fewer");
    state_ = State::kFields;
    return true;
  }

 private:
  enum class State {
    kStart,
    kNames,  // keys of the whole
    kMetadata,
    kMetadataKeys,
    kMetadataValue,
    kTensor,
    kFields,  // keys of a tensor
    kDtype,
    kShape,
    kExtents,
    kOffsets,
    kOffset,
    kEnd,
  };

  std::string place() const override {
    switch (state_) {
      case State::kMetadata:
        return "\"__metadata__\" must be an object of strings";
      case State::kMetadataValue:
        return quote_name(metadata_.back().first) + " of \"__metadata__\" must be a string";
      case State::kTensor:
        return quote_name(tensors_.back().name) + " must be an object";
      case State::kDtype:
        return "\"dtype\" of " + quote_name(tensors_.back().name) + " must be a string";
      case State::kShape:
      case State::kExtents:
        return "\"shape\" of " + quote_name(tensors_.back().name) + " must be an array of whole numbers";
      case State::kOffsets:
      case State::kOffset:
        return "\"data_offsets\" of " + quote_name(tensors_.back().name) +
               " must be an array of two whole numbers";
      default:
        return "must be an object";
    }
  }

  bool tensor_or_metadata(std::string& name) {
    if (name == "__metadata__") {
      if (has_metadata_) fail("has \"__metadata__\" twice");
      has_metadata_ = true;
      state_ = State::kMetadata;
      return true;
    }
    if (name.size() > SafetensorsLimits::kNameBytes) {
      fail("has a tensor name of " + std::to_string(name.size()) + " bytes, " +
           quote_name(name.substr(0, 64)) + "...; the limit is " +
           std::to_string(SafetensorsLimits::kNameBytes));
    }
    tensors_.emplace_back().name = std::move(name);
    has_dtype_ = has_shape_ = has_offsets_ = false;
    state_ = State::kTensor;
    return true;
  }

  bool metadata_key(std::string& name) {
    if (!metadata_keys_.insert(name).second)
      fail("has the key " + quote_name(name) + " twice in \"__metadata__\"");
    metadata_.emplace_back(std::move(name), std::string());
    state_ = State::kMetadataValue;
    return true;
  }

  bool field(const std::string& name) {
    const auto take = [&](bool& seen, State next) {
      if (seen) fail("has " + quote_name(name) + " twice in " + quote_name(tensors_.back().name));
      seen = true;
      state_ = next;
      return true;
    };
    if (name == "dtype") return take(has_dtype_, State::kDtype);
    if (name == "shape") return take(has_shape_, State::kShape);
    if (name == "data_offsets") return take(has_offsets_, State::kOffsets);
    fail("has the unknown key " + quote_name(name.substr(0, 64)) + " in " + quote_name(tensors_.back().name));
  }

  bool extent(uint64_t value) {
    RawTensor& tensor = tensors_.back();
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return refuse("a number above 2^63");
    if (tensor.shape.size() == SafetensorsLimits::kRank) {
      fail("gives " + quote_name(tensor.name) + " more than " + std::to_string(SafetensorsLimits::kRank) +
           " dimensions");
    }
    tensor.shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  void finish_tensor() {
    const char* missing = !has_dtype_     ? "\"dtype\""
                          : !has_shape_   ? "\"shape\""
                          : !has_offsets_ ? "\"data_offsets\""
                                          : nullptr;
    if (missing != nullptr) fail("gives " + quote_name(tensors_.back().name) + " no " + missing);
  }

  std::vector<RawTensor>& tensors_;
  std::vector<std::pair<std::string, std::string>>& metadata_;
  std::unordered_set<std::string> metadata_keys_;
  State state_ = State::kStart;
  int offsets_ = 0;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

}  // namespace

void parse_safetensors_json(std::string_view json, const std::string& path, std::vector<RawTensor>& tensors,
                            std::vector<std::pair<std::string, std::string>>& metadata) {
  HeaderReader reader(path, tensors, metadata);
  // White space before the object is legal JSON but not a legal header.
  if (!json.starts_with('{')) reader.fail_start();
  reader.parse(json);
}

}  // namespace spark::engine
