#include "tools/engine/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <utility>

namespace kvevict::tools {

TextTable::TextTable(std::vector<Column> columns)
    : columns_(std::move(columns)) {}

void TextTable::AddRow(std::vector<std::string> cells) {
  assert(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::ToString() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = columns_[c].title.size();
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  std::string out;
  const auto add_line = [&](const auto& cell) {
    std::string line;
    for (size_t c = 0; c < columns_.size(); ++c) {
      line += c == 0 ? "" : "  ";
      line += columns_[c].align == Align::kLeft
                  ? fmt::format("{:<{}}", cell(c), widths[c])
                  : fmt::format("{:>{}}", cell(c), widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  add_line([&](size_t c) { return columns_[c].title; });
  add_line([&](size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : rows_) add_line([&](size_t c) { return row[c]; });
  return out;
}

}  // namespace kvevict::tools
