#include "tests/capi/support/stage.h"

#include <stdio.h>
#include <stdlib.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum {
  kLayers =
      4, /* the second has no cache, the third has other heads and no values */
  kMaxRowBytes = 32
};

typedef struct shape {
  uint32_t number, n_heads, k_bytes, v_bytes;
} shape;

static const shape kShapes[TEST_STAGE_LAYERS] = {
    {0, 2, 32, 12}, {2, 3, 12, 0}, {3, 2, 32, 12}};

/* ---- Rows by number ---- */

static void FillRow(uint32_t row, uint32_t part, uint32_t layer, uint32_t head,
                    uint8_t* out, uint32_t n_bytes) {
  test_random random = {((uint64_t)row << 8) + layer * 16 + head * 2 + part};
  test_random_u64(&random);
  test_random_bytes(&random, out, n_bytes);
  /* The exponents belong to neither NaN nor infinity in f32 and bf16. */
  for (uint32_t i = 1; i < n_bytes; i += 2) out[i] &= 0xBF;
}

static uint8_t* RowAt(const kvevict_view* view, const kvevict_plane* plane,
                      uint32_t head, uint32_t slot) {
  uint8_t* base = (uint8_t*)(uintptr_t)plane->data +
                  (int64_t)head * plane->head_stride_bytes;
  if (view->block_size == 0)
    return base + (int64_t)slot * plane->token_stride_bytes;
  return base +
         view->block_table[slot / view->block_size] *
             plane->block_stride_bytes +
         (int64_t)(slot % view->block_size) * plane->token_stride_bytes;
}

static kvevict_view ViewOf(const test_actor* a, uint32_t l) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  EXPECT_OK(kvevict_paged_sequence_view(a->cached, kShapes[l].number, &view));
  return view;
}

/* Copies a row into the cache, or compares it with the row there. */
static void UseRow(const kvevict_view* view, uint32_t row, uint32_t l,
                   uint32_t head, uint32_t slot, bool writes) {
  uint8_t want[kMaxRowBytes];
  for (uint32_t part = 0; part < 2; ++part) {
    const uint32_t n_bytes =
        part == 0 ? kShapes[l].k_bytes : kShapes[l].v_bytes;
    if (n_bytes == 0) continue;
    const kvevict_plane* plane = part == 0 ? &view->k : &view->v;
    FillRow(row, part, l, head, want, n_bytes);
    uint8_t* const at = RowAt(view, plane, head, slot);
    if (writes) {
      memcpy(at, want, n_bytes);
    } else {
      EXPECT(memcmp(at, want, n_bytes) == 0,
             "layer %u, head %u, slot %u: not row %u", l, head, slot, row);
    }
  }
}

/* ---- Invariants ---- */

void test_actor_check_rows(const test_actor* a) {
  for (uint32_t l = 0; l < TEST_STAGE_LAYERS; ++l) {
    uint32_t n = UINT32_MAX;
    EXPECT_OK(kvevict_paged_sequence_length(a->cached, kShapes[l].number, &n));
    EXPECT(n == a->n_slots[l], "layer %u holds %u slots, not %u", l, n,
           a->n_slots[l]);
    const kvevict_view view = ViewOf(a, l);
    EXPECT_OK(kvevict_view_validate(&view, n));
    for (uint32_t head = 0; head < kShapes[l].n_heads; ++head) {
      for (uint32_t slot = 0; slot < n; ++slot) {
        const uint32_t row = a->rows[l][head][slot];
        if (row != 0) UseRow(&view, row, l, head, slot, false);
      }
    }
  }
}

kvevict_paged_cache_usage test_stage_usage(const test_stage* s) {
  kvevict_paged_cache_usage usage;
  memset(&usage, 0, sizeof usage);
  usage.struct_size = sizeof usage;
  EXPECT_OK(kvevict_paged_cache_get_usage(s->cache, &usage));
  return usage;
}

