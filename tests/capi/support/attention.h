/* The attention of a step as an engine's kernel hands it over: random weights that
 * add up without rounding. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_ATTENTION_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_ATTENTION_H_

#include <stdint.h>

#include "tests/capi/support/model.h"
#include "tests/capi/support/random.h"

enum { TEST_ATTENTION_ROWS = 8, TEST_ATTENTION_SLOTS = 1024 };

/* One layer's weights [n_rows, stride], up to the slots of the step's tokens. */
typedef struct test_attention {
  uint32_t n_rows, n_slots;
  float values[TEST_ATTENTION_ROWS][TEST_ATTENTION_SLOTS];
} test_attention;

/* Draws multiples of 2^-10 below 1, few of them large. Elements beyond n_slots are NaN. */
void test_attention_draw(test_attention* a, uint32_t n_rows, uint32_t n_slots,
                         test_random* random);

/* The same as attention_sums, with n_sum_heads. The result points to both. */
kvevict_signal_inputs test_attention_inputs(const test_attention* a,
                                            kvevict_plane* plane);

/* Observes it as the attention of n_rows queries from a position on. */
kvevict_status test_attention_observe(kvevict_sequence* sequence,
                                      uint32_t layer, const test_attention* a,
                                      uint32_t n_rows, uint32_t first_position);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_ATTENTION_H_ */
