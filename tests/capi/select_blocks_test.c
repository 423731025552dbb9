/* kvevict_select() keeps or drops whole blocks. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/select.h"

enum { kMaxTokens = 600, kMaxHeads = 4, kMaxLayers = 2 };

static test_plan* Plan(const char* policy, uint32_t n_layers,
                       uint32_t n_heads) {
  const kvevict_layer_geometry layer = test_layer(n_heads, n_heads, 8, 8);
  const kvevict_geometry geometry = test_geometry(n_layers, kMaxTokens, &layer);
  return test_plan_create_to_select(policy, &geometry, 2);
}

/* The expected blocks of one head with n scores. */
static void ExpectBlocks(const char* policy, const float* scores, uint32_t n,
                         uint32_t block, const uint32_t* blocks,
                         uint32_t n_blocks) {
  test_plan* p = Plan(policy, 1, 1);
  int32_t keep[kMaxTokens];
  uint32_t n_keep = 0, at = 0;
  EXPECT_OK(test_select(p, 0, scores, scores == NULL ? 0 : n, n, NULL, 0, keep,
                        kMaxTokens, &n_keep));
  for (uint32_t b = 0; b < n_blocks; ++b) {
    for (uint32_t i = blocks[b] * block; i < n && i < (blocks[b] + 1) * block;
         ++i, ++at) {
      EXPECT(at < n_keep && keep[at] == (int32_t)i, "%s: slot %u is not kept",
             policy, i);
    }
  }
  EXPECT(at == n_keep, "%s: %u kept, not %u", policy, n_keep, at);
  test_plan_destroy(p);
}

/* Blocks of 4 have means 1, 3, 2 and 3, and the two slots left have 9. */
static const float kScores[18] = {4, 0, 0, 0, 3, 3, 3, 3, 0,
                                  0, 8, 0, 2, 4, 6, 0, 9, 9};

Test(select_blocks, the_highest_means_stay) {
  ExpectBlocks("custom:sink=0,budget=6,select_block=4", kScores, 18, 4,
               (uint32_t[]){1, 4}, 2);
  ExpectBlocks("custom:sink=0,budget=6,select_block=4,tie=higher", kScores, 18,
               4, (uint32_t[]){3, 4}, 2);
  ExpectBlocks("custom:sink=0,budget=13.9,select_block=4", kScores, 18, 4,
               (uint32_t[]){1, 3, 4}, 3);
  ExpectBlocks("custom:sink=0,budget=14,select_block=4", kScores, 18, 4,
               (uint32_t[]){1, 2, 3, 4}, 4);
  ExpectBlocks("custom:sink=0,budget=0.6,select_block=4", kScores, 18, 4,
               (uint32_t[]){1, 3, 4}, 3);
}

Test(select_blocks, a_last_block_that_is_not_full_stays) {
  float scores[18];
  memcpy(scores, kScores, sizeof scores);
  scores[16] = scores[17] = -INFINITY;
  ExpectBlocks("custom:sink=0,budget=6,select_block=4", scores, 18, 4,
               (uint32_t[]){1, 4}, 2);
  scores[16] = NAN;
  ExpectBlocks("custom:sink=0,budget=0.01,select_block=4", scores, 18, 4,
               (uint32_t[]){4}, 1);
  /* A full block has to win. */
  ExpectBlocks("custom:sink=0,budget=8,select_block=4", kScores, 16, 4,
               (uint32_t[]){1, 3}, 2);
}

Test(select_blocks, what_must_stay_keeps_its_block) {
  ExpectBlocks("custom:budget=10,sink=1,recent=1,select_block=4", kScores, 18,
               4, (uint32_t[]){0, 1, 4}, 3);
  ExpectBlocks("custom:budget=14,sink=5,recent=3,select_block=4", kScores, 18,
               4, (uint32_t[]){0, 1, 3, 4}, 4);
  ExpectBlocks("streaming-llm:sink=3,recent=9,select_block=4", NULL, 18, 4,
               (uint32_t[]){0, 3, 4}, 3);
  test_plan* p = Plan("custom:sink=0,budget=10,select_block=4", 1, 1);
  int32_t keep[10];
  uint32_t n_keep = 0;
  const int32_t protect[] = {9, 11, 16};
  EXPECT_OK(test_select(p, 0, kScores, 18, 18, protect, 3, keep, 10, &n_keep));
  const int32_t expected[] = {4, 5, 6, 7, 8, 9, 10, 11, 16, 17};
  cr_assert_eq(n_keep, 10);
  cr_expect_arr_eq(keep, expected, sizeof expected);
  const int32_t many[] = {1, 9, 13};
  EXPECT_INVALID(
      test_select(p, 0, kScores, 18, 18, many, 3, keep, 10, &n_keep),
      "keep.count 10 of list 0 < n_sink 0 + n_recent 0 + 3 protected slots, in "
      "whole blocks of 4");
  test_plan_destroy(p);
}

