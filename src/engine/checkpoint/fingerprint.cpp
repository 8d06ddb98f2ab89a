#include "engine/checkpoint/fingerprint.h"

#include <algorithm>
#include <vector>

#include "common/file.h"
#include "common/hash.h"
#include "engine/checkpoint/checkpoint.h"

namespace spark::engine {
namespace {

constexpr uint64_t kSmallBytes = 16 << 10;
constexpr size_t kDigits = 16;

}  // namespace

std::string checkpoint_fingerprint(const std::string& folder) {
  const Checkpoint checkpoint(folder);
  std::vector<const StoredTensor*> tensors;
  for (const auto& shard : checkpoint.shards()) {
    for (const StoredTensor& tensor : shard->header().tensors) tensors.push_back(&tensor);
  }
  // How tensors are spread over shards does not matter.
  std::sort(tensors.begin(), tensors.end(),
            [](const StoredTensor* a, const StoredTensor* b) { return a->name < b->name; });
  std::string all = sha256_hex(read_file(folder + "/config.json"));
  all += sha256_hex(read_file(folder + "/tokenizer.json"));
  for (const StoredTensor* tensor : tensors) {
    all += tensor->name + " " + std::string(model::dtype_name(tensor->dtype)) + format_shape(tensor->shape);
    if (tensor->bytes <= kSmallBytes) {
      const auto bytes = checkpoint.tensor(tensor->name).bytes;
      all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    all += "\n";
  }
  return sha256_hex(all).substr(0, kDigits);
}

}  // namespace spark::engine
