#include "tests/capi/support/grouped_pool.h"

#include <stdlib.h>
#include <string.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "kvevict/paged.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/grouped_rows.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/quantize.h"

enum { kMostBlocks = 512 };

const uint32_t test_pool_heads[TEST_POOL_LAYERS] = {2, 3, 2};
/* The numbers of the layers. */
static const uint32_t kNumbers[TEST_POOL_LAYERS] = {0, 2, 3};
bool test_pool_has_values(uint32_t l) { return l != 1; }

kvevict_view test_pool_view(const test_pooled* a, uint32_t l) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  EXPECT_OK(kvevict_paged_sequence_view(a->cached, kNumbers[l], &view));
  return view;
}

uint32_t test_pool_stored(const test_pooled* a, uint32_t l, uint32_t head) {
  uint32_t n = 0;
  EXPECT_OK(kvevict_sequence_stored_length(a->sequence, kNumbers[l], head, &n));
  return n;
}

static bool IsRagged(const test_pooled* a, uint32_t l) {
  for (uint32_t head = 1; head < test_pool_heads[l]; ++head) {
    if (test_pool_stored(a, l, head) != test_pool_stored(a, l, 0)) return true;
  }
  return false;
}

static void FindLengths(test_pooled* a) {
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    a->n_slots[l] = 0;
    for (uint32_t head = 0; head < test_pool_heads[l]; ++head) {
      const uint32_t n = test_pool_stored(a, l, head);
      if (n > a->n_slots[l]) a->n_slots[l] = n;
    }
  }
}

/* ---- Rows of the test's own ---- */

typedef struct outside {
  test_grouped_spec spec;
  test_plain plain;
  kvevict_paged_rows rows;
} outside;

static outside Outside(const test_pooled* a, uint32_t l, uint32_t first,
                       uint32_t n) {
  outside o = {.spec = a->held[l]->spec, .rows = KVEVICT_PAGED_ROWS_INIT};
  o.plain = test_plain_make(&o.spec, n);
  o.rows.layer = kNumbers[l];
  o.rows.first_slot = first;
  o.rows.n_tokens = n;
  o.rows.k = o.plain.view.k;
  if (test_pool_has_values(l)) o.rows.v = o.plain.view.v;
  return o;
}

/* ---- Invariants ---- */

static outside ReadAll(const test_pooled* a, uint32_t l) {
  outside o = Outside(a, l, 0, a->n_slots[l]);
  EXPECT_OK(kvevict_paged_sequence_read(a->cached, &o.rows, 1, NULL));
  return o;
}

static void CheckRows(const test_pooled* a, uint32_t l) {
  const test_grouped* held = a->held[l];
  outside o = ReadAll(a, l);
  for (int v = 0; v < 1 + test_pool_has_values(l); ++v) {
    for (uint32_t head = 0; head < test_pool_heads[l]; ++head) {
      for (uint32_t slot = 0; slot < test_pool_stored(a, l, head); ++slot) {
        test_grouped_expect_row(test_plain_row(&o.plain, v, head, slot),
                                test_grouped_row(held, v, head, slot),
                                held->spec.dim, v == 0 ? "key" : "value", slot);
      }
    }
  }
  test_plain_free(&o.plain);
}

/* Adds up the holders of blocks, by group of layers. */
static void CheckViews(const test_pool* s, const test_pooled* a,
                       uint8_t (*holders)[kMostBlocks]) {
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    uint32_t n = 0;
    EXPECT_OK(kvevict_paged_sequence_length(a->cached, kNumbers[l], &n));
    EXPECT(n == a->n_slots[l], "layer %u: %u slots, not %u", l, n,
           a->n_slots[l]);
    const kvevict_view view = test_pool_view(a, l);
    EXPECT_OK(kvevict_view_validate(&view, n));
    const uint32_t n_coded = s->is_plain ? n : a->held[l]->view.first_recent;
    const uint32_t most = s->options.recent_tokens + s->block_size - 1;
    EXPECT(view.first_recent == (s->is_plain || most == 0 ? 0 : n_coded),
           "first_recent %u, not %u", view.first_recent, n_coded);
    EXPECT(n - n_coded <= most, "%u recent rows > %u", n - n_coded, most);
    const size_t n_blocks = (n_coded + s->block_size - 1) / s->block_size;
    EXPECT(view.block_table_len == n_blocks, "%zu blocks, not %zu",
           view.block_table_len, n_blocks);
    for (size_t b = 0; b < n_blocks; ++b)
      ++holders[l == 1][view.block_table[b]];
  }
}

