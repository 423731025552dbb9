// The results as tables for a terminal and for Markdown.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_TABLES_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_TABLES_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "summary.h"

namespace kvevict::llama_cli::eval {

// Titles, and rows of as many cells. The first column is text.
struct Grid {
  std::vector<std::string> titles;
  std::vector<std::vector<std::string>> rows;
};
Grid WindowsGrid(const Summary& summary);
Grid TasksGrid(const TaskSummary& summary);

std::string AsText(const Grid& grid);
std::string AsMarkdown(const Grid& grid);

// What was measured, and how, in a sentence.
std::string SetupText(const nlohmann::json& document, const Summary& summary);
// What the columns mean.
std::string Notes();
// What the full cache answers, by kind.
std::string Ceilings(const TaskSummary& summary);

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_TABLES_H_
