// TriAttention of one KV head as it is defined, in double precision: keys are turned
// back to where they were before RoPE, and every query to come has an angle of its own.
// And how far from that arithmetic in f32 may be.
#ifndef KVEVICT_TESTS_ORACLE_QUERY_CENTERS_H_
#define KVEVICT_TESTS_ORACLE_QUERY_CENTERS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oracle_centers {
  const float* keys;         // [n_tokens, head_dim], as cached
  const int32_t* positions;  // [n_tokens]; NULL: 0, 1 ..
  uint32_t n_tokens;
  uint32_t head_dim;
  uint32_t n_sink;  // not scored: 0
  uint32_t n_seen;
  uint32_t group;
  uint32_t n_pairs;
  uint32_t is_interleaved;
  const float* inv_freq;  // [n_pairs]
  const float* centers;   // [group, 3, n_pairs], heads so many elements apart
  size_t center_stride;
} oracle_centers;

// Of each query head, before and after their mean and deviation are taken out; [group,
// n_tokens] each. NaN where a score is not finite. Bounds are those of `scores`; raw may
// be NULL.
void oracle_query_centers(const oracle_centers* in, double* raw, double* scores,
                          double* bounds);

// [n_pairs, 2]: the mean of e^(i w (n_seen + o)) over the distances of queries to come.
void oracle_query_turns(const float* inv_freq, uint32_t n_pairs,
                        uint32_t n_seen, double* turns);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_QUERY_CENTERS_H_
