/* Layer geometries, and layers without a full cache. */
#include <math.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/mixed.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum { kFive = 5, kTokens = TEST_MIXED_TOKENS };

/* Full, a window, full, nothing, full. */
static void Five(kvevict_layer_geometry* layers) {
  layers[0] = test_layer(8, 2, 16, 8);
  layers[1] = test_layer(0, 0, 0, 0);
  layers[1].cache = KVEVICT_LAYER_CACHE_WINDOW;
  layers[2] = test_layer(4, 4, 24, 0);
  layers[3] = layers[1];
  layers[3].cache = KVEVICT_LAYER_CACHE_NONE;
  layers[4] = test_layer(3, 1, 40, 40);
}

static kvevict_status Create(const kvevict_geometry* geometry,
                             const char* policy_text,
                             const kvevict_plan_options* options,
                             kvevict_plan** plan) {
  const kvevict_policy* policy = test_policy(policy_text);
  *plan = NULL;
  return kvevict_plan_create(test_context(), geometry, policy, options, plan);
}

static kvevict_plan* PlanOfFive(const char* policy_text,
                                const kvevict_plan_options* options) {
  kvevict_layer_geometry layers[kFive];
  Five(layers);
  kvevict_geometry geometry = test_geometry(kFive, kTokens, layers);
  geometry.layers_len = kFive;
  kvevict_plan* plan = NULL;
  EXPECT_OK(Create(&geometry, policy_text, options, &plan));
  return plan; /* the layers were borrowed */
}

Test(layers, are_told_with_their_lists) {
  static const struct {
    const char* policy;
    bool of_heads, head_budgets;
  } kLists[] = {
      {"snapkv:budget=40", true, false},
      {"random:sink=0,budget=40", true, false},
      {"snapkv:budget=40,scope=layer", false, false},
      {"snapkv:budget=40,scope=model", false, false},
      {"streaming-llm:budget=40", false, false},
      {"none", false, false},
      {"streaming-llm:budget=40", true, true},
  };
  const uint32_t q_heads[] = {8, 0, 4, 0, 3}, heads[] = {2, 0, 4, 0, 1};
  const kvevict_layer_cache caches[] = {
      KVEVICT_LAYER_CACHE_FULL, KVEVICT_LAYER_CACHE_WINDOW,
      KVEVICT_LAYER_CACHE_FULL, KVEVICT_LAYER_CACHE_NONE,
      KVEVICT_LAYER_CACHE_FULL};
  const uint32_t budgets[] = {20, 20, 20, 20, 20, 20, 20};
  for (int i = 0; i < 7; ++i) {
    kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
    options.head_budgets = kLists[i].head_budgets ? budgets : NULL;
    options.head_budgets_len = kLists[i].head_budgets ? 7 : 0;
    kvevict_plan* plan = PlanOfFive(kLists[i].policy, &options);
    uint32_t first = 0;
    for (uint32_t l = 0; l < kFive; ++l) {
      kvevict_layer_info info = {.struct_size = sizeof info};
      EXPECT_OK(kvevict_plan_layer(plan, l, &info));
      const bool full = heads[l] > 0;
      const uint32_t n_lists = full ? (kLists[i].of_heads ? heads[l] : 1) : 0;
      EXPECT(info.cache == caches[l] && info.n_q_heads == q_heads[l] &&
                 info.n_kv_heads == heads[l] && info.n_lists == n_lists,
             "%s: layer %u: %u lists of %u heads", kLists[i].policy, l,
             info.n_lists, info.n_kv_heads);
      EXPECT(info.first_list == first, "%s: layer %u: list %u",
             kLists[i].policy, l, info.first_list);
      first += n_lists;
    }
    kvevict_plan_destroy(plan);
  }
}