Test(select_blocks, nan_is_the_last_block_and_infinity_the_first) {
  float scores[16];
  memcpy(scores, kScores, sizeof scores);
  scores[5] = NAN;
  scores[2] = INFINITY;
  ExpectBlocks("custom:sink=0,budget=8,select_block=4", scores, 16, 4,
               (uint32_t[]){0, 3}, 2);
  ExpectBlocks("custom:sink=0,budget=12,select_block=4", scores, 16, 4,
               (uint32_t[]){0, 2, 3}, 3);
  scores[3] = -INFINITY; /* both are NaN: the lower block wins */
  ExpectBlocks("custom:sink=0,budget=12,select_block=4", scores, 16, 4,
               (uint32_t[]){0, 2, 3}, 3);
  ExpectBlocks("custom:sink=0,budget=12,select_block=4,tie=higher", scores, 16,
               4, (uint32_t[]){1, 2, 3}, 3);
}

/* Sorting gives the same for any scope, ties, NaN, ends, protected slots, lengths. */
Test(select_blocks, agree_with_the_oracle) {
  static const char* const kScopes[] = {"head", "layer", "model"};
  static const char* const kReduces[] = {"mean", "max", "sum"};
  test_random random = test_random_start("select_blocks oracle");
  static float scores[kMaxLayers * kMaxHeads * kMaxTokens];
  static float rows[kMaxLayers * kMaxHeads * kMaxTokens];
  static int32_t keep[kMaxHeads * kMaxTokens];
  uint32_t n_evicting = 0;
  for (int round = 0; round < 1500; ++round) {
    const uint32_t n = test_random_between(&random, 1, kMaxTokens);
    const uint32_t block = test_random_between(&random, 1, 40);
    /* Means of a power of two of small numbers are exact. */
    const uint32_t heads = 1u << test_random_below(&random, 3);
    const uint32_t scope = test_random_below(&random, 3);
    const uint32_t reduce = test_random_below(&random, 3);
    const uint32_t sink = test_random_below(&random, 20);
    const uint32_t recent = test_random_below(&random, 50);
    const bool higher = test_random_coin(&random);
    const uint32_t budget = (sink + block - 1) / block * block + recent +
                            block + test_random_below(&random, 200);
    char text[256];
    snprintf(text, sizeof text,
             "custom:budget=%u,sink=%u,recent=%u,scope=%s,over=%s,tie=%s,"
             "select_block=%u",
             budget, sink, recent, kScopes[scope], kReduces[reduce],
             higher ? "higher" : "lower", block);
    test_plan* p = Plan(text, kMaxLayers, heads);
    const uint32_t n_rows = scope == 2 ? kMaxLayers * heads : heads;
    const uint32_t n_lists = scope == 0 ? heads : 1;
    for (uint32_t i = 0; i < n_rows * n; ++i) {
      scores[i] = (float)test_random_below(&random, 4);
      if (test_random_below(&random, 200) == 0) scores[i] = NAN;
    }
    for (uint32_t l = 0; l < n_lists; ++l) {
      memcpy(rows + (size_t)l * n, scores + (size_t)l * n, n * sizeof *rows);
    }
    if (scope != 0) {
      oracle_combine(scores, n_rows, n, (kvevict_reduce)reduce, rows);
    }
    int32_t protect[2];
    uint32_t n_protect = test_random_below(&random, 3);
    if (n_protect > n) n_protect = n;
    test_random_ascending(&random, protect, n_protect, n);
    uint8_t forced[kMaxTokens];
    for (uint32_t i = 0; i < n; ++i) {
      forced[i] = i < sink || i + recent >= n;
    }
    for (uint32_t i = 0; i < n_protect; ++i) forced[protect[i]] = 1;
    uint32_t n_forced = 0;
    for (uint32_t begin = 0; begin < n; begin += block) {
      uint32_t n_block = n - begin < block ? n - begin : block, stays = 0;
      for (uint32_t i = 0; i < n_block; ++i) stays |= forced[begin + i];
      if (stays || n_block < block) n_forced += n_block;
    }
    uint32_t n_keep = 0;
    const kvevict_status status =
        test_select(p, 0, scores, (size_t)n_rows * n, n, protect, n_protect,
                    keep, sizeof keep / sizeof *keep, &n_keep);
    if (budget < n && n_forced > budget) {
      EXPECT(status == KVEVICT_ERROR_INVALID_ARGUMENT,
             "%s of %u: %u slots must stay", text, n, n_forced);
      test_plan_destroy(p);
      continue;
    }
    EXPECT(status == KVEVICT_OK, "%s: %s", text, kvevict_last_error_message());
    n_evicting += n_keep < n;
    EXPECT(n_keep == n || n_keep <= budget, "%s of %u: %u kept", text, n,
           n_keep);
    for (uint32_t l = 0; l < n_lists; ++l) {
      int32_t expected[kMaxTokens];
      const uint32_t n_expected = oracle_select_blocks(
          rows + (size_t)l * n, n, budget, forced, block,
          higher ? KVEVICT_TIE_HIGHER_POSITION : KVEVICT_TIE_LOWER_POSITION,
          expected);
      EXPECT(n_keep == n_expected && memcmp(keep + (size_t)l * n_keep, expected,
                                            n_keep * sizeof *keep) == 0,
             "%s of %u, list %u: %u slots or others than %u", text, n, l,
             n_keep, n_expected);
    }
    test_plan_destroy(p);
  }
  cr_assert(n_evicting > 700, "only %u rounds evict", n_evicting);
}

