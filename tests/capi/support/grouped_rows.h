/* What goes into a grouped cache, and comes out. */
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
/* An element is constant, some are the same, few are no numbers unless `finite`. */
void test_plain_draw(test_plain* p, uint32_t dim, test_random* random,
                     bool finite);

/* kvevict_compact() of all rows to slots from `first` on; and by the oracle. */
kvevict_status test_grouped_append(kvevict_context* context,
                                   const test_grouped* c, const test_plain* p,
                                   uint32_t first);
void test_grouped_store_all(test_grouped* c, const test_plain* p,
                            uint32_t first);

/* Stores rows that are drawn by both, and compares. */
void test_grouped_fill(kvevict_context* context, test_grouped* c,
                       uint32_t first, uint32_t n, test_random* random,
                       bool finite);
/* A cache of n slots that was filled by some calls, the last ones recent. */
test_grouped* test_grouped_filled(kvevict_context* context,
                                  test_grouped_spec spec, uint32_t n,
                                  test_random* random, bool finite);

/* What n slots hold, read as floats. */
test_plain test_grouped_read(kvevict_context* context, const test_grouped* c,
                             uint32_t n);

void test_grouped_expect_same(const test_grouped* ours,
                              const test_grouped* theirs, uint32_t n,
                              const char* what);
void test_grouped_expect_row(const float* ours, const float* theirs,
                             uint32_t dim, const char* what, uint32_t slot);
/* `ours` are a head's survivors, n_kept quantized ones and the recent, of what it held. */
void test_grouped_expect_survivors(const test_grouped* before,
                                   const test_plain* ours, uint32_t head,
                                   const int32_t* list, uint32_t n_kept,
                                   uint32_t n_recent);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_GROUPED_ROWS_H_ */
