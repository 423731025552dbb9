#include "tests/capi/support/attention.h"

#include <math.h>

#include "tests/capi/support/expect.h"

void test_attention_draw(test_attention* a, uint32_t n_rows, uint32_t n_slots,
                         test_random* random) {
  EXPECT(n_rows <= TEST_ATTENTION_ROWS && n_slots <= TEST_ATTENTION_SLOTS,
         "%u rows of %u slots", n_rows, n_slots);
  a->n_rows = n_rows;
  a->n_slots = n_slots;
  for (uint32_t r = 0; r < n_rows; ++r) {
    for (uint32_t t = 0; t < TEST_ATTENTION_SLOTS; ++t) {
      const uint32_t most = test_random_below(random, 8) == 0 ? 1024 : 64;
      a->values[r][t] =
          t < n_slots ? (float)test_random_below(random, most) / 1024.0f : NAN;
    }
  }
}

kvevict_signal_inputs test_attention_inputs(const test_attention* a,
                                            kvevict_plane* plane) {
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  *plane = test_floats_plane(a->values[0], TEST_ATTENTION_SLOTS);
  inputs.attention_sums = plane;
  inputs.n_sum_heads = a->n_rows;
  return inputs;
}

kvevict_status test_attention_observe(kvevict_sequence* sequence,
                                      uint32_t layer, const test_attention* a,
                                      uint32_t n_rows,
                                      uint32_t first_position) {
  kvevict_plane plane;
  const kvevict_signal_inputs inputs = test_attention_inputs(a, &plane);
  const kvevict_observation observation = {sizeof observation, layer, &inputs};
  return kvevict_sequence_observe(sequence, &observation, 1, n_rows,
                                  first_position, NULL);
}
