/* Evictions in whole blocks: again and again, at every scope, and with a block
 * table that is permuted while no row moves. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/oracle/select.h"

enum { kLayers = 2, kHeads = 2, kMaxTokens = 100 };

static float given[kLayers][kHeads][kMaxTokens];

static void DrawScores(test_random* random) {
  float* scores = &given[0][0][0];
  for (size_t i = 0; i < sizeof given / sizeof *scores; ++i) {
    scores[i] = (float)test_random_below(random, 5);
    if (test_random_below(random, 50) == 0) scores[i] = NAN;
  }
}

/* The tokens of one head of a layer before an eviction, with the policy's scores. */
typedef struct held {
  uint32_t n;
  int32_t positions[kMaxTokens];
  uint8_t forced[kMaxTokens];
  float scores[kMaxTokens];
} held;

static void Note(const test_model* m, uint32_t l, uint32_t h,
                 const kvevict_evict_options* options, held* b) {
  const oracle_policy* p = &m->policy;
  const bool streams = p->kind == ORACLE_STREAMING_LLM;
  uint32_t recent = streams ? 1 : p->recent;
  if (p->kind == ORACLE_SNAPKV && p->window > recent) {
    recent = p->window;
  }
  b->n = test_model_stored_of(m, l, h);
  test_model_positions(m, l, h, b->positions);
  for (uint32_t i = 0; i < b->n; ++i) {
    b->forced[i] = i < p->sink || i + recent >= b->n;
    for (size_t k = 0; k < options->protected_positions_len; ++k) {
      if (options->protected_positions[k] == b->positions[i]) b->forced[i] = 1;
    }
  }
  float rows[kLayers * kHeads][kMaxTokens];
  const uint32_t first = p->scope == KVEVICT_SCOPE_MODEL ? 0 : l;
  const uint32_t last = p->scope == KVEVICT_SCOPE_MODEL ? kLayers - 1 : l;
  uint32_t n_rows = 0;
  static float packed[kLayers * kHeads * kMaxTokens];
  for (uint32_t layer = first; layer <= last; ++layer) {
    for (uint32_t head = 0; head < kHeads; ++head) {
      if (p->scope == KVEVICT_SCOPE_KV_HEAD && head != h) continue;
      memcpy(rows[n_rows++], given[layer][head], sizeof *rows);
    }
  }
  for (uint32_t r = 0; r < n_rows; ++r) {
    memcpy(packed + (size_t)r * b->n, rows[r], b->n * sizeof(float));
  }
  oracle_combine(packed, n_rows, b->n, p->over, b->scores);
  if (streams) memset(b->scores, 0, sizeof b->scores);
}

/* The head keeps the oracle's tokens, in whole blocks. */
static void ExpectKept(const test_model* m, uint32_t l, uint32_t h,
                       const held* b, uint32_t budget, const char* what) {
  const kvevict_tie tie = m->policy.kind == ORACLE_STREAMING_LLM
                              ? KVEVICT_TIE_HIGHER_POSITION
                              : m->policy.tie;
  int32_t expected[kMaxTokens], positions[kMaxTokens];
  const uint32_t n =
      oracle_select_blocks(b->scores, b->n, budget, b->forced,
                           m->policy.select_block, tie, expected);
  EXPECT(n == test_model_stored_of(m, l, h),
         "%s: layer %u, head %u holds %u of %u, not %u", what, l, h,
         test_model_stored_of(m, l, h), b->n, n);
  test_model_positions(m, l, h, positions);
  for (uint32_t i = 0; i < n; ++i) {
    EXPECT(positions[i] == b->positions[expected[i]],
           "%s: layer %u, head %u: slot %u has token %d, not %d", what, l, h, i,
           positions[i], b->positions[expected[i]]);
  }
}

static const char* const kPolicies[] = {
    "custom:budget=47,sink=3,recent=5,select_block=8",
    "custom:sink=0,budget=60,select_block=16,tie=higher",
    "custom:budget=47,sink=9,select_block=7,scope=layer,over=sum",
    "custom:sink=0,budget=50,recent=9,select_block=16,scope=model,over=max",
    "custom:budget=50,sink=1,recent=3,select_block=6,split=geometric,alpha=0.8",
    "custom:budget=44,sink=1,recent=3,select_block=5,split=arithmetic-adakv,"
    "beta=3",
    "streaming-llm:sink=3,recent=41,select_block=8",
    "streaming-llm:budget=44,sink=3,select_block=1",
};

