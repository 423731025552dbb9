/* Random inputs of an eviction. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_DRAWN_INPUTS_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_DRAWN_INPUTS_H_

#include <stdbool.h>
#include <stdint.h>

#include "tests/capi/support/choice.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/ranges.h"

/* What an eviction is given: protected positions, ranges, scores, reference queries. */
typedef struct test_drawn_inputs {
  kvevict_evict_options options;
  int32_t protect[4], positions[40];
  test_ranges ranges;
  test_given given;
  test_inputs queries;
  bool hands_over; /* the window's rows of some layers; others were observed */
} test_drawn_inputs;

/* Draws what the model's policy reads, up to n_protect protected positions, and a size of
 * the model's workspace. */
void test_draw_inputs(test_model* model, uint32_t n_protect,
                      test_random* random, test_drawn_inputs* out);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_DRAWN_INPUTS_H_ */
