/* kvevict_select() against the oracle, for any counts, blocks and ranks, and its
 * errors. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/contexts.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/pages.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/ranges.h"
#include "tests/oracle/select.h"

enum { kMaxLists = 5, kMaxTokens = 1100, kRandomTokens = 700, kMostRows = 4 };

/* ---- Random calls ---- */

/* A call and the lists that it should write. */
typedef struct select_case {
  kvevict_select_options options;
  kvevict_keep_lists keep;
  uint32_t per_list; /* rows of scores */
  uint32_t tokens[kMaxLists], counts[kMaxLists];
  int32_t protect[6];
  test_ranges ranges;
  float scores[kMaxLists * kMostRows * kRandomTokens];
  int32_t slots[kMaxLists * (kRandomTokens + 3) + 8];
} select_case;

static void MarkForced(const select_case* c, uint32_t n, uint8_t* forced) {
  const kvevict_select_options* o = &c->options;
  for (uint32_t i = 0; i < n; ++i) {
    forced[i] = i < o->n_sink || i + o->n_recent >= n;
  }
  for (size_t i = 0; i < o->protected_slots_len; ++i) {
    if ((uint32_t)c->protect[i] < n) forced[c->protect[i]] = 1;
  }
}

/* What a list keeps in any case, and some of its other whole blocks. */
static uint32_t DrawCount(const select_case* c, uint32_t n,
                          test_random* random) {
  const uint32_t block =
      c->options.select_block > 1 ? c->options.select_block : 1;
  uint8_t forced[kRandomTokens];
  uint32_t n_stay = 0;
  MarkForced(c, n, forced);
  for (uint32_t i = 0; i < n; i += block) {
    const uint32_t end = i + block < n ? i + block : n;
    bool stays = end - i < block;
    for (uint32_t j = i; j < end; ++j) stays = stays || forced[j];
    if (stays) n_stay += end - i;
  }
  return n_stay + test_random_between(random, 0, (n - n_stay) / block) * block;
}

static void Draw(select_case* c, test_random* random) {
  static const float kSpecials[] = {NAN,  -NAN,  INFINITY,  -INFINITY,
                                    0.0f, -0.0f, 0x1p-149f, -1e38f};
  memset(c, 0, sizeof *c);
  memset(c->slots, TEST_GUARD, sizeof c->slots);
  kvevict_select_options* o = &c->options;
  kvevict_keep_lists* k = &c->keep;
  *o = (kvevict_select_options)KVEVICT_SELECT_OPTIONS_INIT;
  *k = (kvevict_keep_lists)KVEVICT_KEEP_LISTS_INIT;
  k->n_lists = test_random_between(random, 1, kMaxLists);
  o->n_tokens = test_random_between(random, 1, kRandomTokens);
  o->n_sink = test_random_below(random, 5);
  o->n_recent = test_random_below(random, 5);
  o->tie = test_random_coin(random) ? KVEVICT_TIE_LOWER_POSITION
                                    : KVEVICT_TIE_HIGHER_POSITION;
  o->reduce = (kvevict_reduce)test_random_below(random, 3);
  o->select_block =
      test_random_coin(random) ? 0 : test_random_between(random, 1, 30);
  const uint32_t n_protect = test_random_below(random, 7);
  o->protected_slots_len = n_protect < o->n_tokens ? n_protect : o->n_tokens;
  test_random_ascending(random, c->protect, (uint32_t)o->protected_slots_len,
                        o->n_tokens);
  if (o->protected_slots_len > 0) o->protected_slots = c->protect;
  const bool is_ragged = test_random_coin(random);
  const bool has_lengths = is_ragged && test_random_coin(random);
  const bool has_scores = test_random_below(random, 5) != 0;
  c->per_list = has_lengths || !has_scores || test_random_coin(random) ? 1
                : o->select_block > 1 /* whose means are exact */
                    ? 1u << test_random_below(random, 3)
                    : test_random_between(random, 2, kMostRows);
  if (c->per_list > 1 || test_random_coin(random)) {
    o->n_rows = c->per_list * k->n_lists;
  }
  if (test_random_coin(random)) {
    c->ranges = test_random_ranges(
        random, test_random_below(random, 20) == 0 ? 64 : 6, o->n_tokens);
    o->ranges = c->ranges.of;
    o->ranges_len = c->ranges.n;
  }
  for (uint32_t l = 0; l < k->n_lists; ++l) {
    c->tokens[l] =
        has_lengths ? test_random_below(random, o->n_tokens + 1) : o->n_tokens;
    c->counts[l] = DrawCount(c, c->tokens[l], random);
    if (!is_ragged) c->counts[l] = c->counts[0];
    if (c->counts[l] > k->count) k->count = c->counts[l];
  }
  if (has_lengths) o->token_counts = c->tokens;
  if (is_ragged) {
    k->counts = c->counts;
    k->count += test_random_below(random, 3);
  }
  k->list_stride = test_random_coin(random) ? 0 : k->count + 3;
  const uint64_t stride = k->list_stride == 0 ? k->count : k->list_stride;
  k->slots = c->slots;
  k->slots_len = (size_t)stride * (k->n_lists - 1) + k->count;
  const size_t n_scores = (size_t)c->per_list * k->n_lists * o->n_tokens;
  for (size_t i = 0; has_scores && i < n_scores; ++i) {
    c->scores[i] =
        test_random_below(random, 12) == 0
            ? kSpecials[test_random_below(random, o->select_block > 1 ? 6 : 8)]
            : (float)test_random_below(random, 100) / 8.0f - 6.0f;
  }
  if (has_scores) o->scores = c->scores;
  if (has_scores) o->scores_len = n_scores;
}

