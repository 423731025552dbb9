/* kvevict_sequence_prefill() does what the same calls by hand do. */
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "kvevict/prefill.h"
#include "tests/capi/support/copies.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"

enum { kBudget = 32, kSlots = 100 };

/* Records the calls of `forward` and makes one of them fail. */
typedef struct engine {
  test_model* model;
  uint32_t chunk;
  uint32_t n_calls;
  uint32_t fails_at;
} engine;

static kvevict_status Forward(uint32_t first, uint32_t n, void* user_data) {
  engine* const e = user_data;
  EXPECT(first == e->model->n_seen, "first_token %u is not %u", first,
         e->model->n_seen);
  EXPECT(n >= 1 && n <= e->chunk, "n_tokens %u", n);
  if (e->n_calls++ == e->fails_at) return KVEVICT_ERROR_UNAVAILABLE;
  test_model_observe(e->model, first, n);
  test_model_store(e->model, n);
  e->model->n_seen += n;
  return KVEVICT_OK;
}

static kvevict_prefill_options OptionsOf(engine* e, uint32_t n_tokens) {
  kvevict_prefill_options options = KVEVICT_PREFILL_OPTIONS_INIT;
  options.n_tokens = n_tokens;
  options.chunk = e->chunk;
  options.forward = Forward;
  options.user_data = e;
  options.views = e->model->views;
  options.views_len = e->model->spec.n_layers;
  options.workspace =
      e->model->workspace_bytes == 0 ? NULL : e->model->workspace;
  options.workspace_bytes = e->model->workspace_bytes;
  return options;
}

static uint64_t BytesOf(const test_model* m) {
  uint64_t bytes = 0;
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    bytes += (uint64_t)test_model_stored(m, l) * test_model_row_bytes(m, l) *
             m->spec.n_kv_heads;
  }
  return bytes;
}

static void ExpectSame(const test_model* a, const test_model* b) {
  test_model_check(a, "by the driver");
  const test_saved x = test_save(a->sequence), y = test_save(b->sequence);
  EXPECT(x.n_bytes == y.n_bytes && memcmp(x.data, y.data, x.n_bytes) == 0,
         "positions are not those of the calls by hand");
  free(x.data);
  free(y.data);
}

static void Compare(const char* policy, uint32_t n_tokens, uint32_t chunk,
                    uint32_t each) {
  test_model_spec spec = test_small_model(policy);
  spec.max_tokens = kSlots;
  spec.max_positions = 400;
  test_model* const hand = test_model_create(&spec, (test_random){7});
  test_model* const driven = test_model_create(&spec, (test_random){7});
  kvevict_prefill_report want = {0};
  if (n_tokens == 0) EXPECT_OK(kvevict_sequence_end_prompt(hand->sequence));
  for (uint32_t done = 0; done < n_tokens; ++want.n_chunks) {
    const uint32_t n = n_tokens - done < chunk ? n_tokens - done : chunk;
    test_model_step(hand, n);
    done += n;
    if (BytesOf(hand) > want.peak_bytes) want.peak_bytes = BytesOf(hand);
    for (uint32_t l = 0; l < spec.n_layers; ++l) {
      const uint32_t stored = test_model_stored(hand, l);
      if (stored > want.peak_tokens) want.peak_tokens = stored;
    }
    kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
    if (done == n_tokens)
      EXPECT_OK(kvevict_sequence_end_prompt(hand->sequence));
    if (each || done == n_tokens)
      EXPECT_OK(test_model_evict(hand, NULL, &report));
    want.n_evictions += report.evicted;
  }
  engine e = {driven, chunk, 0, UINT32_MAX};
  kvevict_prefill_options options = OptionsOf(&e, n_tokens);
  options.evict_each_chunk = each;
  kvevict_prefill_report got = {0};
  got.struct_size = sizeof got;
  EXPECT_OK(kvevict_sequence_prefill(driven->sequence, &options, &got, NULL));
  ExpectSame(driven, hand);
  EXPECT(got.n_chunks == want.n_chunks && got.n_chunks == e.n_calls,
         "n_chunks %u", got.n_chunks);
  EXPECT(got.n_evictions == want.n_evictions, "n_evictions %u, not %u",
         got.n_evictions, want.n_evictions);
  EXPECT(got.peak_tokens == want.peak_tokens, "peak_tokens %u, not %u",
         got.peak_tokens, want.peak_tokens);
  EXPECT(got.peak_bytes == want.peak_bytes, "peak_bytes %llu, not %llu",
         (unsigned long long)got.peak_bytes,
         (unsigned long long)want.peak_bytes);
  EXPECT(got.end_bytes == BytesOf(hand), "end_bytes");
  test_model_destroy(hand);
  test_model_destroy(driven);
}

