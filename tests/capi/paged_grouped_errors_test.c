/* KIVI-style paged caches: what usage counts, and what is refused. */
#include <stdlib.h>
#include <string.h>

#include "kvevict/prefill.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/grouped_pool.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/plan.h"

enum {
  kHeads = 2,
  kDim = 6,
  kTokens = 100,
  kBlock = 8,
  kGroup = 4,
  kRecent = 5
};

/* [kTokens, kHeads, kDim] of keys, then of values. */
typedef float rows[kTokens][kHeads][kDim];

typedef struct scene {
  test_plan* plan;
  kvevict_paged_cache_options options;
  kvevict_paged_cache* cache;
  kvevict_paged_sequence* cached;
  kvevict_sequence* sequence;
  rows given[2], got[2];
} scene;

static test_plan* PlanOf(const char* policy, kvevict_dtype k, kvevict_dtype v) {
  kvevict_layer_geometry layer = test_layer(2 * kHeads, kHeads, kDim, kDim);
  layer.k_dtype = k;
  layer.v_dtype = v;
  const kvevict_geometry geometry = test_geometry(2, kTokens, &layer);
  return test_plan_create(policy, &geometry, KVEVICT_OPERATION_EVICT, 1);
}

static scene* BeginWith(const char* policy, kvevict_dtype dtype,
                        kvevict_paged_cache_options options) {
  scene* const s = calloc(1, sizeof *s);
  s->plan = PlanOf(policy, dtype, dtype);
  s->options = options;
  EXPECT_OK(kvevict_paged_cache_create(s->plan->plan, &s->options, &s->cache));
  EXPECT_OK(kvevict_paged_sequence_create(s->cache, &s->cached));
  EXPECT_OK(kvevict_sequence_create(s->plan->plan, &s->sequence));
  test_random random = test_random_start("paged grouped scene");
  float* const all = &s->given[0][0][0][0];
  for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(float); ++i) {
    all[i] = (float)(i % kDim) * test_random_normal(&random);
  }
  return s;
}

static scene* Begin(const char* policy, kvevict_dtype dtype,
                    uint32_t n_blocks) {
  kvevict_paged_cache_options options = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  options.n_blocks = n_blocks;
  options.block_size = kBlock;
  options.group_tokens = kGroup;
  options.recent_tokens = kRecent;
  return BeginWith(policy, dtype, options);
}

static void End(scene* s) {
  kvevict_sequence_destroy(s->sequence);
  kvevict_paged_sequence_destroy(s->cached);
  kvevict_paged_cache_destroy(s->cache);
  test_plan_destroy(s->plan);
  free(s);
}

static kvevict_paged_rows RowsOf(rows of[2], uint32_t layer, uint32_t first,
                                 uint32_t n) {
  kvevict_paged_rows out = KVEVICT_PAGED_ROWS_INIT;
  out.layer = layer;
  out.first_slot = first;
  out.n_tokens = n;
  out.k = test_rows_plane(&of[0][first][0][0], kHeads, kDim);
  out.v = test_rows_plane(&of[1][first][0][0], kHeads, kDim);
  return out;
}

static void Append(scene* s, uint32_t n) {
  uint32_t first = 0;
  EXPECT_OK(kvevict_paged_sequence_length(s->cached, 0, &first));
  EXPECT_OK(kvevict_paged_sequence_append(s->cached, n, NULL));
  EXPECT_OK(kvevict_sequence_append(s->sequence, n, NULL));
  for (uint32_t l = 0; l < 2; ++l) {
    const kvevict_paged_rows in = RowsOf(s->given, l, first, n);
    EXPECT_OK(kvevict_paged_sequence_write(s->cached, &in, 1, NULL));
  }
}

static uint32_t FirstRecent(const scene* s) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  EXPECT_OK(kvevict_paged_sequence_view(s->cached, 1, &view));
  return view.first_recent;
}

