/* Random lives of sequences: tokens come, are evicted, taken back, trimmed, forked, saved,
 * loaded and started anew. After every step a naive model says what each head holds, and
 * which rows lie in its slots. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_SEQUENCE_LIFE_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_SEQUENCE_LIFE_H_

#include <stdbool.h>
#include <stdint.h>

#include "tests/capi/support/random.h"

enum {
  TEST_LIFE_ANY_ROWS = 1,     /* rows need not be read */
  TEST_LIFE_HEAD_BUDGETS = 2, /* each head has a budget of its own */
  TEST_LIFE_ALL_LAYERS = 4,
  TEST_LIFE_VALUES = 8, /* values are read */
  TEST_LIFE_MEASURES =
      16 /* f32 sums decide, which round little with such rows */
};

typedef struct test_life_kind {
  const char* policy;
  uint32_t least; /* what must stay: budgets of heads begin there */
  uint32_t n_protect;
  uint32_t flags;
} test_life_kind;

/* How often lives have done what. */
typedef struct test_lived {
  uint32_t n_evicted, n_refused, n_undone, n_copied;
} test_lived;

/* Decoding, tokens come in few and are evicted at once. Adds to the sum. */
void test_live(const test_life_kind* kind, test_random* random, bool decodes,
               test_lived* sum);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_SEQUENCE_LIFE_H_ */