Test(prefill_driver, does_what_the_calls_by_hand_do) {
  static const char* const kPolicies[] = {
      "snapkv:budget=32,window=8,sink=2", "knorm:budget=32",
      "streaming-llm:budget=32,sink=4", "random:budget=32,heads=adaptive",
      "none"};
  static const uint32_t kChunks[] = {1, 7, 33, 96};
  for (uint32_t p = 0; p < 5; ++p) {
    for (uint32_t c = 0; c < 4; ++c) {
      const uint32_t chunk = kChunks[c];
      Compare(kPolicies[p], 96, chunk, 0);
      if (p == 4) continue;
      /* The prompt is longer than the room: budget + chunk is enough. */
      Compare(kPolicies[p], chunk > 60 ? 96 : 250, chunk, 1);
    }
  }
  Compare("knorm:budget=32", 0, 5, 1);
}

Test(prefill_driver, ends_where_a_chunk_fails_and_goes_on) {
  test_model* const m = test_model_of("knorm:budget=32", 8);
  engine e = {m, 10, 0, 3};
  kvevict_prefill_options options = OptionsOf(&e, 60);
  kvevict_prefill_report report = {0};
  report.struct_size = sizeof report;
  EXPECT(kvevict_sequence_prefill(m->sequence, &options, &report, NULL) ==
             KVEVICT_ERROR_UNAVAILABLE,
         "what forward returned");
  EXPECT(report.n_chunks == 3 && report.peak_tokens == 30 &&
             report.end_bytes == BytesOf(m),
         "%u chunks", report.n_chunks);
  EXPECT(m->n_seen == 30 && test_model_stored(m, 0) == 30, "stored");
  options.n_tokens = 30;
  EXPECT_OK(kvevict_sequence_prefill(m->sequence, &options, &report, NULL));
  EXPECT(test_model_stored(m, 0) == kBudget && report.n_evictions == 1,
         "stored");
  EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &options, NULL, NULL),
                 "prompt has ended");
  test_model_destroy(m);
}

/* ---- A paged cache ---- */

typedef struct paged_engine {
  kvevict_paged_cache* cache;
  kvevict_paged_sequence* cached;
  uint32_t most_blocks;
  uint32_t n_rows;
} paged_engine;

/* Later keys are longer, so knorm keeps the early ones. */
static kvevict_status ForwardPaged(uint32_t first, uint32_t n,
                                   void* user_data) {
  paged_engine* const e = user_data;
  uint32_t held = 0;
  EXPECT_OK(kvevict_paged_sequence_length(e->cached, 0, &held));
  float keys[16][2][4], values[16][2][4];
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t j = 0; j < 8; ++j) {
      keys[i][j / 4][j % 4] = (float)(first + i + 1);
      values[i][j / 4][j % 4] = -(float)i;
    }
  }
  kvevict_paged_rows written = KVEVICT_PAGED_ROWS_INIT;
  written.first_slot = held - n;
  written.n_tokens = n;
  written.k = test_rows_plane(keys[0][0], 2, 4);
  written.v = test_rows_plane(values[0][0], 2, 4);
  EXPECT_OK(kvevict_paged_sequence_write(e->cached, &written, 1, NULL));
  kvevict_paged_cache_usage usage = {0};
  usage.struct_size = sizeof usage;
  EXPECT_OK(kvevict_paged_cache_get_usage(e->cache, &usage));
  const uint32_t n_blocks = (uint32_t)(usage.n_blocks - usage.n_free);
  if (n_blocks > e->most_blocks) e->most_blocks = n_blocks;
  e->n_rows += n;
  return KVEVICT_OK;
}

