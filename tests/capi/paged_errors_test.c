/* A paged cache refuses these calls and changes nothing. */
#include <stdlib.h>

#include "kvevict/batch.h"
#include "kvevict/paged.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"

enum { kMaxTokens = 64, kHeads = 2, kDim = 4 };

typedef struct scene {
  test_plan* plan;
  kvevict_paged_cache_options options;
  kvevict_paged_cache* cache;
  kvevict_paged_sequence* cached;
  kvevict_sequence* sequence;
  float rows[kMaxTokens * kHeads * kDim];
} scene;

/* 40 tokens of 64 in 10 of 12 blocks of each of two layers. */
static scene* Begin(void) {
  scene* const s = calloc(1, sizeof *s);
  const kvevict_layer_geometry layer = test_layer(4, kHeads, kDim, kDim);
  const kvevict_geometry geometry = test_geometry(2, kMaxTokens, &layer);
  s->plan = test_plan_create("knorm:budget=10", &geometry,
                             KVEVICT_OPERATION_EVICT, 1);
  s->options = (kvevict_paged_cache_options)KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  s->options.n_blocks = 12;
  s->options.block_size = 4;
  EXPECT_OK(kvevict_paged_cache_create(s->plan->plan, &s->options, &s->cache));
  EXPECT_OK(kvevict_paged_sequence_create(s->cache, &s->cached));
  EXPECT_OK(kvevict_sequence_create(s->plan->plan, &s->sequence));
  EXPECT_OK(kvevict_paged_sequence_append(s->cached, 40, NULL));
  EXPECT_OK(kvevict_sequence_append(s->sequence, 40, NULL));
  for (uint32_t l = 0; l < 2; ++l) {
    kvevict_view view = KVEVICT_VIEW_INIT;
    EXPECT_OK(kvevict_paged_sequence_view(s->cached, l, &view));
    memset((void*)(uintptr_t)view.k.data, 0,
           24 * 4 * kHeads * kDim * sizeof(float));
  }
  return s;
}

static void End(scene* s) {
  kvevict_sequence_destroy(s->sequence);
  /* The sequence lives on after its cache's handle. */
  kvevict_paged_cache_destroy(s->cache);
  EXPECT_OK(kvevict_paged_sequence_append(s->cached, 1, NULL));
  kvevict_paged_sequence_destroy(s->cached);
  kvevict_paged_sequence_destroy(NULL);
  kvevict_paged_cache_destroy(NULL);
  test_plan_destroy(s->plan);
  free(s);
}

static kvevict_paged_rows RowsOf(const scene* s, uint32_t layer, uint32_t first,
                                 uint32_t n) {
  kvevict_paged_rows rows = KVEVICT_PAGED_ROWS_INIT;
  rows.layer = layer;
  rows.first_slot = first;
  rows.n_tokens = n;
  rows.k = kvevict_plane_token_major(s->rows, KVEVICT_DTYPE_F32, kHeads, kDim);
  return rows;
}

static kvevict_paged_cache_usage UsageOf(const scene* s) {
  kvevict_paged_cache_usage usage = {0};
  usage.struct_size = sizeof usage;
  EXPECT_OK(kvevict_paged_cache_get_usage(s->cache, &usage));
  return usage;
}

