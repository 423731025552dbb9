/* Models whose layers differ. A layer whose tokens depend on itself alone must come
 * out as in a model of equal layers. */
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/copies.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/mixed.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/compact.h"
#include "tests/oracle/select.h"

enum { kTokens = TEST_MIXED_TOKENS, kHeads = TEST_MIXED_HEADS };

/* ---- Against models of equal layers ---- */

static float given_scores[TEST_MAX_LAYERS][kHeads][kTokens];

static void DrawScores(test_random* random) {
  float* scores = given_scores[0][0];
  for (size_t i = 0; i < sizeof given_scores / sizeof *scores; ++i) {
    scores[i] = (float)((int)test_random_below(random, 60) - 30) / 4.0f;
  }
}

/* Uses the scores as attention sums, too: a row per KV head. */
static void GiveAsSums(kvevict_signal_inputs* inputs, uint32_t n_kv_heads) {
  inputs->attention_sums = inputs->scores;
  inputs->n_sum_heads = n_kv_heads;
}

/* Gives the mixed model its scores, and layers without a full cache none. */
static void GiveScores(const test_mixed* m, kvevict_evict_options* options,
                       test_inputs* inputs) {
  test_give_scores(options, inputs, m->n_layers, given_scores[0][0],
                   kHeads * kTokens, kTokens);
  for (uint32_t l = 0; l < m->n_layers; ++l) {
    if (test_mixed_is_full(m, l)) {
      GiveAsSums(&inputs->inputs[l], m->layers[l].n_kv_heads);
    } else {
      inputs->inputs[l].scores = NULL;
    }
  }
}

static uint32_t Room(const test_mixed* m) {
  uint32_t longest = 0;
  for (uint32_t l = 0; l < m->n_layers; ++l) {
    if (m->alike[l] == NULL) continue;
    const uint32_t n = test_model_stored(m->alike[l], l);
    if (n > longest) longest = n;
  }
  return kTokens - longest;
}

/* The mixed model's report has the lists of the models beside it, and the sums over
 * them. */
static void ExpectReport(const test_mixed* m, const char* what) {
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  kvevict_evict_report sum = KVEVICT_EVICT_REPORT_INIT;
  kvevict_list_report lists[TEST_MAX_LAYERS * kHeads];
  kvevict_list_report beside[TEST_MAX_LAYERS * kHeads];
  uint32_t n_lists = 0;
  for (int i = 0; i < TEST_MAX_LAYERS * kHeads; ++i) {
    lists[i] = beside[i] = (kvevict_list_report)KVEVICT_LIST_REPORT_INIT;
  }
  for (uint32_t l = 0; l < m->n_layers; ++l) {
    kvevict_layer_info info = {.struct_size = sizeof info};
    EXPECT_OK(kvevict_plan_layer(m->plan, l, &info));
    EXPECT(info.first_list == n_lists, "%s: layer %u: first list %u", what, l,
           info.first_list);
    n_lists += info.n_lists;
  }
  EXPECT_OK(kvevict_sequence_report(m->sequence, &report, lists, n_lists));
  uint32_t at = 0;
  for (uint32_t l = 0; l < m->n_layers; ++l) {
    const test_model* alike = m->alike[l];
    if (alike == NULL) continue;
    kvevict_layer_info info = {.struct_size = sizeof info};
    EXPECT_OK(kvevict_plan_layer(alike->plan, l, &info));
    EXPECT_OK(kvevict_sequence_report(alike->sequence, NULL, beside,
                                      info.first_list + info.n_lists));
    uint64_t most_before = 0, most_after = 0, before = 0, after = 0;
    for (uint32_t i = 0; i < info.n_lists; ++i, ++at) {
      const kvevict_list_report* want = &beside[info.first_list + i];
      EXPECT(lists[at].layer == l &&
                 lists[at].tokens_before == want->tokens_before &&
                 lists[at].tokens_after == want->tokens_after,
             "%s: list %u is of layer %u, %u to %u", what, at, lists[at].layer,
             lists[at].tokens_before, lists[at].tokens_after);
      if (want->tokens_before > most_before) most_before = want->tokens_before;
      if (want->tokens_after > most_after) most_after = want->tokens_after;
      before += want->tokens_before;
      after += want->tokens_after;
    }
    const uint64_t row = test_model_row_bytes(alike, l) *
                         (uint64_t)(info.n_kv_heads / info.n_lists);
    sum.tokens_before += most_before;
    sum.tokens_after += most_after;
    sum.bytes_before += row * before;
    sum.bytes_after += row * after;
    sum.evicted |= before != after;
  }
  EXPECT(at == n_lists, "%s: %u lists, not %u", what, n_lists, at);
  sum.blocks_freed = report.blocks_freed; /* only some layouts count blocks */
  EXPECT(memcmp(&report, &sum, sizeof sum) == 0,
         "%s: %llu to %llu tokens, %llu to %llu bytes", what,
         (unsigned long long)report.tokens_before,
         (unsigned long long)report.tokens_after,
         (unsigned long long)report.bytes_before,
         (unsigned long long)report.bytes_after);
}