Test(prefill_driver, keeps_a_paged_cache_within_budget_and_chunk) {
  const kvevict_layer_geometry layer = test_layer(2, 2, 4, 4);
  const kvevict_geometry geometry = test_geometry(1, 48, &layer);
  test_plan* const plan = test_plan_create("knorm:budget=20,sink=0", &geometry,
                                           KVEVICT_OPERATION_EVICT, 1);
  kvevict_paged_cache_options pool = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  pool.n_blocks = 9; /* 20 + 16 tokens */
  pool.block_size = 4;
  paged_engine e = {0};
  EXPECT_OK(kvevict_paged_cache_create(plan->plan, &pool, &e.cache));
  EXPECT_OK(kvevict_paged_sequence_create(e.cache, &e.cached));
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(plan->plan, &sequence));
  kvevict_prefill_options options = KVEVICT_PREFILL_OPTIONS_INIT;
  options.n_tokens = 1000;
  options.chunk = 16;
  options.evict_each_chunk = 1;
  options.forward = ForwardPaged;
  options.user_data = &e;
  options.cached = e.cached;
  options.workspace = plan->workspace;
  options.workspace_bytes = plan->workspace_bytes;
  kvevict_prefill_report report = {0};
  report.struct_size = sizeof report;
  EXPECT_OK(kvevict_sequence_prefill(sequence, &options, &report, NULL));
  EXPECT(report.n_chunks == 63 && e.n_rows == 1000, "%u chunks",
         report.n_chunks);
  EXPECT(report.peak_tokens == 36 && e.most_blocks == 9, "%u tokens, %u blocks",
         report.peak_tokens, e.most_blocks);
  EXPECT(report.peak_bytes == 36 * 2 * 2 * 4 * sizeof(float), "peak_bytes");
  EXPECT(report.end_bytes == 20 * 2 * 2 * 4 * sizeof(float), "end_bytes");
  for (uint32_t slot = 0; slot < 20; ++slot) {
    int32_t position = -1;
    EXPECT_OK(
        kvevict_sequence_position_of_slot(sequence, 0, 1, slot, &position));
    EXPECT(position == (int32_t)slot, "slot %u holds token %d", slot, position);
  }
  /* The workspace lies among blocks that are yet to be taken. */
  kvevict_sequence* fresh = NULL;
  kvevict_paged_sequence* fresh_rows = NULL;
  EXPECT_OK(kvevict_sequence_create(plan->plan, &fresh));
  EXPECT_OK(kvevict_paged_sequence_create(e.cache, &fresh_rows));
  kvevict_view view = {.struct_size = sizeof view};
  EXPECT_OK(kvevict_paged_sequence_view(e.cached, 0, &view));
  kvevict_prefill_options among = options;
  among.cached = fresh_rows;
  among.workspace = (void*)(uintptr_t)(view.v.data / 64 * 64);
  EXPECT_INVALID(kvevict_sequence_prefill(fresh, &among, NULL, NULL),
                 "workspace", "overlaps the blocks of cached");
  kvevict_paged_sequence_destroy(fresh_rows);
  kvevict_sequence_destroy(fresh);
  /* The sequence does not store these rows. */
  kvevict_sequence* empty = NULL;
  EXPECT_OK(kvevict_sequence_create(plan->plan, &empty));
  EXPECT_INVALID(kvevict_sequence_prefill(empty, &options, NULL, NULL),
                 "cached", "layer 0", "holds 20", "stores 0");
  kvevict_sequence_destroy(empty);
  /* Too few blocks for a chunk are an error, and the tokens so far stay. */
  kvevict_paged_sequence* other = NULL;
  kvevict_sequence* second = NULL;
  EXPECT_OK(kvevict_paged_sequence_create(e.cache, &other));
  EXPECT_OK(kvevict_sequence_create(plan->plan, &second));
  paged_engine late = {e.cache, other, 0, 0};
  options.cached = other;
  options.user_data = &late;
  options.n_tokens = 17;
  EXPECT_FAILS(kvevict_sequence_prefill(second, &options, &report, NULL),
               KVEVICT_ERROR_OUT_OF_MEMORY, "needs 1 blocks",
               "0 of 9 are free");
  uint32_t n = 0;
  EXPECT_OK(kvevict_paged_sequence_length(other, 0, &n));
  EXPECT(n == 16 && report.n_chunks == 1, "%u slots, %u chunks", n,
         report.n_chunks);
  kvevict_sequence_destroy(second);
  kvevict_paged_sequence_destroy(other);
  kvevict_sequence_destroy(sequence);
  kvevict_paged_sequence_destroy(e.cached);
  kvevict_paged_cache_destroy(e.cache);
  test_plan_destroy(plan);
}