/* Sequences live far beyond max_tokens. */
Test(sequence_blocks, evictions_agree_with_the_oracle) {
  test_random random = test_random_start("sequence_blocks lives");
  for (size_t p = 0; p < sizeof kPolicies / sizeof kPolicies[0]; ++p) {
    for (uint32_t life = 0; life < 3; ++life) {
      test_model_spec spec = test_small_model(kPolicies[p]);
      spec.max_positions = 600;
      spec.n_threads = 1 + life % 2;
      spec.layout = life == 1 ? TEST_PAGED_16 : TEST_TOKEN_MAJOR;
      test_model* m = test_model_create(&spec, random);
      for (int round = 0; round < 12; ++round) {
        uint32_t longest = 0;
        for (uint32_t l = 0; l < kLayers; ++l) {
          const uint32_t n = test_model_stored(m, l);
          longest = n > longest ? n : longest;
        }
        const uint32_t room = kMaxTokens - longest;
        test_model_step(m, test_random_below(&random, room + 1));
        if (m->n_seen == 0) continue;
        DrawScores(&random);
        kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
        test_inputs inputs;
        if (m->policy.kind == ORACLE_CUSTOM) {
          test_give_scores(&options, &inputs, kLayers, &given[0][0][0],
                           kHeads * kMaxTokens, kMaxTokens);
        }
        const int32_t protect = (int32_t)test_random_below(&random, m->n_seen);
        options.protected_positions = &protect;
        options.protected_positions_len = test_random_below(&random, 4) == 0;
        held before[kLayers][kHeads];
        for (uint32_t l = 0; l < kLayers; ++l) {
          for (uint32_t h = 0; h < kHeads; ++h) {
            Note(m, l, h, &options, &before[l][h]);
          }
        }
        uint32_t budgets[kLayers];
        EXPECT_OK(
            kvevict_plan_layer_budgets(m->plan, m->n_seen, budgets, kLayers));
        EXPECT_OK(test_model_evict(m, &options, NULL));
        for (uint32_t l = 0; l < kLayers; ++l) {
          for (uint32_t h = 0; h < kHeads; ++h) {
            ExpectKept(m, l, h, &before[l][h], budgets[l], kPolicies[p]);
            EXPECT((m->n_seen - test_model_stored_of(m, l, h)) %
                           m->policy.select_block ==
                       0,
                   "%s: blocks begin elsewhere", kPolicies[p]);
          }
        }
        test_model_check(m, kPolicies[p]);
      }
      test_model_destroy(m);
    }
  }
}

/* An eviction and the two doors agree for every policy that scores by itself. */
Test(sequence_blocks, an_eviction_is_score_and_select) {
  static const char* const kScoring[] = {
      "snapkv:budget=50,window=8,select_block=6",
      "snapkv:budget=50,window=8,select_block=20,scope=layer,over=sum",
      "snapkv:budget=0.5,window=8,select_block=5,scope=model,pool=max3",
      "tova:budget=40,select_block=4",
      "keydiff:sink=0,budget=40,select_block=4",
      "knorm:sink=0,budget=40,select_block=10,weight=norm,epsilon=9",
      "lagkv:budget=50,block=10,select_block=8",
      "random:sink=0,budget=40,select_block=8"};
  for (size_t p = 0; p < sizeof kScoring / sizeof kScoring[0]; ++p) {
    test_model_spec spec = test_small_model(kScoring[p]);
    spec.v_head_dim = spec.k_head_dim;
    spec.q_dtype = KVEVICT_DTYPE_F32;
    test_model* m = test_model_create(&spec, (test_random){p + 1});
    enum { N = 97 };
    test_model_step(m, N);
    test_plan* to_score =
        test_plan_create(kScoring[p], &m->geometry, KVEVICT_OPERATION_SCORE, 1);
    test_plan* to_select =
        test_plan_create_to_select(kScoring[p], &m->geometry, 1);
    float scores[kLayers][kHeads * N];
    for (uint32_t l = 0; l < kLayers; ++l) {
      const kvevict_plane queries =
          test_model_queries(m, l, N - m->policy.window);
      kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
      inputs.queries = &queries;
      kvevict_score_job job =
          test_score_job(N, &m->views[l], &inputs, scores[l], kHeads);
      job.layer = l;
      EXPECT_OK(test_score_jobs(to_score, &job, 1));
    }
    int32_t keep[kLayers][kHeads * N];
    uint32_t n_keep = 0;
    const kvevict_scope scope = m->policy.scope;
    for (uint32_t l = 0; l < (scope == KVEVICT_SCOPE_MODEL ? 1 : kLayers);
         ++l) {
      EXPECT_OK(
          test_select(to_select, l, scores[l],
                      (scope == KVEVICT_SCOPE_MODEL ? kLayers : 1) * kHeads * N,
                      N, NULL, 0, keep[l], kHeads * N, &n_keep));
    }
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    EXPECT(n_keep < N && (N - n_keep) % m->policy.select_block == 0,
           "%s: %u kept", kScoring[p], n_keep);
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        const uint32_t list = scope == KVEVICT_SCOPE_KV_HEAD ? h : 0;
        const uint32_t at = scope == KVEVICT_SCOPE_MODEL ? 0 : l;
        int32_t positions[N];
        EXPECT(test_model_stored_of(m, l, h) == n_keep, "%s", kScoring[p]);
        test_model_positions(m, l, h, positions);
        EXPECT(memcmp(positions, keep[at] + (size_t)list * n_keep,
                      n_keep * sizeof *positions) == 0,
               "%s: layer %u, head %u: other slots than the doors'",
               kScoring[p], l, h);
      }
    }
    test_model_check(m, kScoring[p]);
    test_plan_destroy(to_score);
    test_plan_destroy(to_select);
    test_model_destroy(m);
  }
}

