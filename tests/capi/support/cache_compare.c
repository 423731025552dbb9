/* Caches compared byte by byte. */
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/cache.h"
#include "tests/capi/support/expect.h"
#include "tests/oracle/compact.h"

/* Head h's rows end at ends[stride * h]. */
static void ExpectSameRows(const test_cache* a, const test_cache* b,
                           const uint32_t* ends, uint32_t stride,
                           const char* what) {
  for (uint32_t p = 0; p < TEST_MAX_PLANES; ++p) {
    const kvevict_plane* plane = test_cache_plane(a, p);
    if (plane == NULL) continue;
    for (uint32_t h = 0; h < a->spec.n_kv_heads; ++h) {
      for (uint32_t t = 0; t < ends[stride * h]; ++t) {
        for (uint32_t i = 0; i < oracle_row_bytes(plane); ++i) {
          EXPECT(
              *oracle_row_byte(&a->view, plane, t, h, i) ==
                  *oracle_row_byte(&b->view, test_cache_plane(b, p), t, h, i),
              "%s: plane %u, token %u, head %u, byte %u differs", what, p, t, h,
              i);
        }
      }
    }
  }
}

void test_expect_same_rows(const test_cache* a, const test_cache* b,
                           uint32_t n_tokens, const char* what) {
  ExpectSameRows(a, b, &n_tokens, 0, what);
}

void test_expect_same_rows_of_heads(const test_cache* a, const test_cache* b,
                                    const uint32_t* ends, const char* what) {
  ExpectSameRows(a, b, ends, 1, what);
}

void test_expect_same_outside_heads(const test_cache* a,
                                    const test_cache* before,
                                    const uint32_t* ends, const char* what) {
  uint8_t* inside = calloc(a->n_bytes, 1);
  for (uint32_t p = 0; p < TEST_MAX_PLANES; ++p) {
    const kvevict_plane* plane = test_cache_plane(a, p);
    if (plane == NULL) continue;
    for (uint32_t h = 0; h < a->spec.n_kv_heads; ++h) {
      for (uint32_t t = 0; t < ends[h]; ++t) {
        for (uint32_t i = 0; i < oracle_row_bytes(plane); ++i) {
          inside[oracle_row_byte(&before->view, test_cache_plane(before, p), t,
                                 h, i) -
                 before->memory] = 1;
        }
      }
    }
  }
  for (size_t i = 0; i < a->n_bytes; ++i) {
    EXPECT(inside[i] || a->memory[i] == before->memory[i],
           "%s: byte %zu outside the rows was written", what, i);
  }
  free(inside);
}

void test_expect_same_outside(const test_cache* a, const test_cache* before,
                              uint32_t first, uint32_t end, const char* what) {
  uint8_t* inside = calloc(a->n_bytes, 1);
  for (uint32_t p = 0; p < TEST_MAX_PLANES; ++p) {
    const kvevict_plane* plane = test_cache_plane(a, p);
    if (plane == NULL) continue;
    for (uint32_t t = first; t < end; ++t) {
      for (uint32_t h = 0; h < a->spec.n_kv_heads; ++h) {
        for (uint32_t i = 0; i < oracle_row_bytes(plane); ++i) {
          inside[oracle_row_byte(&a->view, plane, t, h, i) - a->memory] = 1;
        }
      }
    }
  }
  for (size_t i = 0; i < a->n_bytes; ++i) {
    EXPECT(inside[i] || a->memory[i] == before->memory[i],
           "%s: byte %zu outside the rows was written", what, i);
  }
  free(inside);
}

void test_expect_same_bytes(const test_cache* a, const test_cache* before,
                            const char* what) {
  EXPECT(memcmp(a->memory, before->memory, a->n_bytes) == 0,
         "%s: the cache was written", what);
}
