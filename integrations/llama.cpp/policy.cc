#include "policy.h"

#include <string>

#include "error.h"
#include "kvevict/experimental.h"

namespace kvevict::llama {
namespace {

// The value of a parameter, or "" if the policy has none.
std::string Get(const kvevict_policy* policy, const char* key) {
  char text[40] = "";
  (void)kvevict_policy_get(policy, key, text, sizeof text, nullptr);
  return text;
}

}  // namespace

bool Policy::Needs(kvevict_input input) const {
  kvevict_need need = KVEVICT_NEED_NONE;
  Check(kvevict_policy_need(handle.get(), input, &need));
  return need != KVEVICT_NEED_NONE;
}

PolicyHandle CreatePolicy(const char* text) {
  kvevict_policy* policy = nullptr;
  Check(kvevict_policy_create(text, &policy));
  return PolicyHandle(policy);
}

Policy ParsePolicy(const char* text, bool has_calibration) {
  if (text == nullptr) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "policy is NULL");
  }
  Policy policy;
  policy.handle = CreatePolicy(text);
  const kvevict_policy* handle = policy.handle.get();
  const auto refuse = [&](const char* what) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "policy \"", text, "\": ", what);
  };
  const auto is_other = [&](const char* key, const char* word) {
    const std::string value = Get(handle, key);
    return !value.empty() && value != word;
  };
  if (is_other("split", "uniform")) {
    refuse(
        "layers would keep different numbers of tokens, but llama.cpp has one "
        "list of cells for all; split=uniform works");
  }
  if (is_other("heads", "equal")) {
    refuse(
        "heads would keep different numbers of tokens, but llama.cpp has one "
        "list of cells for all; heads=equal works");
  }
  kvevict_need need = KVEVICT_NEED_NONE;
  Check(kvevict_policy_need(handle, KVEVICT_INPUT_QUERY_CENTERS, &need));
  if (need == KVEVICT_NEED_REQUIRED && !has_calibration) {
    refuse(
        "it needs options.calibration, statistics of the model's queries, "
        "which "
        "`kvevict-llama-cli calibrate` makes; expected-attention works "
        "without");
  }
  Check(kvevict_policy_need(handle, KVEVICT_INPUT_REFERENCE_QUERIES, &need));
  if (need == KVEVICT_NEED_REQUIRED) {
    refuse(
        "it needs reference queries, which the adapter does not have; "
        "reference=0 works");
  }
  // Keys are read by their positions only to be turned back.
  Check(kvevict_policy_need(handle, KVEVICT_INPUT_KEYS, &need));
  if (need == KVEVICT_NEED_REQUIRED && policy.Needs(KVEVICT_INPUT_POSITIONS)) {
    refuse(
        "leverage needs RoPE's frequencies, which the adapter does not have; "
        "keydiff works");
  }
  if (Get(handle, "fit") == "bias-values") {
    refuse("llama.cpp's attention adds no bias to a slot; fit=values works");
  }
  if (is_other("rotate", "no")) {
    refuse("llama.cpp goes on counting positions; rotate=no works");
  }
  // Neither depends on the context.
  kvevict_resolved_policy resolved = {};
  resolved.struct_size = sizeof resolved;
  Check(kvevict_policy_resolve(handle, 1, &resolved));
  policy.n_query_rows = resolved.n_query_rows;
  double sink = 0.0;
  (void)kvevict_policy_get_number(handle, "sink", &sink);
  policy.n_sink = static_cast<uint32_t>(sink);
  // A policy without a scope ranks only by position.
  const std::string scope = Get(handle, "scope");
  policy.has_one_list = scope.empty() || scope == "model";
  policy.rewrites = is_other("merge", "none") || is_other("fit", "none");
  return policy;
}

}  // namespace kvevict::llama
