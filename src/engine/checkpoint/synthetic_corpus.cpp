#include "engine/checkpoint/synthetic_corpus.h"

namespace spark::engine {
namespace {

// By kind of text, so that merges of prose, code, data and other scripts all occur.
constexpr std::string_view kProse =
    R"(The lighthouse keeper counted the ships as they passed. There were seven in the morning, three in the afternoon and
none at night. "That is strange," she said to her brother, "because the harbour was never empty before the storm." He
looked at the water for a long time and did not answer. When the wind turned, the old boats began to move against
their ropes, and the sound of the wood was like somebody walking slowly through an empty house.

A good engineer writes down what she measured, on which machine and at what time. Numbers without a unit are of little
use; numbers without a date are worse. The first thing to do with a new result is to try to break it: change the order
of the sums, change the number of threads, run it again after a restart. If the answer is the same every time, then it
may be believed. If it is not, there is something to learn.

What is the capital of the country? Where does the river begin? How many people live in the village, and what do they
do in the winter? The teacher asked one question after another, and the children answered all of them, because they had
read the book together. In the end they asked for another story, and another, until the lamp went out.

Yesterday the train was late by twenty minutes. Today it will be on time, or so the station says. Tomorrow we should
take the bicycle: it is only nine kilometres to the market, the road is flat, and there are apples, pears and plums
along the way. Don't forget the basket! We'll need it for the bread, the cheese and the two bottles of milk.

I think that the model should first read the question, then think about it, and only then begin to answer. It's often
better to say "I don't know" than to guess. You can explain the idea in one sentence; if you can't, you haven't
understood it yet. They're waiting for the answer, and we've got about ten minutes left before the meeting starts.
)";

constexpr std::string_view kCode =
    R"(#include <vector>
#include <string>

// Returns the sum of all values, in order.
double sum(const std::vector<double>& values) {
  double total = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    total += values[i];
  }
  return total;
}

int main(int argc, char** argv) {
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) names.push_back(argv[i]);
  if (names.empty()) return 1;
  std::printf("%zu names\n", names.size());
  return 0;
}

def read_lines(path):
    """Yield the lines of a file without their line ends."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\n")

class Counter:
    def __init__(self):
        self.values = {}

    def add(self, name, count=1):
        self.values[name] = self.values.get(name, 0) + count
        return self.values[name]

def main():
    counter = Counter()
    for line in read_lines("input.txt"):
        for word in line.split():
            counter.add(word.lower())
    for name, count in sorted(counter.values.items(), key=lambda item: -item[1]):
        print(f"{count:8d} {name}")

if __name__ == "__main__":
    main()

#!/bin/sh
set -eu
for file in "$@"; do
  if [ -f "$file" ]; then
    echo "checking $file"
  else
    echo "no such file: $file" >&2
    exit 1
  fi
done

SELECT name, count(*) FROM events WHERE time > 1700000000 GROUP BY name ORDER BY count(*) DESC LIMIT 10;
)";

constexpr std::string_view kData =
    R"({"model": "tiny", "messages": [{"role": "user", "content": "Hello, world!"}], "stream": true, "max_tokens": 128}
{"id": 12, "name": "node-1", "address": "192.168.100.11", "ports": [8000, 8080], "enabled": false, "load": 0.25}
{"id": 13, "name": "node-2", "address": "192.168.100.12", "ports": [8000, 8080], "enabled": true, "load": 0.75}

| layer | bytes | time |
| --- | ---: | ---: |
| attention | 1,024 | 0.125 ms |
| experts | 16,384 | 2.500 ms |

1. Open the file.
2. Read the first line.
3. If it is empty, stop; else go to 2.

- 2 + 2 = 4, 10 - 3 = 7, 6 * 7 = 42, 100 / 8 = 12.5
- x^2 + y^2 = z^2; f(x) = a*x + b; 3.14159; 2026-01-31 23:59:59
)";

constexpr std::string_view kOther =
    "今天天气很好，我们一起去公园吧。你想吃什么？我想喝一杯茶。这个模型可以回答问题，也可以写代码。\n"
    "今天我们学习新的问题：什么是模型？模型是一个函数。\n"
    "今日は天気がいいですね。これはテストです。質問に答えてください。ありがとうございます。\n"
    "Das Wetter ist heute schön, und über die Brücke fährt ein Zug. Où est la bibliothèque ? Elle est près "
    "de la "
    "gare, à côté du café. ¿Cuántos años tiene el niño? Привет, как дела? Всё хорошо, спасибо.\n"
    "Great work! 🎉🎉 See you tomorrow 😀👍 — it’s “fine” … isn’t it? 🚀\n";

}  // namespace

std::string synthetic_corpus() {
  std::string text;
  for (const std::string_view part : {kProse, kCode, kData, kOther}) text += part;
  return text;
}

}  // namespace spark::engine
