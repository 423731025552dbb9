// Leverage of keys before RoPE in double precision, step by step as published.
#ifndef KVEVICT_TESTS_ORACLE_LEVERAGE_H_
#define KVEVICT_TESTS_ORACLE_LEVERAGE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The keys of one KV head that are compared with each other.
typedef struct oracle_leverage {
  uint32_t n_tokens;
  uint32_t head_dim;
  const float* keys;         // [n_tokens, head_dim]
  const int32_t* positions;  // [n_tokens]: where RoPE has turned keys to; NULL:
                             // they are as before RoPE
  const float* inv_freq;     // [n_pairs]
  uint32_t n_pairs;
  uint32_t interleaved;  // pair f is 2 f and 2 f + 1, not f and f + n_pairs
} oracle_leverage;

// leverage[n_tokens] = max(0, x' (X'X + 0.01 I)^-1 x), where the rows x of X are
// the keys before RoPE less their mean.
void oracle_leverage_scores(const oracle_leverage* in, double* leverage);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_LEVERAGE_H_
