#include "tests/capi/support/grouped_pool.h"

#include <stdlib.h>
#include <string.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "kvevict/paged.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/grouped_rows.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/quantize.h"

const uint32_t test_pool_heads[TEST_POOL_LAYERS] = {2, 3, 2};
bool test_pool_has_values(uint32_t l) { return l != 1; }

kvevict_view test_pool_view(const test_pooled* a, uint32_t l) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  EXPECT_OK(kvevict_paged_sequence_view(a->cached, l, &view));
  return view;
}

static kvevict_dtype Or32(kvevict_dtype dtype) {
  return dtype == 0 ? KVEVICT_DTYPE_F32 : dtype;
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
  o.rows.layer = l;
  o.rows.first_slot = first;
  o.rows.n_tokens = n;
  o.rows.k = o.plain.view.k;
  if (test_pool_has_values(l)) o.rows.v = o.plain.view.v;
  return o;
}

/* ---- Invariants ---- */

static void CheckRows(const test_pooled* a, uint32_t l) {
  const test_grouped* held = a->held[l];
  const uint32_t n = a->n_slots[l];
  outside o = Outside(a, l, 0, n);
  EXPECT_OK(kvevict_paged_sequence_read(a->cached, &o.rows, 1, NULL));
  for (int v = 0; v < 1 + test_pool_has_values(l); ++v) {
    for (uint32_t head = 0; head < test_pool_heads[l]; ++head) {
      for (uint32_t slot = 0; slot < n; ++slot) {
        test_grouped_expect_row(test_plain_row(&o.plain, v, head, slot),
                                test_grouped_row(held, v, head, slot),
                                held->spec.dim, v == 0 ? "key" : "value", slot);
      }
    }
  }
  test_plain_free(&o.plain);
}

static void CheckViews(const test_pool* s, const test_pooled* a,
                       uint8_t holders[2][512]) {
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    uint32_t n = 0;
    EXPECT_OK(kvevict_paged_sequence_length(a->cached, l, &n));
    EXPECT(n == a->n_slots[l], "layer %u: %u slots, not %u", l, n,
           a->n_slots[l]);
    const kvevict_view view = test_pool_view(a, l);
    EXPECT_OK(kvevict_view_validate(&view, n));
    const uint32_t n_coded = a->held[l]->view.first_recent;
    const uint32_t most = s->options.recent_tokens + s->block_size - 1;
    EXPECT(view.first_recent == (most == 0 ? 0 : n_coded),
           "first_recent %u, not %u", view.first_recent, n_coded);
    EXPECT(n - n_coded <= most, "%u recent rows > %u", n - n_coded, most);
    const size_t n_blocks = (n_coded + s->block_size - 1) / s->block_size;
    EXPECT(view.block_table_len == n_blocks, "%zu blocks, not %zu",
           view.block_table_len, n_blocks);
    for (size_t b = 0; b < n_blocks; ++b)
      ++holders[l == 1][view.block_table[b]];
  }
}

void test_pool_check(const test_pool* s) {
  static uint8_t holders[2][512];
  memset(holders, 0, sizeof holders);
  uint64_t n_slots = 0, n_held = 0, n_shared = 0;
  for (uint32_t i = 0; i < s->n_sequences; ++i) {
    CheckViews(s, &s->sequences[i], holders);
    for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
      CheckRows(&s->sequences[i], l);
      n_slots += s->sequences[i].n_slots[l];
    }
  }
  for (size_t b = 0; b < sizeof holders; ++b) {
    n_held += (&holders[0][0])[b] > 0;
    n_shared += (&holders[0][0])[b] > 1;
  }
  kvevict_paged_cache_usage usage = {.struct_size = sizeof usage};
  EXPECT_OK(kvevict_paged_cache_get_usage(s->cache, &usage));
  EXPECT(usage.n_blocks == 3 * s->options.n_blocks, "n_blocks");
  EXPECT(usage.n_free == usage.n_blocks - n_held, "%llu free, %llu held",
         (unsigned long long)usage.n_free, (unsigned long long)n_held);
  EXPECT(usage.n_shared == n_shared && usage.n_slots == n_slots &&
             usage.n_sequences == s->n_sequences,
         "usage");
  if (s->memory == NULL) return;
  EXPECT(test_is_filled(s->memory, 256) &&
             test_is_filled(s->memory + 256 + s->memory_bytes, 256),
         "bytes outside the blocks were written");
}

/* ---- Stage ---- */

static kvevict_plan* PlanOf(kvevict_context* context, const char* policy,
                            uint32_t dim, kvevict_dtype dtype) {
  kvevict_layer_geometry layers[TEST_POOL_LAYERS];
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    layers[l] =
        test_layer(2 * test_pool_heads[l], test_pool_heads[l], dim, dim);
    layers[l].k_dtype = layers[l].v_dtype = dtype;
  }
  layers[1].v_head_dim = 0;
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = TEST_POOL_LAYERS;
  geometry.max_tokens = TEST_POOL_TOKENS;
  geometry.layers = layers;
  geometry.layers_len = TEST_POOL_LAYERS;
  kvevict_plan* plan = NULL;
  EXPECT_OK(kvevict_plan_create(context, &geometry, test_policy(policy), NULL,
                                &plan));
  return plan;
}

