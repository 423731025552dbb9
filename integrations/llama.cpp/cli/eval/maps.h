// The heat maps of an evaluation.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_MAPS_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_MAPS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/pictures/heat_map.h"

namespace kvevict::llama_cli::eval {

// What is left of a fact, by its depth and the length of the text: one map for
// each policy, with the question seen or unseen.
std::vector<tools::HeatMap> NeedleMaps(const nlohmann::json& document,
                                       bool seen);

// The share of rows that stayed in the first window, by layer and position: one
// map for each policy, at the second largest budget.
std::vector<tools::HeatMap> PositionMaps(const nlohmann::json& document);

// Bytes that stayed in it by layer and KV head: one map for each policy, or one
// for all if they are alike.
std::vector<tools::HeatMap> ByteMaps(const nlohmann::json& document);

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_MAPS_H_