Test(paged_cache_errors, options) {
  scene* const s = Begin();
  const kvevict_plan* const plan = s->plan->plan;
  size_t bytes = 0;
  kvevict_paged_cache* out = NULL;
  GROWN(kvevict_paged_cache_options) grown;
  memset(&grown, 0, sizeof grown);
  grown.value = s->options;
  EXPECT_CHECKS_STRUCT_SIZE(
      grown, kvevict_paged_cache_bytes(plan, &grown.value, &bytes));
  EXPECT(bytes == 2 * 12 * 4 * 2 * kHeads * kDim * sizeof(float), "%zu bytes",
         bytes);
  EXPECT_INVALID(kvevict_paged_cache_create(NULL, &s->options, &out), "plan",
                 "NULL");
  EXPECT_INVALID(kvevict_paged_cache_create(plan, NULL, &out), "options",
                 "NULL");
  EXPECT_INVALID(kvevict_paged_cache_create(plan, &s->options, NULL),
                 "out_cache");
  kvevict_paged_cache_options o = s->options;
  o.n_blocks = 0;
  EXPECT_INVALID(kvevict_paged_cache_create(plan, &o, &out), "n_blocks 0 < 1");
  o.n_blocks = INT32_MAX;
  EXPECT_INVALID(kvevict_paged_cache_create(plan, &o, &out), "n_blocks",
                 "4294967294", "layer 0");
  o = s->options;
  o.block_size = 65537;
  EXPECT_INVALID(kvevict_paged_cache_create(plan, &o, &out),
                 "block_size 65537 > 65536");
  o = s->options;
  o.layout = (kvevict_block_layout)2;
  EXPECT_INVALID(kvevict_paged_cache_create(plan, &o, &out), "layout 2");
  o = s->options;
  o.memory_bytes = 1;
  EXPECT_INVALID(kvevict_paged_cache_create(plan, &o, &out), "memory is NULL",
                 "1");
  uint8_t* const memory = aligned_alloc(256, 2 * 8192);
  o.memory = memory;
  o.memory_bytes = bytes - 1;
  EXPECT_INVALID(kvevict_paged_cache_create(plan, &o, &out),
                 "memory_bytes 6143 < 6144");
  o.memory = memory + 8;
  o.memory_bytes = bytes;
  EXPECT_INVALID(kvevict_paged_cache_create(plan, &o, &out), "aligned to 256");
  EXPECT(out == NULL, "a cache was made");
  free(memory);
  kvevict_layer_geometry opaque = test_layer(4, kHeads, kDim, 0);
  opaque.v_dtype = KVEVICT_DTYPE_OPAQUE;
  const kvevict_geometry geometry = test_geometry(2, kMaxTokens, &opaque);
  test_plan* other = test_plan_create("knorm:budget=10", &geometry,
                                      KVEVICT_OPERATION_EVICT, 1);
  EXPECT_FAILS(kvevict_paged_cache_create(other->plan, &s->options, &out),
               KVEVICT_ERROR_UNSUPPORTED, "layer 0", "opaque");
  test_plan_destroy(other);
  End(s);
}

Test(paged_cache_errors, too_few_blocks_change_nothing) {
  scene* const s = Begin();
  const kvevict_paged_cache_usage before = UsageOf(s);
  EXPECT(before.n_free == 4 && before.n_blocks == 24, "usage");
  /* 40 + 9 tokens take 13 blocks of each layer: 6 more. */
  EXPECT_FAILS(kvevict_paged_sequence_append(s->cached, 9, NULL),
               KVEVICT_ERROR_OUT_OF_MEMORY, "needs 6 blocks",
               "4 of 24 are free");
  kvevict_paged_cache_usage after = UsageOf(s);
  EXPECT(memcmp(&before, &after, sizeof before) == 0, "blocks were taken");
  uint32_t n = 0;
  EXPECT_OK(kvevict_paged_sequence_length(s->cached, 1, &n));
  EXPECT(n == 40, "length %u", n);
  EXPECT_INVALID(kvevict_paged_sequence_append(s->cached, 25, NULL),
                 "n_tokens 25", "40", "64");

  /* A fork that is evicted in shared blocks needs copies of three in each layer. */
  kvevict_paged_sequence* fork = NULL;
  EXPECT_OK(kvevict_paged_sequence_fork(s->cached, &fork, NULL));
  kvevict_paged_eviction item = KVEVICT_PAGED_EVICTION_INIT;
  item.cached = fork;
  item.sequence = s->sequence;
  EXPECT_FAILS(kvevict_paged_evict(&item, 1, s->plan->workspace,
                                   s->plan->workspace_bytes, NULL),
               KVEVICT_ERROR_OUT_OF_MEMORY, "needs 6 blocks",
               "4 of 24 are free");
  after = UsageOf(s);
  EXPECT(after.n_free == 4 && after.n_shared == 20, "blocks were taken");
  EXPECT_OK(kvevict_sequence_stored_length(s->sequence, 0, 0, &n));
  EXPECT(n == 40, "the sequence has %u", n);
  EXPECT_FAILS(kvevict_paged_sequence_own(fork, 8, NULL),
               KVEVICT_ERROR_OUT_OF_MEMORY, "needs 16 blocks");
  kvevict_paged_rows rows = RowsOf(s, 0, 0, 40);
  EXPECT_FAILS(kvevict_paged_sequence_write(fork, &rows, 1, NULL),
               KVEVICT_ERROR_OUT_OF_MEMORY, "needs 10 blocks");
  /* The same block twice takes one copy. */
  kvevict_paged_rows twice[2] = {RowsOf(s, 0, 0, 16), RowsOf(s, 0, 2, 14)};
  EXPECT_OK(kvevict_paged_sequence_write(fork, twice, 2, NULL));
  after = UsageOf(s);
  EXPECT(after.n_free == 0 && after.n_shared == 16, "usage");
  kvevict_paged_sequence_destroy(fork);
  /* Finished sequences give their own blocks back. */
  EXPECT(UsageOf(s).n_free == 4 && UsageOf(s).n_shared == 0, "blocks are lost");
  End(s);
}