/* Every block is free or held, and its count is the number of its holders. */
static void CheckBlocks(const test_stage* s) {
  const uint32_t n_each[2] = {2 * s->options.n_blocks, s->options.n_blocks};
  uint8_t holders[2][4096];
  memset(holders, 0, sizeof holders);
  uint64_t n_slots = 0;
  for (uint32_t i = 0; i < s->n_actors; ++i) {
    for (uint32_t l = 0; l < TEST_STAGE_LAYERS; ++l) {
      const kvevict_view view = ViewOf(&s->actors[i], l);
      n_slots += s->actors[i].n_slots[l];
      const uint32_t n =
          (s->actors[i].n_slots[l] + view.block_size - 1) / view.block_size;
      EXPECT(view.block_table_len == n, "%zu blocks, not %u",
             view.block_table_len, n);
      EXPECT(view.n_shared_blocks <= n, "%u shared blocks",
             view.n_shared_blocks);
      for (uint32_t b = 0; b < n; ++b) {
        const int32_t id = view.block_table[b];
        EXPECT(id >= 0 && (uint32_t)id < n_each[l == 1], "block %d", id);
        ++holders[l == 1][id];
      }
    }
  }
  for (uint32_t i = 0; i < s->n_actors; ++i) {
    for (uint32_t l = 0; l < TEST_STAGE_LAYERS; ++l) {
      const kvevict_view view = ViewOf(&s->actors[i], l);
      uint32_t n = (uint32_t)view.block_table_len;
      while (n > 0 && holders[l == 1][view.block_table[n - 1]] < 2) --n;
      EXPECT(view.n_shared_blocks == n, "%u shared blocks, not %u",
             view.n_shared_blocks, n);
    }
  }
  uint64_t n_held = 0, n_shared = 0;
  for (uint32_t g = 0; g < 2; ++g) {
    for (uint32_t b = 0; b < n_each[g]; ++b) {
      n_held += holders[g][b] > 0;
      n_shared += holders[g][b] > 1;
    }
  }
  const kvevict_paged_cache_usage usage = test_stage_usage(s);
  EXPECT(usage.n_sequences == s->n_actors, "%u sequences", usage.n_sequences);
  EXPECT(usage.n_blocks == n_each[0] + n_each[1], "n_blocks");
  EXPECT(usage.n_free == usage.n_blocks - n_held,
         "%llu free, %llu of %llu held", (unsigned long long)usage.n_free,
         (unsigned long long)n_held, (unsigned long long)usage.n_blocks);
  EXPECT(usage.n_shared == n_shared, "n_shared");
  EXPECT(usage.n_slots == n_slots, "n_slots");
  EXPECT(usage.bytes_in_use <= usage.bytes, "bytes");
}

void test_stage_check(const test_stage* s) {
  CheckBlocks(s);
  for (uint32_t i = 0; i < s->n_actors; ++i)
    test_actor_check_rows(&s->actors[i]);
  if (s->memory == NULL) return;
  EXPECT(test_is_filled(s->memory, 256) &&
             test_is_filled(s->memory + 256 + s->memory_bytes, 256),
         "bytes outside the blocks were written");
}

/* ---- Stage ---- */

static kvevict_plan* PlanOf(kvevict_context* context, const char* text) {
  kvevict_layer_geometry layers[kLayers];
  for (uint32_t l = 0; l < kLayers; ++l) {
    layers[l] = (kvevict_layer_geometry)KVEVICT_LAYER_GEOMETRY_INIT;
    layers[l].n_q_heads = layers[l].n_kv_heads = 2;
    layers[l].k_head_dim = 8;
    layers[l].v_head_dim = 6;
    layers[l].v_dtype = KVEVICT_DTYPE_BF16;
  }
  layers[1].cache = KVEVICT_LAYER_CACHE_NONE;
  layers[2].n_q_heads = layers[2].n_kv_heads = 3;
  layers[2].k_dtype = KVEVICT_DTYPE_F16;
  layers[2].k_head_dim = 6;
  layers[2].v_head_dim = 0;
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = kLayers;
  geometry.max_tokens = TEST_STAGE_TOKENS;
  geometry.layers = layers;
  geometry.layers_len = kLayers;
  kvevict_plan* plan = NULL;
  EXPECT_OK(
      kvevict_plan_create(context, &geometry, test_policy(text), NULL, &plan));
  return plan;
}

