#include "tests/capi/support/grouped.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/oracle/quantize.h"
#include "tests/oracle/quantized.h"

enum { kMostDim = 160, kMostGroup = 64 };

static kvevict_dtype DrawNumber(test_random* random) {
  return (kvevict_dtype)test_random_between(random, KVEVICT_DTYPE_F32,
                                            KVEVICT_DTYPE_BF16);
}

test_grouped_spec test_grouped_draw(test_random* random) {
  static const uint32_t kGroups[] = {1, 2, 3, 8, 32};
  static const uint32_t kDims[] = {2, 16, 30, 64, 66, 128, 144};
  test_grouped_spec spec = {
      .n_heads = test_random_between(random, 1, 3),
      .dim = kDims[test_random_below(random, 7)],
      .group = kGroups[test_random_below(random, 5)],
      .by_heads = test_random_coin(random),
      .groups_values = test_random_coin(random),
      .has_recent = test_random_coin(random),
      .dtype = (kvevict_dtype)test_random_between(random, KVEVICT_DTYPE_U8,
                                                  KVEVICT_DTYPE_U4_HALVES),
      .scale = DrawNumber(random),
      .minimum = DrawNumber(random),
      .recent = DrawNumber(random)};
  spec.capacity = 96;
  if (test_random_coin(random)) {
    spec.block_size = spec.group * test_random_between(random, 1, 2);
  }
  return spec;
}

/* The address of the plane's row that a slot has or shares. */
static uint8_t* At(const test_grouped* c, const kvevict_plane* plane,
                   uint32_t head, uint32_t slot) {
  const uint32_t block_size = c->spec.block_size;
  const bool paged = block_size != 0 && plane->role < KVEVICT_ROLE_KEY_RECENT;
  int64_t at = head * plane->head_stride_bytes;
  if (paged) at += c->table[slot / block_size] * plane->block_stride_bytes;
  if (paged) slot %= block_size;
  if (plane->group_tokens != 0) slot /= (uint32_t)plane->group_tokens;
  if (plane->role >= KVEVICT_ROLE_KEY_RECENT) slot -= c->view.first_recent;
  return (uint8_t*)plane->data + at + slot * plane->token_stride_bytes;
}

static kvevict_plane MakePlane(test_grouped* c, kvevict_dtype dtype,
                               uint32_t dim, kvevict_role role,
                               uint32_t group) {
  const test_grouped_spec* s = &c->spec;
  const bool paged = s->block_size != 0 && role < KVEVICT_ROLE_KEY_RECENT;
  const uint32_t n_slots = paged ? s->block_size : s->capacity;
  const int64_t n_rows = group == 0 ? n_slots : (n_slots + group - 1) / group;
  const int64_t row = oracle_packed_bytes(dtype, dim);
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.dtype = dtype;
  plane.head_dim = dim;
  plane.role = role;
  plane.group_tokens = group;
  plane.token_stride_bytes = s->by_heads ? row : row * s->n_heads;
  plane.head_stride_bytes = s->by_heads ? row * n_rows : row;
  if (paged) plane.block_stride_bytes = row * s->n_heads * n_rows + test_gap(3);
  plane.data = c->n_bytes; /* an offset so far */
  c->n_bytes += (size_t)test_whole(
      5 + (paged ? TEST_GROUPED_BLOCKS * plane.block_stride_bytes
                 : row * s->n_heads * n_rows));
  return plane;
}

static void MakePlanes(test_grouped* c) {
  const test_grouped_spec* s = &c->spec;
  uint32_t n = 0;
  c->view = (kvevict_view)KVEVICT_VIEW_INIT;
  c->view.n_kv_heads = s->n_heads;
  c->view.block_size = s->block_size;
  c->view.k = MakePlane(c, s->dtype, s->dim, KVEVICT_ROLE_NONE, 0);
  c->view.v = MakePlane(c, s->dtype, s->dim, KVEVICT_ROLE_NONE, 0);
  for (int v = 0; v < 2; ++v) {
    const uint32_t group = v == 0 || s->groups_values ? s->group : 0;
    const uint32_t dim = group == 0 ? 1 : s->dim;
    const kvevict_role scale =
        v == 0 ? KVEVICT_ROLE_KEY_SCALE : KVEVICT_ROLE_VALUE_SCALE;
    c->companions[n++] = MakePlane(c, s->scale, dim, scale, group);
    c->companions[n++] = MakePlane(c, s->minimum, dim, scale + 1, group);
  }
  for (int v = 0; v < 2 && s->has_recent; ++v) {
    c->companions[n++] = MakePlane(
        c, s->recent, s->dim,
        v == 0 ? KVEVICT_ROLE_KEY_RECENT : KVEVICT_ROLE_VALUE_RECENT, 0);
  }
  c->view.n_companions = n;
}

/* Points the planes to `memory`, which has replaced `old`. */
static void Place(test_grouped* c, uint64_t old) {
  const uint64_t by = (uintptr_t)c->memory - old;
  c->view.k.data += by, c->view.v.data += by;
  for (uint32_t i = 0; i < c->view.n_companions; ++i)
    c->companions[i].data += by;
  c->view.companions = c->companions;
  if (c->spec.block_size == 0) return;
  c->view.block_table = c->table;
  c->view.block_table_len = TEST_GROUPED_BLOCKS;
}

static size_t RowsBytes(const test_grouped* c) {
  return sizeof(float) * c->spec.n_heads * c->spec.capacity * c->spec.dim;
}