Test(layers, are_told_if_there_are_as_many) {
  kvevict_plan* plan = PlanOfFive("snapkv:budget=40", NULL);
  GROWN(kvevict_layer_info) grown;
  GUARD(grown);
  grown.value.struct_size = sizeof grown.value;
  const kvevict_layer_info before = grown.value;
  EXPECT_INVALID(kvevict_plan_layer(NULL, 0, &grown.value), "plan", "NULL");
  EXPECT_INVALID(kvevict_plan_layer(plan, 0, NULL), "out", "NULL");
  EXPECT_INVALID(kvevict_plan_layer(plan, 5, &grown.value), "layer 5",
                 "n_layers 5");
  cr_assert(memcmp(&before, &grown.value, sizeof before) == 0);
  EXPECT_CHECKS_OUT_STRUCT_SIZE(grown,
                                kvevict_plan_layer(plan, 2, &grown.value));
  kvevict_plan_destroy(plan);
}

Test(layers, without_a_full_cache_can_do_nothing_and_say_why) {
  kvevict_plan* plan = PlanOfFive("snapkv:budget=40", NULL);
  for (uint32_t l = 0; l < kFive; ++l) {
    kvevict_capabilities c = {.struct_size = sizeof c};
    EXPECT_OK(kvevict_plan_capabilities(plan, l, &c));
    const bool full = l % 2 == 0;
    EXPECT(c.can_move == full && c.can_score == full && !c.can_rotate &&
               c.needs_score == full,
           "layer %u can otherwise", l);
    const kvevict_reason reason =
        full ? KVEVICT_REASON_NONE : KVEVICT_REASON_NO_FULL_CACHE;
    EXPECT(c.move_reason == reason && c.score_reason == reason &&
               c.rotate_reason == (full ? KVEVICT_REASON_NO_ROPE : reason),
           "layer %u has other reasons", l);
  }
  kvevict_plan_destroy(plan);
}

/* The model needs as much memory as one of the full layers alone. */
Test(layers, without_a_full_cache_take_no_memory) {
  kvevict_layer_geometry layers[kFive], full[3];
  Five(layers);
  for (int i = 0; i < 3; ++i) full[i] = layers[2 * i];
  kvevict_geometry five = test_geometry(kFive, kTokens, layers);
  kvevict_geometry three = test_geometry(3, kTokens, full);
  five.layers_len = kFive;
  three.layers_len = 3;
  static const char* const kPolicies[] = {
      "snapkv:budget=40,window=5", "pyramidkv:budget=40,window=5",
      "random:sink=0,budget=40,scope=model", "streaming-llm:budget=40"};
  for (int p = 0; p < 4; ++p) {
    kvevict_plan *a = NULL, *b = NULL;
    EXPECT_OK(Create(&five, kPolicies[p], NULL, &a));
    EXPECT_OK(Create(&three, kPolicies[p], NULL, &b));
    for (kvevict_operation op = KVEVICT_OPERATION_EVICT;
         op <= KVEVICT_OPERATION_OBSERVE; ++op) {
      const kvevict_workspace of_five = test_workspace(a, op, 0);
      const kvevict_workspace of_three = test_workspace(b, op, 0);
      EXPECT(memcmp(&of_five, &of_three, sizeof of_five) == 0,
             "%s: operation %d: %zu bytes, not %zu", kPolicies[p], (int)op,
             of_five.best_bytes, of_three.best_bytes);
    }
    if (p < 2) {
      const size_t rows = 8 * 16 + 4 * 24 + 3 * 40;
      const size_t bytes =
          test_workspace(a, KVEVICT_OPERATION_OBSERVE, 0).least_bytes;
      EXPECT(bytes >= 5 * rows * sizeof(float) &&
                 bytes < 5 * rows * sizeof(float) + 3 * 64,
             "%s: %zu bytes to observe", kPolicies[p], bytes);
    }
    kvevict_plan_destroy(a);
    kvevict_plan_destroy(b);
  }
}

