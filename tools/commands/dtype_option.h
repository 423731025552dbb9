// The option --dtype of commands that have a cache.
#ifndef KVEVICT_TOOLS_COMMANDS_DTYPE_OPTION_H_
#define KVEVICT_TOOLS_COMMANDS_DTYPE_OPTION_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "kvevict/experimental.h"
#include "tools/commands/checks.h"

namespace kvevict::tools {

// The element types that the tools' engine can write.
inline std::vector<kvevict_dtype_info> CacheDtypes() {
  std::vector<kvevict_dtype_info> dtypes;
  kvevict_dtype_info info = {};
  info.struct_size = sizeof(info);
  for (uint32_t i = 0; kvevict_dtype_at(i, &info) == KVEVICT_OK; ++i) {
    if (info.can_score != 0 && info.element_bytes > 1) dtypes.push_back(info);
  }
  return dtypes;
}

// `dtype` holds the default, and must outlive the parsing.
inline CLI::Option* AddDtypeOption(CLI::App& command, std::string what,
                                   kvevict_dtype& dtype) {
  std::vector<std::string> names;
  for (const kvevict_dtype_info& info : CacheDtypes()) {
    names.emplace_back(info.name);
    if (info.dtype == dtype)
      what += std::string(" (default ") + info.name + ")";
  }
  return command
      .add_option_function<std::string>(
          "--dtype",
          [&dtype](const std::string& name) {
            for (const kvevict_dtype_info& info : CacheDtypes()) {
              if (name == info.name) dtype = info.dtype;
            }
          },
          what)
      ->type_name(CLI::detail::join(names, "|"))
      ->check(OneOf(names));
}

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_COMMANDS_DTYPE_OPTION_H_
