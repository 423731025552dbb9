#include "tests/capi/support/cache.h"

#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/oracle/compact.h"

enum { kGuardBytes = 64 };

const char* test_layout_name(test_layout layout) {
  static const char* const kNames[TEST_N_LAYOUTS] = {
      "token-major",      "head-major",       "transposed",
      "negative",         "kv-in-one-row",    "padded",
      "paged-1",          "paged-3",          "paged-16",
      "paged-16-by-head", "paged-3-of-heads", "paged-16-of-heads"};
  return kNames[layout];
}

static uint32_t BlockSize(test_layout layout) {
  switch (layout) {
    case TEST_PAGED_1:
      return 1;
    case TEST_PAGED_3:
    case TEST_PAGED_3_OF_HEADS:
      return 3;
    case TEST_PAGED_16:
    case TEST_PAGED_16_OF_HEADS:
    case TEST_PAGED_16_BY_HEAD:
      return 16;
    default:
      return 0;
  }
}

static uint32_t BlockCount(const test_cache_spec* spec) {
  const uint32_t size = BlockSize(spec->layout);
  return size == 0 ? 0 : (spec->capacity + size - 1) / size;
}

/* Block tables of a cache, one after the other with two entries between. */
static uint32_t TableCount(const test_cache_spec* spec) {
  return spec->layout == TEST_PAGED_3_OF_HEADS ||
                 spec->layout == TEST_PAGED_16_OF_HEADS
             ? spec->n_kv_heads
             : 1;
}

enum { kBetweenTables = 2 };

uint32_t test_cache_blocks(const test_cache* cache, uint32_t n_tokens) {
  const uint32_t size = cache->view.block_size;
  return size == 0 ? 0 : (n_tokens + size - 1) / size;
}

static void SetType(kvevict_plane* plane, kvevict_dtype dtype, uint32_t dim) {
  memset(plane, 0, sizeof(*plane));
  plane->dtype = dtype;
  if (dtype == KVEVICT_DTYPE_OPAQUE) {
    plane->row_bytes = dim;
  } else {
    plane->head_dim = dim;
  }
}

/* Sets strides and, relative to the plane's region, the address; returns the
 * bytes of the region. */
static size_t LayOut(const test_cache_spec* spec, kvevict_plane* plane) {
  const int64_t row = oracle_row_bytes(plane);
  const int64_t heads = spec->n_kv_heads;
  const int64_t tokens = spec->capacity;
  const int64_t block = BlockSize(spec->layout);
  const int64_t element = test_element_bytes(plane->dtype);
  const bool readable = plane->dtype != KVEVICT_DTYPE_OPAQUE;
  switch (spec->layout) {
    case TEST_TRANSPOSED:
      if (readable) {
        plane->token_stride_bytes = element;
        plane->element_stride_bytes = tokens * element;
        plane->head_stride_bytes = tokens * row;
        return (size_t)(heads * tokens * row);
      } /* fall through */
    case TEST_HEAD_MAJOR:
      plane->token_stride_bytes = row;
      plane->head_stride_bytes = tokens * row;
      return (size_t)(heads * tokens * row);
    case TEST_NEGATIVE:
      plane->token_stride_bytes = -heads * row;
      plane->head_stride_bytes = -row;
      plane->data = (uint64_t)(heads * tokens * row - row);
      if (readable) {
        plane->element_stride_bytes = -element;
        plane->data += (uint64_t)(row - element);
      }
      return (size_t)(heads * tokens * row);
    case TEST_PADDED:
      plane->head_stride_bytes = row + 3;
      plane->token_stride_bytes = heads * (row + 3) + 5;
      plane->data = 1;
      return (size_t)(1 + tokens * plane->token_stride_bytes);
    case TEST_PAGED_3_OF_HEADS:
      plane->token_stride_bytes = row;
      plane->block_stride_bytes = block * row + 9;
      return 2 * TableCount(spec) * BlockCount(spec) *
             (size_t)plane->block_stride_bytes;
    case TEST_PAGED_1:
    case TEST_PAGED_3:
    case TEST_PAGED_16:
    case TEST_PAGED_16_OF_HEADS:
      plane->head_stride_bytes = row;
      plane->token_stride_bytes = heads * row;
      plane->block_stride_bytes = block * heads * row + 9;
      return 2 * TableCount(spec) * BlockCount(spec) *
             (size_t)plane->block_stride_bytes;
    case TEST_PAGED_16_BY_HEAD:
      plane->token_stride_bytes = row;
      plane->head_stride_bytes = block * row;
      plane->block_stride_bytes = heads * block * row;
      return 2 * BlockCount(spec) * (size_t)plane->block_stride_bytes;
    default:
      plane->head_stride_bytes = row;
      plane->token_stride_bytes = heads * row;
      return (size_t)(heads * tokens * row);
  }
}