/* Evicts the mixed model and those beside it. */
static void EvictAll(test_mixed* m, test_random* random, const char* what) {
  int32_t protect[3];
  test_inputs inputs, beside;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  uint32_t n_seen = 0;
  for (uint32_t l = 0; l < m->n_layers; ++l) {
    if (m->alike[l] != NULL) n_seen = m->alike[l]->n_seen;
  }
  options.protected_positions_len = test_random_below(random, 4);
  options.protected_positions = protect;
  test_random_ascending(random, protect,
                        (uint32_t)options.protected_positions_len, n_seen);
  kvevict_evict_options alone = options;
  const bool given =
      strncmp(what, "custom", 6) == 0 || strncmp(what, "h2o", 3) == 0;
  const bool has_statistics =
      strncmp(what, "expected", 8) == 0 || strstr(what, "weight=given") != NULL;
  kvevict_plane statistics[TEST_MAX_LAYERS][3];
  if (given || has_statistics) {
    DrawScores(random);
    GiveScores(m, &options, &inputs);
  }
  for (uint32_t l = 0; has_statistics && l < m->n_layers; ++l) {
    if (!test_mixed_is_full(m, l)) continue;
    test_give_statistics(&m->layers[l], l, kTokens, statistics[l],
                         &inputs.inputs[l]);
  }
  EXPECT_OK(test_mixed_evict(m, &options, random));
  for (uint32_t l = 0; l < m->n_layers; ++l) {
    if (m->alike[l] == NULL) continue;
    if (given || has_statistics) {
      test_give_scores(&alone, &beside, l + 1, given_scores[l][0], 0, kTokens);
      for (uint32_t i = 0; i <= l; ++i) {
        GiveAsSums(&beside.inputs[i], m->layers[l].n_kv_heads);
      }
    }
    for (uint32_t k = 0; has_statistics && k <= l; ++k) {
      test_give_statistics(&m->layers[l], l, kTokens, statistics[k],
                           &beside.inputs[k]);
    }
    EXPECT_OK(test_model_evict(m->alike[l], &alone, NULL));
    test_mixed_expect_alike(m, l, what);
  }
  ExpectReport(m, what);
}

typedef struct layers_kind {
  const char* policy;
  bool opaque; /* rows need not be read */
} layers_kind;