Test(paged_cache_errors, rows) {
  scene* const s = Begin();
  kvevict_paged_rows rows = RowsOf(s, 0, 30, 11);
  EXPECT_INVALID(kvevict_paged_sequence_write(s->cached, &rows, 1, NULL),
                 "rows[0]", "first_slot 30 + n_tokens 11 > 40");
  rows = RowsOf(s, 0, 41, 0);
  EXPECT_INVALID(kvevict_paged_sequence_read(s->cached, &rows, 1, NULL), "41",
                 "40");
  rows = RowsOf(s, 2, 0, 1);
  EXPECT_INVALID(kvevict_paged_sequence_write(s->cached, &rows, 1, NULL),
                 "layer 2", "n_layers 2");
  rows = RowsOf(s, 0, 0, 1);
  rows.k.head_dim = 3;
  EXPECT_INVALID(kvevict_paged_sequence_write(s->cached, &rows, 1, NULL),
                 "k.head_dim 3", "4");
  rows = RowsOf(s, 0, 0, 1);
  rows.k = (kvevict_plane)KVEVICT_PLANE_INIT;
  EXPECT_INVALID(kvevict_paged_sequence_write(s->cached, &rows, 1, NULL),
                 "both 0");
  /* A call writes nothing if the second of two rows is wrong. */
  kvevict_paged_rows two[2] = {RowsOf(s, 0, 0, 1), RowsOf(s, 0, 40, 1)};
  s->rows[0] = 5.0f;
  EXPECT_INVALID(kvevict_paged_sequence_write(s->cached, two, 2, NULL),
                 "rows[1]");
  kvevict_view view = KVEVICT_VIEW_INIT;
  EXPECT_OK(kvevict_paged_sequence_view(s->cached, 0, &view));
  const float* const first =
      (const float*)(uintptr_t)(view.k.data +
                                (uint64_t)(view.block_table[0] *
                                           view.k.block_stride_bytes));
  EXPECT(*first == 0.0f, "a row was written");
  /* K and V may share a buffer for reading, not for writing. */
  rows = RowsOf(s, 0, 0, 4);
  rows.v = rows.k;
  s->rows[0] = 5.0f;
  EXPECT_OK(kvevict_paged_sequence_write(s->cached, &rows, 1, NULL));
  const float* const value =
      (const float*)(uintptr_t)(view.v.data +
                                (uint64_t)(view.block_table[0] *
                                           view.v.block_stride_bytes));
  EXPECT(*first == 5.0f && *value == 5.0f, "%g and %g were written", *first,
         *value);
  EXPECT_INVALID(kvevict_paged_sequence_read(s->cached, &rows, 1, NULL),
                 "rows[0]", "v.data", "overlap");
  /* The cache cannot be written from itself. */
  rows = RowsOf(s, 0, 0, 4);
  rows.k = view.k;
  rows.k.block_stride_bytes = 0;
  EXPECT_INVALID(kvevict_paged_sequence_read(s->cached, &rows, 1, NULL),
                 "overlap");
  EXPECT_INVALID(kvevict_paged_sequence_write(s->cached, NULL, 1, NULL),
                 "rows is NULL");
  EXPECT_INVALID(kvevict_paged_sequence_write(s->cached, &rows,
                                              KVEVICT_MAX_JOBS + 1, NULL),
                 "rows_len 129 > 128");
  EXPECT_OK(kvevict_paged_sequence_write(s->cached, NULL, 0, NULL));
  End(s);
}

