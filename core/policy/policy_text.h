// The text form of policies, and the presets, which are named texts.
#ifndef KVEVICT_CORE_POLICY_POLICY_TEXT_H_
#define KVEVICT_CORE_POLICY_POLICY_TEXT_H_

#include <cstddef>
#include <span>
#include <string_view>

#include "core/policy/policy.h"
#include "core/status.h"

namespace kvevict {

struct Preset {
  const char* name;
  const char* policy_text;
  const char* reproduces;
};

std::span<const Preset> Presets();

// What a policy is before any option is given.
kvevict_policy DefaultPolicy(const PolicyInfo& info);

// The word of a valid layer split.
const char* SplitText(kvevict_layer_split split);

// See kvevict_policy_parse(). `out` is written on success only.
Status ParsePolicy(std::string_view text, kvevict_policy* out);

// Longest text of a valid policy, with its terminator.
inline constexpr size_t kMaxPolicyText = 960;

// Writes the text of a valid policy, zero-terminated; returns its length.
size_t FormatPolicy(const kvevict_policy& policy,
                    std::span<char, kMaxPolicyText> text);

}  // namespace kvevict

#endif  // KVEVICT_CORE_POLICY_POLICY_TEXT_H_
