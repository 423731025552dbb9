/* A random life of a sequence beside its naive model, and what must agree. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_SEQUENCE_STATE_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_SEQUENCE_STATE_H_

#include <stdbool.h>
#include <stdint.h>

#include "tests/capi/support/choice.h"
#include "tests/capi/support/graph_step.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/random.h"
#include "tests/capi/support/sequence_life.h"

enum {
  TEST_STATE_LAYERS = 3,
  TEST_STATE_HEADS = TEST_CHOICE_HEADS,
  TEST_STATE_TOKENS = TEST_CHOICE_TOKENS,
  TEST_STATE_ROWS = 8,  /* of tallies */
  TEST_STATE_CALLS = 8, /* the most of `sum_last` */
};

/* What the sequence has observed of slots: nothing, scores that were given once, or sums
 * of attention. */
typedef enum test_tally {
  TEST_TALLY_NONE,
  TEST_TALLY_SCORES,
  TEST_TALLY_SUMS
} test_tally;

/* The last calls of a layer that observed attention, the oldest first. */
typedef struct test_calls {
  uint32_t n;
  uint32_t n_counted; /* of the last calls: an eviction came after the others */
  uint32_t n_ever;    /* without those that were taken back */
  struct {
    uint32_t end; /* the position behind its rows */
    float values[TEST_STATE_TOKENS];
  } of[TEST_STATE_CALLS];
} test_calls;

/* The naive model. */
typedef struct test_state {
  uint32_t n[TEST_STATE_LAYERS][TEST_STATE_HEADS];
  int32_t positions[TEST_STATE_LAYERS][TEST_STATE_HEADS][TEST_STATE_TOKENS];
  float tallies[TEST_STATE_LAYERS][TEST_STATE_ROWS][TEST_STATE_TOKENS];
  test_calls calls[TEST_STATE_LAYERS]; /* in place of tallies, by `sum_last` */
  uint32_t n_seen;
  uint32_t bound; /* trims are exact from here on */
  test_prompt prompt;
  uint32_t last_round; /* of `every` */
  bool has_changed;    /* rows are no longer their tokens' */
} test_state;

typedef struct test_living {
  test_model* m;
  test_state now;
  test_tally tally;
  uint32_t n_rows; /* of tallies */
  uint32_t n_protect;
  uint32_t peak; /* the longest since the window was shown alone */
  int32_t* tables[TEST_STATE_LAYERS]; /* of all blocks; NULL: there is none */
  test_graph_step* step;              /* NULL: none is captured */
  test_random* random;
  const char* what;
  test_lived* sum;
} test_living;

/* For each list. */
#define TEST_EACH_LIST(a, l, h)                        \
  for (uint32_t l = 0; l < (a)->m->spec.n_layers; ++l) \
    for (uint32_t h = 0; h < (a)->m->spec.n_kv_heads; ++h)

/* The exact prefix. */
uint32_t test_living_prefix(const test_living* life);

/* Fails unless the sequence holds what the naive model holds. */
void test_living_check(const test_living* life);

/* Fails unless the report has what each list held and holds, and their rows' bytes and
 * blocks. */
void test_living_check_report(const test_living* life, const test_state* was,
                              uint64_t n_freed, uint32_t n_weak);

/* Fails unless the report has the mass that lists keep of the chosen scores. */
void test_living_check_mass(const test_living* life, const test_choice* choice);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_SEQUENCE_STATE_H_ */