static const layers_kind kKinds[] = {
    {"snapkv:budget=40,window=8,sink=2", false},
    {"snapkv:budget=45,window=4,scope=layer,over=max,pool=max5,"
     "order=pool-reduce",
     false},
    {"knorm:sink=0,budget=40,recent=3", false},
    {"knorm:sink=0,budget=0.4,scope=layer", false},
    {"lagkv:budget=40,block=9", false},
    {"lagkv:budget=0.4,block=9,of=partition,ranks=no", false},
    {"h2o:budget=40,recent=3", true},
    {"h2o:budget=0.4,recent=3,rows=mean,group=max,scope=layer", true},
    {"cur:budget=40,recent=3,block=5", false},
    {"keydiff:sink=0,budget=40,recent=3", false},
    {"keydiff:sink=0,budget=0.4,recent=3,block=7", false},
    {"streaming-llm:budget=30", true},
    {"custom:budget=35,sink=1,tie=higher,pool=max3", true},
    {"custom:sink=0,budget=35,scope=layer,over=sum", true},
    {"random:budget=30,sink=2,seed=5", true},
    {"random:sink=0,budget=0.3,scope=layer", true},
    {"custom:sink=0,budget=35,weight=given,epsilon=0.5", true},
    {"random:sink=0,budget=35,weight=given", true},
    {"expected-attention:budget=35,weight=none", false},
    {"expected-attention:budget=35,scope=layer,over=max,weight=given,pool=max5,"
     "order=pool-reduce",
     false},
    {"r-kv:budget=40", false},
    {"keydiff:sink=0,budget=40,redundancy=0.5,scope=layer", false},
    {"custom:sink=0,budget=35,weight=given,redundancy=0.9,similarity=0.3",
     false},
    {"none", true},
};
enum { kNKinds = sizeof kKinds / sizeof kKinds[0], kTrials = 12 };

/* A sequence goes on as a copy of itself, the models beside it without one. Only a fork
 * has what was observed. */
static void Copy(test_mixed* m, test_random* random, const char* what) {
  const bool observes =
      strncmp(what, "snapkv", 6) == 0 || strncmp(what, "r-kv", 4) == 0;
  kvevict_sequence* const copy = test_copy(
      m->plan, m->sequence,
      observes ? TEST_COPY_FORK
               : (test_copy_by)test_random_below(random, TEST_N_COPIES));
  kvevict_sequence_destroy(m->sequence);
  m->sequence = copy;
}

static void Live(test_mixed* m, int n_rounds, test_random* random,
                 const char* what) {
  for (int round = 0; round < n_rounds; ++round) {
    if (round > 0 && test_random_below(random, 4) == 0) Copy(m, random, what);
    const uint32_t room = Room(m);
    if (room > 0) {
      const uint32_t n = test_random_between(random, 1, room);
      test_mixed_step(m, round == 0 || n < 8 ? room : n);
    }
    EvictAll(m, random, what);
  }
}

/* Lists of heads that keep counts of tokens. */
static bool TakesHeadBudgets(const char* policy) {
  return strstr(policy, "scope=") == NULL &&
         strstr(policy, "budget=0") == NULL && strcmp(policy, "none") != 0;
}

/* Budgets of heads are those of the full layers, end to end. */
Test(layers_evict, that_differ_are_evicted_as_those_that_are_alike) {
  test_random random = test_random_start("layers alike");
  uint32_t budgets[TEST_MAX_LAYERS * kHeads];
  for (int k = 0; k < kNKinds; ++k) {
    for (int trial = 0; trial < kTrials; ++trial) {
      const bool is_ragged =
          trial % 2 == 1 && TakesHeadBudgets(kKinds[k].policy);
      for (int i = 0; i < TEST_MAX_LAYERS * kHeads; ++i) {
        budgets[i] = test_random_between(&random, 14, 110);
      }
      test_mixed* m =
          test_mixed_draw_for(kKinds[k].policy, &random, kKinds[k].opaque);
      test_mixed_open(m, kKinds[k].policy, is_ragged ? budgets : NULL, &random);
      Live(m, 3, &random, kKinds[k].policy);
      test_mixed_destroy(m);
    }
  }
}

