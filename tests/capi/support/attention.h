/* What an engine's attention kernel hands over of a step: weights, at random, that add
 * up without rounding. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_ATTENTION_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_ATTENTION_H_

#include <stdint.h>

#include "tests/capi/support/model.h"
#include "tests/capi/support/random.h"

enum { TEST_ATTENTION_ROWS = 8, TEST_ATTENTION_SLOTS = 1024 };

/* Of one layer: [n_rows, stride], slots up to those of the step's tokens. */
typedef struct test_attention {
  uint32_t n_rows, n_slots;
  float values[TEST_ATTENTION_ROWS][TEST_ATTENTION_SLOTS];
} test_attention;

/* Multiples of 2^-10 below 1, few of them large, what lies beyond n_slots NaN. */
void test_attention_draw(test_attention* a, uint32_t n_rows, uint32_t n_slots,
                         test_random* random);

/* As attention_sums, with n_sum_heads; both are pointed to. */
kvevict_signal_inputs test_attention_inputs(const test_attention* a,
                                            kvevict_plane* plane);

/* Observes it as that of n_rows queries from a position on. */
kvevict_status test_attention_observe(kvevict_sequence* sequence,
                                      uint32_t layer, const test_attention* a,
                                      uint32_t n_rows, uint32_t first_position);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_ATTENTION_H_ */
