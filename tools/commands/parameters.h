// The library's tables of policies and parameters.
#ifndef KVEVICT_TOOLS_COMMANDS_PARAMETERS_H_
#define KVEVICT_TOOLS_COMMANDS_PARAMETERS_H_

#include <string>
#include <vector>

#include "kvevict/experimental.h"

namespace kvevict::tools {

std::vector<kvevict_parameter_info> Parameters();

// The inputs of a policy with its defaults. Optional ones are in brackets.
std::vector<std::string> InputsOf(const char* policy);

// The values of a parameter: "count [1, 65536]".
std::string ValuesOf(const kvevict_parameter_info& row);

// docs/parameters.md.
std::string ParametersPage();

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_COMMANDS_PARAMETERS_H_
