/* Sequences made from another one: forked, loaded, or started from positions. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_COPIES_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_COPIES_H_

#include <stddef.h>
#include <stdint.h>

#include "kvevict/kvevict.h"

typedef enum test_copy_by {
  TEST_COPY_FORK,
  TEST_COPY_LOAD,
  TEST_COPY_START,
  TEST_N_COPIES
} test_copy_by;

/* A new sequence of the plan with the same tokens. A fork copies what was observed;
 * the others begin to observe. */
kvevict_sequence* test_copy(const kvevict_plan* plan,
                            const kvevict_sequence* sequence, test_copy_by by);

typedef struct test_saved {
  uint8_t* data;
  size_t n_bytes;
} test_saved;

/* The caller frees data. */
test_saved test_save(const kvevict_sequence* sequence);

/* kvevict_sequence_start() with the positions of another plan's sequence. */
kvevict_status test_start_as(kvevict_sequence* to, const kvevict_plan* plan,
                             const kvevict_sequence* from);

uint32_t test_exact_prefix(const kvevict_sequence* sequence);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_COPIES_H_ */
