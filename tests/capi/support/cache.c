#include "tests/capi/support/cache.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/oracle/compact.h"
#include "tests/oracle/quantized.h"

enum { kGuardBytes = 64 };

const char* test_layout_name(test_layout layout) {
  static const char* const kNames[TEST_N_LAYOUTS] = {"token-major",
                                                     "head-major",
                                                     "transposed",
                                                     "negative",
                                                     "kv-in-one-row",
                                                     "padded",
                                                     "paged-1",
                                                     "paged-3",
                                                     "paged-16",
                                                     "paged-16-by-head",
                                                     "paged-3-of-heads",
                                                     "paged-16-of-heads",
                                                     "vectorised",
                                                     "pages-16",
                                                     "pages-3-in-order",
                                                     "pages-3-of-heads",
                                                     "ring",
                                                     "ring-paged-3"};
  return kNames[layout];
}

static uint32_t BlockSize(test_layout layout) {
  switch (layout) {
    case TEST_PAGED_1:
      return 1;
    case TEST_PAGED_3:
    case TEST_PAGED_3_OF_HEADS:
    case TEST_PAGES_3_IN_ORDER:
    case TEST_PAGES_3_OF_HEADS:
    case TEST_RING_PAGED_3:
      return 3;
    case TEST_VECTORISED:
    case TEST_PAGES_16:
    case TEST_PAGED_16:
    case TEST_PAGED_16_OF_HEADS:
    case TEST_PAGED_16_BY_HEAD:
      return 16;
    default:
      return 0;
  }
}

/* The rows of a ring, with room for a few more; 0 for other layouts. */
static uint32_t RingSlots(const test_cache_spec* spec) {
  return spec->layout == TEST_RING || spec->layout == TEST_RING_PAGED_3
             ? spec->capacity + 4
             : 0;
}

static uint32_t BlockCount(const test_cache_spec* spec) {
  const uint32_t size = BlockSize(spec->layout);
  const uint32_t n_rows =
      spec->capacity > RingSlots(spec) ? spec->capacity : RingSlots(spec);
  return size == 0 ? 0 : (n_rows + size - 1) / size;
}

static bool HasAddresses(const test_cache_spec* spec) {
  return spec->layout == TEST_PAGES_16 ||
         spec->layout == TEST_PAGES_3_IN_ORDER ||
         spec->layout == TEST_PAGES_3_OF_HEADS;
}

/* The block tables of a cache, one after the other with two entries between. */
static uint32_t TableCount(const test_cache_spec* spec) {
  return spec->layout == TEST_PAGED_3_OF_HEADS ||
                 spec->layout == TEST_PAGED_16_OF_HEADS ||
                 spec->layout == TEST_PAGES_3_OF_HEADS
             ? spec->n_kv_heads
             : 1;
}

enum { kBetweenTables = 2 };

const kvevict_plane* test_bias_plane(const kvevict_view* view) {
  const bool has =
      view->n_companions > 0 && view->companions[0].role == KVEVICT_ROLE_BIAS;
  return has ? view->companions : NULL;
}

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

/* A block and a gap behind it. CUDA loads 16 bytes at once if addresses find them. */
static int64_t BlockBytes(const test_cache_spec* spec, int64_t rows) {
  return HasAddresses(spec) ? test_whole(rows + 9) : rows + test_gap(9);
}

/* Lays keys and companions out in groups that fill 16 bytes if they can, and values
 * element by element. */
static size_t LayOutVectorised(const test_cache_spec* spec,
                               kvevict_plane* plane, bool is_values) {
  const int64_t row = oracle_row_bytes(plane);
  const int64_t element = oracle_element_bytes(plane->dtype);
  const int64_t block = BlockSize(spec->layout);
  const bool readable = row == plane->head_dim * element;
  plane->token_stride_bytes = row;
  if (readable && is_values) {
    plane->token_stride_bytes = element;
    plane->element_stride_bytes = block * element;
  } else if (readable) {
    plane->group_elems = (uint32_t)(16 / element);
    while (plane->head_dim % plane->group_elems != 0) --plane->group_elems;
    plane->token_stride_bytes = plane->group_elems * element;
    plane->group_stride_bytes = block * plane->token_stride_bytes;
  }
  plane->head_stride_bytes = block * row;
  plane->block_stride_bytes = spec->n_kv_heads * block * row;
  return 2 * BlockCount(spec) * (size_t)plane->block_stride_bytes;
}