/* Returns in how many lists ranks decided. */
static uint32_t ExpectSelected(const select_case* c, int round) {
  const kvevict_select_options* o = &c->options;
  const kvevict_keep_lists* k = &c->keep;
  const uint64_t stride = k->list_stride == 0 ? k->count : k->list_stride;
  static uint8_t written[sizeof c->slots / sizeof *c->slots];
  memset(written, 0, sizeof written);
  uint32_t n_ranked = 0;
  for (uint32_t l = 0; l < k->n_lists; ++l) {
    const uint32_t n = c->tokens[l], count = c->counts[l];
    const uint32_t block = o->select_block > 1 ? o->select_block : 1;
    float combined[kRandomTokens];
    uint8_t forced[kRandomTokens];
    int32_t ranks[kRandomTokens], expected[kRandomTokens], plain[kRandomTokens];
    const int32_t none[kRandomTokens] = {0};
    oracle_combine(c->scores + (size_t)l * c->per_list * o->n_tokens,
                   c->per_list, o->n_tokens, o->reduce, combined);
    const float* const row = o->scores == NULL ? NULL : combined;
    MarkForced(c, n, forced);
    for (uint32_t i = 0; i < n; ++i) {
      ranks[i] = test_rank_of(o->ranges, o->ranges_len, i);
    }
    oracle_select_ranked(row, ranks, n, count, forced, block, o->tie, expected);
    oracle_select_ranked(row, none, n, count, forced, block, o->tie, plain);
    n_ranked += memcmp(expected, plain, count * sizeof *plain) != 0;
    for (uint32_t i = 0; i < count; ++i) {
      EXPECT(
          c->slots[l * stride + i] == expected[i],
          "round %d, list %u of %u tokens, blocks of %u, %u kept: slot %u is "
          "%d, not %d",
          round, l, n, block, count, i, c->slots[l * stride + i], expected[i]);
      written[l * stride + i] = 1;
    }
  }
  for (size_t i = 0; i < sizeof written; ++i) {
    EXPECT(written[i] || test_is_filled(&c->slots[i], sizeof *c->slots),
           "round %d: element %zu, beyond its list, was written", round, i);
  }
  return n_ranked;
}