test_grouped* test_grouped_create(const test_grouped_spec* spec,
                                  test_random* random) {
  test_grouped* c = calloc(1, sizeof *c);
  c->spec = *spec;
  MakePlanes(c);
  c->memory = malloc(c->n_bytes);
  test_random_bytes(random, c->memory, c->n_bytes);
  test_random_permutation(random, c->table, TEST_GROUPED_BLOCKS);
  Place(c, 0);
  for (int v = 0; v < 2; ++v) c->rows[v] = calloc(1, RowsBytes(c));
  return c;
}

test_grouped* test_grouped_clone(const test_grouped* cache) {
  test_grouped* c = malloc(sizeof *c);
  *c = *cache;
  c->memory = malloc(c->n_bytes);
  memcpy(c->memory, cache->memory, c->n_bytes);
  Place(c, (uintptr_t)cache->memory);
  for (int v = 0; v < 2; ++v) {
    c->rows[v] = malloc(RowsBytes(c));
    memcpy(c->rows[v], cache->rows[v], RowsBytes(c));
  }
  return c;
}

void test_grouped_destroy(test_grouped* cache) {
  free(cache->memory);
  free(cache->rows[0]), free(cache->rows[1]);
  free(cache);
}

uint32_t test_grouped_coded(const test_grouped* cache, uint32_t n) {
  const uint32_t first = cache->view.first_recent;
  return cache->spec.has_recent && first < n ? first : n;
}

float* test_grouped_row(const test_grouped* c, int plane, uint32_t head,
                        uint32_t slot) {
  return c->rows[plane] +
         ((size_t)head * c->spec.capacity + slot) * c->spec.dim;
}

/* Stores a code as element e of a packed row. */
static void PutCode(const test_grouped* c, uint8_t* row, uint32_t e, int code) {
  const uint32_t half = c->spec.dim / 2;
  uint8_t* byte = row + e;
  bool is_high;
  switch (c->spec.dtype) {
    case KVEVICT_DTYPE_U4:
      byte = row + e / 2, is_high = e % 2 == 0;
      break;
    case KVEVICT_DTYPE_U4_HALVES:
      byte = row + e % half, is_high = e >= half;
      break;
    default:
      *byte = (uint8_t)code;
      return;
  }
  *byte =
      (uint8_t)(is_high ? (*byte & 0x0F) | code << 4 : (*byte & 0xF0) | code);
}

/* Rows [first, end) of a group, or one row, share a scale and minimum per element
 * or a single one. Stores n numbers from element e on. */
static void StoreTogether(test_grouped* c, int v, uint32_t head, uint32_t first,
                          uint32_t n_rows, uint32_t e, uint32_t n) {
  const kvevict_plane* const codes = v == 0 ? &c->view.k : &c->view.v;
  float values[kMostDim + kMostGroup];
  uint8_t stored[kMostDim + kMostGroup];
  oracle_numbers x = {.has_scale = true,
                      .has_minimum = true,
                      .scale_dtype = c->spec.scale,
                      .minimum_dtype = c->spec.minimum};
  const uint32_t n_values = n_rows * n;
  for (uint32_t i = 0; i < n_values; ++i) {
    values[i] = test_grouped_row(c, v, head, first + i / n)[e + i % n];
  }
  values[n_values] = values[0]; /* nibbles are stored in pairs */
  oracle_quantize(c->spec.dtype, values, (n_values + 1) / 2 * 2, true, &x,
                  stored);
  for (int i = 0; i < 2; ++i) {
    const kvevict_plane* const numbers = &c->companions[2 * v + i];
    const float number = i == 0 ? x.scale : x.minimum;
    uint8_t* const at = At(c, numbers, head, first) +
                        (n == 1 ? e : 0) * oracle_element_bytes(numbers->dtype);
    if (isnan(number)) {
      oracle_quantize(numbers->dtype, &number, 1, true, NULL, at);
    } else {
      test_store(numbers->dtype, number, at);
    }
  }
  for (uint32_t i = 0; i < n_values; ++i) {
    const int code =
        (int)oracle_code(c->spec.dtype, stored, (n_values + 1) / 2 * 2, i);
    PutCode(c, At(c, codes, head, first + i / n), e + i % n, code);
    test_grouped_row(c, v, head, first + i / n)[e + i % n] =
        fmaf((float)code, x.scale, x.minimum);
  }
}

void test_grouped_store(test_grouped* c, int v, uint32_t head, uint32_t first,
                        uint32_t n, const float* from) {
  const uint32_t dim = c->spec.dim;
  const uint32_t end = test_grouped_coded(c, first + n);
  memcpy(test_grouped_row(c, v, head, first), from, n * dim * sizeof(float));
  for (uint32_t slot = first; slot < end;) {
    if (c->spec.group == 0 || (v == 1 && !c->spec.groups_values)) {
      StoreTogether(c, v, head, slot++, 1, 0, dim);
      continue;
    }
    const uint32_t begin = slot - slot % c->spec.group;
    slot = begin + c->spec.group < end ? begin + c->spec.group : end;
    for (uint32_t e = 0; e < dim; ++e) {
      StoreTogether(c, v, head, begin, slot - begin, e, 1);
    }
  }
  for (uint32_t slot = first > end ? first : end; slot < first + n; ++slot) {
    uint8_t* const at = At(c, &c->companions[4 + v], head, slot);
    float* const row = test_grouped_row(c, v, head, slot);
    oracle_quantize(c->spec.recent, row, dim, true, NULL, at);
    for (uint32_t e = 0; e < dim; ++e) {
      row[e] = test_load(c->spec.recent,
                         at + e * oracle_element_bytes(c->spec.recent));
    }
  }
}
