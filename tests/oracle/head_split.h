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

// counts[n_heads] by heads, floor and threshold of the policy. `budget` is a
// head's. n_asked is what a head must keep in any case, whether it holds it or not.
void oracle_head_counts(const oracle_policy* policy, const oracle_head* heads,
                        uint32_t n_heads, uint32_t budget, uint32_t n_asked,
                        uint32_t* counts);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_HEAD_SPLIT_H_