Test(select, is_the_oracles_for_any_call) {
  test_random random = test_random_start("select");
  uint32_t n_ragged = 0, n_lengths = 0, n_ranked = 0, n_blocks = 0;
  static select_case c;
  for (int round = 0; round < 3000; ++round) {
    if (!test_runs((uint32_t)round)) continue;
    const kvevict_context* const context = test_draw_context(&random).context;
    Draw(&c, &random);
    const size_t n_bytes = c.options.scores_len * sizeof *c.scores;
    const test_guarded scores = test_guarded_open(n_bytes, round % 2);
    memcpy(scores.data, c.scores, n_bytes);
    if (n_bytes > 0) c.options.scores = (const float*)(void*)scores.data;
    kvevict_workspace w = KVEVICT_WORKSPACE_INIT;
    EXPECT_OK(kvevict_select_workspace(context, c.options.n_tokens,
                                       c.keep.n_lists, &w));
    const size_t bytes = w.least_bytes;
    uint8_t* workspace = test_workspace_memory(bytes);
    memset(workspace, TEST_GUARD, bytes + 64);
    EXPECT_OK(
        kvevict_select(context, &c.options, &c.keep, workspace, bytes, NULL));
    EXPECT(test_is_filled(workspace + bytes, 64),
           "wrote beyond a workspace of %zu bytes", bytes);
    n_ranked += ExpectSelected(&c, round);
    n_ragged += c.keep.counts != NULL;
    n_lengths += c.options.token_counts != NULL;
    n_blocks += c.options.select_block > 1;
    free(workspace);
    test_guarded_close(scores);
  }
  EXPECT(test_on_cuda() || (n_ragged > 1000 && n_lengths > 500 &&
                            n_ranked > 1000 && n_blocks > 1000),
         "%u ragged, %u lengths, %u by ranks, %u blocks", n_ragged, n_lengths,
         n_ranked, n_blocks);
}

/* ---- Errors ---- */

static test_plan* Plan(const char* policy, uint32_t n_layers,
                       uint32_t n_kv_heads) {
  const kvevict_layer_geometry layer = test_layer(n_kv_heads, n_kv_heads, 8, 8);
  const kvevict_geometry geometry = test_geometry(n_layers, kMaxTokens, &layer);
  return test_plan_create_to_select(policy, &geometry, 1);
}

/* `change` to a valid call makes it fail; nothing is written. */
#define EXPECT_BREAKS(change, ...)                                           \
  do {                                                                       \
    test_plan* p = Plan("custom:budget=10,sink=2,recent=2", 2, 2);           \
    static const float kScores[2 * kMaxTokens];                              \
    kvevict_select_options options, *o = &options;                           \
    kvevict_keep_lists lists, *keep = &lists;                                \
    options = (kvevict_select_options)KVEVICT_SELECT_OPTIONS_INIT;           \
    lists = (kvevict_keep_lists)KVEVICT_KEEP_LISTS_INIT;                     \
    EXPECT_OK(kvevict_plan_selection(p->plan, 1, 100, 0, &options, &lists)); \
    int32_t slots[2] = {5, 9}, keep_array[20];                               \
    uint32_t counts[2] = {10, 10};                                           \
    options.scores = kScores;                                                \
    options.scores_len = 200;                                                \
    options.protected_slots = slots;                                         \
    options.protected_slots_len = 2;                                         \
    lists.slots = keep_array;                                                \
    lists.slots_len = 20;                                                    \
    size_t bytes = p->workspace_bytes;                                       \
    const kvevict_context* context = p->context;                             \
    char* workspace = p->workspace;                                          \
    GUARD(keep_array);                                                       \
    change;                                                                  \
    EXPECT_INVALID(kvevict_select(context, o, keep, workspace, bytes, NULL), \
                   __VA_ARGS__);                                             \
    EXPECT_UNTOUCHED(keep_array);                                            \
    (void)slots, (void)counts;                                               \
    test_plan_destroy(p);                                                    \
  } while (0)

Test(select, null_pointers_are_errors) {
  EXPECT_BREAKS(context = NULL, "context", "NULL");
  EXPECT_BREAKS(o = NULL, "options", "NULL");
  EXPECT_BREAKS(keep = NULL, "keep", "NULL");
  EXPECT_BREAKS(options.scores = NULL, "scores", "NULL");
  EXPECT_BREAKS(options.protected_slots = NULL, "protected_slots", "NULL");
  EXPECT_BREAKS(lists.slots = NULL, "keep.slots", "NULL", "10");
  EXPECT_BREAKS((bytes = kMaxTokens * 64, workspace = NULL), "workspace",
                "NULL");
}

