// How many tokens each head of a layer keeps if scores decide, by sorting all of
// them.
#ifndef KVEVICT_TESTS_ORACLE_HEAD_SPLIT_H_
#define KVEVICT_TESTS_ORACLE_HEAD_SPLIT_H_

#include <stdint.h>

#include "tests/oracle/policy_values.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oracle_head {
  const float* scores;    // [n_tokens]
  const uint8_t* forced;  // [n_tokens] of 0 and 1
  uint32_t n_tokens;
} oracle_head;

// counts[n_heads] of the n_winners best of all heads, of which each has n_safe of its
// own; among equal ones heads take turns.
void oracle_count_winners(const oracle_head* heads, uint32_t n_heads,
                          uint64_t n_winners, uint32_t n_safe,
                          uint32_t* counts);

// counts[n_heads] by heads, floor and threshold of the policy.
// `budget` of a head; n_asked: what a head is asked to keep in any case, whether it
// holds it or not.
void oracle_head_counts(const oracle_policy* policy, const oracle_head* heads,
                        uint32_t n_heads, uint32_t budget, uint32_t n_asked,
                        uint32_t* counts);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_HEAD_SPLIT_H_
