// First in, first out per client; clients take turns. One client's hundred requests delay another's by one.
//
//   FairQueue<Item> queue;
//   queue.push("10.0.0.7", item);
//   while (auto item = queue.pop()) ...;
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace spark::engine {

template <class Item>
class FairQueue {
 public:
  void push(const std::string& client, Item item) {
    std::deque<Item>& line = lines_[client];
    if (line.empty()) turns_.push_back(client);
    line.push_back(std::move(item));
    ++size_;
  }

  // The next item of the client whose turn it is; the client's next turn comes after all others'.
  std::optional<Item> pop() {
    if (turns_.empty()) return std::nullopt;
    const std::string client = std::move(turns_.front());
    turns_.pop_front();
    const auto line = lines_.find(client);
    Item item = std::move(line->second.front());
    line->second.pop_front();
    --size_;
    if (line->second.empty()) {
      lines_.erase(line);
    } else {
      turns_.push_back(client);
    }
    return item;
  }

  // What pop() would give; null when empty. A push does not change it.
  const Item* front() const {
    return turns_.empty() ? nullptr : &lines_.find(turns_.front())->second.front();
  }

  // Takes out every item for which `unwanted` holds.
  template <class Predicate>
  std::vector<Item> remove_if(Predicate unwanted) {
    std::vector<Item> removed;
    std::deque<std::string> turns;
    for (std::string& client : turns_) {
      const auto line = lines_.find(client);
      std::deque<Item> kept;
      for (Item& item : line->second) {
        if (unwanted(item)) {
          removed.push_back(std::move(item));
        } else {
          kept.push_back(std::move(item));
        }
      }
      if (kept.empty()) {
        lines_.erase(line);
      } else {
        line->second = std::move(kept);
        turns.push_back(std::move(client));
      }
    }
    turns_ = std::move(turns);
    size_ -= removed.size();
    return removed;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::map<std::string, std::deque<Item>> lines_;  // none is empty
  std::deque<std::string> turns_;                  // each client of lines_ once
  size_t size_ = 0;
};

}  // namespace spark::engine