Test(paged_cache_errors, evictions) {
  scene* const s = Begin();
  void* const workspace = s->plan->workspace;
  const size_t bytes = s->plan->workspace_bytes;
  kvevict_paged_eviction items[2] = {KVEVICT_PAGED_EVICTION_INIT,
                                     KVEVICT_PAGED_EVICTION_INIT};
  items[0].sequence = s->sequence;
  EXPECT_INVALID(kvevict_paged_evict(items, 1, workspace, bytes, NULL),
                 "items[0]", "cached is NULL");
  items[0].cached = s->cached;
  items[0].sequence = NULL;
  EXPECT_INVALID(kvevict_paged_evict(items, 1, workspace, bytes, NULL),
                 "sequence is NULL");
  items[0].sequence = s->sequence;
  items[0].reserved = 1;
  EXPECT_INVALID(kvevict_paged_evict(items, 1, workspace, bytes, NULL),
                 "reserved 1");
  items[0].reserved = 0;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  uint8_t undo[64];
  options.undo = undo;
  options.undo_bytes = sizeof undo;
  items[0].options = &options;
  EXPECT_INVALID(kvevict_paged_evict(items, 1, workspace, bytes, NULL), "undo",
                 "fork");
  items[0].options = NULL;

  kvevict_sequence* second = NULL;
  EXPECT_OK(kvevict_sequence_fork(s->sequence, NULL, &second, NULL));
  items[1] = items[0];
  items[1].sequence = second;
  EXPECT_INVALID(kvevict_paged_evict(items, 2, workspace, bytes, NULL),
                 "items[1]", "cached: items[0] has it too");
  EXPECT_OK(kvevict_sequence_append(second, 1, NULL));
  EXPECT_INVALID(kvevict_paged_evict(items + 1, 1, workspace, bytes, NULL),
                 "layer 0", "holds 40", "stores 41");
  EXPECT_INVALID(kvevict_paged_sequence_fit(s->cached, second), "stored", "41",
                 "40");
  kvevict_paged_cache* other = NULL;
  EXPECT_OK(kvevict_paged_cache_create(s->plan->plan, &s->options, &other));
  kvevict_paged_sequence* elsewhere = NULL;
  EXPECT_OK(kvevict_paged_sequence_create(other, &elsewhere));
  items[1].cached = elsewhere;
  EXPECT_INVALID(kvevict_paged_evict(items, 2, workspace, bytes, NULL),
                 "items[1]", "not that of items[0]");
  uint32_t n = 0;
  EXPECT_OK(kvevict_sequence_stored_length(s->sequence, 0, 0, &n));
  EXPECT(n == 40, "an eviction that failed left %u", n);
  EXPECT_OK(kvevict_paged_evict(items, 1, workspace, bytes, NULL));
  EXPECT_OK(kvevict_paged_sequence_length(s->cached, 0, &n));
  EXPECT(n == 10 && UsageOf(s).n_free == 18, "%u slots", n);
  EXPECT_OK(kvevict_paged_evict(NULL, 0, NULL, 0, NULL));
  kvevict_paged_sequence_destroy(elsewhere);
  kvevict_paged_cache_destroy(other);
  kvevict_sequence_destroy(second);
  /* Truncation gives blocks back, and takes nothing from layers that hold less. */
  EXPECT_OK(kvevict_paged_sequence_truncate(s->cached, 20));
  EXPECT_OK(kvevict_paged_sequence_truncate(s->cached, 4));
  EXPECT(UsageOf(s).n_free == 22, "free");
  End(s);
}
