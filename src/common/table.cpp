#include "common/table.h"

#include <algorithm>

#include "common/error.h"
#include "common/printable.h"

namespace spark {

size_t display_width(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

void Table::add(std::vector<std::string> cells) {
  SPARK_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = one_line(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = display_width(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, display_width(row[c]));
    widths.push_back(width);
  }
  const auto line = [&](auto&& cell_of) {
    std::string result;
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string cell = cell_of(c);
      const std::string padding(widths[c] - display_width(cell), ' ');
      if (c > 0) result += "  ";
      result += columns_[c].align == Align::kRight ? padding + cell : cell + padding;
    }
    result.erase(result.find_last_not_of(' ') + 1);
    return result + "\n";
  };
  std::string result = line([&](size_t c) { return columns_[c].title; });
  result += line([&](size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : rows_) result += line([&](size_t c) { return row[c]; });
  return result;
}

std::string Table::markdown() const {
  std::string head = "|";
  std::string rule = "|";
  for (const Column& column : columns_) {
    head += " " + column.title + " |";
    rule += column.align == Align::kRight ? " ---: |" : " --- |";
  }
  std::string result = head + "\n" + rule + "\n";
  for (const auto& row : rows_) {
    result += "|";
    for (const std::string& cell : row) result += " " + cell + " |";
    result += "\n";
  }
  return result;
}

}  // namespace spark