Test(select_blocks, counts_that_are_no_whole_blocks_are_errors) {
  test_plan* p = Plan("custom:sink=0,budget=10,select_block=4", 1, 2);
  kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
  EXPECT_OK(kvevict_plan_selection(p->plan, 0, 18, 0, &options, &lists));
  cr_expect_eq(options.select_block, 4);
  cr_expect_eq(lists.count, 10);
  float scores[36] = {0};
  int32_t slots[36];
  uint32_t counts[2] = {6, 10};
  options.scores = scores;
  options.scores_len = 36;
  lists.slots = slots;
  lists.slots_len = 36;
  GUARD(slots);
  lists.count = 9;
  EXPECT_INVALID(
      kvevict_select(p->context, &options, &lists, p->workspace,
                     p->workspace_bytes, NULL),
      "keep.count 9 of list 0: 18 slots minus 9 are not whole blocks "
      "of select_block 4");
  lists.count = 10;
  lists.counts = counts;
  counts[1] = 8;
  EXPECT_INVALID(kvevict_select(p->context, &options, &lists, p->workspace,
                                p->workspace_bytes, NULL),
                 "keep.count 8 of list 1", "select_block 4");
  EXPECT_UNTOUCHED(slots);
  /* Each list has a last block of its own if lengths differ. */
  const uint32_t tokens[2] = {18, 16};
  options.token_counts = tokens;
  EXPECT_OK(kvevict_select(p->context, &options, &lists, p->workspace,
                           p->workspace_bytes, NULL));
  const int32_t first[] = {0, 1, 2, 3, 16, 17};
  const int32_t second[] = {0, 1, 2, 3, 4, 5, 6, 7};
  cr_expect_arr_eq(slots, first, sizeof first);
  cr_expect_arr_eq(slots + 10, second, sizeof second);
  test_plan_destroy(p);
}

/* A budget in tokens must leave room for whole blocks at any length. */
Test(select_blocks, budgets_without_room_for_blocks_are_errors) {
  EXPECT_NO_POLICY("custom:sink=0,budget=19,select_block=20",
                   "select_block 20 > budget 19");
  EXPECT_NO_POLICY(
      "custom:budget=50,sink=4,recent=12,select_block=20",
      "sink 20 in whole blocks + recent 12 + select_block 20 - 1 > budget 50");
  const kvevict_policy* policy =
      test_policy("custom:budget=51,sink=4,recent=12,select_block=20");
  kvevict_resolved_policy resolved = {.struct_size = sizeof resolved};
  for (uint32_t n = 16; n < 200; ++n) {
    EXPECT_OK(kvevict_policy_resolve(policy, n, &resolved));
    EXPECT(n <= 51 || (resolved.budget <= 51 && resolved.n_sink == 20 &&
                       resolved.n_recent >= 12 && resolved.n_recent <= 31 &&
                       (n - resolved.n_recent) % 20 == 0),
           "%u tokens: budget %u, sink %u, recent %u", n, resolved.budget,
           resolved.n_sink, resolved.n_recent);
  }
}