Test(select, wrong_sizes_are_errors) {
  EXPECT_BREAKS(options.struct_size = 4, "struct_size 4");
  EXPECT_BREAKS(lists.struct_size = 4, "struct_size 4");
  EXPECT_BREAKS(options.select_block = 65537, "select_block 65537 > 65536");
  EXPECT_BREAKS(lists.reserved = 1, "keep.reserved 1");
  EXPECT_BREAKS(options.scores_len = 199, "scores_len 199", "n_rows 2", "100");
  EXPECT_BREAKS(options.scores_len = 201, "scores_len 201", "n_rows 2", "100");
  EXPECT_BREAKS(options.n_rows = 3, "n_rows 3", "n_lists 2");
  EXPECT_BREAKS(options.n_tokens = 0, "n_tokens 0");
  EXPECT_BREAKS(options.n_tokens = 2147483648u, "n_tokens 2147483648");
  EXPECT_BREAKS(options.reduce = 3, "reduce 3");
  EXPECT_BREAKS(options.tie = -1, "tie -1");
  EXPECT_BREAKS(lists.n_lists = 0, "keep.n_lists 0");
  EXPECT_BREAKS(lists.slots_len = 19, "keep.slots_len 19", "20", "2 lists");
  EXPECT_BREAKS(lists.list_stride = 9, "keep.list_stride 9", "count 10");
  EXPECT_BREAKS(lists.list_stride = 11, "keep.slots_len 20", "21");
  EXPECT_BREAKS(lists.list_stride = UINT64_MAX, "keep.slots_len 20");
  EXPECT_BREAKS((lists.count = 101, lists.slots_len = 202), "count 101",
                "100 tokens");
  EXPECT_BREAKS(bytes = 0, "workspace_bytes 0");
  EXPECT_BREAKS(workspace += 4, "workspace", "64");
}

Test(select, counts_out_of_range_are_errors) {
  EXPECT_BREAKS((counts[1] = 11, lists.counts = counts), "keep.counts[1] 11",
                "10");
  EXPECT_BREAKS((counts[0] = 5, lists.counts = counts), "keep.count 5",
                "< n_sink 2 + n_recent 2 + 2 protected", "list 0");
  EXPECT_BREAKS((counts[1] = 101, options.token_counts = counts),
                "token_counts[1] 101", "100");
  EXPECT_BREAKS((counts[1] = 9, options.token_counts = counts), "count 10",
                "9 tokens", "list 1");
  EXPECT_BREAKS((options.token_counts = counts, options.n_rows = 4,
                 options.scores_len = 400),
                "token_counts", "n_rows 4", "2 lists");
}

Test(select, bad_protected_slots_are_errors) {
  EXPECT_BREAKS((slots[0] = 9, slots[1] = 5), "protected_slots[1] 5");
  EXPECT_BREAKS(slots[0] = 9, "protected_slots[1] 9");
  EXPECT_BREAKS(slots[0] = -1, "protected_slots[0] -1");
  EXPECT_BREAKS(slots[1] = 100, "protected_slots[1] 100", "n_tokens 100");
  EXPECT_BREAKS((slots[0] = INT32_MIN, slots[1] = INT32_MAX),
                "protected_slots[0]");
}

Test(select, ranges_that_are_wrong_are_errors) {
  kvevict_token_range ranges[65];
#define RANGES(first_of_second, end_of_second, n)                        \
  for (uint32_t i = 0; i < 65; ++i) {                                    \
    ranges[i] =                                                          \
        (kvevict_token_range){sizeof(kvevict_token_range), 1, i, i + 1}; \
  }                                                                      \
  ranges[1].first = first_of_second;                                     \
  ranges[1].end = end_of_second;                                         \
  options.ranges = ranges;                                               \
  options.ranges_len = n
  EXPECT_BREAKS(RANGES(1, 2, 65), "ranges[64]", "more than 64");
  EXPECT_BREAKS(options.ranges_len = 1, "ranges", "NULL");
  EXPECT_BREAKS(RANGES(0, 2, 2),
                "ranges[1]: first 0 < 1, the end of the range before");
  EXPECT_BREAKS(RANGES(5, 4, 2), "ranges[1]: first 5 > end 4");
  EXPECT_BREAKS(RANGES(1, 2, 2); ranges[0].struct_size = 12, "ranges[0]", "12");
#undef RANGES
}