static void Read(scene* s, uint32_t n) {
  const kvevict_paged_rows out = RowsOf(s->got, 1, 0, n);
  EXPECT_OK(kvevict_paged_sequence_read(s->cached, &out, 1, NULL));
}

static kvevict_paged_cache_usage UsageOf(const scene* s) {
  kvevict_paged_cache_usage usage = {.struct_size = sizeof usage};
  EXPECT_OK(kvevict_paged_cache_get_usage(s->cache, &usage));
  return usage;
}

Test(paged_grouped_errors, usage_counts_numbers_and_recent_rows) {
  scene* const s = Begin("none", KVEVICT_DTYPE_U4, 10);
  kvevict_paged_cache_usage usage = UsageOf(s);
  /* A token and head takes half a byte per element. A group of keys has 2 * kDim
   * scales and minima, a token of values 2. */
  const uint64_t block = kHeads * (kBlock * (kDim + 2 * sizeof(float)) +
                                   kBlock / kGroup * 2 * kDim * sizeof(float));
  const uint64_t plane = kHeads * (kRecent + kBlock - 1) * kDim * sizeof(float);
  const uint64_t recent = 2 * 2 * ((plane + 63) / 64 * 64);
  EXPECT(usage.bytes == 2 * 10 * block + recent, "%llu bytes, not %llu",
         (unsigned long long)usage.bytes,
         (unsigned long long)(2 * 10 * block + recent));
  EXPECT(usage.bytes_in_use == recent, "%llu bytes in use",
         (unsigned long long)usage.bytes_in_use);
  EXPECT(usage.f32_bytes == 2 * 2 * (10 * kBlock + kRecent + kBlock - 1) *
                                kHeads * kDim * sizeof(float),
         "%llu bytes of f32", (unsigned long long)usage.f32_bytes);
  Append(s, kRecent + kBlock);
  usage = UsageOf(s);
  EXPECT(usage.bytes_in_use == recent + 2 * block && usage.n_free == 18,
         "%llu bytes in use", (unsigned long long)usage.bytes_in_use);
  kvevict_paged_sequence* fork = NULL;
  EXPECT_OK(kvevict_paged_sequence_fork(s->cached, &fork, NULL));
  usage = UsageOf(s);
  EXPECT(usage.bytes_in_use == 2 * recent + 2 * block && usage.n_shared == 2,
         "%llu bytes in use", (unsigned long long)usage.bytes_in_use);
  kvevict_paged_sequence_destroy(fork);
  /* At most max_tokens rows are ever recent. */
  s->options.recent_tokens = kTokens;
  kvevict_paged_cache* all = NULL;
  EXPECT_OK(kvevict_paged_cache_create(s->plan->plan, &s->options, &all));
  kvevict_paged_sequence* held = NULL;
  EXPECT_OK(kvevict_paged_sequence_create(all, &held));
  EXPECT_OK(kvevict_paged_sequence_append(held, kTokens, NULL));
  usage.struct_size = sizeof usage;
  EXPECT_OK(kvevict_paged_cache_get_usage(all, &usage));
  EXPECT(usage.n_free == 20, "%llu free", (unsigned long long)usage.n_free);
  kvevict_paged_sequence_destroy(held);
  kvevict_paged_cache_destroy(all);
  End(s);
}

