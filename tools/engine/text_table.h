// A table of text whose columns are as wide as needed.
#ifndef KVEVICT_TOOLS_ENGINE_TEXT_TABLE_H_
#define KVEVICT_TOOLS_ENGINE_TEXT_TABLE_H_

#include <string>
#include <vector>

namespace kvevict::tools {

class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };

  explicit TextTable(std::vector<Column> columns);

  // `cells` has one cell per column.
  void AddRow(std::vector<std::string> cells);

  // Title row, a rule and the rows, each ended by a newline.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_TEXT_TABLE_H_
