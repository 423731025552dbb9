// Policies in tokens, written from the header and the papers: slow, plain, and
// without any code of core.
#ifndef KVEVICT_TESTS_ORACLE_POLICY_H_
#define KVEVICT_TESTS_ORACLE_POLICY_H_

#include <stdbool.h>
#include <stdint.h>

#include "kvevict/experimental.h"
#include "tests/oracle/policy_values.h"

#ifdef __cplusplus
extern "C" {
#endif

// The answer of kvevict_policy_resolve() to a valid policy; false: an error.
bool oracle_resolve(const oracle_policy* policy, uint32_t n_context,
                    kvevict_resolved_policy* out);

// The last tokens that every layer keeps, whatever is protected and however the budget is
// split. StreamingLLM's window gives way to protected tokens, except for the last token.
uint32_t oracle_last_tokens(const oracle_policy* policy,
                            const kvevict_resolved_policy* resolved);

// The answer of kvevict_policy_layer_budgets() to a valid policy; false: an
// error.
bool oracle_layer_budgets(const oracle_policy* policy, uint32_t n_context,
                          uint32_t* budgets, uint32_t n_layers);

// Counts the tokens that each chunk of n_tokens keeps if a list keeps `budget`, as the
// header says for `chunk`. On entry counts have the least that chunks keep besides their
// ends, or 0.
void oracle_chunk_counts(const oracle_policy* policy, uint32_t n_tokens,
                         uint32_t budget, uint32_t* counts);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_POLICY_H_