Test(layers, without_a_full_cache_hold_nothing) {
  kvevict_plan* plan = PlanOfFive("snapkv:budget=40,window=5", NULL);
  kvevict_sequence* s = NULL;
  EXPECT_OK(kvevict_sequence_create(plan, &s));
  EXPECT_OK(kvevict_sequence_begin_observing(s, NULL, 0));
  EXPECT_OK(kvevict_sequence_append(s, 90, NULL));
  uint64_t first = 0;
  for (uint32_t l = 0; l < kFive; ++l) {
    const bool full = l % 2 == 0;
    uint32_t length = 77;
    if (full) {
      EXPECT_OK(kvevict_sequence_stored_length(s, l, 0, &length));
    } else {
      char name[16];
      snprintf(name, sizeof name, "layer %u has", l);
      EXPECT_INVALID(kvevict_sequence_stored_length(s, l, 0, &length), name,
                     "no full cache");
    }
    EXPECT(length == (full ? 90 : 77), "layer %u holds %u", l, length);
    kvevict_sequence_memory memory = {.struct_size = sizeof memory};
    kvevict_layer_info info = {.struct_size = sizeof info};
    EXPECT_OK(kvevict_sequence_memory_of(s, l, &memory));
    EXPECT_OK(kvevict_plan_layer(plan, l, &info));
    EXPECT(memory.n_lists == info.n_lists, "layer %u: %u lists", l,
           memory.n_lists);
    if (l == 0) first = memory.lengths;
    EXPECT(memory.lengths == (full ? first + 8 * info.first_list : 0),
           "layer %u: its lengths lie elsewhere", l);
    for (uint32_t i = 0; i < memory.n_lists; ++i) {
      const uint32_t* lengths = (const uint32_t*)(uintptr_t)memory.lengths;
      EXPECT(lengths[2 * i] == 90 && lengths[2 * i + 1] == 90,
             "layer %u: lengths", l);
    }
    int32_t position = 77;
    const kvevict_status status =
        kvevict_sequence_position_of_slot(s, l, 0, 0, &position);
    EXPECT(full ? status == KVEVICT_OK && position == 0
                : status == KVEVICT_ERROR_INVALID_ARGUMENT && position == 77,
           "layer %u, slot 0: position %d", l, position);
  }
  kvevict_sequence_destroy(s);
  kvevict_plan_destroy(plan);
}

Test(layers, without_a_full_cache_have_no_doors) {
  kvevict_plan* plan = PlanOfFive("random:sink=0,budget=40", NULL);
  float scores[10];
  GUARD(scores);
  for (uint32_t l = 1; l < kFive; l += 2) {
    char text[16];
    snprintf(text, sizeof text, "layer %u", l);
    kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
    job.layer = l;
    job.n_tokens = 10;
    job.scores = scores;
    job.scores_len = 10;
    EXPECT_INVALID(kvevict_score(plan, &job, 1, NULL, 0, NULL), text);
    kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
    kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
    EXPECT_INVALID(kvevict_plan_selection(plan, l, 50, 0, &options, &keep),
                   text);
  }
  EXPECT_UNTOUCHED(scores);
  kvevict_plan_destroy(plan);
}