/* Sets strides and, relative to the plane's region, the address; returns the
 * bytes of the region. */
static size_t LayOut(const test_cache_spec* spec, kvevict_plane* plane,
                     bool is_values) {
  const int64_t row = oracle_row_bytes(plane);
  const int64_t heads = spec->n_kv_heads;
  const int64_t tokens = spec->capacity;
  const int64_t block = BlockSize(spec->layout);
  const int64_t element = oracle_element_bytes(plane->dtype);
  const bool readable = row == plane->head_dim * element;
  switch (spec->layout) {
    case TEST_VECTORISED:
      return LayOutVectorised(spec, plane, is_values);
    case TEST_RING:
      plane->head_stride_bytes = row;
      plane->token_stride_bytes = heads * row;
      return (size_t)(heads * RingSlots(spec) * row);
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
      plane->head_stride_bytes = row + test_gap(3);
      plane->token_stride_bytes =
          heads * plane->head_stride_bytes + test_gap(5);
      plane->data = (uint64_t)test_gap(1);
      return (size_t)(test_gap(1) + tokens * plane->token_stride_bytes);
    case TEST_PAGED_3_OF_HEADS:
    case TEST_PAGES_3_OF_HEADS:
      plane->token_stride_bytes = row;
      plane->block_stride_bytes = BlockBytes(spec, block * row);
      return 2 * TableCount(spec) * BlockCount(spec) *
             (size_t)plane->block_stride_bytes;
    case TEST_PAGED_1:
    case TEST_PAGED_3:
    case TEST_PAGED_16:
    case TEST_PAGED_16_OF_HEADS:
    case TEST_PAGES_16:
    case TEST_PAGES_3_IN_ORDER:
    case TEST_RING_PAGED_3:
      plane->head_stride_bytes = row;
      plane->token_stride_bytes = heads * row;
      plane->block_stride_bytes = BlockBytes(spec, block * heads * row);
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

/* Puts the K and V rows of a token side by side. */
static size_t LayOutTogether(const test_cache_spec* spec, kvevict_plane* k,
                             kvevict_plane* v) {
  const int64_t heads = spec->n_kv_heads;
  const int64_t k_row = test_whole(oracle_row_bytes(k));
  const int64_t v_row = test_whole(oracle_row_bytes(v));
  k->head_stride_bytes = k_row;
  v->head_stride_bytes = v_row;
  k->token_stride_bytes = v->token_stride_bytes = heads * (k_row + v_row);
  v->data = (uint64_t)(heads * k_row);
  return (size_t)(heads * (k_row + v_row) * spec->capacity);
}

/* Appends the companion of a role. */
static void AddNumbers(test_cache* cache, kvevict_role role, size_t* end) {
  kvevict_plane* plane = &cache->companions[cache->view.n_companions++];
  SetType(plane, KVEVICT_DTYPE_F32, 1);
  plane->role = role;
  const size_t n = LayOut(&cache->spec, plane, false);
  plane->data += *end;
  *end += (size_t)test_whole((int64_t)n) + kGuardBytes;
}

/* Lays a cache out within pages. */
static size_t LayOutInPages(const test_cache_spec* spec, kvevict_plane* k,
                            kvevict_plane* v) {
  const int64_t rows = BlockSize(spec->layout) * (int64_t)spec->n_kv_heads;
  k->head_stride_bytes = test_whole(oracle_row_bytes(k));
  v->head_stride_bytes = test_whole(oracle_row_bytes(v));
  k->token_stride_bytes = spec->n_kv_heads * k->head_stride_bytes;
  v->token_stride_bytes = spec->n_kv_heads * v->head_stride_bytes;
  v->data = (uint64_t)(rows * k->head_stride_bytes);
  k->block_stride_bytes = v->block_stride_bytes =
      BlockBytes(spec, rows * (k->head_stride_bytes + v->head_stride_bytes));
  return 2 * BlockCount(spec) * (size_t)k->block_stride_bytes;
}

static void RebasePlane(const test_cache* cache, kvevict_plane* plane,
                        uint64_t from, uint64_t to, const uint64_t* old) {
  if (plane->address_table != 0) {
    plane->address_table += (uintptr_t)cache->addresses - (uintptr_t)old;
  } else if (plane->head_dim + plane->row_bytes > 0) {
    plane->data += to - from;
  }
}

/* `old` is where the tables of addresses were. */
static void Rebase(test_cache* cache, uint64_t from, uint64_t to,
                   const uint64_t* old) {
  RebasePlane(cache, &cache->view.k, from, to, old);
  RebasePlane(cache, &cache->view.v, from, to, old);
  for (uint32_t i = 0; i < cache->view.n_companions; ++i) {
    RebasePlane(cache, &cache->companions[i], from, to, old);
  }
  cache->view.companions =
      cache->view.n_companions > 0 ? cache->companions : NULL;
  cache->view.block_table = cache->block_table;
}

/* Every second entry is a hole. */
static uint32_t AddressCount(const test_cache_spec* spec) {
  return 2 * TableCount(spec) * BlockCount(spec);
}

/* Gives a plane in blocks, at data in memory, addresses: those of the used ids, or
 * of the blocks that `order` says if there are none. */
static void GiveAddresses(test_cache* cache, kvevict_plane* plane,
                          const int32_t* order, uint32_t* n_tables,
                          uint64_t offset) {
  const uint32_t n = AddressCount(&cache->spec);
  uint64_t* const table = cache->addresses + (*n_tables)++ * (size_t)n;
  const uint64_t memory = (uint64_t)(uintptr_t)cache->memory;
  const uint64_t first = memory + plane->data - offset;
  for (uint32_t i = 0; i < n; ++i) {
    table[i] = 0;
    if (order != NULL && i < n / 2) {
      table[i] =
          first + (uint64_t)order[i] * (uint64_t)plane->block_stride_bytes;
    } else if (order == NULL && i % 2 == 1) {
      table[i] = first + i * (uint64_t)plane->block_stride_bytes;
    }
  }
  plane->address_table = (uint64_t)(uintptr_t)table;
  plane->address_table_len = n;
  plane->block_stride_bytes = 0;
  plane->data = offset;
}

static void BuildAddresses(test_cache* cache, test_random* random) {
  kvevict_view* view = &cache->view;
  const uint32_t n = AddressCount(&cache->spec);
  cache->addresses = calloc((size_t)n * TEST_MAX_PLANES, sizeof(uint64_t));
  const bool has_ids = cache->spec.layout == TEST_PAGES_16;
  int32_t* order = has_ids ? NULL : malloc((n / 2) * sizeof(int32_t));
  if (order != NULL) test_random_permutation(random, order, n / 2);
  uint32_t n_tables = 0;
  const uint64_t values_at = view->v.data - view->k.data;
  GiveAddresses(cache, &view->k, order, &n_tables, 0);
  if (cache->spec.v_head_dim > 0 && has_ids) {
    view->v.address_table = view->k.address_table;
    view->v.address_table_len = view->k.address_table_len;
    view->v.block_stride_bytes = 0;
    view->v.data = values_at;
  } else if (cache->spec.v_head_dim > 0) {
    GiveAddresses(cache, &view->v, order, &n_tables, 0);
  }
  for (uint32_t i = 0; i < view->n_companions; ++i) {
    GiveAddresses(cache, &cache->companions[i], order, &n_tables, 0);
  }
  free(order);
  if (has_ids) return;
  free(cache->block_table);
  cache->block_table = NULL;
  view->block_table_len = 0;
  /* The tables of heads lie end to end, without the gaps of tables of ids. */
  if (view->block_table_head_stride != 0) {
    view->block_table_head_stride = BlockCount(&cache->spec);
  }
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

static void OpenMemory(test_cache* cache) {
  cache->pages = test_guarded_open(cache->n_bytes, cache->at_end);
  cache->memory = cache->pages.data;
}

test_cache* test_cache_create(const test_cache_spec* spec,
                              test_random* random) {
  test_cache* cache = calloc(1, sizeof(*cache));
  kvevict_view* view = &cache->view;
  cache->spec = *spec;
  view->struct_size = sizeof(*view);
  view->n_kv_heads = spec->n_kv_heads;
  view->n_companions = spec->n_companions;

  view->ring_slots = RingSlots(spec);
  if (view->ring_slots > 0) {
    view->ring_first = test_random_below(random, view->ring_slots);
  }
  static int n_created;
  cache->at_end = n_created++ % 2;
  size_t end = cache->at_end ? kGuardBytes : 0;
  SetType(&view->k, spec->k_dtype, spec->k_head_dim);
  if (spec->v_head_dim > 0) SetType(&view->v, spec->v_dtype, spec->v_head_dim);
  const bool in_pages = spec->layout == TEST_PAGES_16;
  if ((spec->layout == TEST_KV_IN_ONE_ROW || in_pages) &&
      spec->v_head_dim > 0) {
    const size_t n = in_pages ? LayOutInPages(spec, &view->k, &view->v)
                              : LayOutTogether(spec, &view->k, &view->v);
    view->k.data += end;
    view->v.data += end;
    end += (size_t)test_whole((int64_t)n) + kGuardBytes;
  } else {
    const size_t n = LayOut(spec, &view->k, false);
    view->k.data += end;
    end += (size_t)test_whole((int64_t)n) + kGuardBytes;
    if (spec->v_head_dim > 0) {
      const size_t m = LayOut(spec, &view->v, true);
      view->v.data += end;
      end += (size_t)test_whole((int64_t)m) + kGuardBytes;
    }
  }
  for (uint32_t i = 0; i < spec->n_companions; ++i) {
    kvevict_plane* plane = &cache->companions[i];
    SetType(plane, i == 0 ? KVEVICT_DTYPE_F32 : KVEVICT_DTYPE_OPAQUE,
            i == 0 ? 1 : 5);
    const size_t n = LayOut(spec, plane, false);
    plane->data += end;
    end += (size_t)test_whole((int64_t)n) + kGuardBytes;
  }
  const kvevict_dtype_info k = test_dtype_info(spec->k_dtype);
  const kvevict_dtype_info v = test_dtype_info(spec->v_dtype);
  const bool has_v = spec->v_head_dim > 0;
  if (k.takes_scale) AddNumbers(cache, KVEVICT_ROLE_KEY_SCALE, &end);
  if (has_v && v.takes_scale) {
    AddNumbers(cache, KVEVICT_ROLE_VALUE_SCALE, &end);
  }
  if (k.takes_minimum) AddNumbers(cache, KVEVICT_ROLE_KEY_MINIMUM, &end);
  if (has_v && v.takes_minimum) {
    AddNumbers(cache, KVEVICT_ROLE_VALUE_MINIMUM, &end);
  }
  cache->n_bytes = cache->at_end ? end - kGuardBytes : end;
  OpenMemory(cache);
  test_random_bytes(random, cache->memory, cache->n_bytes);
  BuildTable(cache, random);
  if (HasAddresses(spec)) BuildAddresses(cache, random);
  Rebase(cache, 0, (uint64_t)(uintptr_t)cache->memory, cache->addresses);
  test_cache_append(cache, random, 0, spec->capacity);
  return cache;
}

void test_cache_restore_entries(test_cache* cache, const test_cache* clone) {
  if (clone->addresses == NULL) return;
  const uintptr_t apart = (uintptr_t)cache->memory - (uintptr_t)clone->memory;
  for (size_t i = 0; i < (size_t)AddressCount(&cache->spec) * TEST_MAX_PLANES;
       ++i) {
    cache->addresses[i] =
        clone->addresses[i] == 0 ? 0 : clone->addresses[i] + apart;
  }
}

test_cache* test_cache_clone(const test_cache* cache) {
  test_cache* clone = malloc(sizeof(*clone));
  *clone = *cache;
  OpenMemory(clone);
  memcpy(clone->memory, cache->memory, cache->n_bytes);
  if (cache->block_table != NULL) {
    const size_t n = cache->view.block_table_len * sizeof(int32_t);
    clone->block_table = malloc(n);
    memcpy(clone->block_table, cache->block_table, n);
  }
  if (cache->addresses != NULL) {
    const size_t n = (size_t)AddressCount(&cache->spec) * TEST_MAX_PLANES;
    clone->addresses = calloc(n, sizeof(uint64_t));
    test_cache_restore_entries(clone, cache);
  }
  Rebase(clone, (uint64_t)(uintptr_t)cache->memory,
         (uint64_t)(uintptr_t)clone->memory, cache->addresses);
  return clone;
}

void test_cache_destroy(test_cache* cache) {
  free(cache->block_table);
  free(cache->addresses);
  test_guarded_close(cache->pages);
  free(cache);
}

void test_cache_free_entry(test_cache* cache, uint64_t entry) {
  if (cache->block_table != NULL) {
    cache->block_table[entry] = -1;
    return;
  }
  const uint64_t n = AddressCount(&cache->spec);
  for (int i = 0; i < TEST_MAX_PLANES; ++i) {
    cache->addresses[i * n + entry] = 0;
  }
}

float test_cache_get(const test_cache* cache, const kvevict_plane* plane,
                     uint32_t token, uint32_t head, uint32_t element) {
  return (float)oracle_element(&cache->view, plane, token, head, element);
}

void test_cache_set(test_cache* cache, const kvevict_plane* plane,
                    uint32_t token, uint32_t head, uint32_t element,
                    float value) {
  test_store(plane->dtype, value,
             oracle_row_byte(&cache->view, plane, token, head,
                             element * oracle_element_bytes(plane->dtype)));
}

const kvevict_plane* test_cache_plane(const test_cache* cache, uint32_t i) {
  if (i == 0) return &cache->view.k;
  if (i == 1) return cache->spec.v_head_dim > 0 ? &cache->view.v : NULL;
  return i - 2 < cache->view.n_companions ? &cache->companions[i - 2] : NULL;
}

void test_cache_copy_rows(test_cache* to, const test_cache* from,
                          uint32_t n_tokens) {
  for (uint32_t p = 0; p < TEST_MAX_PLANES; ++p) {
    const kvevict_plane* plane = test_cache_plane(to, p);
    if (plane == NULL) continue;
    for (uint32_t t = 0; t < n_tokens; ++t) {
      for (uint32_t h = 0; h < to->spec.n_kv_heads; ++h) {
        oracle_copy_row(&to->view, plane, t, &from->view,
                        test_cache_plane(from, p), t, h);
      }
    }
  }
}

/* Fills rows with random bytes, but no number above 2 and no scale above 2^-4. */
static void FillQuantized(test_random* random, kvevict_dtype dtype,
                          uint8_t* row, uint32_t n_bytes) {
  const kvevict_dtype_info info = test_dtype_info(dtype);
  const uint32_t block = info.block_elements > 2 ? info.block_bytes : 0;
  const bool is_fp8 = oracle_small_float_of(dtype).n_fraction != 0;
  for (uint32_t b = 0; b < n_bytes; ++b) {
    row[b] = (uint8_t)test_random_u64(random);
    if (is_fp8) row[b] &= 0xBF;
    if (block != 0 && b % block == 1) row[b] = (row[b] & 0xA3) | 8;
  }
}

void test_cache_append(test_cache* cache, test_random* random, uint32_t first,
                       uint32_t n) {
  for (uint32_t p = 0; p < TEST_MAX_PLANES; ++p) {
    const kvevict_plane* plane = test_cache_plane(cache, p);
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
        if (plane->role != KVEVICT_ROLE_NONE) {
          const bool is_scale = plane->role == KVEVICT_ROLE_KEY_SCALE ||
                                plane->role == KVEVICT_ROLE_VALUE_SCALE;
          /* These numbers have few bits, so that results are exact. */
          test_cache_set(cache, plane, t, h, 0,
                         is_scale
                             ? (float)test_random_between(random, 1, 63) / 8192
                             : -(float)test_random_below(random, 64) / 64);
          continue;
        }
        const uint32_t n = oracle_row_bytes(plane);
        if (n < 2 * plane->head_dim) {
          uint8_t* row = malloc(n);
          FillQuantized(random, plane->dtype, row, n);
          oracle_set_row(&cache->view, plane, t, h, row);
          free(row);
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

float* test_cache_rows(const test_cache* cache, const kvevict_plane* plane,
                       uint32_t head, uint32_t first, uint32_t n_tokens) {
  const uint32_t dim = plane->head_dim;
  float* rows = malloc(((size_t)n_tokens * dim + 1) * sizeof *rows);
  for (uint32_t t = 0; t < n_tokens; ++t) {
    for (uint32_t i = 0; i < dim; ++i) {
      rows[(size_t)t * dim + i] =
          test_cache_get(cache, plane, first + t, head, i);
    }
  }
  return rows;
}
