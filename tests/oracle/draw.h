// The numbers by which scores are divided when tokens are drawn.
#ifndef KVEVICT_TESTS_ORACLE_DRAW_H_
#define KVEVICT_TESTS_ORACLE_DRAW_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Exp(1) for a token of a layer and KV head at an eviction with n_seen tokens
// seen. What the library computes differs by up to ORACLE_EXPONENTIAL_STEP: its
// logarithm has so many bits.
double oracle_exponential(uint64_t seed, uint32_t layer, uint32_t head,
                          uint32_t n_seen, uint32_t position);

#define ORACLE_EXPONENTIAL_STEP 1.1e-8  // ln 2 * 2^-26, and its rounding

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_DRAW_H_