/* Recent rows belong to one sequence even if the block before them is shared. */
Test(paged_grouped_errors, writing_recent_rows_takes_no_block) {
  scene* const s = Begin("none", KVEVICT_DTYPE_U8, 4);
  Append(s, 3 * kBlock + kRecent);
  EXPECT_OK(kvevict_paged_sequence_truncate(s->cached, 2 * kBlock + 3));
  EXPECT_OK(kvevict_paged_sequence_append(s->cached, 1, NULL));
  kvevict_paged_sequence *fork = NULL, *taker = NULL;
  EXPECT_OK(kvevict_paged_sequence_fork(s->cached, &fork, NULL));
  EXPECT_OK(kvevict_paged_sequence_create(s->cache, &taker));
  EXPECT_OK(kvevict_paged_sequence_append(taker, kRecent + kBlock, NULL));
  const kvevict_paged_cache_usage before = UsageOf(s);
  EXPECT(before.n_free == 0 && before.n_shared == 6, "%llu free",
         (unsigned long long)before.n_free);
  const kvevict_paged_rows in = RowsOf(s->given, 1, 2 * kBlock + 3, 1);
  EXPECT_OK(kvevict_paged_sequence_write(s->cached, &in, 1, NULL));
  const kvevict_paged_cache_usage after = UsageOf(s);
  EXPECT(memcmp(&before, &after, sizeof before) == 0, "blocks were taken");
  kvevict_paged_sequence_destroy(taker);
  kvevict_paged_sequence_destroy(fork);
  End(s);
}

static kvevict_status Forward(uint32_t first, uint32_t n, void* user_data) {
  scene* const s = user_data;
  for (uint32_t l = 0; l < 2; ++l) {
    uint32_t held = 0;
    EXPECT_OK(kvevict_paged_sequence_length(s->cached, l, &held));
    kvevict_paged_rows in = RowsOf(s->given, l, first, n);
    in.first_slot = held - n;
    EXPECT_OK(kvevict_paged_sequence_write(s->cached, &in, 1, NULL));
  }
  return KVEVICT_OK;
}

/* The prompt comes in chunks, evicted behind each. Usage counts recent rows as recent. */
Test(paged_grouped_errors, a_prompt_is_read_in_chunks) {
  scene* const s =
      Begin("streaming-llm:budget=40,sink=4", KVEVICT_DTYPE_U8, 20);
  kvevict_prefill_options options = KVEVICT_PREFILL_OPTIONS_INIT;
  options.n_tokens = 90;
  options.chunk = 24;
  options.evict_each_chunk = 1;
  options.forward = Forward;
  options.user_data = s;
  options.cached = s->cached;
  options.workspace = s->plan->workspace;
  options.workspace_bytes = s->plan->workspace_bytes;
  kvevict_prefill_report report = {.struct_size = sizeof report};
  EXPECT_OK(kvevict_sequence_prefill(s->sequence, &options, &report, NULL));
  EXPECT(report.peak_tokens == 64 && report.n_evictions == 3,
         "%u tokens, %u evictions", report.peak_tokens, report.n_evictions);
  uint32_t n = 0;
  EXPECT_OK(kvevict_paged_sequence_length(s->cached, 1, &n));
  EXPECT(n == 40, "%u slots", n);
  const uint32_t first = FirstRecent(s);
  EXPECT(n - first >= kRecent && n - first < kRecent + kBlock, "%u recent",
         n - first);
  const uint64_t row = kHeads * kDim;
  const uint64_t bytes =
      2 * (first * (2 * row + kHeads * 8) + (n - first) * 2 * row * 4 +
           (uint64_t)((first + kGroup - 1) / kGroup) * 2 * row * 4);
  EXPECT(report.end_bytes == bytes, "%llu bytes, not %llu",
         (unsigned long long)report.end_bytes, (unsigned long long)bytes);
  Read(s, n);
  for (uint32_t t = first; t < n; ++t) {
    for (uint32_t e = 0; e < kDim; ++e) {
      EXPECT(s->got[0][t][1][e] == s->given[0][t + 50][1][e], "slot %u", t);
    }
  }
  End(s);
}

/* ---- What is refused, and has changed nothing ---- */

