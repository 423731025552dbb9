// TriAttention of one KV head by its definition, in double precision: keys are
// rotated back to before RoPE, and every query to come has its own angle. Also how
// far f32 arithmetic may be off.
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

// Scores of each query head before and after standardising; [group, n_tokens] each.
// NaN where a score is not finite. Bounds are those of `scores`; raw may be NULL.
void oracle_query_centers(const oracle_centers* in, double* raw, double* scores,
                          double* bounds);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_QUERY_CENTERS_H_
