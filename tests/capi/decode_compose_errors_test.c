/* A fork under another plan is refused here, and the source stays as it was. */
#include "kvevict/batch.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/policies.h"

enum { kLayers = 3 };

static test_model* Model(const char* policy) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = kLayers;
  return test_model_create(&spec, (test_random){29});
}

static test_model* Prompt(const char* policy) {
  test_model* m = Model(policy);
  test_model_step(m, 90);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  return m;
}

static kvevict_status ForkInto(const test_model* m, const kvevict_plan* plan) {
  kvevict_fork_options options = KVEVICT_FORK_OPTIONS_INIT;
  kvevict_sequence* fork = NULL;
  options.plan = plan;
  const kvevict_status status =
      kvevict_sequence_fork(m->sequence, &options, &fork, NULL);
  EXPECT((fork != NULL) == (status == KVEVICT_OK), "out_sequence");
  kvevict_sequence_destroy(fork);
  return status;
}

Test(decode_compose, other_models_are_refused) {
  test_model* m = Prompt("knorm:budget=40,sink=2,scope=layer");
  test_model* other = Model("none");
  EXPECT_INVALID(ForkInto(m, other->plan), "plan: its context");
  test_model_destroy(other);
  for (int i = 0; i < 7; ++i) {
    static const char* const kNames[] = {
        "n_layers 2 is not the sequence's 3",
        "n_q_heads 8",
        "n_kv_heads 1 is not the sequence's 2",
        "k_head_dim 32",
        "v_head_dim 0",
        "q_dtype bf16 is not the sequence's f16",
        "layer 1: cache 1 is not the sequence's 0"};
    kvevict_layer_geometry layers[kLayers] = {m->layer, m->layer, m->layer};
    kvevict_geometry geometry = m->geometry;
    kvevict_layer_geometry* last = &layers[kLayers - 1];
    geometry.layers = layers;
    geometry.layers_len = kLayers;
    if (i == 0) geometry.n_layers = 2, geometry.layers_len = 2;
    if (i == 1) last->n_q_heads = 8;
    if (i == 2) last->n_kv_heads = 1;
    if (i == 3) last->k_head_dim = 32;
    if (i == 4) last->v_head_dim = 0;
    if (i == 5) last->q_dtype = KVEVICT_DTYPE_BF16;
    if (i == 6) layers[1].cache = KVEVICT_LAYER_CACHE_WINDOW;
    EXPECT_INVALID(test_model_go_on(m, "knorm:budget=30", &geometry, NULL),
                   "plan: ", kNames[i]);
  }
  test_model_check(m, "after the refusals");
  test_model_destroy(m);
}

/* Keys rotated to their slots cannot be used at their positions. */
Test(decode_compose, keys_are_at_slots_or_at_positions) {
  float inv_freq[8];
  for (int f = 0; f < 8; ++f) inv_freq[f] = 0.01f * (float)(f + 1);
  test_model* m = Prompt("knorm:budget=100,scope=layer");
  kvevict_geometry geometry = m->geometry;
  geometry.rope_inv_freq = inv_freq;
  geometry.rope_inv_freq_len = 8;
  static const char kTurns[] = "knorm:budget=40,scope=layer,rotate=yes";
  /* While all tokens are held, slots and positions are the same. */
  EXPECT_OK(test_model_go_on(m, kTurns, &geometry, NULL));
  EXPECT_OK(test_model_go_on(m, "knorm:budget=40,scope=layer", NULL, NULL));
  EXPECT_OK(test_model_go_on(m, kTurns, &geometry, NULL));
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_INVALID(test_model_go_on(m, "none", NULL, NULL), "rotate is 0",
                 "layer 0", "slots");
  EXPECT_OK(test_model_go_on(m, kTurns, &geometry, NULL));
  test_model_destroy(m);
  m = Prompt("knorm:budget=40,scope=layer");
  geometry.layers = m->geometry.layers;
  EXPECT_INVALID(test_model_go_on(m, kTurns, &geometry, NULL), "rotate is 1",
                 "positions");
  test_model_destroy(m);
}

Test(decode_compose, options_are_versioned) {
  test_model* m = Prompt("knorm:budget=40");
  GROWN(kvevict_fork_options) options;
  kvevict_sequence* fork = NULL;
  options.value = (kvevict_fork_options)KVEVICT_FORK_OPTIONS_INIT;
#define FORK()                                  \
  (kvevict_sequence_destroy(fork), fork = NULL, \
   kvevict_sequence_fork(m->sequence, &options.value, &fork, NULL))
  EXPECT_CHECKS_STRUCT_SIZE(options, FORK());
  options.value.reserved = 1;
  EXPECT_INVALID(FORK(), "options.reserved 1");
  kvevict_sequence_destroy(fork);
  test_model_destroy(m);
}

/* Nothing leaks, whichever allocation fails. */
Test(decode_compose, without_memory_nothing_is_made) {
  test_model* m = Prompt("snapkv:budget=40,sink=2,window=8,scope=layer");
  kvevict_plan* plan = NULL;
  const kvevict_policy* policy = test_policy("r-kv:budget=20,window=8");
  EXPECT_OK(kvevict_plan_create(m->context, &m->geometry, policy, NULL, &plan));
  EXPECT_OK(ForkInto(m, plan)); /* the context keeps its query memory */
  const uint32_t n_live = m->allocator.n_live;
  uint32_t n_failed = 0;
  for (;; ++n_failed) {
    m->allocator.fail_at = m->allocator.n_allocs + 1 + n_failed;
    const kvevict_status status = ForkInto(m, plan);
    m->allocator.fail_at = 0;
    EXPECT(m->allocator.n_live == n_live, "allocation %u: %u are left",
           n_failed, m->allocator.n_live - n_live);
    if (status == KVEVICT_OK) break;
    EXPECT(status == KVEVICT_ERROR_OUT_OF_MEMORY, "%s",
           kvevict_last_error_message());
  }
  EXPECT(n_failed > 10, "only %u allocations", n_failed);
  kvevict_plan_destroy(plan);
  test_model_destroy(m);
}
