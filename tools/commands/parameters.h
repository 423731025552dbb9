// The library's table of parameters.
#ifndef KVEVICT_TOOLS_COMMANDS_PARAMETERS_H_
#define KVEVICT_TOOLS_COMMANDS_PARAMETERS_H_

#include <string>
#include <vector>

#include "kvevict/experimental.h"

namespace kvevict::tools {

std::vector<kvevict_parameter_info> Parameters();

// The values of a parameter: "count [1, 65536]".
std::string ValuesOf(const kvevict_parameter_info& row);

// docs/parameters.md.
std::string ParametersPage();

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_COMMANDS_PARAMETERS_H_