/* Nothing reads the arguments of such layers: their addresses cannot be read. */
Test(layers, without_a_full_cache_are_not_read) {
  test_random random = {3};
  kvevict_layer_geometry layers[2] = {test_layer(0, 0, 0, 0),
                                      test_layer(2, 1, 8, 0)};
  layers[0].cache = KVEVICT_LAYER_CACHE_WINDOW;
  const kvevict_plane nowhere = {
      .data = 8, .token_stride_bytes = -3, .dtype = 77, .head_dim = 5};
  const test_cache_spec spec = {TEST_TOKEN_MAJOR,  1, 50, KVEVICT_DTYPE_F32, 8,
                                KVEVICT_DTYPE_F32, 0, 0};
  test_cache* cache = test_cache_create(&spec, &random);
  kvevict_geometry geometry = test_geometry(2, 50, layers);
  geometry.layers_len = 2;
  kvevict_plan* plan = NULL;
  kvevict_sequence* s = NULL;
  EXPECT_OK(Create(&geometry, "snapkv:budget=20,window=5", NULL, &plan));
  EXPECT_OK(kvevict_sequence_create(plan, &s));
  EXPECT_OK(kvevict_sequence_begin_observing(s, NULL, 0));
  static float queries[2][50][8];
  for (int i = 0; i < 2 * 50 * 8; ++i) (&queries[0][0][0])[i] = (float)(i % 7);
  kvevict_plane rows =
      kvevict_plane_head_major(&queries[0][0][0], KVEVICT_DTYPE_F32, 50, 8);
  const kvevict_plane planes[2] = {nowhere, rows};
  EXPECT_OK(test_observe_layers(s, planes, 2, 50, 0));
  const kvevict_observation of_nothing = {
      sizeof of_nothing, 0, (const kvevict_signal_inputs*)&nowhere.head_dim};
  EXPECT_OK(kvevict_sequence_observe(s, &of_nothing, 1, 50, 0, NULL));
  EXPECT_OK(kvevict_sequence_append(s, 50, NULL));
  kvevict_view views[2] = {KVEVICT_VIEW_INIT, cache->view};
  views[0].k = views[0].v = nowhere;
  views[0].n_companions = 99;
  kvevict_signal_inputs inputs[2] = {KVEVICT_SIGNAL_INPUTS_INIT,
                                     KVEVICT_SIGNAL_INPUTS_INIT};
  inputs[0].queries = inputs[0].row_lse = inputs[0].scores = &nowhere;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = inputs;
  options.inputs_len = 2;
  const kvevict_workspace size =
      test_workspace(plan, KVEVICT_OPERATION_EVICT, 0);
  void* workspace = aligned_alloc(64, (size.best_bytes + 63) / 64 * 64);
  EXPECT_OK(kvevict_sequence_evict(s, views, 2, &options, workspace,
                                   size.best_bytes, NULL));
  uint32_t length = 0;
  EXPECT_OK(kvevict_sequence_stored_length(s, 1, 0, &length));
  cr_assert_eq(length, 20);
  free(workspace);
  kvevict_sequence_destroy(s);
  kvevict_plan_destroy(plan);
  test_cache_destroy(cache);
}

/* ---- Bad geometries ---- */

/* `change` to five good layers makes the plan fail. */
#define EXPECT_BREAKS(change, ...)                                            \
  do {                                                                        \
    kvevict_layer_geometry l[kFive];                                          \
    Five(l);                                                                  \
    kvevict_geometry g = test_geometry(kFive, kTokens, l);                    \
    g.layers_len = kFive;                                                     \
    kvevict_plan* plan = NULL;                                                \
    EXPECT_OK(Create(&g, "snapkv:budget=40", NULL, &plan));                   \
    kvevict_plan_destroy(plan);                                               \
    change;                                                                   \
    EXPECT_INVALID(Create(&g, "snapkv:budget=40", NULL, &plan), __VA_ARGS__); \
    cr_assert_null(plan);                                                     \
  } while (0)

Test(layers, one_or_one_for_each_are_wanted) {
  EXPECT_BREAKS(g.layers_len = 0, "layers_len 0", "n_layers 5");
  EXPECT_BREAKS(g.layers_len = 2, "layers_len 2", "n_layers 5");
  EXPECT_BREAKS(g.layers_len = 4, "layers_len 4", "n_layers 5");
  EXPECT_BREAKS(g.layers_len = 6, "layers_len 6", "n_layers 5");
  EXPECT_BREAKS(g.n_layers = 6, "layers_len 5", "n_layers 6");
  EXPECT_BREAKS(g.layers = NULL, "layers", "NULL");
  EXPECT_BREAKS((g.n_layers = 5000, g.layers_len = 5000), "5000", "4096");
}

