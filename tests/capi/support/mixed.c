#include "tests/capi/support/mixed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum { kGuardBytes = 1024, kPositions = 250 };

static const kvevict_dtype kTypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                       KVEVICT_DTYPE_BF16,
                                       KVEVICT_DTYPE_OPAQUE};

static test_model_spec DrawSpec(test_random* random, bool opaque, bool values) {
  static const uint32_t kGroups[] = {1, 2, 3};
  test_model_spec spec = {.max_tokens = TEST_MIXED_TOKENS,
                          .max_positions = kPositions};
  spec.n_kv_heads = test_random_between(random, 1, TEST_MIXED_HEADS);
  spec.n_q_heads = spec.n_kv_heads * kGroups[test_random_below(random, 3)];
  spec.k_head_dim = test_random_between(random, 1, 24);
  spec.q_dtype = kTypes[test_random_below(random, 3)];
  spec.k_dtype = kTypes[test_random_below(random, opaque ? 4 : 3)];
  const bool has_v = spec.k_dtype == KVEVICT_DTYPE_OPAQUE ||
                     test_random_coin(random) || values;
  spec.v_head_dim = has_v ? test_random_between(random, 1, 20) : 0;
  spec.layout = (test_layout)test_random_below(random, TEST_N_LAYOUTS);
  spec.n_companions = test_random_below(random, 3);
  return spec;
}

/* Only the kind of its cache is read from such a layer. */
static kvevict_layer_geometry WithoutFullCache(test_random* random) {
  kvevict_layer_geometry layer = {sizeof layer,
                                  test_random_coin(random)
                                      ? KVEVICT_LAYER_CACHE_WINDOW
                                      : KVEVICT_LAYER_CACHE_NONE,
                                  7,
                                  3,
                                  0,
                                  0,
                                  99,
                                  -1,
                                  99,
                                  NAN,
                                  NAN,
                                  99};
  return layer;
}

static test_mixed* Draw(test_random* random, bool opaque, bool values) {
  test_mixed* m = calloc(1, sizeof *m);
  m->n_layers = test_random_between(random, 2, 6);
  const uint32_t full = test_random_below(random, m->n_layers);
  for (uint32_t l = 0; l < m->n_layers; ++l) {
    if (l != full && test_random_below(random, 3) == 0) {
      m->layers[l] = WithoutFullCache(random);
      continue;
    }
    /* Neighbouring layers are sometimes alike. */
    const bool again = l > 0 && test_mixed_is_full(m, l - 1) &&
                       test_random_below(random, 3) == 0;
    m->specs[l] = again ? m->specs[l - 1] : DrawSpec(random, opaque, values);
    const test_model_spec* s = &m->specs[l];
    const bool rows = s->k_dtype == KVEVICT_DTYPE_OPAQUE;
    m->layers[l] =
        test_layer(s->n_q_heads, s->n_kv_heads, rows ? 0 : s->k_head_dim,
                   rows ? 0 : s->v_head_dim);
    m->layers[l].q_dtype = s->q_dtype;
    m->layers[l].k_dtype = m->layers[l].v_dtype = s->k_dtype;
  }
  return m;
}

test_mixed* test_mixed_draw(test_random* random, bool opaque) {
  return Draw(random, opaque, false);
}

test_mixed* test_mixed_draw_for(const char* policy, test_random* random,
                                bool opaque) {
  const bool values =
      strncmp(policy, "lagkv", 5) == 0 || strncmp(policy, "cur", 3) == 0;
  return Draw(random, opaque, values);
}

bool test_mixed_is_full(const test_mixed* m, uint32_t layer) {
  return m->layers[layer].cache == KVEVICT_LAYER_CACHE_FULL;
}

/* Opens the model beside a full layer, which has the same number there. */
static void OpenAlike(test_mixed* m, uint32_t layer, const uint32_t* budgets,
                      test_random* random) {
  test_model_spec* s = &m->specs[layer];
  s->policy = m->policies[layer];
  s->n_layers = layer + 1;
  if (budgets != NULL) {
    for (uint32_t i = 0; i <= layer; ++i) {
      memcpy(m->head_budgets[layer] + i * s->n_kv_heads, budgets,
             s->n_kv_heads * sizeof *budgets);
    }
    s->head_budgets = m->head_budgets[layer];
  }
  m->alike[layer] = test_model_create(s, *random);
  test_random_u64(random);
  m->live[layer] = test_cache_clone(m->alike[layer]->live[layer]);
  m->views[layer] = m->live[layer]->view;
}

