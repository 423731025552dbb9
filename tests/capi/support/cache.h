/* One layer's cache in any of the layouts the header can describe, with guard bytes
 * between its planes. One end of its memory touches an inaccessible page. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_CACHE_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_CACHE_H_

#include <stddef.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/pages.h"
#include "tests/capi/support/random.h"

typedef enum test_layout {
  TEST_TOKEN_MAJOR,   /* [S, H, D] */
  TEST_HEAD_MAJOR,    /* [H, S, D] */
  TEST_TRANSPOSED,    /* [H, D, S]; opaque rows: head-major */
  TEST_NEGATIVE,      /* token-major with every stride negative */
  TEST_KV_IN_ONE_ROW, /* [S, K heads then V heads, D] */
  TEST_PADDED,        /* token-major, rows 3 bytes apart, odd address */
  TEST_PAGED_1, /* block tables are permuted, with unused blocks between */
  TEST_PAGED_3,
  TEST_PAGED_16,         /* tokens, then heads inside a block */
  TEST_PAGED_16_BY_HEAD, /* heads, then tokens inside a block */
  TEST_PAGED_3_OF_HEADS, /* a table per head, of blocks that hold its rows alone */
  TEST_PAGED_16_OF_HEADS, /* a table per head, of blocks with room for all heads */
  TEST_VECTORISED,        /* K [blocks, H, D/x, 16, x], V [blocks, H, D, 16] */
  /* Blocks allocated one by one, with holes in the tables of addresses: */
  TEST_PAGES_16,         /* keys, then values in each; block ids */
  TEST_PAGES_3_IN_ORDER, /* K and V in pages of their own, without ids */
  TEST_PAGES_3_OF_HEADS, /* pages of each head, without ids */
  TEST_RING,             /* token-major, all of it used before the first row */
  TEST_RING_PAGED_3,
  TEST_N_LAYOUTS
} test_layout;

const char* test_layout_name(test_layout layout);

/* K, V, companions, and the scales and minima of both. */
enum { TEST_MAX_COMPANIONS = 6, TEST_MAX_PLANES = 2 + TEST_MAX_COMPANIONS };

typedef struct test_cache_spec {
  test_layout layout;
  uint32_t n_kv_heads;
  uint32_t capacity; /* tokens */
  kvevict_dtype k_dtype;
  uint32_t k_head_dim; /* opaque: bytes per row */
  kvevict_dtype v_dtype;
  uint32_t v_head_dim; /* opaque: bytes per row; 0: no V */
  /* At most 2: the first has f32 numbers, the second opaque rows of 5 bytes. The
   * scales and minima of quantized K and V follow. */
  uint32_t n_companions;
} test_cache_spec;

typedef struct test_cache {
  test_cache_spec spec;
  kvevict_view view;
  kvevict_plane companions[TEST_MAX_COMPANIONS];
  test_guarded pages;
  uint8_t* memory;
  size_t n_bytes;
  int at_end; /* of the pages */
  int32_t* block_table;
  uint64_t* addresses; /* one table behind the other */
} test_cache;

/* Creates memory full of random bytes; rows of readable dtypes are finite. */
test_cache* test_cache_create(const test_cache_spec* spec, test_random* random);

/* Copies the bytes to another address. */
test_cache* test_cache_clone(const test_cache* cache);

void test_cache_destroy(test_cache* cache);

/* The planes of a cache in a fixed order, i < TEST_MAX_PLANES; NULL where absent. */
const kvevict_plane* test_cache_plane(const test_cache* cache, uint32_t i);

/* The first companion if it has biases, or NULL. */
const kvevict_plane* test_bias_plane(const kvevict_view* view);

/* The entries of a block table for n_tokens; 0 if the layout has none. */
uint32_t test_cache_blocks(const test_cache* cache, uint32_t n_tokens);

/* Makes an entry of the tables that of no block: -1, or an address of 0. */
void test_cache_free_entry(test_cache* cache, uint64_t entry);

/* Restores entries of tables of addresses from a clone. */
void test_cache_restore_entries(test_cache* cache, const test_cache* clone);

/* The element of a plane of this cache. Setting needs a plane that is not quantized. */
float test_cache_get(const test_cache* cache, const kvevict_plane* plane,
                     uint32_t token, uint32_t head, uint32_t element);
void test_cache_set(test_cache* cache, const kvevict_plane* plane,
                    uint32_t token, uint32_t head, uint32_t element,
                    float value);

/* Copies the content of another cache's first n_tokens rows. The specs may
 * differ in layout only. */
void test_cache_copy_rows(test_cache* to, const test_cache* from,
                          uint32_t n_tokens);

/* Fills rows [first, first + n) with new random content. */
void test_cache_append(test_cache* cache, test_random* random, uint32_t first,
                       uint32_t n);

/* Keys as f32, [n_kv_heads, n_tokens, k_head_dim]. */
void test_cache_keys(const test_cache* cache, uint32_t n_tokens, float* out);

/* Rows of a head from `first` on as f32, malloc'd. */
float* test_cache_rows(const test_cache* cache, const kvevict_plane* plane,
                       uint32_t head, uint32_t first, uint32_t n_tokens);

/* Fails the test unless the first n_tokens rows are alike in any layouts. */
void test_expect_same_rows(const test_cache* a, const test_cache* b,
                           uint32_t n_tokens, const char* what);

/* Fails the test unless the first `ends[h]` rows of every head h are alike. */
void test_expect_same_rows_of_heads(const test_cache* a, const test_cache* b,
                                    const uint32_t* ends, const char* what);

/* Fails the test unless all bytes outside of rows [first, end) equal those of
 * `before`, which is a clone. */
void test_expect_same_outside(const test_cache* a, const test_cache* before,
                              uint32_t first, uint32_t end, const char* what);

/* Fails the test unless all bytes outside of rows [0, ends[h]) of every head h equal
 * those of `before`, which is a clone. */
void test_expect_same_outside_heads(const test_cache* a,
                                    const test_cache* before,
                                    const uint32_t* ends, const char* what);

/* Fails the test unless every byte equals that of `before`. */
void test_expect_same_bytes(const test_cache* a, const test_cache* before,
                            const char* what);

/* Fails the test unless the tables have the entries of `before`, a clone, of which those
 * that hold rows [0, ends[h]) of every head h may be in another order. */
void test_expect_same_tables(const test_cache* a, const test_cache* before,
                             const uint32_t* ends, const char* what);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_CACHE_H_ */