/* In memory of the test's own, or of the cache. */
static void CreateCache(test_stage* s, bool in_own) {
  s->options.memory = NULL;
  s->options.memory_bytes = 0;
  EXPECT_OK(kvevict_paged_cache_bytes(s->plan, &s->options, &s->memory_bytes));
  if (in_own) {
    s->memory = aligned_alloc(256, (s->memory_bytes + 512 + 255) / 256 * 256);
    memset(s->memory, TEST_GUARD, s->memory_bytes + 512);
    s->options.memory = s->memory + 256;
    s->options.memory_bytes = s->memory_bytes;
  }
  EXPECT_OK(kvevict_paged_cache_create(s->plan, &s->options, &s->cache));
}

void test_stage_resize(test_stage* s, uint32_t block_size, uint32_t n_blocks) {
  kvevict_paged_cache_destroy(s->cache);
  free(s->memory);
  s->options.block_size = block_size;
  s->options.n_blocks = n_blocks;
  CreateCache(s, true);
}

void test_stage_begin(test_stage* s, test_random* random, const char* policy) {
  memset(s, 0, sizeof *s);
  s->random = random;
  EXPECT_OK(kvevict_context_create(NULL, &s->context));
  s->plan = PlanOf(s->context, policy);
  s->options = (kvevict_paged_cache_options)KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  s->options.block_size = test_random_between(random, 1, 9);
  s->options.n_blocks =
      test_random_between(random, 4, 160 / s->options.block_size);
  s->options.layout = (kvevict_block_layout)test_random_below(random, 2);
  CreateCache(s, test_random_coin(random));
  const kvevict_workspace size =
      test_workspace(s->plan, KVEVICT_OPERATION_EVICT, 0);
  s->workspace_bytes = size.best_bytes;
  s->workspace = aligned_alloc(64, (size.best_bytes + 127) / 64 * 64);
}

void test_stage_remove(test_stage* s, uint32_t i) {
  kvevict_paged_sequence_destroy(s->actors[i].cached);
  kvevict_sequence_destroy(s->actors[i].sequence);
  s->actors[i] = s->actors[--s->n_actors];
}

void test_stage_end(test_stage* s) {
  while (s->n_actors > 0) test_stage_remove(s, s->n_actors - 1);
  test_stage_check(s);
  EXPECT(test_stage_usage(s).n_free == test_stage_usage(s).n_blocks,
         "blocks are lost");
  kvevict_paged_cache_destroy(s->cache);
  kvevict_plan_destroy(s->plan);
  kvevict_context_destroy(s->context);
  free(s->workspace);
  free(s->memory);
}

/* ---- Operations ---- */

test_actor* test_stage_fork(test_stage* s, const test_actor* from) {
  test_actor* const a = &s->actors[s->n_actors++];
  *a = *from;
  EXPECT_OK(kvevict_paged_sequence_fork(from->cached, &a->cached, NULL));
  EXPECT_OK(kvevict_sequence_fork(from->sequence, NULL, &a->sequence, NULL));
  return a;
}

void test_stage_add(test_stage* s) {
  if (s->n_actors > 0 && !test_random_coin(s->random)) {
    test_stage_fork(s, &s->actors[test_random_below(s->random, s->n_actors)]);
    return;
  }
  test_actor* const a = &s->actors[s->n_actors++];
  memset(a, 0, sizeof *a);
  EXPECT_OK(kvevict_paged_sequence_create(s->cache, &a->cached));
  EXPECT_OK(kvevict_sequence_create(s->plan, &a->sequence));
}

static uint32_t StoredBy(const test_actor* a, uint32_t l, uint32_t head) {
  uint32_t n = 0;
  EXPECT_OK(
      kvevict_sequence_stored_length(a->sequence, kShapes[l].number, head, &n));
  return n;
}