void test_mixed_open(test_mixed* m, const char* policy_text,
                     const uint32_t* budgets, test_random* random) {
  uint32_t n_heads = 0;
  for (uint32_t l = 0; l < m->n_layers; ++l) {
    m->views[l].struct_size = sizeof m->views[l];
    if (!test_mixed_is_full(m, l)) continue;
    if (m->policies[l][0] == '\0') {
      snprintf(m->policies[l], sizeof m->policies[l], "%s", policy_text);
    }
    OpenAlike(m, l, budgets == NULL ? NULL : budgets + n_heads, random);
    n_heads += m->layers[l].n_kv_heads;
  }
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  test_runner_install(&m->runner, test_random_between(random, 1, 4), &options);
  test_use_device(&options);
  EXPECT_OK(kvevict_context_create(&options, &m->context));
  kvevict_geometry geometry =
      test_geometry(m->n_layers, TEST_MIXED_TOKENS, m->layers);
  geometry.layers_len = m->n_layers;
  kvevict_plan_options of_heads = KVEVICT_PLAN_OPTIONS_INIT;
  of_heads.head_budgets = budgets;
  of_heads.head_budgets_len = budgets == NULL ? 0 : n_heads;
  EXPECT_OK(kvevict_plan_create(m->context, &geometry, test_policy(policy_text),
                                &of_heads, &m->plan));
  EXPECT_OK(kvevict_sequence_create(m->plan, &m->sequence));
  EXPECT_OK(kvevict_sequence_begin_observing(m->sequence, NULL, 0));
  m->workspace_bytes =
      test_workspace(m->plan, KVEVICT_OPERATION_EVICT, 0).best_bytes;
  m->workspace = test_workspace_memory(m->workspace_bytes + kGuardBytes);
}

void test_mixed_destroy(test_mixed* m) {
  kvevict_sequence_destroy(m->sequence);
  kvevict_plan_destroy(m->plan);
  kvevict_context_destroy(m->context);
  for (uint32_t l = 0; l < m->n_layers; ++l) {
    if (m->alike[l] == NULL) continue;
    test_model_destroy(m->alike[l]);
    test_cache_destroy(m->live[l]);
  }
  free(m->workspace);
  free(m);
}

void test_mixed_append(test_mixed* m, uint32_t n) {
  for (uint32_t l = 0; l < m->n_layers; ++l) {
    if (m->alike[l] == NULL) continue;
    test_model_append(m->alike[l], n);
    const test_cache* from = m->alike[l]->live[l];
    memcpy(m->live[l]->memory, from->memory, from->n_bytes);
  }
  EXPECT_OK(kvevict_sequence_append(m->sequence, n, NULL));
}

void test_mixed_step(test_mixed* m, uint32_t n) {
  kvevict_plane queries[TEST_MAX_LAYERS];
  uint32_t first = 0;
  memset(queries, 0, sizeof queries);
  for (uint32_t l = 0; l < m->n_layers; ++l) {
    if (m->alike[l] == NULL) continue;
    first = m->alike[l]->n_seen;
    queries[l] = test_model_queries(m->alike[l], l, first);
    test_model_observe(m->alike[l], first, n);
  }
  EXPECT_OK(test_observe_layers(m->sequence, queries, m->n_layers, n, first));
  test_mixed_append(m, n);
}

kvevict_status test_mixed_evict(test_mixed* m,
                                const kvevict_evict_options* options,
                                test_random* random) {
  const size_t least =
      test_workspace(m->plan, KVEVICT_OPERATION_EVICT, 0).least_bytes;
  const size_t bytes =
      least + (m->workspace_bytes - least) * test_random_below(random, 5) / 4;
  memset(m->workspace, TEST_GUARD, m->workspace_bytes + kGuardBytes);
  const kvevict_status status = kvevict_sequence_evict(
      m->sequence, m->views, m->n_layers, options, m->workspace, bytes, NULL);
  EXPECT(test_is_filled(m->workspace + bytes, kGuardBytes),
         "the eviction wrote beyond its workspace of %zu bytes", bytes);
  return status;
}

void test_mixed_expect_alike(const test_mixed* m, uint32_t layer,
                             const char* what) {
  const test_model* alike = m->alike[layer];
  for (uint32_t h = 0; h < m->layers[layer].n_kv_heads; ++h) {
    int32_t expected[TEST_MIXED_TOKENS], positions[TEST_MIXED_TOKENS];
    const uint32_t n = test_model_stored_of(alike, layer, h);
    size_t n_written = 0;
    uint32_t stored = 0;
    EXPECT_OK(kvevict_sequence_stored_length(m->sequence, layer, h, &stored));
    EXPECT(stored == n, "%s: layer %u, head %u holds %u tokens, not %u", what,
           layer, h, stored, n);
    test_model_positions(alike, layer, h, expected);
    EXPECT_OK(kvevict_sequence_keep_positions(m->sequence, layer, h, positions,
                                              TEST_MIXED_TOKENS, &n_written));
    EXPECT(n_written == n &&
               memcmp(positions, expected, n * sizeof *positions) == 0,
           "%s: layer %u, head %u holds other tokens", what, layer, h);
  }
  test_expect_same_bytes(m->live[layer], alike->live[layer], what);
}