/* K and V rows of a token side by side. */
static size_t LayOutTogether(const test_cache_spec* spec, kvevict_plane* k,
                             kvevict_plane* v) {
  const int64_t heads = spec->n_kv_heads;
  const int64_t k_row = oracle_row_bytes(k);
  const int64_t v_row = oracle_row_bytes(v);
  k->head_stride_bytes = k_row;
  v->head_stride_bytes = v_row;
  k->token_stride_bytes = v->token_stride_bytes = heads * (k_row + v_row);
  v->data = (uint64_t)(heads * k_row);
  return (size_t)(heads * (k_row + v_row) * spec->capacity);
}

static void Rebase(test_cache* cache, uint64_t from, uint64_t to) {
  if (cache->view.k.data != 0) cache->view.k.data += to - from;
  if (cache->view.v.data != 0) cache->view.v.data += to - from;
  for (uint32_t i = 0; i < cache->view.n_companions; ++i) {
    cache->companions[i].data += to - from;
  }
  cache->view.companions =
      cache->view.n_companions > 0 ? cache->companions : NULL;
  cache->view.block_table = cache->block_table;
}

static void BuildTable(test_cache* cache, test_random* random) {
  const uint32_t n = BlockCount(&cache->spec);
  const uint32_t n_tables = TableCount(&cache->spec);
  if (n == 0) return;
  const uint32_t stride = n_tables == 1 ? 0 : n + kBetweenTables;
  const uint32_t len = stride * (n_tables - 1) + n;
  /* Every second block of the pool belongs to somebody else. */
  int32_t* ids = malloc((size_t)n * n_tables * sizeof(int32_t));
  test_random_permutation(random, ids, n * n_tables);
  cache->block_table = malloc(len * sizeof(int32_t));
  for (uint32_t i = 0; i < len; ++i) cache->block_table[i] = -7;
  for (uint32_t i = 0; i < n * n_tables; ++i) {
    cache->block_table[i / n * stride + i % n] = 2 * ids[i] + 1;
  }
  free(ids);
  cache->view.block_size = BlockSize(cache->spec.layout);
  cache->view.block_table_len = len;
  cache->view.block_table_head_stride = stride;
}

test_cache* test_cache_create(const test_cache_spec* spec,
                              test_random* random) {
  test_cache* cache = calloc(1, sizeof(*cache));
  kvevict_view* view = &cache->view;
  cache->spec = *spec;
  view->struct_size = sizeof(*view);
  view->n_kv_heads = spec->n_kv_heads;
  view->n_companions = spec->n_companions;

  size_t end = kGuardBytes;
  SetType(&view->k, spec->k_dtype, spec->k_head_dim);
  if (spec->v_head_dim > 0) SetType(&view->v, spec->v_dtype, spec->v_head_dim);
  if (spec->layout == TEST_KV_IN_ONE_ROW && spec->v_head_dim > 0) {
    const size_t n = LayOutTogether(spec, &view->k, &view->v);
    view->k.data += end;
    view->v.data += end;
    end += n + kGuardBytes;
  } else {
    const size_t n = LayOut(spec, &view->k);
    view->k.data += end;
    end += n + kGuardBytes;
    if (spec->v_head_dim > 0) {
      const size_t m = LayOut(spec, &view->v);
      view->v.data += end;
      end += m + kGuardBytes;
    }
  }
  for (uint32_t i = 0; i < spec->n_companions; ++i) {
    kvevict_plane* plane = &cache->companions[i];
    SetType(plane, i == 0 ? KVEVICT_DTYPE_F32 : KVEVICT_DTYPE_OPAQUE,
            i == 0 ? 1 : 5);
    const size_t n = LayOut(spec, plane);
    plane->data += end;
    end += n + kGuardBytes;
  }
  cache->n_bytes = end;
  cache->memory = malloc(end);
  test_random_bytes(random, cache->memory, end);
  BuildTable(cache, random);
  Rebase(cache, 0, (uint64_t)(uintptr_t)cache->memory);
  test_cache_append(cache, random, 0, spec->capacity);
  return cache;
}

test_cache* test_cache_clone(const test_cache* cache) {
  test_cache* clone = malloc(sizeof(*clone));
  *clone = *cache;
  clone->memory = malloc(cache->n_bytes);
  memcpy(clone->memory, cache->memory, cache->n_bytes);
  if (cache->block_table != NULL) {
    const size_t n = cache->view.block_table_len * sizeof(int32_t);
    clone->block_table = malloc(n);
    memcpy(clone->block_table, cache->block_table, n);
  }
  Rebase(clone, (uint64_t)(uintptr_t)cache->memory,
         (uint64_t)(uintptr_t)clone->memory);
  return clone;
}

void test_cache_destroy(test_cache* cache) {
  free(cache->block_table);
  free(cache->memory);
  free(cache);
}

float test_cache_get(const test_cache* cache, const kvevict_plane* plane,
                     uint32_t token, uint32_t head, uint32_t element) {
  return test_load(plane->dtype,
                   oracle_row_byte(&cache->view, plane, token, head,
                                   element * test_element_bytes(plane->dtype)));
}

void test_cache_set(test_cache* cache, const kvevict_plane* plane,
                    uint32_t token, uint32_t head, uint32_t element,
                    float value) {
  test_store(plane->dtype, value,
             oracle_row_byte(&cache->view, plane, token, head,
                             element * test_element_bytes(plane->dtype)));
}