/* Writes new rows to slots [first, first + n) by one call; all heads hold as many. */
static void WriteRows(test_stage* s, test_actor* a, uint32_t l, uint32_t first,
                      uint32_t n) {
  const shape* const layer = &kShapes[l];
  uint8_t* const bytes =
      malloc((size_t)n * layer->n_heads * 2 * kMaxRowBytes + 1);
  kvevict_view view = ViewOf(a, l);
  kvevict_paged_rows rows = KVEVICT_PAGED_ROWS_INIT;
  rows.layer = layer->number;
  rows.first_slot = first;
  rows.n_tokens = n;
  for (uint32_t part = 0; part < 2; ++part) {
    kvevict_plane* const plane = part == 0 ? &rows.k : &rows.v;
    const uint32_t n_bytes = part == 0 ? layer->k_bytes : layer->v_bytes;
    if (n_bytes == 0) continue;
    *plane = part == 0 ? view.k : view.v;
    plane->data =
        (uint64_t)(uintptr_t)bytes + part * n * layer->n_heads * kMaxRowBytes;
    plane->block_stride_bytes = 0;
    const bool by_heads = test_random_coin(s->random);
    plane->token_stride_bytes = by_heads ? n_bytes : n_bytes * layer->n_heads;
    plane->head_stride_bytes = by_heads ? (int64_t)n_bytes * n : n_bytes;
  }
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t row = ++s->last_row;
    for (uint32_t head = 0; head < layer->n_heads; ++head) {
      a->rows[l][head][first + i] = row;
      kvevict_view source = KVEVICT_VIEW_INIT;
      source.k = rows.k;
      source.v = rows.v;
      UseRow(&source, row, l, head, i, true);
    }
  }
  EXPECT_OK(kvevict_paged_sequence_write(a->cached, &rows, 1, NULL));
  /* Reads them back. */
  memset(bytes, 0, (size_t)n * layer->n_heads * 2 * kMaxRowBytes);
  EXPECT_OK(kvevict_paged_sequence_read(a->cached, &rows, 1, NULL));
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t head = 0; head < layer->n_heads; ++head) {
      kvevict_view source = KVEVICT_VIEW_INIT;
      source.k = rows.k;
      source.v = rows.v;
      UseRow(&source, a->rows[l][head][first + i], l, head, i, false);
    }
  }
  free(bytes);
}

/* Writes as an engine's kernel does: each head's rows behind its own last one. */
static void WriteByViews(test_stage* s, test_actor* a, uint32_t l, uint32_t n) {
  const kvevict_view view = ViewOf(a, l);
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t row = ++s->last_row;
    for (uint32_t head = 0; head < kShapes[l].n_heads; ++head) {
      const uint32_t slot = StoredBy(a, l, head) + i;
      a->rows[l][head][slot] = row;
      UseRow(&view, row, l, head, slot, true);
    }
  }
}

static bool IsRagged(const test_actor* a, uint32_t l) {
  for (uint32_t head = 1; head < kShapes[l].n_heads; ++head) {
    if (StoredBy(a, l, head) != StoredBy(a, l, 0)) return true;
  }
  return false;
}

uint32_t test_actor_longest(const test_actor* a) {
  uint32_t most = 0;
  for (uint32_t l = 0; l < TEST_STAGE_LAYERS; ++l) {
    if (a->n_slots[l] > most) most = a->n_slots[l];
  }
  return most;
}

void test_stage_append(test_stage* s, test_actor* a) {
  const uint32_t room = TEST_STAGE_TOKENS - test_actor_longest(a);
  if (room == 0) return;
  const uint32_t n = test_random_between(s->random, 1, room < 20 ? room : 20);
  bool any_ragged = false;
  for (uint32_t l = 0; l < TEST_STAGE_LAYERS; ++l) any_ragged |= IsRagged(a, l);
  /* A head that holds less writes into blocks before the last one. */
  if (any_ragged && kvevict_paged_sequence_own(a->cached, 0, NULL) ==
                        KVEVICT_ERROR_OUT_OF_MEMORY) {
    return;
  }
  const kvevict_status status =
      kvevict_paged_sequence_append(a->cached, n, NULL);
  if (status == KVEVICT_ERROR_OUT_OF_MEMORY) {
    EXPECT(strstr(kvevict_last_error_message(), "are free") != NULL, "%s",
           kvevict_last_error_message());
    return;
  }
  EXPECT_OK(status);
  for (uint32_t l = 0; l < TEST_STAGE_LAYERS; ++l) {
    const uint32_t first = a->n_slots[l];
    a->n_slots[l] += n;
    for (uint32_t head = 0; head < kShapes[l].n_heads; ++head) {
      memset(a->rows[l][head] + first, 0, n * sizeof(uint32_t));
    }
    if (IsRagged(a, l) || test_random_coin(s->random)) {
      WriteByViews(s, a, l, n);
    } else {
      WriteRows(s, a, l, first, n);
    }
  }
  EXPECT_OK(kvevict_sequence_append(a->sequence, n, NULL));
}