Test(paged_grouped_errors, options) {
  scene* const s = Begin("none", KVEVICT_DTYPE_U8, 20);
  const kvevict_plan* const plan = s->plan->plan;
  size_t bytes = 0;
#define EXPECT_REFUSED(plan_of, change, ...)                       \
  do {                                                             \
    kvevict_paged_cache_options o = s->options;                    \
    change;                                                        \
    EXPECT_INVALID(kvevict_paged_cache_bytes(plan_of, &o, &bytes), \
                   __VA_ARGS__);                                   \
  } while (0)
  EXPECT_REFUSED(plan, o.group_tokens = 3, "group_tokens 3", "block_size 8");
  EXPECT_REFUSED(plan, (o.group_tokens = 257, o.block_size = 0),
                 "group_tokens 257 > 256");
  EXPECT_REFUSED(plan, o.recent_tokens = kTokens + 1,
                 "recent_tokens 101 > max_tokens 100");
  EXPECT_REFUSED(plan, o.recent_tokens = UINT32_MAX, "recent_tokens");
  EXPECT_REFUSED(plan, o.recent_dtype = KVEVICT_DTYPE_U8, "recent_dtype u8");
  EXPECT_REFUSED(plan, o.recent_dtype = (kvevict_dtype)77, "recent_dtype 77");
  EXPECT_REFUSED(plan,
                 (o.group_tokens = o.recent_tokens = 0,
                  o.recent_dtype = KVEVICT_DTYPE_F16),
                 "recent_dtype f16", "0");
  test_plan* other = PlanOf("none", KVEVICT_DTYPE_FP8_E4M3, KVEVICT_DTYPE_U8);
  EXPECT_REFUSED(other->plan, o.recent_tokens = 1, "group_tokens 4", "k_dtype",
                 "layer 0", "fp8_e4m3");
  s->options.group_tokens = 0;
  EXPECT_OK(kvevict_paged_cache_bytes(other->plan, &s->options, &bytes));
  test_plan_destroy(other);
  other = PlanOf("none", KVEVICT_DTYPE_U4, KVEVICT_DTYPE_BF16);
  EXPECT_REFUSED(other->plan, o.group_tokens = 4, "v_dtype of layer 0", "bf16");
  EXPECT_REFUSED(other->plan, o.recent_tokens = 1, "recent_tokens 1", "v_dtype",
                 "bf16");
  test_plan_destroy(other);
#undef EXPECT_REFUSED
  /* A block has as many tokens as a group unless options say otherwise. */
  kvevict_paged_cache_options o = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  o.n_blocks = 3;
  o.group_tokens = 32;
  kvevict_paged_cache* cache = NULL;
  EXPECT_OK(kvevict_paged_cache_create(plan, &o, &cache));
  kvevict_paged_sequence* cached = NULL;
  EXPECT_OK(kvevict_paged_sequence_create(cache, &cached));
  kvevict_view view = KVEVICT_VIEW_INIT;
  EXPECT_OK(kvevict_paged_sequence_append(cached, 31, NULL));
  EXPECT_OK(kvevict_paged_sequence_view(cached, 0, &view));
  EXPECT(view.block_size == 32 && view.first_recent == 0, "block_size %u",
         view.block_size);
  EXPECT_OK(kvevict_paged_sequence_append(cached, 1, NULL));
  EXPECT_OK(kvevict_paged_sequence_view(cached, 0, &view));
  EXPECT(view.first_recent == 32, "first_recent %u", view.first_recent);
  kvevict_paged_sequence_destroy(cached);
  kvevict_paged_cache_destroy(cache);
  End(s);
}

static void ExpectSame(scene* s, uint32_t n, uint32_t first_recent,
                       const kvevict_paged_cache_usage* before) {
  static rows got[2];
  memcpy(got, s->got, sizeof got);
  memset(s->got, 0, sizeof s->got);
  Read(s, n);
  EXPECT(memcmp(got, s->got, sizeof got) == 0, "rows have changed");
  const kvevict_paged_cache_usage usage = UsageOf(s);
  EXPECT(memcmp(&usage, before, sizeof usage) == 0, "usage has changed");
  EXPECT(FirstRecent(s) == first_recent, "first_recent %u", FirstRecent(s));
}

