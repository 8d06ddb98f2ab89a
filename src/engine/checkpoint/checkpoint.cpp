#include "engine/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <unordered_set>

#include "common/error.h"
#include "common/file.h"
#include "common/units.h"
#include "engine/checkpoint/checkpoint_index.h"
#include "engine/checkpoint/fault_list.h"

namespace spark::engine {
namespace {

constexpr const char* kCopyAgain = "copy or download the checkpoint again";
constexpr size_t kMaxIndexBytes = size_t{256} << 20;

void check_folder(const std::string& folder) {
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0)
    throw Error(std::string("cannot be examined: ") + std::strerror(errno), folder);
  if (!S_ISDIR(info.st_mode)) {
    throw Error("is not a folder", folder, "name the folder that holds the checkpoint's files");
  }
}

// What cannot be looked at is there: opening it says why.
bool exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

std::string joined(const std::set<std::string>& hints) {
  std::string text;
  for (const std::string& hint : hints) text += (text.empty() ? "" : "; ") + hint;
  return text;
}

std::string read_index(const std::string& path) {
  const RandomAccessFile file(path);
  if (file.size() > kMaxIndexBytes) {
    throw Error(
        "is " + format_bytes(file.size()) + " large; an index is at most " + format_bytes(kMaxIndexBytes),
        path);
  }
  std::string text(file.size(), '\0');
  file.read(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
  return text;
}

std::string describe(const TensorSpec& spec) {
  return std::string(model::dtype_name(spec.dtype)) + " " + format_shape(spec.shape);
}

// One group of the report: all are counted, the first few are listed.
struct Group {
  const char* title;
  std::vector<std::string> lines;

  void print(size_t shown, std::string& text) const {
    if (lines.empty()) return;
    text += "\n  " + std::string(title) + " (" + format_count(lines.size()) + "):";
    for (size_t i = 0; i < std::min(shown, lines.size()); ++i) text += "\n    " + lines[i];
    if (lines.size() > shown) text += "\n    ... and " + format_count(lines.size() - shown) + " more";
  }
};

}  // namespace

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder) {
  check_folder(folder);
  const std::string index_path = folder + "/" + kCheckpointIndexName;
  const std::string single_path = folder + "/" + kCheckpointSingleName;
  if (exists(index_path)) {
    open_sharded(index_path);
  } else if (exists(single_path)) {
    open_single(single_path);
  } else {
    throw Error("holds neither " + std::string(kCheckpointIndexName) + " nor " + kCheckpointSingleName,
                folder, "name the folder that holds the checkpoint's files");
  }
}

void Checkpoint::add(const SafetensorsFile& shard, FaultList& faults) {
  for (const StoredTensor& entry : shard.header().tensors) {
    const auto [place, is_new] = by_name_.emplace(entry.name, Place{&shard, &entry});
    if (!is_new) {
      faults.add(file_name(shard), "holds " + quote_name(entry.name) + ", which " +
                                       file_name(*place->second.shard) + " holds too");
    }
    total_bytes_ += entry.bytes;
  }
}

void Checkpoint::open_single(const std::string& path) {
  FaultList faults;
  const SafetensorsFile& file = *shards_.emplace_back(std::make_unique<const SafetensorsFile>(path));
  by_name_.reserve(file.header().tensors.size());
  add(file, faults);
  faults.throw_if_any(folder_, kCopyAgain);
}

void Checkpoint::open_sharded(const std::string& index_path) {
  const CheckpointIndex index = parse_checkpoint_index(read_index(index_path), index_path);
  open_shards(index);

  FaultList faults;
  by_name_.reserve(index.weight_map.size());
  for (const auto& shard : shards_) add(*shard, faults);
  check_listing(index, faults);
  faults.throw_if_any(folder_, kCopyAgain);
  if (index.total_size && *index.total_size != total_bytes_) {
    throw Error("gives a total_size of " + format_count(*index.total_size) + " bytes; the shards hold " +
                    format_count(total_bytes_),
                index_path, kCopyAgain);
  }
}

