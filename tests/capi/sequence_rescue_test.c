/* Rescue: blocks that would go stay on top of the budget. */
#include <string.h>

#include "tests/capi/support/attention.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/policies.h"

enum { kSlots = 100, kBlock = 8 };

static test_model* Evicted(const char* policy, const char* keys,
                           uint32_t n_tokens, kvevict_status* status) {
  char text[256];
  snprintf(text, sizeof text, "%s,select_block=8%s", policy, keys);
  test_model* m = test_model_of(text, n_tokens);
  test_model_step(m, n_tokens);
  const int32_t protected[] = {33};
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.protected_positions = protected;
  options.protected_positions_len = 1;
  *status = test_model_evict(m, &options, NULL);
  return m;
}

/* The tokens kept without rescue stay, and as many whole blocks more. */
static void ExpectMore(const test_model* plain, const test_model* m,
                       uint32_t n_rescued, const char* what) {
  int32_t without[kSlots], with[kSlots];
  for (uint32_t l = 0; l < 2; ++l) {
    for (uint32_t h = 0; h < 2; ++h) {
      const uint32_t n_without = test_model_stored_of(plain, l, h);
      const uint32_t n_with = test_model_stored_of(m, l, h);
      const uint32_t n_go = (plain->n_seen - n_without) / kBlock;
      const uint32_t n_more = n_go >= n_rescued ? n_rescued * kBlock : 0;
      EXPECT(n_with == n_without + n_more, "%s: %u tokens, not %u", what,
             n_with, n_without + n_more);
      test_model_positions(plain, l, h, without);
      test_model_positions(m, l, h, with);
      for (uint32_t i = 0, j = 0; i < n_without; ++i, ++j) {
        while (j < n_with && with[j] < without[i]) ++j;
        EXPECT(j < n_with && with[j] == without[i], "%s: %d has gone", what,
               without[i]);
      }
    }
  }
  test_model_check(m, what);
}

Test(rescue, blocks_stay_on_top_of_the_budget_behind_any_scores) {
  static const char* const kPolicies[] = {
      "knorm:budget=40,sink=3,recent=5",
      "snapkv:budget=48,window=4,pool=avg3,scope=layer",
      "random:budget=0.4,scope=model,tie=higher",
      "keydiff:budget=40,split=geometric,alpha=0.7",
      "knorm:budget=40,margin=7,redundancy=0.5"};
  static const char* const kAnchors[] = {"mean", "zeros", "ones", "alternating",
                                         "random"};
  for (uint32_t p = 0; p < 5; ++p) {
    for (uint32_t n_tokens = 61; n_tokens <= 97; n_tokens += 9) {
      kvevict_status status;
      test_model* plain = Evicted(kPolicies[p], "", n_tokens, &status);
      EXPECT_OK(status);
      for (uint32_t rescue = 1; rescue <= 5; ++rescue) {
        char keys[64];
        snprintf(keys, sizeof keys, ",rescue=%u,anchor=%s", rescue,
                 kAnchors[(p + n_tokens + rescue) % 5]);
        test_model* m = Evicted(kPolicies[p], keys, n_tokens, &status);
        EXPECT_OK(status);
        ExpectMore(plain, m, rescue, keys);
        test_model* again = Evicted(kPolicies[p], keys, n_tokens, &status);
        test_expect_same_tokens(m, again, keys);
        test_model_destroy(m);
        test_model_destroy(again);
      }
      test_model_destroy(plain);
    }
  }
}

/* By hand: 1 of 4 blocks of 4 stays between one sink and one recent block. 8 of 16 are
 * marked: all of block 1, two each of blocks 2 and 3. The best block by rank and then score
 * stays; rescue takes others whatever their rank. */