Test(paged_grouped_errors, calls) {
  scene* const s = Begin("streaming-llm:budget=12,sink=4", KVEVICT_DTYPE_U8, 4);
  Append(s, 3 * kBlock + kRecent);
  Read(s, 3 * kBlock + kRecent);
  const uint32_t n = 3 * kBlock + kRecent;
  const kvevict_paged_cache_usage before = UsageOf(s);
  EXPECT_FAILS(kvevict_paged_sequence_append(s->cached, 2 * kBlock, NULL),
               KVEVICT_ERROR_OUT_OF_MEMORY, "needs 4 blocks",
               "2 of 8 are free");
  EXPECT_INVALID(kvevict_paged_sequence_append(s->cached, 72, NULL),
                 "n_tokens 72", "29", "max_tokens 100");
  kvevict_paged_rows in[2] = {RowsOf(s->given, 0, 0, n),
                              RowsOf(s->given, 1, 2, 5)};
  in[0].k.data = (uintptr_t)s->given[0][2];
  EXPECT_INVALID(kvevict_paged_sequence_write(s->cached, in, 2, NULL),
                 "rows[1]", "first_slot 2 + n_tokens 5", "group of 4");
  kvevict_view view = KVEVICT_VIEW_INIT;
  EXPECT_OK(kvevict_paged_sequence_view(s->cached, 1, &view));
  in[0].v.data = view.companions[view.n_companions - 1].data + 8;
  EXPECT_INVALID(kvevict_paged_sequence_write(s->cached, in, 1, NULL),
                 "rows[0]", "overlap");
  in[0].first_slot = 1;
  EXPECT_INVALID(kvevict_paged_sequence_read(s->cached, in, 1, NULL), "rows[0]",
                 "first_slot 1 + n_tokens 29 > 29");
  kvevict_paged_eviction item = KVEVICT_PAGED_EVICTION_INIT;
  item.cached = s->cached;
  item.sequence = s->sequence;
  ExpectSame(s, n, 3 * kBlock, &before);
  /* With the sinks, recent rows soon exceed the budget. */
  Append(s, kBlock - 1);
  Read(s, n + kBlock - 1);
  EXPECT_INVALID(kvevict_paged_evict(&item, 1, s->plan->workspace,
                                     s->plan->workspace_bytes, NULL),
                 "items[0]", "budget 12 < sink 4 + recent 12");
  kvevict_paged_cache_usage longer = before;
  longer.n_slots += 2 * (kBlock - 1);
  ExpectSame(s, n + kBlock - 1, 3 * kBlock, &longer);
  End(s);
}

/* The paged cache cannot use these policies here. */
static void ExpectRefused(const char* policy, kvevict_status code,
                          const char* text) {
  scene* const s = Begin(policy, KVEVICT_DTYPE_U8, 20);
  Append(s, 80);
  Read(s, 80);
  const uint32_t first = FirstRecent(s);
  const kvevict_paged_cache_usage before = UsageOf(s);
  kvevict_paged_eviction item = KVEVICT_PAGED_EVICTION_INIT;
  item.cached = s->cached;
  item.sequence = s->sequence;
  EXPECT_FAILS(kvevict_paged_evict(&item, 1, s->plan->workspace,
                                   s->plan->workspace_bytes, NULL),
               code, "items[0]", text);
  ExpectSame(s, 80, first, &before);
  End(s);
}

Test(paged_grouped_errors, policies) {
  ExpectRefused("random:budget=40,heads=adaptive",
                KVEVICT_ERROR_INVALID_ARGUMENT, "heads keep different numbers");
  ExpectRefused("knorm:budget=40,merge=pivot", KVEVICT_ERROR_UNSUPPORTED,
                "cannot merge");
  ExpectRefused("knorm:budget=0.5,chunk=16", KVEVICT_ERROR_UNSUPPORTED,
                kvevict_reason_text(KVEVICT_REASON_TOKEN_GROUPS));
}