kvevict_paged_cache_usage test_pool_usage(const test_pool* s) {
  kvevict_paged_cache_usage usage = {.struct_size = sizeof usage};
  EXPECT_OK(kvevict_paged_cache_get_usage(s->cache, &usage));
  return usage;
}

void test_pool_check(const test_pool* s) {
  static uint8_t holders[2][kMostBlocks];
  memset(holders, 0, sizeof holders);
  uint64_t n_slots = 0, n_held = 0, n_shared = 0;
  for (uint32_t i = 0; i < s->n_sequences; ++i) {
    CheckViews(s, &s->sequences[i], holders);
    for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
      CheckRows(&s->sequences[i], l);
      n_slots += s->sequences[i].n_slots[l];
    }
  }
  for (uint32_t i = 0; i < s->n_sequences * TEST_POOL_LAYERS; ++i) {
    const uint32_t l = i % TEST_POOL_LAYERS;
    const kvevict_view view =
        test_pool_view(&s->sequences[i / TEST_POOL_LAYERS], l);
    size_t n = view.block_table_len;
    while (n > 0 && holders[l == 1][view.block_table[n - 1]] < 2) --n;
    EXPECT(view.n_shared_blocks == n, "%u shared blocks", view.n_shared_blocks);
  }
  for (size_t b = 0; b < sizeof holders; ++b) {
    n_held += (&holders[0][0])[b] > 0;
    n_shared += (&holders[0][0])[b] > 1;
  }
  const kvevict_paged_cache_usage usage = test_pool_usage(s);
  EXPECT(usage.n_blocks == 3 * s->options.n_blocks, "n_blocks");
  EXPECT(usage.n_free + n_held == usage.n_blocks, "n_free");
  EXPECT(usage.n_shared == n_shared && usage.n_slots == n_slots &&
             usage.n_sequences == s->n_sequences &&
             usage.bytes_in_use <= usage.bytes,
         "usage");
  if (s->memory == NULL) return;
  EXPECT(test_is_filled(s->memory, 256) &&
             test_is_filled(s->memory + 256 + s->memory_bytes, 256),
         "bytes outside the blocks were written");
}

/* ---- Stage ---- */

static kvevict_plan* PlanOf(kvevict_context* context, const char* policy,
                            uint32_t dim, kvevict_dtype dtype) {
  kvevict_layer_geometry layers[TEST_POOL_LAYERS + 1];
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    kvevict_layer_geometry* const layer = &layers[kNumbers[l]];
    *layer = test_layer(2 * test_pool_heads[l], test_pool_heads[l], dim,
                        test_pool_has_values(l) ? dim : 0);
    layer->k_dtype = layer->v_dtype = dtype;
  }
  layers[1] = layers[0];
  layers[1].cache = KVEVICT_LAYER_CACHE_NONE;
  kvevict_geometry geometry =
      test_geometry(TEST_POOL_LAYERS + 1, TEST_POOL_TOKENS, layers);
  geometry.layers_len = TEST_POOL_LAYERS + 1;
  kvevict_plan* plan = NULL;
  EXPECT_OK(kvevict_plan_create(context, &geometry, test_policy(policy), NULL,
                                &plan));
  return plan;
}

static void DrawOptions(test_pool* s) {
  static const uint32_t kGroups[] = {0, 1, 2, 3, 8, 16, 32};
  test_random* const random = s->random;
  kvevict_paged_cache_options* const o = &s->options;
  o->group_tokens = kGroups[test_random_below(random, 7)];
  const uint32_t group = o->group_tokens == 0 ? 1 : o->group_tokens;
  const uint32_t n_groups = test_random_between(random, 0, 24 / group + 1);
  o->block_size = n_groups * group;
  s->block_size = n_groups > 0           ? o->block_size
                  : o->group_tokens == 0 ? 16
                                         : o->group_tokens;
  o->recent_tokens = test_random_between(random, o->group_tokens == 0, 21);
  o->n_blocks = test_random_between(random, 2, 6) * 64 / s->block_size;
  if (test_random_below(random, 12) == 0) { /* no row is recent */
    o->group_tokens = o->block_size = s->block_size = 1;
    o->recent_tokens = 0;
    o->n_blocks = 64 * test_random_between(random, 2, 6);
  }
  if (o->n_blocks > 170) o->n_blocks = 170;
  o->number_dtype = (kvevict_dtype)test_random_below(random, 4);
  o->recent_dtype = (kvevict_dtype)test_random_below(random, 4);
}

