// Handles of the C API that destroy themselves; a failure is an exception.
#ifndef KVEVICT_TESTS_BENCH_HANDLES_H_
#define KVEVICT_TESTS_BENCH_HANDLES_H_

#include <memory>
#include <stdexcept>
#include <string>

#include "kvevict/experimental.h"

namespace kvevict::bench {

inline void Check(kvevict_status status) {
  if (status != KVEVICT_OK) {
    throw std::runtime_error(kvevict_last_error_message());
  }
}

struct Destroy {
  void operator()(kvevict_context* p) const { kvevict_context_destroy(p); }
  void operator()(kvevict_policy* p) const { kvevict_policy_destroy(p); }
  void operator()(kvevict_plan* p) const { kvevict_plan_destroy(p); }
  void operator()(kvevict_sequence* p) const { kvevict_sequence_destroy(p); }
};
using ContextHandle = std::unique_ptr<kvevict_context, Destroy>;
using PolicyHandle = std::unique_ptr<kvevict_policy, Destroy>;
using PlanHandle = std::unique_ptr<kvevict_plan, Destroy>;
using SequenceHandle = std::unique_ptr<kvevict_sequence, Destroy>;

inline ContextHandle CreateContext(const char* simd_target) {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.simd_target = simd_target;
  kvevict_context* context = nullptr;
  Check(kvevict_context_create(&options, &context));
  return ContextHandle(context);
}

inline PolicyHandle CreatePolicy(const std::string& text) {
  kvevict_policy* policy = nullptr;
  Check(kvevict_policy_create(text.c_str(), &policy));
  return PolicyHandle(policy);
}

// Limits the window of a policy; one without a window stays as it is.
inline void NarrowWindow(kvevict_policy* policy, uint32_t most) {
  double window = 0.0;
  if (kvevict_policy_get_number(policy, "window", &window) == KVEVICT_OK &&
      window > most) {
    Check(kvevict_policy_set_number(policy, "window", most));
  }
}

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_HANDLES_H_
