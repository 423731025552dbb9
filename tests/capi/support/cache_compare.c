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
        const uint32_t at = oracle_first_difference(
            &a->view, plane, t, &b->view, test_cache_plane(b, p), t, h);
        EXPECT(at == oracle_row_bytes(plane),
               "%s: plane %u, token %u, head %u, byte %u differs", what, p, t,
               h, at);
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

/* Sets the bytes of `inside` that a row has in a cache's memory. */
static void MarkRow(const test_cache* cache, const kvevict_plane* plane,
                    uint32_t token, uint32_t head, uint8_t* inside) {
  const uint32_t run = oracle_run_bytes(plane);
  for (uint32_t b = 0; b < oracle_row_bytes(plane); b += run) {
    memset(inside + (oracle_row_byte(&cache->view, plane, token, head, b) -
                     cache->memory),
           1, run);
  }
}

/* Fails if bytes differ outside of each head h's rows [first, ends[stride * h]). The
 * tables of `of` say where these lie. */
static void ExpectOutside(const test_cache* a, const test_cache* before,
                          const test_cache* of, uint32_t first,
                          const uint32_t* ends, uint32_t stride,
                          const char* what) {
  uint8_t* inside = calloc(a->n_bytes, 1);
  for (uint32_t p = 0; p < TEST_MAX_PLANES; ++p) {
    const kvevict_plane* plane = test_cache_plane(of, p);
    if (plane == NULL) continue;
    for (uint32_t h = 0; h < a->spec.n_kv_heads; ++h) {
      for (uint32_t t = first; t < ends[stride * h]; ++t) {
        MarkRow(of, plane, t, h, inside);
      }
    }
  }
  for (size_t i = 0; i < a->n_bytes; ++i) {
    EXPECT(inside[i] || a->memory[i] == before->memory[i],
           "%s: byte %zu outside the rows was written", what, i);
  }
  free(inside);
}

void test_expect_same_outside_heads(const test_cache* a,
                                    const test_cache* before,
                                    const uint32_t* ends, const char* what) {
  ExpectOutside(a, before, before, 0, ends, 1, what);
}

void test_expect_same_outside(const test_cache* a, const test_cache* before,
                              uint32_t first, uint32_t end, const char* what) {
  ExpectOutside(a, before, a, first, &end, 0, what);
}

void test_expect_same_bytes(const test_cache* a, const test_cache* before,
                            const char* what) {
  EXPECT(memcmp(a->memory, before->memory, a->n_bytes) == 0,
         "%s: the cache was written", what);
}

/* Entry i of a table: a block's number, or its offset. */
static uint64_t EntryOf(const test_cache* c, const kvevict_plane* plane,
                        uint64_t i) {
  if (c->view.block_table != NULL) return (uint64_t)c->view.block_table[i];
  const uint64_t at = ((const uint64_t*)(uintptr_t)plane->address_table)[i];
  return at == 0 ? UINT64_MAX : at - (uint64_t)(uintptr_t)c->memory;
}

static int Compare(const void* a, const void* b) {
  const uint64_t x = *(const uint64_t*)a, y = *(const uint64_t*)b;
  return x < y ? -1 : x > y;
}

void test_expect_same_tables(const test_cache* a, const test_cache* before,
                             const uint32_t* ends, const char* what) {
  const kvevict_view* view = &a->view;
  const uint64_t stride = view->block_table_head_stride;
  const uint32_t n_tables = stride == 0 ? 1 : view->n_kv_heads;
  for (uint32_t p = 0; p < TEST_MAX_PLANES; ++p) {
    const kvevict_plane* plane = test_cache_plane(a, p);
    const kvevict_plane* other = test_cache_plane(before, p);
    if (plane == NULL) continue;
    const uint64_t n_all = view->block_table != NULL ? view->block_table_len
                                                     : plane->address_table_len;
    for (uint32_t t = 0; t < n_tables; ++t) {
      const uint64_t first = t * stride;
      const uint64_t n = t + 1 < n_tables ? stride : n_all - first;
      const uint32_t used = (ends[t] + view->block_size - 1) / view->block_size;
      uint64_t* const both = malloc((2 * n + 1) * sizeof *both);
      for (uint64_t i = 0; i < n; ++i) {
        both[i] = EntryOf(a, plane, first + i);
        both[n + i] = EntryOf(before, other, first + i);
      }
      /* Those in use are permuted. */
      qsort(both, used, sizeof *both, Compare);
      qsort(both + n, used, sizeof *both, Compare);
      EXPECT(memcmp(both, both + n, n * sizeof *both) == 0,
             "%s: the table of head %u has other blocks", what, t);
      free(both);
    }
  }
}