static void DrawPlain(test_pool* s) {
  kvevict_paged_cache_options* const o = &s->options;
  o->block_size = s->block_size = test_random_between(s->random, 1, 9);
  o->n_blocks = test_random_between(s->random, 4, 240 / s->block_size);
}

/* In memory of the test's own, or of the cache. */
static void CreateCache(test_pool* s, bool in_own) {
  EXPECT_OK(kvevict_paged_cache_bytes(s->plan, &s->options, &s->memory_bytes));
  if (in_own) {
    s->memory = aligned_alloc(256, (s->memory_bytes + 512 + 255) / 256 * 256);
    memset(s->memory, TEST_GUARD, s->memory_bytes + 512);
    s->options.memory = s->memory + 256;
    s->options.memory_bytes = s->memory_bytes;
  }
  EXPECT_OK(kvevict_paged_cache_create(s->plan, &s->options, &s->cache));
}

void test_pool_resize(test_pool* s, uint32_t block_size, uint32_t n_blocks) {
  kvevict_paged_cache_destroy(s->cache);
  free(s->memory);
  s->options.memory = NULL;
  s->options.memory_bytes = 0;
  s->options.block_size = s->block_size = block_size;
  s->options.n_blocks = n_blocks;
  CreateCache(s, true);
}

void test_pool_begin(test_pool* s, test_random* random, const char* policy,
                     bool is_plain) {
  memset(s, 0, sizeof *s);
  s->random = random;
  s->is_plain = is_plain;
  s->merges = strstr(policy, "merge=") != NULL;
  s->dtype = (kvevict_dtype)test_random_between(
      random, is_plain ? KVEVICT_DTYPE_F32 : KVEVICT_DTYPE_U8,
      is_plain ? KVEVICT_DTYPE_BF16 : KVEVICT_DTYPE_U4_HALVES);
  s->dim = 2 * test_random_between(random, 1, TEST_POOL_DIM / 2);
  s->options = (kvevict_paged_cache_options)KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  s->options.layout = (kvevict_block_layout)test_random_below(random, 2);
  (is_plain ? DrawPlain : DrawOptions)(s);
  s->context = test_device_context();
  s->plan = PlanOf(s->context, policy, s->dim, s->dtype);
  CreateCache(s, test_random_coin(random));
  const kvevict_workspace size =
      test_workspace(s->plan, KVEVICT_OPERATION_EVICT, 0);
  s->workspace_bytes = size.best_bytes;
  s->workspace = test_workspace_memory(size.best_bytes);
}

void test_pool_remove(test_pool* s, uint32_t i) {
  kvevict_paged_sequence_destroy(s->sequences[i].cached);
  kvevict_sequence_destroy(s->sequences[i].sequence);
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    test_grouped_destroy(s->sequences[i].held[l]);
  }
  s->sequences[i] = s->sequences[--s->n_sequences];
}

void test_pool_end(test_pool* s) {
  while (s->n_sequences > 0) test_pool_remove(s, s->n_sequences - 1);
  test_pool_check(s);
  kvevict_paged_cache_destroy(s->cache);
  kvevict_plan_destroy(s->plan);
  kvevict_context_destroy(s->context);
  free(s->workspace);
  free(s->memory);
}

/* ---- Operations on both ---- */

static kvevict_dtype Or32(kvevict_dtype dtype) {
  return dtype == 0 ? KVEVICT_DTYPE_F32 : dtype;
}

test_pooled* test_pool_add(test_pool* s) {
  test_pooled* const a = &s->sequences[s->n_sequences];
  memset(a, 0, sizeof *a);
  EXPECT_OK(kvevict_paged_sequence_create(s->cache, &a->cached));
  EXPECT_OK(kvevict_sequence_create(s->plan, &a->sequence));
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    const kvevict_dtype number = Or32(s->options.number_dtype);
    /* The oracle stores plain rows as it stores recent ones. */
    const test_grouped_spec spec = {
        .n_heads = test_pool_heads[l],
        .dim = s->dim,
        .capacity = TEST_POOL_TOKENS,
        .group = s->options.group_tokens,
        .has_recent = true,
        .dtype = s->is_plain ? KVEVICT_DTYPE_U8 : s->dtype,
        .scale = number,
        .minimum = number,
        .recent = s->is_plain ? s->dtype : Or32(s->options.recent_dtype)};
    a->held[l] = test_grouped_create(&spec, s->random);
  }
  ++s->n_sequences;
  return a;
}

