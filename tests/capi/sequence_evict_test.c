/* Evicting a model's cache: what stays, what moves, what is reported.
 * sequence_life_test.c has random models. */
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

static test_model* Model(const char* policy) {
  const test_model_spec spec = test_three_layers(policy);
  return test_model_create(&spec, (test_random){1});
}

/* Removes what the geometry already says from a view: shapes, and the strides of
 * packed token-major f32 rows. Returns whether K had such strides. */
static bool LeaveOut(kvevict_view* view) {
  kvevict_plane* planes[] = {&view->k, &view->v};
  bool was_packed = false;
  for (int i = 1; i >= 0; --i) {
    kvevict_plane* p = planes[i];
    const int64_t row = 4 * (int64_t)p->head_dim;
    const int64_t token = row * view->n_kv_heads;
    was_packed = p->token_stride_bytes == token &&
                 (view->n_kv_heads == 1 || p->head_stride_bytes == row) &&
                 p->element_stride_bytes == 0 &&
                 p->block_stride_bytes == token * view->block_size;
    p->dtype = KVEVICT_DTYPE_OPAQUE;
    p->head_dim = 0;
    if (!was_packed) continue;
    p->token_stride_bytes = p->head_stride_bytes = p->block_stride_bytes = 0;
  }
  view->n_kv_heads = 0;
  return was_packed;
}

Test(evict, a_view_takes_from_the_geometry_what_it_leaves_out) {
  bool was_packed[TEST_N_LAYOUTS] = {false};
  for (int layout = 0; layout < TEST_N_LAYOUTS; ++layout) {
    test_model_spec spec = test_three_layers("tova:budget=20");
    spec.layout = (test_layout)layout;
    if (layout == TEST_PAGED_16_BY_HEAD) spec.n_q_heads = spec.n_kv_heads = 1;
    test_model* full = test_model_create(&spec, (test_random){1});
    test_model* brief = test_model_create(&spec, (test_random){1});
    for (uint32_t l = 0; l < spec.n_layers; ++l) {
      was_packed[layout] = LeaveOut(&brief->views[l]);
    }
    test_model_step(full, 90);
    test_model_step(brief, 90);
    EXPECT_OK(test_model_evict(full, NULL, NULL));
    EXPECT_OK(test_model_evict(brief, NULL, NULL));
    test_expect_same_tokens(brief, full, test_layout_name(spec.layout));
    test_model_check(brief, test_layout_name(spec.layout));
    test_model_destroy(full);
    test_model_destroy(brief);
  }
  EXPECT(was_packed[TEST_TOKEN_MAJOR] && was_packed[TEST_RING] &&
             was_packed[TEST_PAGED_16_BY_HEAD],
         "strides of packed rows were given");
}

Test(evict, random_is_reproducible_and_depends_on_the_seed) {
  const char* const kPolicies[] = {"random:budget=30,sink=4",
                                   "random:budget=30,sink=4",
                                   "random:budget=30,sink=4,seed=1"};
  int32_t lists[3][2][30];
  for (int i = 0; i < 3; ++i) {
    test_model* m = Model(kPolicies[i]);
    test_model_append(m, 100);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    test_model_check(m, kPolicies[i]);
    test_model_positions(m, 0, 0, lists[i][0]);
    test_model_positions(m, 0, 1, lists[i][1]);
    for (int s = 0; s < 4; ++s) cr_expect_eq(lists[i][0][s], s, "a sink");
    test_model_destroy(m);
  }
  cr_expect(memcmp(lists[0], lists[1], sizeof lists[0]) == 0);
  cr_expect(memcmp(lists[0], lists[2], sizeof lists[0]) != 0);
  cr_expect(memcmp(lists[0][0], lists[0][1], sizeof lists[0][0]) != 0,
            "both heads drew the same numbers");
}

/* Every one of 64 tokens outside the sinks should survive about equally often. */
Test(evict, random_favours_no_token) {
  uint32_t n_kept[68] = {0};
  enum { kSeeds = 400 };
  for (int seed = 0; seed < kSeeds; ++seed) {
    char policy[64];
    snprintf(policy, sizeof policy, "random:budget=36,sink=4,seed=%d", seed);
    test_model_spec spec = test_three_layers(policy);
    spec.n_layers = 1;
    spec.n_kv_heads = spec.n_q_heads = 1;
    spec.k_head_dim = spec.v_head_dim = 1;
    spec.max_positions = 68;
    test_model* m = test_model_create(&spec, (test_random){1});
    test_model_append(m, 68);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    int32_t positions[36];
    test_model_positions(m, 0, 0, positions);
    for (int i = 0; i < 36; ++i) n_kept[positions[i]] += 1;
    test_model_destroy(m);
  }
  for (int p = 4; p < 68; ++p) { /* 200 expected, deviation 10 */
    EXPECT(n_kept[p] > 150 && n_kept[p] < 250, "token %d survived %u of %d", p,
           n_kept[p], kSeeds);
  }
}

/* 5 of 6 slots are sinks and recents. One more fits, wherever it lies. */
Test(evict, one_protected_position_too_many_is_found_at_either_end) {
  const int32_t kPairs[][2] = {{2, 50}, {50, 96}, {2, 96}, {2, 3}, {95, 96}};
  for (int i = 0; i < 5; ++i) {
    test_model* m = Model("random:budget=6,sink=2,recent=3");
    test_model_append(m, 100);
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.protected_positions = kPairs[i];
    options.protected_positions_len = 2;
    EXPECT_INVALID(test_model_evict(m, &options, NULL), "2 protected");
    options.protected_positions_len = 1;
    EXPECT_OK(test_model_evict(m, &options, NULL));
    int32_t slot = -1;
    EXPECT_OK(kvevict_sequence_slot_of_position(m->sequence, 2, 1,
                                                (uint32_t)kPairs[i][0], &slot));
    EXPECT(slot == 2, "position %d is in slot %d", kPairs[i][0], slot);
    test_model_check(m, "one protected");
    test_model_destroy(m);
  }
}
