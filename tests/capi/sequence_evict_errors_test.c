/* kvevict_sequence_evict() refuses these calls and changes nothing. */
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"

static test_model* Model(const char* policy) {
  const test_model_spec spec = test_three_layers(policy);
  return test_model_create(&spec, (test_random){1});
}

/* `change` to a valid call makes it fail with `code`; no byte and no answer of the
 * sequence changes. The policy is `text`; the model holds 100 tokens. */
#define EXPECT_BREAKS_WITH(text, code, change, ...)                            \
  do {                                                                         \
    test_model* m = Model(text);                                               \
    test_model_step(m, 100);                                                   \
    test_cache* before[3];                                                     \
    for (int l = 0; l < 3; ++l) before[l] = test_cache_clone(m->live[l]);      \
    static float zeros[600];                                                   \
    int32_t slots[2] = {30, 60};                                               \
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT, *o = &options; \
    options.protected_positions = slots;                                       \
    options.protected_positions_len = 2;                                       \
    test_inputs given;                                                         \
    if (m->policy.kind == ORACLE_CUSTOM) {                                     \
      test_give_scores(o, &given, 3, zeros, 200, 100);                         \
    }                                                                          \
    kvevict_sequence* sequence = m->sequence;                                  \
    kvevict_view* views = m->views;                                            \
    size_t views_len = 3, bytes = m->workspace_bytes;                          \
    uint8_t* workspace = m->workspace;                                         \
    change;                                                                    \
    EXPECT_FAILS(kvevict_sequence_evict(sequence, views, views_len, o,         \
                                        workspace, bytes, NULL),               \
                 code, __VA_ARGS__);                                           \
    kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;                   \
    EXPECT_OK(kvevict_sequence_report(m->sequence, &report, NULL, 0));         \
    EXPECT(report.tokens_before == 0, "there is a report");                    \
    test_model_check(m, #change);                                              \
    for (int l = 0; l < 3; ++l) {                                              \
      test_expect_same_bytes(m->live[l], before[l], #change);                  \
      test_cache_destroy(before[l]);                                           \
    }                                                                          \
    (void)zeros, (void)slots, (void)options, (void)given;                      \
    test_model_destroy(m);                                                     \
  } while (0)
#define EXPECT_BREAKS(change, ...)                                       \
  EXPECT_BREAKS_WITH("snapkv:budget=50", KVEVICT_ERROR_INVALID_ARGUMENT, \
                     change, __VA_ARGS__)

Test(evict, null_pointers_are_errors) {
  EXPECT_BREAKS(sequence = NULL, "sequence", "NULL");
  EXPECT_BREAKS(views = NULL, "views", "NULL");
  EXPECT_BREAKS(workspace = NULL, "workspace", "NULL");
  EXPECT_BREAKS(options.protected_positions = NULL, "protected_positions",
                "NULL");
}

Test(evict, wrong_sizes_are_errors) {
  EXPECT_BREAKS(views_len = 2, "views_len 2", "3");
  EXPECT_BREAKS(views_len = 0, "views_len 0", "3");
  EXPECT_BREAKS(
      bytes =
          test_workspace(m->plan, KVEVICT_OPERATION_EVICT, 100).least_bytes - 1,
      "workspace_bytes", "the least");
  EXPECT_BREAKS(bytes = 0, "workspace_bytes 0");
  EXPECT_BREAKS(workspace += 8, "workspace", "64");
}

Test(evict, wrong_struct_sizes_are_errors) {
  EXPECT_BREAKS(views[0].struct_size = 0, "views[0]", "struct_size 0");
  EXPECT_BREAKS(views[2].struct_size = 8, "views[2]", "struct_size 8");
  EXPECT_BREAKS(options.struct_size = 8, "options.struct_size 8");
}

/* Views of a later release lie so far apart that each stays aligned. Another
 * distance would put them at odd addresses. */
Test(evict, struct_sizes_that_misalign_views_are_errors) {
  typedef union grown_views {
    kvevict_view view;
    uint8_t bytes[3 * (sizeof(kvevict_view) + 16)];
  } grown_views;
  static grown_views grown;
  for (uint32_t extra = 0; extra <= 16; ++extra) {
    test_model* m = Model("snapkv:budget=50");
    test_model_step(m, 100);
    const uint32_t size = (uint32_t)sizeof(kvevict_view) + extra;
    memset(&grown, 0, sizeof grown);
    for (int l = 0; l < 3; ++l) {
      m->views[l].struct_size = size;
      memcpy(grown.bytes + l * size, &m->views[l], sizeof m->views[l]);
    }
    const kvevict_status status =
        kvevict_sequence_evict(m->sequence, &grown.view, 3, NULL, m->workspace,
                               m->workspace_bytes, NULL);
    if (extra % 8 == 0) {
      EXPECT_OK(status);
    } else {
      char text[40];
      snprintf(text, sizeof text, "struct_size %u", size);
      EXPECT_INVALID(status, "views[0]", text, "8");
    }
    test_model_check(m, "grown views");
    test_model_destroy(m);
  }
}

Test(evict, bad_options_are_errors) {
  EXPECT_BREAKS(options.by_table = 2, "by_table 2 is not 0 or 1");
  EXPECT_BREAKS((slots[0] = 60, slots[1] = 30), "protected_positions[1] 30");
  EXPECT_BREAKS(slots[0] = 60, "protected_positions[1] 60");
  EXPECT_BREAKS(slots[0] = -1, "protected_positions[0] -1");
  EXPECT_BREAKS(slots[1] = 100, "protected_positions[1] 100", "100");
}

/* select_test.c has the other mistakes in ranges. */
Test(evict, bad_ranges_are_errors) {
  static const kvevict_token_range kRanges[2] = {{sizeof *kRanges, 0, 5, 9},
                                                 {sizeof *kRanges, 0, 8, 8}};
  EXPECT_BREAKS((options.ranges = kRanges, options.ranges_len = 2),
                "ranges[1]: first 8 < 9");
  EXPECT_BREAKS(options.ranges_len = 2, "ranges", "NULL");
}

Test(evict, bad_views_are_errors) {
  EXPECT_BREAKS(views[1].n_kv_heads = 1, "views[1]", "n_kv_heads 1", "2");
  EXPECT_BREAKS(views[1].k.dtype = KVEVICT_DTYPE_F16, "views[1]", "k.dtype");
  EXPECT_BREAKS(views[1].v.head_dim = 9, "views[1]", "v");
  EXPECT_BREAKS(views[2].k.token_stride_bytes = 1, "views[2]", "overlap");
  EXPECT_BREAKS(views[2].k.data = 0, "views[2]", "k.data is 0");
  EXPECT_BREAKS(views[2].n_companions = 5, "views[2]");
}

/* A missing plane would stay behind while the rest moves. */
Test(evict, views_without_what_the_geometry_has_are_errors) {
  const char* const kPolicies[] = {"none", "streaming-llm:budget=20",
                                   "snapkv:budget=50",
                                   "random:sink=0,budget=20"};
  const kvevict_plane kNone = {0};
  for (int p = 0; p < 4; ++p) {
    EXPECT_BREAKS_WITH(kPolicies[p], KVEVICT_ERROR_INVALID_ARGUMENT,
                       views[1].v = kNone, "views[1]", "v.data is 0",
                       "v_head_dim 8");
    EXPECT_BREAKS_WITH(kPolicies[p], KVEVICT_ERROR_INVALID_ARGUMENT,
                       views[2].k = kNone, "views[2]", "k.data is 0");
    EXPECT_BREAKS_WITH(kPolicies[p], KVEVICT_ERROR_INVALID_ARGUMENT,
                       views[0].v.data = 0, "views[0]", "v.data is 0",
                       "head_dim 8");
    EXPECT_BREAKS_WITH(kPolicies[p], KVEVICT_ERROR_INVALID_ARGUMENT,
                       views[2].k.token_stride_bytes = 1, "views[2]",
                       "overlap");
    EXPECT_BREAKS_WITH(kPolicies[p], KVEVICT_ERROR_INVALID_ARGUMENT,
                       options.by_table = 8, "by_table 8");
    EXPECT_BREAKS_WITH(kPolicies[p], KVEVICT_ERROR_INVALID_ARGUMENT,
                       slots[1] = 3, "protected_positions[1] 3");
  }
  test_model_spec spec = test_three_layers("streaming-llm:budget=20");
  spec.k_dtype = KVEVICT_DTYPE_OPAQUE;
  test_model* m = test_model_create(&spec, (test_random){1});
  test_model_append(m, 100);
  m->views[1].v = kNone;
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "views[1]", "v.data is 0");
  test_model_check(m, "opaque rows without V");
  test_model_destroy(m);
}

Test(evict, custom_scores_must_be_there) {
#define EXPECT_CUSTOM_BREAKS(change, ...)       \
  EXPECT_BREAKS_WITH("custom:sink=0,budget=50", \
                     KVEVICT_ERROR_INVALID_ARGUMENT, change, __VA_ARGS__)
  EXPECT_CUSTOM_BREAKS(o = NULL, "inputs", "NULL");
  EXPECT_CUSTOM_BREAKS((options.inputs = NULL, options.inputs_len = 0),
                       "inputs", "NULL");
  EXPECT_CUSTOM_BREAKS(options.inputs = NULL, "inputs", "NULL", "3");
  EXPECT_CUSTOM_BREAKS(options.inputs_len = 2, "inputs_len 2", "3");
  EXPECT_CUSTOM_BREAKS(options.inputs_len = 4, "inputs_len 4", "3");
  EXPECT_CUSTOM_BREAKS(given.inputs[0].struct_size = 8, "inputs[0]",
                       "struct_size 8");
  EXPECT_CUSTOM_BREAKS(given.inputs[2].struct_size = 8, "inputs[2]",
                       "struct_size 8");
  EXPECT_CUSTOM_BREAKS(given.inputs[1].scores = NULL, "layer 1",
                       "inputs.scores is NULL");
  EXPECT_CUSTOM_BREAKS(given.planes[2].head_dim = 4, "layer 2",
                       "scores.head_dim 4");
}

Test(evict, budgets_below_what_must_stay_are_errors) {
  EXPECT_BREAKS_WITH("random:budget=6,sink=2,recent=3",
                     KVEVICT_ERROR_INVALID_ARGUMENT, (void)0, "budget 6",
                     "< sink 2", "recent 3", "2 protected");
  EXPECT_BREAKS_WITH("pyramidkv:budget=37,alpha=0.5",
                     KVEVICT_ERROR_INVALID_ARGUMENT, (void)0, "budget",
                     "2 protected");
}

/* In lives other policies move such rows without reading them. */
Test(evict, keys_that_cannot_be_read_are_unsupported) {
  test_model_spec spec = test_three_layers("snapkv:budget=50");
  spec.k_dtype = KVEVICT_DTYPE_OPAQUE;
  test_model* m = test_model_create(&spec, (test_random){1});
  test_model_append(m, 100);
  EXPECT_FAILS(test_model_evict(m, NULL, NULL), KVEVICT_ERROR_UNSUPPORTED,
               "opaque");
  test_model_check(m, "opaque keys");
  test_model_destroy(m);
}
