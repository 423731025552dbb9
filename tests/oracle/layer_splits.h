// The schedules that spread a budget over the layers, each as in its source.
#ifndef KVEVICT_TESTS_ORACLE_LAYER_SPLITS_H_
#define KVEVICT_TESTS_ORACLE_LAYER_SPLITS_H_

#include <cstdint>

#include "kvevict/experimental.h"
#include "tests/oracle/policy_values.h"

namespace kvevict::oracle {

// Numbers are in the policy's blocks, which usually are tokens.
struct Split {
  const oracle_policy& policy;
  uint32_t n_context;  // more than the budget
  double real_budget;  // before rounding
  const kvevict_resolved_policy& resolved;
  uint32_t least;  // every layer keeps it
};

// budgets[n_layers]: the uniform budget on entry, each layer's on return.
void SplitGeometric(const Split& in, uint32_t* budgets, uint32_t n_layers);
void SplitKvf(const Split& in, uint32_t* budgets, uint32_t n_layers);
void SplitKvpress(const Split& in, uint32_t* budgets, uint32_t n_layers);
void SplitAdakv(const Split& in, uint32_t* budgets, uint32_t n_layers);

}  // namespace kvevict::oracle

#endif  // KVEVICT_TESTS_ORACLE_LAYER_SPLITS_H_
