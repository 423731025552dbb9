// Reads and sets the values of a policy's parameters through the C API, for tests
// and their expectations.
#ifndef KVEVICT_TESTS_ORACLE_POLICY_VALUES_H_
#define KVEVICT_TESTS_ORACLE_POLICY_VALUES_H_

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kvevict/kvevict.h"

#ifdef __cplusplus
extern "C" {
#endif

// The policies that tests have rules for, in any order.
typedef enum oracle_kind {
  ORACLE_NONE,
  ORACLE_STREAMING_LLM,
  ORACLE_SNAPKV,
  ORACLE_PYRAMIDKV,
  ORACLE_TOVA,
  ORACLE_H2O,
  ORACLE_KNORM,
  ORACLE_KEYDIFF,
  ORACLE_Q_FILTER,
  ORACLE_LAGKV,
  ORACLE_CUR,
  ORACLE_EXPECTED_ATTENTION,
  ORACLE_TRIATTENTION,
  ORACLE_NON_CAUSAL,
  ORACLE_R_KV,
  ORACLE_CAKE,
  ORACLE_RANDOM,
  ORACLE_CUSTOM,
  ORACLE_OTHER = 64  // with the place in kvevict_policy_at() added to it
} oracle_kind;

// Words, in the order of their rows.
enum { ORACLE_POOL_NONE, ORACLE_POOL_AVG, ORACLE_POOL_MAX };
enum { ORACLE_EDGE_PAD, ORACLE_EDGE_SHRINK, ORACLE_EDGE_MASS };
enum { ORACLE_ROW_WEIGHT_NONE, ORACLE_ROW_WEIGHT_PAST };
enum { ORACLE_SOFTMAX_CAUSAL, ORACLE_SOFTMAX_PAST };
enum {
  ORACLE_ORDER_REDUCE_POOL,
  ORACLE_ORDER_POOL_REDUCE,
  ORACLE_ORDER_REDUCE_LOGITS,
  ORACLE_ORDER_WEIGH_POOL,
  ORACLE_ORDER_POOL_ROWS
};
enum {
  ORACLE_SPLIT_UNIFORM,
  ORACLE_SPLIT_GEOMETRIC,
  ORACLE_SPLIT_ARITHMETIC_KVF,
  ORACLE_SPLIT_ARITHMETIC_KVPRESS,
  ORACLE_SPLIT_ARITHMETIC_ADAKV,
  ORACLE_SPLIT_CAKE,
  ORACLE_SPLIT_LAZY,
  ORACLE_SPLIT_SCORES
};
enum { ORACLE_VALUES_RANGE, ORACLE_VALUES_NORM, ORACLE_VALUES_VARIANCE };
enum { ORACLE_BIAS_NONE, ORACLE_BIAS_PAST };
enum { ORACLE_PRIOR_NONE, ORACLE_PRIOR_MEAN };
enum { ORACLE_SHARE_NONE, ORACLE_SHARE_HEADS };
enum { ORACLE_OF_CONTEXT, ORACLE_OF_PARTITION };
enum { ORACLE_WEIGHT_NONE, ORACLE_WEIGHT_NORM, ORACLE_WEIGHT_GIVEN };
enum {
  ORACLE_HEADS_EQUAL,
  ORACLE_HEADS_ADAPTIVE,
  ORACLE_HEADS_ADAPTIVE_BLEND,
  ORACLE_HEADS_THRESHOLD
};
enum { ORACLE_FIT_NONE, ORACLE_FIT_VALUES };
enum { ORACLE_ROUNDING_HEAD, ORACLE_ROUNDING_TOGETHER };
enum {
  ORACLE_PROMPT_INSIDE,
  ORACLE_PROMPT_BESIDE,
  ORACLE_PROMPT_PINNED,
  ORACLE_PROMPT_PINNED_BESIDE,
  ORACLE_PROMPT_AT_END
};
enum { ORACLE_SUMS_HEAD, ORACLE_SUMS_QUERY, ORACLE_SUMS_LAYER };
enum {
  ORACLE_ANCHOR_MEAN,
  ORACLE_ANCHOR_ZEROS,
  ORACLE_ANCHOR_ONES,
  ORACLE_ANCHOR_ALTERNATING,
  ORACLE_ANCHOR_RANDOM
};

// A number that has no field of its own.
typedef struct oracle_number {
  const char* key;
  double value;
} oracle_number;

// A field for most parameters: numbers and flags as they are, a word as its place in
// the row, a count or share and a pooling as two fields. A field that the policy
// does not have is at the library's default.
typedef struct oracle_policy {
  oracle_kind kind;
  double budget;
  uint32_t sink, recent, window;  // 0 if there is a share
  double sink_share, recent_share, window_share;
  bool keep_window;
  int pool;
  uint32_t pool_width;
  int edge;
  kvevict_reduce rows;
  int row_weight, softmax;
  uint32_t reference;
  double reference_weight;
  double spread;
  kvevict_reduce group;
  int order, prior;
  kvevict_scope scope;
  kvevict_reduce over;
  kvevict_tie tie;
  int split;
  uint32_t beta;
  double tau1, tau2, lazy;
  uint64_t seed;
  uint32_t half_life;
  uint32_t block;
  bool ranks;
  int of;
  uint32_t select_block, chunk;
  int weight;
  double epsilon;
  int share;
  bool standardize;
  double leverage;
  int leverage_scale;
  double redundancy, similarity, secure;
  uint32_t secure_values;  // 0 if there is a share
  double secure_values_share;
  int value_measure;
  double first_stage_mass;
  int first_stage_bias;
  int heads;
  double floor;
  int rounding;
  bool draw;
  double threshold;
  bool normalize;
  kvevict_merge merge;
  double merge_threshold, merge_fraction;
  int fit;
  double fit_ridge;
  bool rotate;
  uint32_t margin, every;
  int prompt;
  int sums;
  uint32_t sum_pool, sum_last;
  bool raw_first;
  uint32_t rescue;
  int anchor;
  double diverse_mass;
  oracle_number own[8];  // the numbers of this policy without a field
  uint32_t n_own;
  bool reads_positions;  // see KVEVICT_INPUT_POSITIONS
} oracle_policy;

// Ends the process if the policy is NULL.
oracle_policy oracle_policy_of(const kvevict_policy* policy);

// A number without a field; NULL if the policy has none with this key.
static inline const oracle_number* oracle_own(const oracle_policy* policy,
                                              const char* key) {
  for (uint32_t i = 0; i < policy->n_own; ++i) {
    if (strcmp(policy->own[i].key, key) == 0) return &policy->own[i];
  }
  return NULL;
}

// The values of a policy text, which must be right.
oracle_policy oracle_policy_from(const char* text);

// A policy with these values as far as its kind has such parameters; NULL, with
// the library's error, if it would be invalid. The caller destroys it.
kvevict_policy* oracle_policy_create(const oracle_policy* values);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_POLICY_VALUES_H_