/* The budget is rounded to whole blocks of what a list holds, at least one. This
 * happens once per list, as in kvevict_select(), even if the slots held end
 * elsewhere in a block than the tokens seen. */
Test(sequence_blocks, are_counted_once_whatever_was_held_before) {
  static const char* const kTexts[] = {
      "knorm:budget=47,sink=0,select_block=8",
      "knorm:budget=0.5,sink=0,select_block=8",
      "streaming-llm:sink=3,recent=44,select_block=8",
      "knorm:budget=40,sink=9,recent=2,select_block=8,scope=model"};
  for (size_t p = 0; p < sizeof kTexts / sizeof *kTexts; ++p) {
    for (uint32_t n = 53; n <= 69; ++n) {
      test_model* m = test_model_of(kTexts[p], n);
      int32_t positions[kMaxTokens];
      for (uint32_t i = 0; i < n; ++i) positions[i] = (int32_t)(2 * i);
      kvevict_position_lists layers[kLayers];
      for (uint32_t l = 0; l < kLayers; ++l) {
        layers[l] = (kvevict_position_lists)KVEVICT_POSITION_LISTS_INIT;
        layers[l].n_lists = 1;
        layers[l].positions = positions;
        layers[l].positions_len = layers[l].count = n;
      }
      EXPECT_OK(
          kvevict_sequence_start(m->sequence, layers, kLayers, 140, NULL));
      kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
      kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
      EXPECT_OK(kvevict_plan_selection(m->plan, 0, n, 140, &options, &keep));
      EXPECT_OK(test_model_evict(m, NULL, NULL));
      const uint32_t held = test_model_stored(m, 0);
      EXPECT(held == keep.count && (n - held) % 8 == 0,
             "%s: %u of %u slots, at the door %u", kTexts[p], held, n,
             keep.count);
      /* The largest budget of tokens that has room. */
      const uint32_t budget = p == 3 ? 40 : 47;
      EXPECT(p == 1 || (held <= budget && held + 8 > budget),
             "%s: %u of %u slots", kTexts[p], held, n);
      test_model_destroy(m);
    }
  }
}

Test(sequence_blocks, head_budgets_are_rounded_down) {
  const uint32_t budgets[kLayers * kHeads] = {40, 26, 4000, 3};
  const uint32_t first[] = {35, 25, 95, 5}, second[] = {40, 20, 100, 10};
  test_model_spec spec =
      test_small_model("knorm:sink=0,budget=40,select_block=10");
  spec.head_budgets = budgets;
  test_model* m = test_model_create(&spec, (test_random){3});
  test_model_step(m, 95);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
    const uint32_t n = test_model_stored_of(m, i / kHeads, i % kHeads);
    EXPECT(n == first[i], "head %u holds %u, not %u", i, n, first[i]);
  }
  test_model_check(m, "95 tokens");
  test_model_step(m, 5);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
    const uint32_t n = test_model_stored_of(m, i / kHeads, i % kHeads);
    EXPECT(n == second[i], "head %u holds %u, not %u", i, n, second[i]);
  }
  test_model_check(m, "100 tokens");
  test_model_destroy(m);
}

/* If a block is a page, the keep list names pages. An engine that takes their ids
 * in that order has the compacted cache, and no byte has moved. */
Test(sequence_blocks, a_paged_engine_frees_pages_without_moving_a_byte) {
  enum { N = 93, kPage = 16 };
  static const test_layout kPaged[] = {TEST_PAGED_16, TEST_PAGED_16_BY_HEAD};
  for (int i = 0; i < 2; ++i) {
    test_model_spec spec = test_small_model(
        "knorm:budget=64,sink=2,select_block=16,scope=layer,over=sum");
    spec.layout = kPaged[i];
    test_model* m = test_model_create(&spec, (test_random){11});
    test_model_append(m, N);
    test_cache* engine = test_cache_clone(m->live[0]);
    test_cache* before = test_cache_clone(m->live[0]);
    kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
    EXPECT_OK(test_model_evict(m, NULL, &report));
    const uint32_t n = test_model_stored(m, 0);
    cr_assert_eq(n, 61, "3 pages and the 13 tokens of the last");
    cr_assert_eq(report.blocks_freed, kLayers * 2);
    int32_t positions[N];
    test_model_positions(m, 0, 0, positions);
    for (uint32_t page = 0; page * kPage < n; ++page) {
      EXPECT(positions[page * kPage] % kPage == 0, "page %u begins inside one",
             page);
      engine->block_table[page] =
          before->block_table[positions[page * kPage] / kPage];
    }
    test_expect_same_rows(engine, m->live[0], n, test_layout_name(kPaged[i]));
    cr_expect(memcmp(engine->memory, before->memory, engine->n_bytes) == 0);
    test_cache_destroy(engine);
    test_cache_destroy(before);
    test_model_destroy(m);
  }
}