static void DrawOptions(test_pool* s) {
  static const uint32_t kGroups[] = {0, 1, 2, 3, 8, 16, 32};
  test_random* const random = s->random;
  kvevict_paged_cache_options* const o = &s->options;
  *o = (kvevict_paged_cache_options)KVEVICT_PAGED_CACHE_OPTIONS_INIT;
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
  o->layout = (kvevict_block_layout)test_random_below(random, 2);
  o->number_dtype = (kvevict_dtype)test_random_below(random, 4);
  o->recent_dtype = (kvevict_dtype)test_random_below(random, 4);
}

void test_pool_begin(test_pool* s, test_random* random, const char* policy) {
  memset(s, 0, sizeof *s);
  s->random = random;
  s->dtype = (kvevict_dtype)test_random_between(random, KVEVICT_DTYPE_U8,
                                                KVEVICT_DTYPE_U4_HALVES);
  s->dim = 2 * test_random_between(random, 1, TEST_POOL_DIM / 2);
  DrawOptions(s);
  EXPECT_OK(kvevict_context_create(NULL, &s->context));
  s->plan = PlanOf(s->context, policy, s->dim, s->dtype);
  EXPECT_OK(kvevict_paged_cache_bytes(s->plan, &s->options, &s->memory_bytes));
  if (test_random_coin(random)) {
    s->memory = aligned_alloc(256, (s->memory_bytes + 512 + 255) / 256 * 256);
    memset(s->memory, TEST_GUARD, s->memory_bytes + 512);
    s->options.memory = s->memory + 256;
    s->options.memory_bytes = s->memory_bytes;
  }
  EXPECT_OK(kvevict_paged_cache_create(s->plan, &s->options, &s->cache));
  const kvevict_workspace size =
      test_workspace(s->plan, KVEVICT_OPERATION_EVICT, 0);
  s->workspace_bytes = size.best_bytes;
  s->workspace = aligned_alloc(64, (size.best_bytes + 127) / 64 * 64);
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

test_pooled* test_pool_add(test_pool* s) {
  test_pooled* const a = &s->sequences[s->n_sequences];
  memset(a, 0, sizeof *a);
  EXPECT_OK(kvevict_paged_sequence_create(s->cache, &a->cached));
  EXPECT_OK(kvevict_sequence_create(s->plan, &a->sequence));
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    const kvevict_dtype number = Or32(s->options.number_dtype);
    const test_grouped_spec spec = {.n_heads = test_pool_heads[l],
                                    .dim = s->dim,
                                    .capacity = TEST_POOL_TOKENS,
                                    .group = s->options.group_tokens,
                                    .has_recent = true,
                                    .dtype = s->dtype,
                                    .scale = number,
                                    .minimum = number,
                                    .recent = Or32(s->options.recent_dtype)};
    a->held[l] = test_grouped_create(&spec, s->random);
  }
  ++s->n_sequences;
  return a;
}

void test_pool_fork(test_pool* s, const test_pooled* from) {
  test_pooled* const a = &s->sequences[s->n_sequences];
  *a = *from;
  EXPECT_OK(kvevict_paged_sequence_fork(from->cached, &a->cached, NULL));
  EXPECT_OK(kvevict_sequence_fork(from->sequence, NULL, &a->sequence, NULL));
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    a->held[l] = test_grouped_clone(from->held[l]);
  }
  ++s->n_sequences;
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

/* Adds room for n tokens and quantizes rows that are no longer recent, in whole blocks. */
static void AppendToModel(const test_pool* s, test_pooled* a, uint32_t l,
                          uint32_t n) {
  test_grouped* const held = a->held[l];
  const uint32_t n_before = a->n_slots[l], first = held->view.first_recent;
  const uint32_t n_after = a->n_slots[l] += n;
  if (n_after - first < s->options.recent_tokens + s->block_size) return;
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

static void WriteByCall(test_pool* s, test_pooled* a, uint32_t l,
                        uint32_t first, uint32_t n) {
  outside o = Outside(a, l, first, n);
  test_plain_draw(&o.plain, s->dim, s->random, true);
  EXPECT_OK(kvevict_paged_sequence_write(a->cached, &o.rows, 1, NULL));
  test_grouped_store_all(a->held[l], &o.plain, first);
  test_plain_free(&o.plain);
}

/* Writes recent rows as an engine's kernel does. */
static void WriteByView(test_pool* s, test_pooled* a, uint32_t l,
                        uint32_t first, uint32_t n) {
  outside o = Outside(a, l, first, n);
  test_plain_draw(&o.plain, s->dim, s->random, true);
  const kvevict_view view = test_pool_view(a, l);
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    const kvevict_plane* const plane = &view.companions[i];
    if (plane->role < KVEVICT_ROLE_KEY_RECENT) continue;
    const int v = plane->role - KVEVICT_ROLE_KEY_RECENT;
    for (uint32_t h = 0; h < test_pool_heads[l]; ++h) {
      for (uint32_t t = 0; t < n; ++t) {
        const int64_t at =
            (first + t - view.first_recent) * plane->token_stride_bytes +
            h * plane->head_stride_bytes;
        oracle_quantize(plane->dtype, test_plain_row(&o.plain, v, h, t), s->dim,
                        true, NULL, (uint8_t*)(uintptr_t)plane->data + at);
      }
    }
  }
  test_grouped_store_all(a->held[l], &o.plain, first);
  test_plain_free(&o.plain);
}