test_pooled* test_pool_fork(test_pool* s, const test_pooled* from) {
  test_pooled* const a = &s->sequences[s->n_sequences];
  *a = *from;
  EXPECT_OK(kvevict_paged_sequence_fork(from->cached, &a->cached, NULL));
  EXPECT_OK(kvevict_sequence_fork(from->sequence, NULL, &a->sequence, NULL));
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    a->held[l] = test_grouped_clone(from->held[l]);
  }
  ++s->n_sequences;
  return a;
}

/* Stores a head's rows [first, first + n) of the model again. */
static void StoreAgain(test_grouped* held, int v, uint32_t head, uint32_t first,
                       uint32_t n) {
  const size_t n_bytes = (size_t)n * held->spec.dim * sizeof(float);
  float* const rows = malloc(n_bytes + 1);
  memcpy(rows, test_grouped_row(held, v, head, first), n_bytes);
  test_grouped_store(held, v, head, first, n, rows);
  free(rows);
}

/* Adds room for n tokens and quantizes rows that are no longer recent, in whole
 * blocks. */
static void AppendToModel(const test_pool* s, test_pooled* a, uint32_t l,
                          uint32_t n) {
  test_grouped* const held = a->held[l];
  const uint32_t n_before = a->n_slots[l], first = held->view.first_recent;
  const uint32_t n_after = a->n_slots[l] += n;
  if (s->is_plain || n_after - first < s->options.recent_tokens + s->block_size)
    return;
  uint32_t n_coded = n_after - s->options.recent_tokens;
  n_coded -= n_coded % s->block_size;
  held->view.first_recent = n_coded;
  const uint32_t end = n_coded < n_before ? n_coded : n_before;
  for (int v = 0; v < 2; ++v) {
    for (uint32_t head = 0; head < test_pool_heads[l]; ++head) {
      StoreAgain(held, v, head, first, end - first);
    }
  }
}

/* A call that writes from `first` on may end here, at `end` or later. */
static uint32_t EndOfWrite(const test_pooled* a, uint32_t l, uint32_t end) {
  const uint32_t n_coded = a->held[l]->view.first_recent;
  const uint32_t group = a->held[l]->spec.group;
  if (end >= n_coded || group == 0 || end % group == 0) return end;
  end += group - end % group;
  return end < n_coded ? end : n_coded;
}

/* Makes f32 rows of the call ones of the cache's own dtype. */
static void Narrow(const test_pool* s, outside* o) {
  for (int v = 0; v < 2; ++v) {
    kvevict_plane* const plane = v == 0 ? &o->rows.k : &o->rows.v;
    const uint32_t size = oracle_element_bytes(s->dtype);
    const size_t n = (size_t)o->spec.n_heads * o->plain.n * s->dim;
    for (size_t i = 0; i < n; ++i) {
      const float value = o->plain.rows[v][i];
      oracle_quantize(s->dtype, &value, 1, true, NULL,
                      (uint8_t*)o->plain.rows[v] + i * size);
    }
    if (plane->data == 0) continue;
    plane->dtype = s->dtype;
    plane->token_stride_bytes = plane->token_stride_bytes / 4 * size;
    plane->head_stride_bytes = plane->head_stride_bytes / 4 * size;
  }
}

static void WriteByCall(test_pool* s, test_pooled* a, uint32_t l,
                        uint32_t first, uint32_t n) {
  outside o = Outside(a, l, first, n);
  test_plain_draw(&o.plain, s->dim, s->random, true);
  test_grouped_store_all(a->held[l], &o.plain, first);
  if (s->is_plain && test_random_coin(s->random)) Narrow(s, &o);
  EXPECT_OK(kvevict_paged_sequence_write(a->cached, &o.rows, 1, NULL));
  test_plain_free(&o.plain);
}

/* Returns the address of a plain or recent row of K or V. */
static uint8_t* RowAt(const test_pool* s, const kvevict_view* view, int v,
                      uint32_t head, uint32_t slot) {
  const kvevict_plane* plane = v == 0 ? &view->k : &view->v;
  uint64_t at = 0;
  if (s->is_plain) {
    at = (uint64_t)view->block_table[slot / view->block_size] *
         (uint64_t)plane->block_stride_bytes;
    slot %= view->block_size;
  } else {
    plane = view->companions;
    while ((int)plane->role != KVEVICT_ROLE_KEY_RECENT + v) ++plane;
    slot -= view->first_recent;
  }
  at += plane->data + slot * (uint64_t)plane->token_stride_bytes +
        head * (uint64_t)plane->head_stride_bytes;
  return (uint8_t*)(uintptr_t)at;
}

