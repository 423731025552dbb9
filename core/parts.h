// What this build carries. CMake's KVEVICT_WITHOUT leaves out dtypes, by their
// texts in core/dtypes.inc or as `codes` all that are quantized, and operations, by
// their names in core/ops.inc: calls that need one are refused, and its code is not
// linked.
#ifndef KVEVICT_CORE_PARTS_H_
#define KVEVICT_CORE_PARTS_H_

#include <string_view>

#ifndef KVEVICT_WITHOUT
#define KVEVICT_WITHOUT ""  // names, separated by commas
#endif

namespace kvevict {

constexpr bool IsBuilt(std::string_view name) {
  std::string_view rest = KVEVICT_WITHOUT;  // NOLINT: a build may set it
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    if (rest.substr(0, comma) == name) return false;
    rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
  }
  return true;
}

// Whether slots can have biases, which the fits write.
inline constexpr bool kHasBiases = IsBuilt("fit_values");

}  // namespace kvevict

#endif  // KVEVICT_CORE_PARTS_H_