static void WriteNew(test_pool* s, test_pooled* a, uint32_t l, uint32_t first) {
  const uint32_t end = a->n_slots[l];
  if (first >= a->held[l]->view.first_recent && test_random_coin(s->random)) {
    WriteByView(s, a, l, first, end - first);
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
  const kvevict_status status =
      kvevict_paged_sequence_append(a->cached, n, NULL);
  if (status == KVEVICT_ERROR_OUT_OF_MEMORY) {
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
  /* Layers that hold as many are truncated alike. */
  uint32_t n_each[TEST_POOL_LAYERS];
  bool alike = test_random_coin(s->random);
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    EXPECT_OK(kvevict_sequence_stored_length(a->sequence, l, 0, &n_each[l]));
    alike = alike && n_each[l] == n_each[0];
  }
  if (alike) {
    EXPECT_OK(kvevict_paged_sequence_truncate(a->cached, n_each[0]));
  } else {
    EXPECT_OK(kvevict_paged_sequence_fit(a->cached, a->sequence));
  }
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    uint32_t* const first_recent = &a->held[l]->view.first_recent;
    a->n_slots[l] = n_each[l];
    if (*first_recent > a->n_slots[l]) *first_recent = a->n_slots[l];
  }
}

typedef struct positions {
  int32_t of[TEST_POOL_LAYERS][3][TEST_POOL_TOKENS];
} positions;

static void FindPositions(const test_pooled* a, positions* out) {
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    for (uint32_t head = 0; head < test_pool_heads[l]; ++head) {
      for (uint32_t slot = 0; slot < a->n_slots[l]; ++slot) {
        EXPECT_OK(kvevict_sequence_position_of_slot(a->sequence, l, head, slot,
                                                    &out->of[l][head][slot]));
      }
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

static void Follow(test_pool* s, test_pooled* a, const positions* before) {
  static positions after;
  uint32_t n_before[TEST_POOL_LAYERS];
  memcpy(n_before, a->n_slots, sizeof n_before);
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    EXPECT_OK(
        kvevict_sequence_stored_length(a->sequence, l, 0, &a->n_slots[l]));
  }
  FindPositions(a, &after);
  for (uint32_t l = 0; l < TEST_POOL_LAYERS; ++l) {
    test_grouped* const held = a->held[l];
    const uint32_t n = a->n_slots[l];
    const uint32_t n_recent = n_before[l] - held->view.first_recent;
    s->n_evicted += n < n_before[l];
    held->view.first_recent = n - n_recent;
    for (uint32_t head = 0; head < test_pool_heads[l]; ++head) {
      uint32_t slots[TEST_POOL_TOKENS];
      for (uint32_t i = 0, from = 0; i < n; ++i, ++from) {
        while (before->of[l][head][from] != after.of[l][head][i]) {
          EXPECT(++from < n_before[l], "a position that was not there");
        }
        slots[i] = from;
      }
      EXPECT(n_recent == 0 || slots[n - n_recent] == n_before[l] - n_recent,
             "recent rows went");
      for (int v = 0; v < 1 + test_pool_has_values(l); ++v) {
        MoveDown(held, v, head, slots, n, n_recent);
      }
    }
  }
}

/* Evicts some of the sequences in one call. */
void test_pool_evict(test_pool* s) {
  static positions before[TEST_POOL_MOST];
  kvevict_paged_eviction items[TEST_POOL_MOST];
  test_pooled* chosen[TEST_POOL_MOST];
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->n_sequences; ++i) {
    if (test_random_coin(s->random)) continue;
    chosen[n] = &s->sequences[i];
    items[n] = (kvevict_paged_eviction)KVEVICT_PAGED_EVICTION_INIT;
    items[n].cached = chosen[n]->cached;
    items[n].sequence = chosen[n]->sequence;
    FindPositions(chosen[n], &before[n]);
    ++n;
  }
  const kvevict_status status =
      kvevict_paged_evict(items, n, s->workspace, s->workspace_bytes, NULL);
  if (status == KVEVICT_ERROR_OUT_OF_MEMORY) {
    ++s->n_short;
    return;
  }
  EXPECT_OK(status);
  for (uint32_t i = 0; i < n; ++i) Follow(s, chosen[i], &before[i]);
}