/* The planes of a cache in a fixed order; NULL where absent. */
enum { kMaxPlanes = 4 };

static const kvevict_plane* Plane(const test_cache* cache, uint32_t i) {
  if (i == 0) return &cache->view.k;
  if (i == 1) return cache->view.v.data != 0 ? &cache->view.v : NULL;
  return i - 2 < cache->view.n_companions ? &cache->companions[i - 2] : NULL;
}

void test_cache_copy_rows(test_cache* to, const test_cache* from,
                          uint32_t n_tokens) {
  for (uint32_t p = 0; p < kMaxPlanes; ++p) {
    const kvevict_plane* plane = Plane(to, p);
    if (plane == NULL) continue;
    for (uint32_t t = 0; t < n_tokens; ++t) {
      for (uint32_t h = 0; h < to->spec.n_kv_heads; ++h) {
        for (uint32_t b = 0; b < oracle_row_bytes(plane); ++b) {
          *oracle_row_byte(&to->view, plane, t, h, b) =
              *oracle_row_byte(&from->view, Plane(from, p), t, h, b);
        }
      }
    }
  }
}

void test_cache_append(test_cache* cache, test_random* random, uint32_t first,
                       uint32_t n) {
  for (uint32_t p = 0; p < kMaxPlanes; ++p) {
    const kvevict_plane* plane = Plane(cache, p);
    if (plane == NULL) continue;
    for (uint32_t t = first; t < first + n; ++t) {
      for (uint32_t h = 0; h < cache->spec.n_kv_heads; ++h) {
        if (plane->dtype == KVEVICT_DTYPE_OPAQUE) {
          for (uint32_t b = 0; b < plane->row_bytes; ++b) {
            *oracle_row_byte(&cache->view, plane, t, h, b) =
                (uint8_t)test_random_u64(random);
          }
          continue;
        }
        for (uint32_t e = 0; e < plane->head_dim; ++e) {
          test_cache_set(cache, plane, t, h, e, test_random_normal(random));
        }
      }
    }
  }
}

void test_cache_keys(const test_cache* cache, uint32_t n_tokens, float* out) {
  const uint32_t dim = cache->view.k.head_dim;
  for (uint32_t h = 0; h < cache->spec.n_kv_heads; ++h) {
    for (uint32_t t = 0; t < n_tokens; ++t) {
      for (uint32_t e = 0; e < dim; ++e) {
        *out++ = test_cache_get(cache, &cache->view.k, t, h, e);
      }
    }
  }
}

void test_expect_same_rows(const test_cache* a, const test_cache* b,
                           uint32_t n_tokens, const char* what) {
  for (uint32_t p = 0; p < kMaxPlanes; ++p) {
    const kvevict_plane* plane = Plane(a, p);
    if (plane == NULL) continue;
    for (uint32_t t = 0; t < n_tokens; ++t) {
      for (uint32_t h = 0; h < a->spec.n_kv_heads; ++h) {
        for (uint32_t i = 0; i < oracle_row_bytes(plane); ++i) {
          EXPECT(*oracle_row_byte(&a->view, plane, t, h, i) ==
                     *oracle_row_byte(&b->view, Plane(b, p), t, h, i),
                 "%s: plane %u, token %u, head %u, byte %u differs", what, p, t,
                 h, i);
        }
      }
    }
  }
}

void test_expect_same_rows_of_heads(const test_cache* a, const test_cache* b,
                                    const uint32_t* ends, const char* what) {
  for (uint32_t p = 0; p < kMaxPlanes; ++p) {
    const kvevict_plane* plane = Plane(a, p);
    if (plane == NULL) continue;
    for (uint32_t h = 0; h < a->spec.n_kv_heads; ++h) {
      for (uint32_t t = 0; t < ends[h]; ++t) {
        for (uint32_t i = 0; i < oracle_row_bytes(plane); ++i) {
          EXPECT(*oracle_row_byte(&a->view, plane, t, h, i) ==
                     *oracle_row_byte(&b->view, Plane(b, p), t, h, i),
                 "%s: plane %u, token %u, head %u, byte %u differs", what, p, t,
                 h, i);
        }
      }
    }
  }
}

void test_expect_same_outside_heads(const test_cache* a,
                                    const test_cache* before,
                                    const uint32_t* ends, const char* what) {
  uint8_t* inside = calloc(a->n_bytes, 1);
  for (uint32_t p = 0; p < kMaxPlanes; ++p) {
    const kvevict_plane* plane = Plane(a, p);
    if (plane == NULL) continue;
    for (uint32_t h = 0; h < a->spec.n_kv_heads; ++h) {
      for (uint32_t t = 0; t < ends[h]; ++t) {
        for (uint32_t i = 0; i < oracle_row_bytes(plane); ++i) {
          inside[oracle_row_byte(&before->view, Plane(before, p), t, h, i) -
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
  for (uint32_t p = 0; p < kMaxPlanes; ++p) {
    const kvevict_plane* plane = Plane(a, p);
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
