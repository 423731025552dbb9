/* Rows that go into a grouped cache and come out of it. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_GROUPED_ROWS_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_GROUPED_ROWS_H_

#include "tests/capi/support/grouped.h"

/* f32 rows [n_heads, n, dim] of K and V. */
typedef struct test_plain {
  uint32_t n;
  float* rows[2];
  kvevict_view view;
} test_plain;

test_plain test_plain_make(const test_grouped_spec* spec, uint32_t n);
void test_plain_free(test_plain* p);
float* test_plain_row(const test_plain* p, int v, uint32_t head, uint32_t i);
/* Some elements are constant, some are equal, and a few are not finite unless `finite`. */
void test_plain_draw(test_plain* p, uint32_t dim, test_random* random,
                     bool finite);

/* Appends all rows at slots from `first` on by the oracle. */
void test_grouped_store_all(test_grouped* c, const test_plain* p,
                            uint32_t first);

/* Draws rows, stores them by kvevict_compact() and by the oracle, and compares. */
void test_grouped_fill(kvevict_context* context, test_grouped* c,
                       uint32_t first, uint32_t n, test_random* random,
                       bool finite);
/* A cache of n slots that several calls filled. The last slots are recent. */
test_grouped* test_grouped_filled(kvevict_context* context,
                                  test_grouped_spec spec, uint32_t n,
                                  test_random* random, bool finite);

/* Reads n slots as floats. */
test_plain test_grouped_read(kvevict_context* context, const test_grouped* c,
                             uint32_t n);

void test_grouped_expect_same(const test_grouped* ours,
                              const test_grouped* theirs, uint32_t n,
                              const char* what);
void test_grouped_expect_row(const float* ours, const float* theirs,
                             uint32_t dim, const char* what, uint32_t slot);
/* `ours` are a head's survivors: n_kept quantized ones and the recent ones. */
void test_grouped_expect_survivors(const test_grouped* before,
                                   const test_plain* ours, uint32_t head,
                                   const int32_t* list, uint32_t n_kept,
                                   uint32_t n_recent);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_GROUPED_ROWS_H_ */
