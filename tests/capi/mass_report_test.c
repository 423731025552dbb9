/* kvevict_sequence_report() says which share of the mass each list keeps. */
#include <math.h>

#include "tests/capi/support/choice.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/ranges.h"

enum { kMaxTokens = 400, kHeads = 2, kLayers = 2, kMostLists = 4 };

static test_model* Model(const char* policy, uint32_t report_mass) {
  test_model_spec spec = test_small_model(policy);
  spec.max_tokens = kMaxTokens;
  spec.max_positions = 2 * kMaxTokens;
  spec.report_mass = report_mass;
  return test_model_create(&spec, (test_random){5});
}

static uint32_t Ask(const test_model* m, kvevict_list_report* lists) {
  kvevict_layer_info info = {.struct_size = sizeof info};
  EXPECT_OK(kvevict_plan_layer(m->plan, kLayers - 1, &info));
  const uint32_t n = info.first_list + info.n_lists;
  for (uint32_t i = 0; i < n; ++i) {
    lists[i] = (kvevict_list_report)KVEVICT_LIST_REPORT_INIT;
  }
  EXPECT_OK(kvevict_sequence_report(m->sequence, NULL, lists, n));
  return n;
}

/* All lists report the same. */
static void ExpectAll(const test_model* m, float kept, float largest,
                      const char* what) {
  kvevict_list_report lists[kMostLists];
  const uint32_t n = Ask(m, lists);
  for (uint32_t i = 0; i < n; ++i) {
    EXPECT(isnan(kept) ? isnan(lists[i].mass_kept) &&
                             isnan(lists[i].largest_mass_evicted)
                       : lists[i].mass_kept == kept &&
                             lists[i].largest_mass_evicted == largest,
           "%s: list %u kept %g, and lost %g", what, i,
           (double)lists[i].mass_kept, (double)lists[i].largest_mass_evicted);
  }
}

/* Scores are quarters, so that sums are exact. */
static float RandomScore(test_random* random, bool below_zero) {
  switch (test_random_below(random, 20)) {
    case 0:
      return NAN;
    case 1:
      return INFINITY;
    case 2:
      return -INFINITY;
    case 3:
      return below_zero ? -0.25f : -0.0f;
    default:
      return (float)test_random_below(random, 100) / 4.0f;
  }
}

/* Checks the list of a layer and head by what it holds now. */
static void ExpectMass(const test_model* m, const test_choice_head* head,
                       uint32_t l, uint32_t h, const kvevict_list_report* told,
                       const char* what) {
  const oracle_policy* p = &m->policy;
  const uint32_t n = head->n;
  const double* scores = head->scores;
  int32_t positions[kMaxTokens];
  test_model_positions(m, l, h, positions);
  const uint32_t n_now = test_model_stored_of(m, l, h);
  double all = 0.0, kept = 0.0, largest = 0.0;
  bool below_zero = false;
  uint32_t next = 0;
  const uint32_t chunk = p->chunk == 0 ? n : p->chunk;
  for (uint32_t begin = 0; begin < n; begin += chunk) {
    const uint32_t end = begin + chunk < n ? begin + chunk : n;
    double of_all = 0.0, of_kept = 0.0;
    const uint32_t first = next;
    bool of_below = false;
    for (uint32_t i = begin; i < end; ++i) {
      const bool stays = next < n_now && positions[next] == head->positions[i];
      next += stays;
      if (!isfinite(scores[i])) continue;
      of_below = of_below || scores[i] < 0.0;
      of_all += scores[i];
      if (stays) of_kept += scores[i];
      if (!stays) largest = fmax(largest, scores[i]);
    }
    /* A chunk that keeps everything is not scored. */
    if (p->chunk != 0 && next - first == end - begin) continue;
    all += of_all, kept += of_kept, below_zero = below_zero || of_below;
  }
  const bool loses = told->tokens_after < told->tokens_before;
  if (loses && below_zero) {
    EXPECT(isnan(told->mass_kept) && isnan(told->largest_mass_evicted),
           "%s: layer %u, head %u: a mass below 0", what, l, h);
    return;
  }
  if (!loses && below_zero) return; /* other lists of its layer may lose some */
  const float share = all == 0.0 ? 1.0f : (float)kept / (float)all;
  const float lost = all == 0.0 ? 0.0f : (float)largest / (float)all;
  EXPECT(told->mass_kept == share && told->largest_mass_evicted == lost,
         "%s: layer %u, head %u: %.9g and %.9g, not %.9g and %.9g", what, l, h,
         (double)told->mass_kept, (double)told->largest_mass_evicted,
         (double)share, (double)lost);
}

static void Evict(test_model* m, test_random* random, const char* what) {
  static test_given given;
  static test_choice choice;
  const bool below_zero = test_random_below(random, 6) == 0;
  float* scores = given.scores[0][0];
  for (size_t i = 0; i < sizeof given.scores / sizeof *scores; ++i) {
    scores[i] = RandomScore(random, below_zero);
  }
  const test_ranges ranges = test_random_ranges(random, 3, m->n_seen);
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_give(&given, kLayers, &options);
  test_choose(m, &options, &given, NULL, &choice);
  options.ranges = ranges.of;
  options.ranges_len = ranges.n;
  EXPECT_OK(test_model_evict(m, &options, NULL));
  kvevict_list_report lists[kMostLists];
  const uint32_t n = Ask(m, lists);
  for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
    const uint32_t l = i / kHeads, h = i % kHeads;
    ExpectMass(m, &choice.heads[l][h], l, h, &lists[n == 2 ? l : i], what);
  }
}