Test(layers, that_are_bad_are_named) {
  EXPECT_BREAKS(l[1].cache = 3, "layers[1]", "cache 3");
  EXPECT_BREAKS(l[4].cache = -1, "layers[4]", "cache -1");
  EXPECT_BREAKS(l[2].n_kv_heads = 0, "layers[2]", "n_kv_heads", "0");
  EXPECT_BREAKS(l[4].n_q_heads = 0, "layers[4]", "n_q_heads", "0");
  EXPECT_BREAKS(l[0].n_q_heads = 7, "layers[0]", "n_q_heads 7", "n_kv_heads 2");
  EXPECT_BREAKS(l[2].k_head_dim = 0, "layers[2]", "k_head_dim", "0");
  EXPECT_BREAKS(l[4].q_dtype = 99, "layers[4]", "q_dtype", "99");
  EXPECT_BREAKS(l[4].v_dtype = KVEVICT_DTYPE_OPAQUE, "layers[4]", "v_head_dim",
                "40");
  EXPECT_BREAKS(l[2].softmax_scale = NAN, "layers[2]", "softmax_scale", "nan");
  EXPECT_BREAKS(l[2].struct_size = 8, "layers[2]", "struct_size 8");
  EXPECT_BREAKS(l[0].struct_size = 8, "layers[0]", "struct_size 8");
}

Test(layers, one_of_which_must_have_a_full_cache) {
  EXPECT_BREAKS(
      l[0].cache = l[2].cache = l[4].cache = KVEVICT_LAYER_CACHE_WINDOW,
      "layers", "none has a full cache");
  EXPECT_BREAKS((g.layers = &l[3], g.layers_len = 1), "layers",
                "none has a full cache");
}

Test(layers, without_a_full_cache_have_no_budgets_of_heads) {
  const uint32_t budgets[20] = {0};
  kvevict_layer_geometry layers[kFive];
  Five(layers);
  kvevict_geometry geometry = test_geometry(kFive, kTokens, layers);
  geometry.layers_len = kFive;
  for (size_t n = 1; n < 20; ++n) {
    kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
    options.head_budgets = budgets;
    options.head_budgets_len = n;
    kvevict_plan* plan = NULL;
    const kvevict_status status =
        Create(&geometry, "random:sink=0,budget=40", &options, &plan);
    if (n == 7) {
      EXPECT_OK(status);
    } else {
      char text[32];
      snprintf(text, sizeof text, "head_budgets_len %zu", n);
      EXPECT_INVALID(status, text, "7");
    }
    kvevict_plan_destroy(plan);
  }
}

/* A caller of a later release has layers that lie further apart. */
Test(layers, are_as_far_apart_as_their_size_says) {
  union {
    kvevict_layer_geometry layer;
    uint64_t room[kFive][8];
  } wide;
  memset(&wide, 0, sizeof wide);
  kvevict_layer_geometry layers[kFive];
  Five(layers);
  for (int i = 0; i < kFive; ++i) {
    layers[i].struct_size = sizeof wide.room[i];
    memcpy(wide.room[i], &layers[i], sizeof layers[i]);
  }
  kvevict_geometry geometry = test_geometry(kFive, kTokens, &wide.layer);
  geometry.layers_len = kFive;
  kvevict_plan* plan = NULL;
  EXPECT_OK(Create(&geometry, "snapkv:budget=40", NULL, &plan));
  kvevict_layer_info info = {.struct_size = sizeof info};
  EXPECT_OK(kvevict_plan_layer(plan, 4, &info));
  cr_expect_eq(info.n_q_heads, 3);
  kvevict_plan_destroy(plan);
  wide.room[3][7] = 1;
  EXPECT_INVALID(Create(&geometry, "snapkv:budget=40", NULL, &plan),
                 "layers[3]", "struct_size");
}