/* Writes over rows, shared or not. */
void test_stage_overwrite(test_stage* s, test_actor* a) {
  const uint32_t l = test_random_below(s->random, TEST_STAGE_LAYERS);
  if (a->n_slots[l] == 0) return;
  const uint32_t first = test_random_below(s->random, a->n_slots[l]);
  const uint32_t n = test_random_between(s->random, 0, a->n_slots[l] - first);
  if (kvevict_paged_sequence_own(a->cached, first, NULL) != KVEVICT_OK) return;
  WriteRows(s, a, l, first, n);
}

void test_stage_trim(test_stage* s, test_actor* a) {
  uint32_t n_seen = 0;
  EXPECT_OK(kvevict_sequence_logical_length(a->sequence, &n_seen));
  const uint32_t n = test_random_between(s->random, 0, n_seen);
  if (kvevict_sequence_trim_to(a->sequence, n, NULL) != KVEVICT_OK) return;
  EXPECT_OK(kvevict_paged_sequence_fit(a->cached, a->sequence));
  for (uint32_t l = 0; l < TEST_STAGE_LAYERS; ++l) {
    uint32_t most = 0;
    for (uint32_t head = 0; head < kShapes[l].n_heads; ++head) {
      const uint32_t stored = StoredBy(a, l, head);
      if (stored > most) most = stored;
    }
    a->n_slots[l] = most;
  }
}

void test_actor_positions(const test_actor* a, test_positions* out) {
  for (uint32_t l = 0; l < TEST_STAGE_LAYERS; ++l) {
    for (uint32_t head = 0; head < kShapes[l].n_heads; ++head) {
      out->n[l][head] = StoredBy(a, l, head);
      for (uint32_t slot = 0; slot < out->n[l][head]; ++slot) {
        int32_t position = 0;
        EXPECT_OK(kvevict_sequence_position_of_slot(
            a->sequence, kShapes[l].number, head, slot, &position));
        out->of[l][head][slot] = position;
      }
    }
  }
}

/* Rows follow their positions. */
void test_actor_follow(test_actor* a, const test_positions* before) {
  test_positions* const after = malloc(sizeof *after);
  test_actor_positions(a, after);
  for (uint32_t l = 0; l < TEST_STAGE_LAYERS; ++l) {
    a->n_slots[l] = 0;
    for (uint32_t head = 0; head < kShapes[l].n_heads; ++head) {
      uint32_t from = 0;
      for (uint32_t slot = 0; slot < after->n[l][head]; ++slot) {
        while (before->of[l][head][from] != after->of[l][head][slot]) {
          EXPECT(++from < before->n[l][head], "a position that was not there");
        }
        a->rows[l][head][slot] = a->rows[l][head][from];
      }
      const uint32_t n = after->n[l][head];
      memset(a->rows[l][head] + n, 0,
             (TEST_STAGE_TOKENS - n) * sizeof(uint32_t));
      if (n > a->n_slots[l]) a->n_slots[l] = n;
    }
  }
  free(after);
}

/* Evicts some of the sequences in one call. */
bool test_stage_evict(test_stage* s) {
  kvevict_paged_eviction items[TEST_STAGE_SEQUENCES] = {
      KVEVICT_PAGED_EVICTION_INIT};
  uint32_t chosen[TEST_STAGE_SEQUENCES];
  test_positions* const before = malloc(TEST_STAGE_SEQUENCES * sizeof *before);
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->n_actors; ++i) {
    if (test_random_coin(s->random)) continue;
    items[n] = (kvevict_paged_eviction)KVEVICT_PAGED_EVICTION_INIT;
    items[n].cached = s->actors[i].cached;
    items[n].sequence = s->actors[i].sequence;
    test_actor_positions(&s->actors[i], &before[n]);
    chosen[n++] = i;
  }
  const kvevict_status status =
      kvevict_paged_evict(items, n, s->workspace, s->workspace_bytes, NULL);
  if (status != KVEVICT_ERROR_OUT_OF_MEMORY) EXPECT_OK(status);
  for (uint32_t i = 0; i < n; ++i)
    test_actor_follow(&s->actors[chosen[i]], &before[i]);
  free(before);
  return status == KVEVICT_OK;
}
