/* A text that is edited, with its cache and a naive model of it: tokens whose
 * keys are known before RoPE. Every step changes both. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_LIFE_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_LIFE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvevict/edit.h"
#include "kvevict/paged.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/random.h"

enum {
  TEST_LIFE_LAYERS = 2,
  TEST_LIFE_HEADS = 2,
  TEST_LIFE_PAIRS = 3,
  TEST_LIFE_DIM = 8, /* two elements do not rotate */
  TEST_LIFE_SLOTS = 48,
  TEST_LIFE_TOKENS = 4000
};

/* The naive model: `text` has the tokens in order, 0 in gaps. */
typedef struct test_life {
  float inv_freq[TEST_LIFE_PAIRS];
  kvevict_rope_layout rope;
  kvevict_dtype dtype;
  kvevict_context* context;
  kvevict_plan* plan;
  kvevict_sequence* sequence;
  test_cache* caches[TEST_LIFE_LAYERS]; /* NULL with a pool */
  kvevict_paged_cache* pool;
  kvevict_paged_sequence* cached;
  void* workspace;
  size_t workspace_bytes;
  uint32_t last; /* the newest token */
  uint32_t n_text;
  uint32_t text[TEST_LIFE_TOKENS];
  uint64_t
      context_of[TEST_LIFE_TOKENS]; /* the text before a token when it came */
  bool held[TEST_LIFE_LAYERS][TEST_LIFE_HEADS][TEST_LIFE_TOKENS];
  uint32_t n_turns[TEST_LIFE_TOKENS];
  bool has_moved;
  bool rotates;        /* keys are at their slots */
  uint32_t n_fit_rows; /* queries that biases are fitted to, or 0 */
} test_life;

/* An empty text. Ragged: budgets differ by head. Paged: the rows lie in a pool,
 * and the layout is not used. */
test_life* test_life_begin(const char* policy, bool is_ragged, bool is_paged,
                           test_layout layout, test_random* random);
void test_life_end(test_life* a);

/* A layer's rows. */
kvevict_view test_life_view(const test_life* a, uint32_t l);
/* The most slots that any head holds. */
uint32_t test_life_longest(const test_life* a);

/* Expects every row, position and length, and the exact prefix, to be as if the
 * cache were computed again from the text. */
void test_life_check(const test_life* a, const char* what);

void test_life_append(test_life* a, uint32_t n);
void test_life_evict(test_life* a);
void test_life_trim(test_life* a, uint32_t n);

/* The call alone. */
kvevict_status test_life_call_edit(test_life* a, const kvevict_edit* e);
/* Edits both. Returns false if the edit does not fit and was refused. */
bool test_life_edit(test_life* a, const kvevict_edit* e, bool is_ragged,
                    const char* what);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_LIFE_H_ */