/* Writes n plain or recent rows as an engine's kernel does: each head's behind
 * its own last one. */
static void WriteByView(test_pool* s, test_pooled* a, uint32_t l, uint32_t n) {
  outside o = Outside(a, l, 0, n);
  const kvevict_view view = test_pool_view(a, l);
  const kvevict_dtype dtype = a->held[l]->spec.recent;
  test_plain_draw(&o.plain, s->dim, s->random, true);
  for (uint32_t h = 0; h < test_pool_heads[l]; ++h) {
    const uint32_t first = test_pool_stored(a, l, h);
    for (int v = 0; v < 1 + test_pool_has_values(l); ++v) {
      for (uint32_t t = 0; t < n; ++t) {
        oracle_quantize(dtype, test_plain_row(&o.plain, v, h, t), s->dim, true,
                        NULL, RowAt(s, &view, v, h, first + t));
      }
      test_grouped_store(a->held[l], v, h, first, n,
                         test_plain_row(&o.plain, v, h, 0));
    }
  }
  test_plain_free(&o.plain);
}

static void WriteNew(test_pool* s, test_pooled* a, uint32_t l, uint32_t first) {
  const uint32_t end = a->n_slots[l];
  const bool by_view =
      first >= a->held[l]->view.first_recent && test_random_coin(s->random);
  if (by_view || IsRagged(a, l)) {
    WriteByView(s, a, l, end - first);
    return;
  }
  while (first < end) {
    const uint32_t to = test_random_coin(s->random)
                            ? end
                            : test_random_between(s->random, first + 1, end);
    const uint32_t n = EndOfWrite(a, l, to) - first;
    WriteByCall(s, a, l, first, n);
    first += n;
  }
}

void test_pool_append(test_pool* s, test_pooled* a, uint32_t most) {
  uint32_t longest = 0;
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    if (a->n_slots[l] > longest) longest = a->n_slots[l];
  }
  const uint32_t room = TEST_POOL_TOKENS - longest;
  if (room == 0) return;
  const uint32_t n =
      test_random_between(s->random, 1, room < most ? room : most);
  bool any_ragged = false;
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) any_ragged |= IsRagged(a, l);
  /* A head that holds less writes into blocks before the last one. */
  if (any_ragged && kvevict_paged_sequence_own(a->cached, 0, NULL) ==
                        KVEVICT_ERROR_OUT_OF_MEMORY) {
    ++s->n_short;
    return;
  }
  const kvevict_status status =
      kvevict_paged_sequence_append(a->cached, n, NULL);
  if (status == KVEVICT_ERROR_OUT_OF_MEMORY) {
    EXPECT(strstr(kvevict_last_error_message(), "are free") != NULL, "%s",
           kvevict_last_error_message());
    ++s->n_short;
    return;
  }
  EXPECT_OK(status);
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    AppendToModel(s, a, l, n);
    WriteNew(s, a, l, a->n_slots[l] - n);
  }
  EXPECT_OK(kvevict_sequence_append(a->sequence, n, NULL));
}

void test_pool_overwrite(test_pool* s, test_pooled* a) {
  const uint32_t l = test_random_below(s->random, TEST_POOL_LAYERS);
  const uint32_t n = a->n_slots[l];
  if (n == 0) return;
  const uint32_t first = test_random_below(s->random, n);
  const uint32_t end =
      EndOfWrite(a, l, test_random_between(s->random, first + 1, n));
  if (kvevict_paged_sequence_own(a->cached, first, NULL) != KVEVICT_OK) {
    ++s->n_short;
    return;
  }
  WriteByCall(s, a, l, first, end - first);
}

void test_pool_trim(test_pool* s, test_pooled* a) {
  uint32_t n_seen = 0;
  EXPECT_OK(kvevict_sequence_logical_length(a->sequence, &n_seen));
  const uint32_t most = n_seen < 40 ? n_seen : 40;
  const uint32_t n = n_seen - test_random_between(s->random, 0, most);
  if (kvevict_sequence_trim_to(a->sequence, n, NULL) != KVEVICT_OK) return;
  FindLengths(a);
  /* Layers that hold as many are truncated alike. */
  bool alike = test_random_coin(s->random);
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    alike = alike && a->n_slots[l] == a->n_slots[0];
  }
  if (alike) {
    EXPECT_OK(kvevict_paged_sequence_truncate(a->cached, a->n_slots[0]));
  } else {
    EXPECT_OK(kvevict_paged_sequence_fit(a->cached, a->sequence));
  }
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    uint32_t* const first_recent = &a->held[l]->view.first_recent;
    if (*first_recent > a->n_slots[l]) *first_recent = a->n_slots[l];
  }
}

