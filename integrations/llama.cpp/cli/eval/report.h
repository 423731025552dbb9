// The results as one page with pictures that needs no other file.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_REPORT_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "chart.h"
#include "summary.h"

namespace kvevict::llama_cli::eval {

// KL to the full cache against bytes, by policy.
Chart KlChart(const nlohmann::json& document, const Summary& summary);

// All of the page.
std::vector<Chart> Charts(const nlohmann::json& document,
                          const Summary& summary, const TaskSummary& tasks);

// `pictures` has the heat maps that gnuplot drew. Without any, `no_maps` is the
// reason.
std::string Report(const nlohmann::json& document, const Summary& summary,
                   const TaskSummary& tasks, const std::string& pictures,
                   const std::string& no_maps);

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_REPORT_H_