Test(report_mass, is_of_the_scores_that_lists_were_chosen_by) {
  test_random random = test_random_start("report_mass");
  static const char* const kScopes[] = {"head", "layer", "model"};
  static const char* const kMore[] = {"",
                                      ",select_block=8",
                                      ",chunk=96",
                                      ",heads=adaptive",
                                      ",heads=threshold,threshold=9",
                                      ",merge=values"};
  for (int round = 0; round < 160; ++round) {
    const uint32_t more = test_random_below(&random, 6);
    const uint32_t scope =
        more == 3 || more == 4 ? 0 : test_random_below(&random, 3);
    char text[192];
    snprintf(text, sizeof text,
             "custom:budget=%u,recent=%u,scope=%s,over=sum%s",
             test_random_between(&random, 40, 200),
             test_random_below(&random, 5), kScopes[scope], kMore[more]);
    test_model_spec spec = test_small_model(text);
    spec.max_tokens = kMaxTokens;
    spec.max_positions = 2 * kMaxTokens;
    spec.report_mass = 1;
    spec.n_threads = 1 + test_random_below(&random, 3);
    const uint32_t budgets[] = {40, 300, 120, 77};
    if (more < 2 && scope == 0 && test_random_coin(&random)) {
      spec.head_budgets = budgets;
    }
    test_model* m = test_model_create(&spec, random);
    test_model_append(m, test_random_between(&random, 210, 300));
    for (int i = 0; i < 2; ++i) {
      Evict(m, &random, text);
      test_model_append(m, 40);
    }
    test_model_destroy(m);
  }
}

/* The oracle's weights give the mass without the window's own tokens, up to the
 * rounding of some 100 products and sums. */
Test(report_mass, of_attention_leaves_the_window_out) {
  test_model* m = Model("snapkv:budget=60,window=8,pool=none", 1);
  test_model_step(m, 190);
  static double scores[kHeads * kMaxTokens];
  test_model_oracle_scores(m, 1, scores);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  kvevict_list_report lists[kMostLists];
  cr_assert_eq(Ask(m, lists), 4);
  for (uint32_t h = 0; h < kHeads; ++h) {
    int32_t positions[kMaxTokens];
    test_model_positions(m, 1, h, positions);
    double all = 0.0, kept = 0.0, largest = 0.0;
    for (uint32_t i = 0, next = 0; i < 190 - 8; ++i) {
      const double score = scores[h * 190 + i];
      const bool stays = positions[next] == (int32_t)i;
      next += stays;
      all += score;
      if (stays) kept += score;
      if (!stays) largest = fmax(largest, score);
    }
    EXPECT(
        fabs((double)lists[2 + h].mass_kept - kept / all) < 1e-5 &&
            fabs((double)lists[2 + h].largest_mass_evicted - largest / all) <
                1e-5,
        "head %u: %g and %g, not %g and %g", h, (double)lists[2 + h].mass_kept,
        (double)lists[2 + h].largest_mass_evicted, kept / all, largest / all);
    EXPECT(kept / all > 0.05 && kept / all < 0.95, "%g", kept / all);
  }
  test_model_destroy(m);
}

Test(report_mass, is_unknown_where_nothing_is_measured) {
  static const struct {
    const char* policy;
    uint32_t report_mass;
  } kCases[] = {{"snapkv:budget=60,window=8", 0},
                {"knorm:budget=60", 1},
                {"keydiff:budget=60", 1},
                {"random:budget=60", 1},
                {"streaming-llm:budget=60", 1},
                {"r-kv:budget=60", 1},
                {"none", 1}};
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
    test_model* m = Model(kCases[i].policy, kCases[i].report_mass);
    test_model_step(m, 90);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    ExpectAll(m, NAN, NAN, kCases[i].policy);
    test_model_destroy(m);
  }
}

Test(report_mass, of_what_loses_nothing_is_whole) {
  test_model* m = Model("snapkv:budget=60,window=8", 1);
  ExpectAll(m, NAN, NAN, "before any eviction");
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  ExpectAll(m, 1.0f, 0.0f, "of nothing");
  test_model_step(m, 50);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  ExpectAll(m, 1.0f, 0.0f, "within the budget");
  EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
  ExpectAll(m, NAN, NAN, "reset");
  test_model_destroy(m);
}

Test(report_mass, options_are_checked) {
  test_model* m = Model("snapkv:budget=60,window=8", 0);
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  kvevict_plan* plan = NULL;
  options.report_mass = 2;
  EXPECT_INVALID(kvevict_plan_create(m->context, &m->geometry, m->policy_handle,
                                     &options, &plan),
                 "report_mass 2 is not 0 or 1");
  cr_assert_null(plan);
  test_model_destroy(m);
}
