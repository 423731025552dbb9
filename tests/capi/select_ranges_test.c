/* kvevict_select() with ranges that go later or sooner than others. */
#include <math.h>
#include <stdlib.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/ranges.h"
#include "tests/oracle/select.h"

enum { kMaxTokens = 400, kMaxLists = 4, kWorkspace = 1 << 16 };

static kvevict_context* Context(void) {
  kvevict_context* const context = test_context();
  return context;
}

static _Alignas(64) uint8_t workspace[kWorkspace];

/* Keeps n_keep of one list of n scores. */
static kvevict_status Select(const float* scores, uint32_t n, uint32_t n_keep,
                             const kvevict_token_range* ranges, size_t n_ranges,
                             int32_t* keep) {
  kvevict_context* context = Context();
  kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
  options.n_tokens = n;
  options.scores = scores;
  options.scores_len = n;
  options.ranges = ranges;
  options.ranges_len = n_ranges;
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
  lists.n_lists = 1;
  lists.slots = keep;
  lists.slots_len = lists.count = n_keep;
  const kvevict_status status =
      kvevict_select(context, &options, &lists, workspace, kWorkspace, NULL);
  return status;
}

static kvevict_token_range Range(uint32_t first, uint32_t end, int32_t rank) {
  return (kvevict_token_range){sizeof(kvevict_token_range), rank, first, end};
}

/* Higher ranks stay first. Scores decide within a rank. */
Test(select_ranges, rank_comes_before_score) {
  const float scores[8] = {9, NAN, INFINITY, 1, 3, -INFINITY, NAN, 2};
  const kvevict_token_range ranges[] = {Range(0, 2, -1), Range(5, 7, 1)};
  static const int32_t kOrder[8] = {5, 6, 2, 4, 7, 3, 0, 1};
  for (uint32_t n_keep = 1; n_keep <= 8; ++n_keep) {
    int32_t keep[8];
    EXPECT_OK(Select(scores, 8, n_keep, ranges, 2, keep));
    uint32_t n = 0;
    for (int32_t slot = 0; slot < 8; ++slot) {
      for (uint32_t i = 0; i < n_keep; ++i) {
        if (kOrder[i] != slot) continue;
        EXPECT(keep[n] == slot, "%u kept: %d is not %d", n_keep, keep[n], slot);
        ++n;
      }
    }
  }
}

/* Ranges that cover everything, or nothing held, change nothing. */
Test(select_ranges, one_rank_for_all_is_none) {
  const float scores[6] = {1, 5, 2, 5, NAN, 3};
  const int32_t expected[3] = {1, 3, 5};
  const kvevict_token_range all[] = {Range(0, UINT32_MAX, -7)};
  const kvevict_token_range outside[] = {Range(2, 2, 9), Range(6, 600, 9)};
  int32_t keep[3];
  EXPECT_OK(Select(scores, 6, 3, all, 1, keep));
  cr_expect_arr_eq(keep, expected, sizeof expected);
  EXPECT_OK(Select(scores, 6, 3, outside, 2, keep));
  cr_expect_arr_eq(keep, expected, sizeof expected);
}