/* An error of the first eviction is found before the model runs. The call works
 * once it is mended. */
Test(prefill_driver, checks_the_eviction_before_the_model_runs) {
  static const int32_t kTwice[2] = {5, 5}, kBeyond[1] = {60}, kFine[1] = {9};
  for (uint32_t each = 0; each < 2; ++each) {
    test_model* const m = test_model_of("snapkv:budget=32,window=4", 9);
    engine e = {m, 10, 0, UINT32_MAX};
    kvevict_evict_options evict = KVEVICT_EVICT_OPTIONS_INIT;
    kvevict_prefill_options good = OptionsOf(&e, 60);
    good.evict = &evict;
    good.evict_each_chunk = each;
    kvevict_prefill_options o = good;
    o.workspace = NULL;
    EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &o, NULL, NULL),
                   "workspace is NULL");
    o = good;
    o.workspace_bytes = 64;
    EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &o, NULL, NULL),
                   "workspace_bytes 64");
    evict.protected_positions = kTwice;
    evict.protected_positions_len = 2;
    EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &good, NULL, NULL),
                   "protected_positions[1] 5", "[6, ");
    evict.protected_positions = NULL;
    EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &good, NULL, NULL),
                   "protected_positions is NULL",
                   "protected_positions_len is 2");
    evict.protected_positions = kBeyond; /* beyond the whole prompt */
    evict.protected_positions_len = 1;
    EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &good, NULL, NULL),
                   "protected_positions[0] 60", "[0, 60)");
    evict.protected_positions = kFine;
    evict.by_table = 1;
    EXPECT_FAILS(kvevict_sequence_prefill(m->sequence, &good, NULL, NULL),
                 KVEVICT_ERROR_UNSUPPORTED, "by_table", "views[0]");
    evict.by_table = 0;
    const uint32_t size = m->views[1].struct_size;
    m->views[1].struct_size = 8;
    EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &good, NULL, NULL),
                   "views[1]", "struct_size 8");
    m->views[1].struct_size = size;
    /* These rows will be written later. */
    const kvevict_plane k = m->views[1].k;
    m->views[1].k.data = m->views[0].k.data + 5 * 2 * 16 * sizeof(float);
    EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &good, NULL, NULL),
                   "views[0].k of", "views[1].k of", "overlap");
    m->views[1].k = k;
    o = good;
    o.workspace = (void*)(uintptr_t)(k.data / 64 * 64 + 64);
    EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &o, NULL, NULL),
                   "workspace 0x", "overlaps views[1]");
    o = good;
    o.n_tokens = UINT32_MAX;
    EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &o, NULL, NULL),
                   "n_tokens 4294967295");
    EXPECT(e.n_calls == 0, "forward ran");
    EXPECT_OK(kvevict_sequence_prefill(m->sequence, &good, NULL, NULL));
    EXPECT(e.n_calls == 6, "%u chunks", e.n_calls);
    test_model_check(m, "after what was refused");
    test_model_destroy(m);
  }
}