typedef struct positions {
  int32_t of[TEST_POOL_LAYERS][TEST_POOL_HEADS][TEST_POOL_TOKENS];
  uint32_t n[TEST_POOL_LAYERS][TEST_POOL_HEADS];
} positions;

static void FindPositions(const test_pooled* a, positions* out) {
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    for (uint32_t head = 0; head < test_pool_heads[l]; ++head) {
      size_t n = 0;
      EXPECT_OK(kvevict_sequence_keep_positions(a->sequence, kNumbers[l], head,
                                                out->of[l][head],
                                                TEST_POOL_TOKENS, &n));
      out->n[l][head] = (uint32_t)n;
    }
  }
}

/* Moves the survivors of a head down, listed by their old slots. */
static void MoveDown(test_grouped* held, int v, uint32_t head,
                     const uint32_t* slots, uint32_t n, uint32_t n_recent) {
  const uint32_t dim = held->spec.dim, n_coded = n - n_recent;
  for (uint32_t i = 0; i < n; ++i) {
    memmove(test_grouped_row(held, v, head, i),
            test_grouped_row(held, v, head, slots[i]), dim * sizeof(float));
  }
  if (v == 1 || held->spec.group == 0) return;
  uint32_t n_still = 0; /* groups of which every row stays are not touched */
  while (n_still < n_coded && slots[n_still] == n_still) ++n_still;
  if (n_still == n_coded) return;
  n_still -= n_still % held->spec.group;
  StoreAgain(held, v, head, n_still, n_coded - n_still);
}

/* Rows follow their positions. */
static void Follow(test_pool* s, test_pooled* a, const positions* before) {
  static positions after;
  uint32_t n_before[TEST_POOL_LAYERS];
  memcpy(n_before, a->n_slots, sizeof n_before);
  FindLengths(a);
  FindPositions(a, &after);
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    test_grouped* const held = a->held[l];
    const uint32_t n_recent =
        s->is_plain ? 0 : n_before[l] - held->view.first_recent;
    s->n_evicted += a->n_slots[l] < n_before[l];
    if (!s->is_plain) held->view.first_recent = a->n_slots[l] - n_recent;
    for (uint32_t head = 0; head < test_pool_heads[l]; ++head) {
      const uint32_t n = after.n[l][head];
      uint32_t slots[TEST_POOL_TOKENS];
      for (uint32_t i = 0, from = 0; i < n; ++i, ++from) {
        while (before->of[l][head][from] != after.of[l][head][i]) {
          EXPECT(++from < before->n[l][head], "a position that was not there");
        }
        slots[i] = from;
      }
      EXPECT(n_recent == 0 || slots[n - n_recent] == n_before[l] - n_recent,
             "recent rows went");
      for (int v = 0; v < 1 + test_pool_has_values(l); ++v) {
        MoveDown(held, v, head, slots, n, n_recent);
      }
    }
    if (!s->merges) continue;
    outside o = ReadAll(a, l); /* merged rows are taken over as they are */
    test_grouped_store_all(held, &o.plain, 0);
    test_plain_free(&o.plain);
  }
}

void test_pool_evict(test_pool* s, const bool* chosen) {
  static positions before[TEST_POOL_MOST];
  kvevict_paged_eviction items[TEST_POOL_MOST];
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->n_sequences; ++i) {
    if (!chosen[i]) continue;
    items[n] = (kvevict_paged_eviction)KVEVICT_PAGED_EVICTION_INIT;
    items[n].cached = s->sequences[i].cached;
    items[n++].sequence = s->sequences[i].sequence;
    FindPositions(&s->sequences[i], &before[i]);
  }
  const kvevict_status status =
      kvevict_paged_evict(items, n, s->workspace, s->workspace_bytes, NULL);
  if (status == KVEVICT_ERROR_OUT_OF_MEMORY) {
    ++s->n_short;
    return;
  }
  EXPECT_OK(status);
  for (uint32_t i = 0; i < s->n_sequences; ++i) {
    if (chosen[i]) Follow(s, &s->sequences[i], &before[i]);
  }
}