/* Sorting gives the same for unequal lists, blocks, ends, protected slots and ties. */
Test(select_ranges, agree_with_the_oracle) {
  test_random random = test_random_start("select_ranges oracle");
  kvevict_context* context = Context();
  static const float kSpecials[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f};
  uint32_t n_differing = 0;
  for (int round = 0; round < 4000; ++round) {
    const uint32_t n = test_random_between(&random, 1, kMaxTokens);
    const uint32_t block =
        test_random_coin(&random) ? 1 : test_random_between(&random, 2, 30);
    const uint32_t n_lists = test_random_between(&random, 1, kMaxLists);
    const bool has_scores = test_random_below(&random, 8) != 0;
    const test_ranges ranges =
        test_random_ranges(&random, round % 50 == 0 ? 64 : 6, n);
    static float scores[kMaxLists * kMaxTokens];
    static int32_t keep[kMaxLists * kMaxTokens];
    uint32_t tokens[kMaxLists], counts[kMaxLists];
    uint8_t forced[kMaxLists][kMaxTokens];
    for (uint32_t i = 0; i < n_lists * n; ++i) {
      scores[i] = (float)test_random_below(&random, 5) - 1.0f;
      if (test_random_below(&random, 9) == 0) {
        scores[i] = kSpecials[test_random_below(&random, 5)];
      }
    }
    int32_t protect[3];
    uint32_t n_protect = test_random_below(&random, 4);
    if (n_protect > n) n_protect = n;
    test_random_ascending(&random, protect, n_protect, n);
    kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
    options.n_tokens = n;
    options.token_counts = tokens;
    options.scores = has_scores ? scores : NULL;
    options.scores_len = has_scores ? (size_t)n_lists * n : 0;
    options.n_sink = test_random_below(&random, 5);
    options.n_recent = test_random_below(&random, 5);
    options.tie = test_random_coin(&random) ? KVEVICT_TIE_LOWER_POSITION
                                            : KVEVICT_TIE_HIGHER_POSITION;
    options.select_block = block;
    options.protected_slots = protect;
    options.protected_slots_len = n_protect;
    options.ranges = ranges.of;
    options.ranges_len = ranges.n;
    for (uint32_t l = 0; l < n_lists; ++l) {
      tokens[l] = l == 0 ? n : test_random_between(&random, 1, n);
      uint32_t n_stay = 0;
      for (uint32_t i = 0; i < tokens[l]; ++i) {
        forced[l][i] = i < options.n_sink || i + options.n_recent >= tokens[l];
        for (uint32_t j = 0; j < n_protect; ++j) {
          forced[l][i] |= (uint32_t)protect[j] == i;
        }
      }
      for (uint32_t i = 0; i < tokens[l]; i += block) {
        const uint32_t end = i + block < tokens[l] ? i + block : tokens[l];
        bool stays = end - i < block;
        for (uint32_t j = i; j < end; ++j) stays = stays || forced[l][j];
        if (stays) n_stay += end - i;
      }
      const uint32_t n_blocks = (tokens[l] - n_stay) / block;
      counts[l] = n_stay + test_random_between(&random, 0, n_blocks) * block;
    }
    kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
    lists.n_lists = n_lists;
    lists.slots = keep;
    lists.slots_len = (size_t)n_lists * n;
    lists.list_stride = n;
    lists.count = n;
    lists.counts = counts;
    EXPECT_OK(
        kvevict_select(context, &options, &lists, workspace, kWorkspace, NULL));
    for (uint32_t l = 0; l < n_lists; ++l) {
      int32_t ranks[kMaxTokens], expected[kMaxTokens], plain[kMaxTokens];
      const int32_t none[kMaxTokens] = {0};
      for (uint32_t i = 0; i < tokens[l]; ++i) {
        ranks[i] = test_rank_of(&ranges, i);
      }
      const float* row = has_scores ? scores + (size_t)l * n : NULL;
      oracle_select_ranked(row, ranks, tokens[l], counts[l], forced[l], block,
                           options.tie, expected);
      oracle_select_ranked(row, none, tokens[l], counts[l], forced[l], block,
                           options.tie, plain);
      n_differing += memcmp(expected, plain, counts[l] * sizeof *plain) != 0;
      EXPECT(
          memcmp(keep + (size_t)l * n, expected, counts[l] * sizeof *keep) == 0,
          "round %d, list %u: not the oracle's choice of %u of %u", round, l,
          counts[l], tokens[l]);
    }
  }
  cr_expect_gt(n_differing, 3000u);
}

Test(select_ranges, wrong_ones_are_errors) {
  float scores[8] = {0};
  int32_t keep[4];
  GUARD(keep);
  kvevict_token_range ranges[65];
  for (uint32_t i = 0; i < 65; ++i) ranges[i] = Range(i, i + 1, 1);
  EXPECT_INVALID(Select(scores, 8, 4, ranges, 65, keep), "ranges[64]",
                 "more than 64");
  EXPECT_INVALID(Select(scores, 8, 4, NULL, 1, keep), "ranges", "NULL");
  ranges[1] = Range(0, 2, 0);
  EXPECT_INVALID(Select(scores, 8, 4, ranges, 2, keep),
                 "ranges[1]: first 0 < 1, the end of the range before");
  ranges[1] = Range(5, 4, 0);
  EXPECT_INVALID(Select(scores, 8, 4, ranges, 2, keep),
                 "ranges[1]: first 5 > end 4");
  ranges[0].struct_size = 12;
  EXPECT_INVALID(Select(scores, 8, 4, ranges, 1, keep), "ranges[0]", "12");
  EXPECT_UNTOUCHED(keep);
  ranges[0] = Range(7, 8, 1);
  EXPECT_OK(Select(scores, 8, 4, ranges, 1, keep));
  cr_expect_eq(keep[3], 7);
}