/* The budget is spread over the full layers only. */
Test(layers_evict, that_differ_share_a_pyramid_among_full_caches) {
  static const char* const kPyramids[] = {
      "pyramidkv:budget=60,window=4,sink=2,alpha=0.8",
      "pyramidkv:budget=60,window=4,sink=2,split=arithmetic-kvf,beta=4",
      "pyramidkv:budget=60,window=4,sink=2,split=arithmetic-kvpress,beta=4"};
  test_random random = test_random_start("layers pyramid");
  bool differ = false;
  for (int k = 0; k < 3; ++k) {
    const kvevict_policy* policy = test_policy(kPyramids[k]);
    for (int trial = 0; trial < kTrials; ++trial) {
      test_mixed* m = test_mixed_draw(&random, false);
      uint32_t n_full = 0, budgets[TEST_MAX_LAYERS], said[TEST_MAX_LAYERS];
      for (uint32_t l = 0; l < m->n_layers; ++l) {
        n_full += test_mixed_is_full(m, l);
      }
      EXPECT_OK(kvevict_policy_layer_budgets(policy, kTokens, budgets, n_full));
      differ |= budgets[0] != budgets[n_full - 1];
      for (uint32_t l = 0, i = 0; l < m->n_layers; ++l) {
        if (!test_mixed_is_full(m, l)) continue;
        snprintf(m->policies[l], sizeof m->policies[l],
                 "snapkv:budget=%u,window=4,sink=2", budgets[i++]);
      }
      test_mixed_open(m, kPyramids[k], NULL, &random);
      EXPECT_OK(
          kvevict_plan_layer_budgets(m->plan, kTokens, said, m->n_layers));
      for (uint32_t l = 0, i = 0; l < m->n_layers; ++l) {
        const uint32_t want = test_mixed_is_full(m, l) ? budgets[i++] : 0;
        EXPECT(said[l] == want, "%s: layer %u has %u, not %u", kPyramids[k], l,
               said[l], want);
      }
      Live(m, 1, &random, kPyramids[k]);
      test_mixed_destroy(m);
    }
  }
  cr_assert(differ, "no pyramid was seen");
}

/* ---- One list for the model ---- */

/* Rows of scores of all full layers end to end, given or by kvevict_score(). */
static uint32_t ScoreRows(const test_mixed* m, bool given, float* rows) {
  kvevict_plane queries[TEST_MAX_LAYERS];
  kvevict_signal_inputs inputs[TEST_MAX_LAYERS];
  kvevict_score_job jobs[TEST_MAX_LAYERS];
  const kvevict_workspace size =
      test_workspace(m->plan, KVEVICT_OPERATION_SCORE, 0);
  uint32_t n_rows = 0, n = 0;
  for (uint32_t l = 0; l < m->n_layers; ++l) {
    if (m->alike[l] == NULL) continue;
    const uint32_t n_tokens = m->alike[l]->n_seen;
    const uint32_t heads = m->layers[l].n_kv_heads;
    float* of_layer = rows + (size_t)n_rows * n_tokens;
    n_rows += heads;
    if (given) {
      for (uint32_t h = 0; h < heads; ++h) {
        memcpy(of_layer + h * n_tokens, given_scores[l][h],
               n_tokens * sizeof(float));
      }
      continue;
    }
    queries[n] = test_model_queries(m->alike[l], l,
                                    n_tokens - m->alike[l]->policy.window);
    inputs[n] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    inputs[n].queries = &queries[n];
    jobs[n] =
        test_score_job(n_tokens, &m->views[l], &inputs[n], of_layer, heads);
    jobs[n].layer = l;
    n += 1;
  }
  void* workspace = aligned_alloc(64, (size.best_bytes + 127) / 64 * 64);
  EXPECT_OK(kvevict_score(m->plan, jobs, n, workspace, size.best_bytes, NULL));
  free(workspace);
  return n_rows;
}

