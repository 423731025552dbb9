#include "tests/capi/support/sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/policies.h"
#include "tests/oracle/scores.h"

const char* const test_sums_policies[TEST_N_SUMS_POLICIES] = {
    "h2o",
    "h2o:group=max",
    "h2o:rows=mean",
    "h2o:rows=mean,group=max",
    "h2o:rows=mean,group=sum,pool=avg5",
    "h2o:rows=mean,group=max,pool=avg5,order=pool-reduce",
    "h2o:group=sum,pool=max7,order=pool-reduce"};

float test_sum_of(const test_sums* s, uint32_t head, uint32_t g, uint32_t t) {
  const uint32_t row = s->n_rows == s->n_heads ? head : head * s->group + g;
  return s->values[row * s->stride + t];
}

void test_sums_scores(const oracle_policy* policy, const test_sums* s,
                      uint32_t head, uint32_t n_tokens, uint32_t n_seen,
                      const int32_t* positions, double* scores) {
  const bool pool_first = policy->order == ORACLE_ORDER_POOL_REDUCE;
  double* row = malloc(n_tokens * sizeof(double));
  double* pooled = malloc(n_tokens * sizeof(double));
  for (uint32_t g = 0; g < s->group; ++g) {
    for (uint32_t t = 0; t < n_tokens; ++t) {
      const uint32_t position = positions == NULL ? t : (uint32_t)positions[t];
      row[t] = test_sum_of(s, head, g, t);
      if (policy->rows == KVEVICT_REDUCE_MEAN) {
        row[t] /= n_seen - position;
      }
    }
    if (pool_first) {
      oracle_pool(row, n_tokens, policy, pooled);
      memcpy(row, pooled, n_tokens * sizeof(double));
    }
    for (uint32_t t = 0; t < n_tokens; ++t) {
      if (g == 0) {
        scores[t] = row[t];
      } else if (policy->group == KVEVICT_REDUCE_MAX) {
        scores[t] = fmax(scores[t], row[t]);
      } else {
        scores[t] += row[t];
      }
    }
  }
  const bool is_mean = policy->group == KVEVICT_REDUCE_MEAN;
  /* This row was reduced already. */
  const bool is_one =
      s->n_rows == s->n_heads && policy->group == KVEVICT_REDUCE_SUM;
  for (uint32_t t = 0; t < n_tokens; ++t) {
    row[t] = scores[t] / (is_mean || is_one ? s->group : 1);
  }
  if (pool_first) {
    memcpy(scores, row, n_tokens * sizeof(double));
  } else {
    oracle_pool(row, n_tokens, policy, scores);
  }
  free(row);
  free(pooled);
}

test_plan* test_sums_plan(const char* simd_target, const char* policy,
                          uint32_t group, uint32_t n_tokens) {
  const kvevict_layer_geometry layer =
      test_layer(TEST_SUMS_HEADS * group, TEST_SUMS_HEADS, 4, 0);
  const kvevict_geometry geometry = test_geometry(1, n_tokens, &layer);
  return test_plan_create_least_for(simd_target, policy, &geometry,
                                    KVEVICT_OPERATION_SCORE, 2);
}
