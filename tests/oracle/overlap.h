// Finds the bytes of a plane one by one.
#ifndef KVEVICT_TESTS_ORACLE_OVERLAP_H_
#define KVEVICT_TESTS_ORACLE_OVERLAP_H_

#include <stdbool.h>
#include <stdint.h>

#include "kvevict/kvevict.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether the first n_tokens rows of planes of two views have a byte in common;
// absent planes have none.
bool oracle_planes_overlap(const kvevict_view* a, const kvevict_plane* p,
                           uint32_t a_tokens, const kvevict_view* b,
                           const kvevict_plane* q, uint32_t b_tokens);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_OVERLAP_H_