/* Calls kvevict_select() as the model's plan says, with its first full layer. */
static void SelectByDoor(const test_mixed* m, const float* rows,
                         uint32_t n_rows, uint32_t n_tokens, int32_t* keep,
                         uint32_t n_keep) {
  kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  uint32_t first = 0;
  while (!test_mixed_is_full(m, first)) ++first;
  EXPECT_OK(
      kvevict_plan_selection(m->plan, first, n_tokens, 0, &options, &lists));
  EXPECT(
      options.n_rows == n_rows && lists.n_lists == 1 && lists.count == n_keep,
      "%u rows for %u lists of %u", options.n_rows, lists.n_lists, lists.count);
  EXPECT_OK(kvevict_select_workspace(m->context, n_tokens, 1, &size));
  void* workspace = aligned_alloc(64, (size.least_bytes + 127) / 64 * 64);
  options.scores = rows;
  options.scores_len = (size_t)n_rows * n_tokens;
  lists.slots = keep;
  lists.slots_len = n_keep;
  EXPECT_OK(kvevict_select(m->context, &options, &lists, workspace,
                           size.least_bytes, NULL));
  free(workspace);
}

Test(layers_evict, that_differ_share_one_list_of_the_model) {
  static const char* const kModel[] = {
      "custom:budget=30,sink=2,recent=3,scope=model,over=mean",
      "custom:budget=30,sink=2,recent=3,scope=model,over=sum,tie=higher",
      "snapkv:budget=30,sink=2,recent=0,window=3,scope=model,over=max",
      "knorm:budget=30,sink=2,recent=3,scope=model,over=max",
      "keydiff:budget=30,sink=2,recent=3,scope=model,over=mean"};
  test_random random = test_random_start("layers, one list");
  for (int k = 0; k < (int)(sizeof kModel / sizeof kModel[0]); ++k) {
    for (int trial = 0; trial < kTrials; ++trial) {
      const bool given = k < 2;
      test_mixed* m = test_mixed_draw(&random, given);
      test_mixed_open(m, kModel[k], NULL, &random);
      const uint32_t n = test_random_between(&random, 30, kTokens);
      test_mixed_step(m, n);
      DrawScores(&random);
      static float rows[TEST_MAX_LAYERS * kHeads * kTokens];
      float combined[kTokens];
      uint8_t forced[kTokens];
      int32_t expected[30], keep[30], positions[kTokens];
      const uint32_t n_rows = ScoreRows(m, given, rows);
      for (uint32_t i = 0; i < n; ++i) forced[i] = i < 2 || i + 3 >= n;
      const oracle_policy policy = oracle_policy_from(kModel[k]);
      oracle_combine(rows, n_rows, n, policy.over, combined);
      oracle_select(combined, n, 30, forced, policy.tie, expected);
      SelectByDoor(m, rows, n_rows, n, keep, 30);
      EXPECT(memcmp(keep, expected, sizeof keep) == 0, "%s: selected others",
             kModel[k]);
      test_inputs inputs;
      kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
      if (given) GiveScores(m, &options, &inputs);
      EXPECT_OK(test_mixed_evict(m, &options, &random));
      for (uint32_t l = 0; l < m->n_layers; ++l) {
        if (m->alike[l] == NULL) continue;
        for (uint32_t h = 0; h < m->layers[l].n_kv_heads; ++h) {
          size_t n_kept = 0;
          EXPECT_OK(kvevict_sequence_keep_positions(
              m->sequence, l, h, positions, kTokens, &n_kept));
          EXPECT(n_kept == 30 && memcmp(positions, expected, sizeof keep) == 0,
                 "%s: layer %u, head %u keeps others", kModel[k], l, h);
        }
        oracle_compact(&m->alike[l]->live[l]->view, expected, 30, 1);
        test_expect_same_rows(m->live[l], m->alike[l]->live[l], 30, kModel[k]);
      }
      test_mixed_destroy(m);
    }
  }
}