Test(rescue, the_nearest_to_the_anchor_and_every_so_manyth_after_it_stay) {
  static const float kScores[24] = {0, 0, 0, 0, 9, 9, 9, 9, 5, 5, 1, 1,
                                    6, 1, 6, 1, 1, 1, 1, 1, 0, 0, 0, 0};
  static const struct {
    const char* anchor;
    uint32_t n_rescued;
    int32_t stay[3]; /* first slots of blocks */
    kvevict_token_range range;
  } kCases[] = {
#define RANGE(rank, first, end) \
  {(uint32_t)sizeof(kvevict_token_range), rank, first, end}
      {"zeros", 1, {4, 16}, RANGE(0, 0, 0)},
      {"ones", 1, {4, 8}, RANGE(0, 0, 0)},
      {"alternating", 1, {4, 8}, RANGE(0, 0, 0)},
      {"mean", 1, {4, 8}, RANGE(0, 0, 0)},
      {"zeros", 2, {4, 8, 16}, RANGE(0, 0, 0)},
      {"ones", 2, {4, 8, 12}, RANGE(0, 0, 0)},
      {"zeros", 1, {4, 16}, RANGE(-1, 16, 20)},
      {"zeros", 1, {4, 16}, RANGE(-5, 4, 20)},
      {"zeros", 1, {12, 16}, RANGE(1, 12, 13)},
      {"ones", 1, {4, 12}, RANGE(1, 12, 16)},
      {"ones", 1, {4, 12}, RANGE(-1, 4, 8)},
#undef RANGE
  };
  for (uint32_t i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
    char text[200];
    snprintf(text, sizeof text,
             "custom:budget=15,sink=4,recent=4,select_block=4,scope=layer,"
             "rescue=%u,anchor=%s",
             kCases[i].n_rescued, kCases[i].anchor);
    test_model* m = test_model_of(text, 1);
    test_model_append(m, 24);
    float scores[2 * 24];
    memcpy(scores, kScores, sizeof kScores);
    memcpy(scores + 24, kScores, sizeof kScores);
    test_inputs inputs;
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    test_give_scores(&options, &inputs, 2, scores, 0, 24);
    options.ranges = &kCases[i].range;
    options.ranges_len = kCases[i].range.end > 0;
    EXPECT_OK(test_model_evict(m, &options, NULL));
    const uint32_t n = kCases[i].n_rescued;
    int32_t positions[kSlots];
    EXPECT(test_model_stored(m, 0) == 12 + 4 * n, "%s: %u slots", text,
           test_model_stored(m, 0));
    test_model_positions(m, 0, 0, positions);
    for (uint32_t k = 0; k <= n; ++k) {
      EXPECT(positions[4 + 4 * k] == kCases[i].stay[k],
             "case %u: block %u is that at %d", i, k, positions[4 + 4 * k]);
    }
    test_model_destroy(m);
  }
}

/* A margin is on top of all that stays, with the rescued blocks. */
Test(rescue, margin_counts_what_is_rescued) {
  for (uint32_t n = 29; n <= 37; n += 4) {
    test_model* m = test_model_of(
        "knorm:budget=20,sink=1,select_block=4,scope=layer,margin=8,rescue=2",
        1);
    test_model_append(m, n);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    const uint32_t want = n <= 25 + 8 ? n : 25;
    EXPECT(test_model_stored(m, 0) == want, "%u tokens: %u stay", n,
           test_model_stored(m, 0));
    test_model_destroy(m);
  }
}

Test(rescue, what_does_not_go_together_is_refused) {
  kvevict_policy* policy = test_policy("knorm:budget=40");
  EXPECT_OK(kvevict_policy_set_number(policy, "rescue", 2));
  EXPECT_INVALID(kvevict_policy_validate(policy), "rescue 2", "select_block");
  EXPECT_OK(kvevict_policy_set_number(policy, "select_block", 8));
  EXPECT_OK(kvevict_policy_validate(policy));
  /* Scores that were divided cannot give the sums back. */
  test_model* m = test_model_of(
      "h2o:budget=40,recent=4,select_block=8,scope=layer,rows=mean,rescue=1",
      1);
  static test_attention attention;
  test_random random = {1};
  test_attention_draw(&attention, 2, 80, &random);
  for (uint32_t l = 0; l < 2; ++l) {
    EXPECT_OK(test_attention_observe(m->sequence, l, &attention, 80, 0));
  }
  test_model_append(m, 80);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0", "rescue 1",
                 "one row", "not in 2");
  test_model_destroy(m);
}