void Checkpoint::open_shards(const CheckpointIndex& index) {
  std::set<std::string_view> names;
  for (const auto& [name, shard] : index.weight_map) names.insert(shard);
  FaultList faults;
  std::set<std::string> hints;  // a shard that may not be read needs no copy
  for (const std::string_view name : names) {
    const std::string path = folder_ + "/" + std::string(name);
    if (!exists(path)) {
      faults.add(std::string(name), "is named by the index but missing");
      hints.insert(kCopyAgain);
      continue;
    }
    try {
      shards_.push_back(std::make_unique<const SafetensorsFile>(path));
    } catch (const Error& error) {
      faults.add(std::string(name), error.what());
      hints.insert(error.hint().empty() ? kCopyAgain : error.hint());
    }
  }
  faults.throw_if_any(folder_, joined(hints));
}

void Checkpoint::check_listing(const CheckpointIndex& index, FaultList& faults) const {
  size_t present = 0;
  for (const auto& [name, shard] : index.weight_map) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) {
      faults.add(shard, "lacks " + quote_name(name) + ", which the index puts there");
      continue;
    }
    ++present;
    const std::string holder = file_name(*found->second.shard);
    if (holder != shard) {
      faults.add(shard,
                 "lacks " + quote_name(name) + ", which the index puts there and " + holder + " holds");
    }
  }
  if (present == by_name_.size()) return;
  std::unordered_set<std::string_view> listed;
  for (const auto& [name, shard] : index.weight_map) listed.insert(name);
  for (const auto& shard : shards_) {
    for (const StoredTensor& entry : shard->header().tensors) {
      if (listed.contains(entry.name)) continue;
      faults.add(file_name(*shard), "holds " + quote_name(entry.name) + ", which the index does not list");
    }
  }
}

std::string Checkpoint::file_name(const SafetensorsFile& shard) const {
  return shard.path().substr(folder_.size() + 1);
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second.entry;
}

const Checkpoint::Place& Checkpoint::place(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) throw Error("has no tensor " + quote_name(std::string(name)), folder_);
  return found->second;
}

TensorView Checkpoint::tensor(std::string_view name) const {
  const Place& found = place(name);
  return found.shard->view(*found.entry);
}

RowReader Checkpoint::rows(std::string_view name) const {
  const Place& found = place(name);
  return found.shard->rows(*found.entry);
}

std::pair<const SafetensorsFile*, const StoredTensor*> Checkpoint::stored(std::string_view name) const {
  const Place& found = place(name);
  return {found.shard, found.entry};
}

void Checkpoint::check_against(std::span<const TensorSpec> expected) const {
  Group groups[] = {
      {"of another dtype", {}}, {"of another shape", {}}, {"missing", {}}, {"not expected", {}}};
  auto& [dtypes, shapes, missing, extra] = groups;
  std::unordered_set<std::string_view> names;
  names.reserve(expected.size());
  for (const TensorSpec& spec : expected) {
    names.insert(spec.name);
    const StoredTensor* entry = find(spec.name);
    const auto difference = [&] {
      return quote_name(spec.name) + " is " + describe(*entry) + ", must be " + describe(spec);
    };
    if (entry == nullptr) {
      missing.lines.push_back(quote_name(spec.name) + " " + describe(spec));
    } else if (entry->dtype != spec.dtype) {
      dtypes.lines.push_back(difference());
    } else if (entry->shape != spec.shape) {
      shapes.lines.push_back(difference());
    }
  }
  for (const auto& shard : shards_) {
    for (const StoredTensor& entry : shard->header().tensors) {
      if (names.contains(entry.name)) continue;
      extra.lines.push_back(quote_name(entry.name) + " " + describe(entry) + " in " + file_name(*shard));
    }
  }

  size_t faults = 0;
  size_t kinds = 0;
  for (const Group& group : groups) {
    faults += group.lines.size();
    kinds += group.lines.empty() ? 0 : 1;
  }
  if (faults == 0) return;
  std::string text =
      "does not fit the model in " + format_count(faults) + (faults == 1 ? " tensor:" : " tensors:");
  for (const Group& group : groups) group.print(FaultList::kShown / kinds, text);
  throw Error(text, folder_,
              "check that the files and config.json are of one and the same model, complete and unrenamed");
}

}  // namespace spark::engine
