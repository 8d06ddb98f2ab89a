#include "json_mutator.h"

#include <iterator>
#include <random>
#include <vector>

#include "common/json.h"

namespace spark::fuzz {
namespace {

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  void run(Json& root) {
    std::vector<Json*> all;
    collect(root, all);
    change(*all[below(all.size())], *all[below(all.size())]);
  }

 private:
  size_t below(size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(random_); }

  static void collect(Json& value, std::vector<Json*>& all) {
    all.push_back(&value);
    if (!value.is_structured()) return;
    for (Json& child : value) collect(child, all);
  }

  Json stranger() {
    static const std::vector<Json> kValues = {nullptr,
                                              true,
                                              false,
                                              0,
                                              1,
                                              -1,
                                              2,
                                              3,
                                              4,
                                              64,
                                              65536,
                                              4294967296,
                                              INT64_MAX,
                                              INT64_MIN,
                                              UINT64_MAX,
                                              0.5,
                                              -1e300,
                                              1e300,
                                              "",
                                              "0",
                                              "1",
                                              "x",
                                              "\n",
                                              "\x7f",
                                              "../..",
                                              "/",
                                              "/etc/passwd",
                                              "$(id)",
                                              "--port",
                                              "node1",
                                              "10.12.1.0/24",
                                              "256.1.1.1",
                                              "rocep1s0f0",
                                              std::string(4096, 'a'),
                                              "\xc3\xa9",
                                              Json::array(),
                                              Json::object(),
                                              Json::array({Json::array({Json::array()})}),
                                              Json{{"a", {{"b", {{"c", 1}}}}}}};
    return kValues[below(kValues.size())];
  }

  void change(Json& value, const Json& other) {
    const bool holder = value.is_structured() && !value.empty();
    const Json copy = other;  // it may hold `value`, or be held by it
    switch (below(holder ? 9 : 4)) {
      case 0:
      case 1:
        value = stranger();
        return;
      case 2:
        value = copy;
        return;
      case 3:
        nudge(value);
        return;
      case 4:
      case 5:
        value.erase(std::next(value.begin(), static_cast<std::ptrdiff_t>(below(value.size()))));
        return;
      case 6:
        add(value, copy);
        return;
      case 7:
        add(value, stranger());
        return;
      default:
        rename(value);
    }
  }

  void nudge(Json& value) {
    if (value.is_number_integer()) {
      value = static_cast<int64_t>(value.get<uint64_t>() + below(5) - 2);
    } else if (value.is_string()) {
      auto text = value.get<std::string>();
      const size_t at = below(text.size() + 1);
      static constexpr char kLetters[] = "0a-_./, \"{}=:@%";
      if (below(2) == 0) text.erase(at, 1);
      if (below(2) == 0) text.insert(std::min(at, text.size()), 1, kLetters[below(sizeof(kLetters) - 1)]);
      value = text;
    } else {
      value = Json::array({value});
    }
  }

  void add(Json& value, const Json& item) {
    if (value.is_array()) {
      value.push_back(item);
    } else {
      value["key" + std::to_string(below(4))] = item;
    }
  }

  void rename(Json& value) {
    if (!value.is_object()) return add(value, stranger());
    auto entry = std::next(value.begin(), static_cast<std::ptrdiff_t>(below(value.size())));
    const std::string name = entry.key() + "x";
    const Json item = entry.value();
    value.erase(entry);
    value[name] = item;
  }

  std::mt19937 random_;
};

}  // namespace

std::string mutate_json(const std::string& text, unsigned seed) {
  Json document = Json::parse(text, nullptr, false);
  if (document.is_discarded()) return text;
  Mutator(seed).run(document);
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace spark::fuzz
