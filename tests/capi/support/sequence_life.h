/* Random lives of sequences: tokens come, are evicted, taken back, trimmed, forked, saved,
 * loaded and started anew. After every step a naive model says what each head holds, and
 * which rows lie in its slots. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_SEQUENCE_LIFE_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_SEQUENCE_LIFE_H_

#include <stdbool.h>
#include <stdint.h>

#include "tests/capi/support/merged.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/random.h"

/* The tokens that a life sees at most; reference queries lie behind them. */
enum { TEST_SEQUENCE_POSITIONS = 900 };

/* How often lives have done what. */
typedef struct test_lived {
  uint32_t n_evicted, n_by_table, n_refused, n_undone, n_copied, n_gone_on,
      n_masses, n_by_keys, n_rescues;
  test_changes changes;
} test_lived;

/* Lives a model of up to 3 layers, and destroys it. Decoding, tokens come in few and are
 * evicted at once. Adds to the sum. */
void test_live(test_model* model, uint32_t n_protect, test_random* random,
               bool decodes, test_lived* sum);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_SEQUENCE_LIFE_H_ */