/* Protected positions may lie in any chunk, and evictions follow each. */
Test(prefill_driver, keeps_protected_positions_of_later_chunks) {
  static const int32_t kProtected[] = {3, 9, 10, 31, 58};
  test_model* const m = test_model_of("streaming-llm:budget=12,sink=2", 9);
  engine e = {m, 10, 0, UINT32_MAX};
  kvevict_evict_options evict = KVEVICT_EVICT_OPTIONS_INIT;
  evict.protected_positions = kProtected;
  evict.protected_positions_len = 5;
  kvevict_prefill_options o = OptionsOf(&e, 60);
  o.evict = &evict;
  o.evict_each_chunk = 1;
  EXPECT_OK(kvevict_sequence_prefill(m->sequence, &o, NULL, NULL));
  static const int32_t kWant[] = {0, 1, 3, 9, 10, 31, 54, 55, 56, 57, 58, 59};
  int32_t positions[12];
  cr_assert_eq(test_model_stored(m, 0), 12);
  test_model_positions(m, 0, 0, positions);
  for (int i = 0; i < 12; ++i) {
    EXPECT(positions[i] == kWant[i], "%d, not %d", positions[i], kWant[i]);
  }
  EXPECT(evict.protected_positions_len == 5, "the caller's own");
  test_model_destroy(m);
}

/* Removes the window's queries, so that the last eviction fails. */
static kvevict_status Blind(uint32_t first, uint32_t n, void* user_data) {
  engine* const e = user_data;
  (void)first;
  ++e->n_calls;
  test_model_store(e->model, n);
  e->model->n_seen += n;
  return KVEVICT_OK;
}

Test(prefill_driver, goes_on_where_the_last_eviction_failed) {
  test_model_spec spec = test_small_model("snapkv:budget=32,window=4");
  test_model* const m = test_model_create(&spec, (test_random){9});
  engine e = {m, 10, 0, UINT32_MAX};
  kvevict_prefill_options o = OptionsOf(&e, 60);
  o.forward = Blind;
  EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &o, NULL, NULL),
                 "layer 0", "queries");
  EXPECT(e.n_calls == 6, "%u chunks", e.n_calls);
  test_model_observe(m, 56, 4);
  o.n_tokens = 0;
  EXPECT_OK(kvevict_sequence_prefill(m->sequence, &o, NULL, NULL));
  for (uint32_t l = 0; l < spec.n_layers; ++l) {
    EXPECT(test_model_stored(m, l) == 32, "layer %u was not evicted", l);
  }
  o.n_tokens = 1;
  EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &o, NULL, NULL),
                 "its prompt has ended");
  test_model_destroy(m);
}

Test(prefill_driver, names_what_is_wrong) {
  test_model* const m = test_model_of("knorm:budget=32", 9);
  engine e = {m, 10, 0, UINT32_MAX};
  const kvevict_prefill_options good = OptionsOf(&e, 60);
  EXPECT_INVALID(kvevict_sequence_prefill(NULL, &good, NULL, NULL), "sequence",
                 "NULL");
  EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, NULL, NULL, NULL),
                 "options", "NULL");
#define EXPECT_BREAKS(change, ...)                                        \
  do {                                                                    \
    kvevict_prefill_options o = good;                                     \
    change;                                                               \
    EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &o, NULL, NULL), \
                   __VA_ARGS__);                                          \
  } while (0)
  EXPECT_BREAKS(o.chunk = 0, "chunk 0 < 1");
  EXPECT_BREAKS(o.forward = NULL, "forward is NULL");
  EXPECT_BREAKS(o.evict_each_chunk = 2, "evict_each_chunk 2");
  EXPECT_BREAKS(o.views = NULL, "both NULL");
  EXPECT_BREAKS(o.views_len = 1, "views_len 1 is not 2");
  EXPECT_BREAKS(o.n_tokens = 101, "101");
#undef EXPECT_BREAKS
  EXPECT(e.n_calls == 0, "forward ran");
  kvevict_prefill_report report;
  GUARD(report);
  report.struct_size = 8;
  EXPECT_INVALID(kvevict_sequence_prefill(m->sequence, &good, &report, NULL),
                 "struct_size 8");
  test_model_destroy(m);
}