Test(select, counts_of_blocks_must_be_whole) {
  EXPECT_BREAKS(
      (options.select_block = 4, options.protected_slots_len = 0,
       lists.count = 9),
      "keep.count 9 of list 0: 100 slots minus 9 are not whole blocks "
      "of select_block 4");
  EXPECT_BREAKS((options.select_block = 4, options.protected_slots_len = 0,
                 lists.count = 12, lists.slots_len = 24, counts[0] = 12,
                 lists.counts = counts),
                "keep.count 10 of list 1", "select_block 4");
  EXPECT_BREAKS(
      (options.select_block = 8, lists.count = 12, lists.slots_len = 24),
      "keep.count 12 of list 0 < n_sink 2 + n_recent 2 + 1 protected "
      "slots, in whole blocks of 8");
}

Test(select, a_workspace_for_more_serves_fewer) {
  test_plan* p = Plan("custom", 1, 1);
  GROWN(kvevict_workspace) grown = {KVEVICT_WORKSPACE_INIT};
  kvevict_workspace* w = &grown.value;
  size_t last = 0;
  for (uint32_t n = 0; n <= 3000; n += 100) {
    EXPECT_OK(kvevict_select_workspace(p->context, n, 3, w));
    EXPECT(w->least_bytes >= last, "%zu bytes for %u tokens, %zu for fewer",
           w->least_bytes, n, last);
    EXPECT(w->best_bytes >= w->least_bytes && w->alignment == 64,
           "%zu to %zu bytes", w->least_bytes, w->best_bytes);
    last = w->least_bytes;
  }
  const kvevict_workspace before = *w;
  EXPECT_INVALID(kvevict_select_workspace(NULL, 1, 1, w), "context", "NULL");
  EXPECT_INVALID(kvevict_select_workspace(p->context, 1, 1, NULL), "out",
                 "NULL");
  EXPECT_INVALID(kvevict_select_workspace(p->context, 2147483648u, 1, w),
                 "n_tokens 2147483648");
  cr_assert(memcmp(w, &before, sizeof before) == 0);
  EXPECT_CHECKS_OUT_STRUCT_SIZE(
      grown, kvevict_select_workspace(p->context, 100, 3, w));
  test_plan_destroy(p);
}

/* 4 of 5 slots are sinks and recents. One more fits, wherever it lies. */
Test(select, one_protected_slot_too_many_is_found_at_either_end) {
  const int32_t kPairs[][2] = {{2, 50}, {50, 97}, {2, 97}, {2, 3}, {96, 97}};
  test_plan* p = Plan("custom:budget=5,sink=2,recent=2", 1, 1);
  static const float scores[100];
  for (int i = 0; i < 5; ++i) {
    int32_t keep[5];
    uint32_t n_keep = 0;
    EXPECT_INVALID(
        test_select(p, 0, scores, 100, 100, kPairs[i], 2, keep, 5, &n_keep),
        "2 protected");
    EXPECT_OK(
        test_select(p, 0, scores, 100, 100, kPairs[i], 1, keep, 5, &n_keep));
    EXPECT(keep[2] == kPairs[i][0], "keep[2] is %d", keep[2]);
  }
  test_plan_destroy(p);
}

Test(select, scope_model_selects_for_layer_0_only) {
  test_plan* p = Plan("custom:sink=0,budget=10,scope=model", 2, 1);
  static const float scores[200];
  int32_t keep[10];
  uint32_t n_keep;
  EXPECT_OK(test_select(p, 0, scores, 200, 100, NULL, 0, keep, 10, &n_keep));
  EXPECT_INVALID(
      test_select(p, 1, scores, 200, 100, NULL, 0, keep, 10, &n_keep),
      "layer 1");
  test_plan_destroy(p);
}
