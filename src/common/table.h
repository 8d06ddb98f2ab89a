// The one way to print a table on a terminal.
//
//   Table table({{"layer", Align::kLeft}, {"bytes", Align::kRight}});
//   table.add({"attention", format_bytes(n)});
//   std::cout << table.text();
#pragma once

#include <string>
#include <vector>

namespace spark {

enum class Align { kLeft, kRight };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells);
  std::string text() const;      // aligned columns, a rule under the titles
  std::string markdown() const;  // the same as a Markdown table

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Number of terminal columns of a UTF-8 string, counting every code point as one.
size_t display_width(const std::string& text);

}  // namespace spark
