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

// A policy of this kind with its defaults.
Policy DefaultPolicy(PolicyKind kind);

// See kvevict_policy_create(). `out` is written on success only.
Status ParsePolicy(std::string_view text, Policy* out);

// Room for the text of a policy with every parameter, and its terminator.
inline constexpr size_t kMaxPolicyText = 32  // its name
#define KVEVICT_PARAM(key, Type, value, range, has, words, doc) \
  +sizeof("," #key "=") + kMaxValueText
#include "core/policy/params.inc"
#undef KVEVICT_PARAM
    ;

// The error for a key that a policy does not have.
Status NoSuchKey(const PolicyInfo& policy, std::string_view key);

// Writes the text of a policy, zero-terminated; returns its length.
size_t FormatPolicy(const Policy& policy, std::span<char, kMaxPolicyText> text);

}  // namespace kvevict

#endif  // KVEVICT_CORE_POLICY_POLICY_TEXT_H_
