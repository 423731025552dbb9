#include "tests/capi/support/model.h"

#include <stdlib.h>
#include <string.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/compact.h"
#include "tests/oracle/policy.h"

enum { kGuardBytes = 4096 };

test_model_spec test_small_model(const char* policy) {
  return (test_model_spec){.policy = policy,
                           .n_layers = 2,
                           .n_q_heads = 4,
                           .n_kv_heads = 2,
                           .max_tokens = 100,
                           .max_positions = 200,
                           .k_head_dim = 16,
                           .v_head_dim = 8,
                           .q_dtype = KVEVICT_DTYPE_F16,
                           .k_dtype = KVEVICT_DTYPE_F32,
                           .layout = TEST_TOKEN_MAJOR};
}

test_model_spec test_three_layers(const char* policy) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = 3;
  spec.max_positions = 300;
  spec.q_dtype = KVEVICT_DTYPE_F32;
  spec.layout = TEST_HEAD_MAJOR;
  spec.n_companions = 1;
  return spec;
}

void test_draw_quantized(test_model_spec* spec, test_random* random) {
  kvevict_dtype_info coded[32], row = {.struct_size = sizeof row};
  uint32_t n = 0;
  for (uint32_t i = 0; kvevict_dtype_at(i, &row) == KVEVICT_OK; ++i) {
    if (row.can_score && row.element_bytes < 2) coded[n++] = row;
  }
  row = coded[test_random_below(random, n)];
  spec->k_dtype = row.dtype;
  const uint32_t block = row.block_elements;
  spec->k_head_dim = (spec->k_head_dim + block - 1) / block * block;
  spec->v_head_dim = (spec->v_head_dim + block - 1) / block * block;
}

static test_cache* NewCache(const test_model_spec* spec, test_layout layout,
                            uint32_t capacity, uint32_t seed) {
  const test_cache_spec cache = {
      layout,           spec->n_kv_heads, capacity,         spec->k_dtype,
      spec->k_head_dim, spec->k_dtype,    spec->v_head_dim, spec->n_companions};
  test_random random = {seed};
  return test_cache_create(&cache, &random);
}

static void FillQueries(test_model* model, uint32_t layer,
                        test_random* random) {
  const test_model_spec* s = &model->spec;
  const uint32_t size = oracle_element_bytes(s->q_dtype);
  const size_t n = (size_t)s->max_positions * s->n_q_heads * s->k_head_dim;
  model->queries[layer] = malloc(n * size);
  for (size_t i = 0; i < n; ++i) {
    /* Twice the usual spread makes peaks that a selection can find. */
    test_store(s->q_dtype, 2.0f * test_random_normal(random),
               model->queries[layer] + i * size);
  }
}

static void CreateWorkspace(test_model* model) {
  model->workspace_bytes =
      test_workspace(model->plan, KVEVICT_OPERATION_EVICT, 0).best_bytes;
  model->workspace =
      test_workspace_memory(model->workspace_bytes + kGuardBytes);
}

static void CreateHandles(test_model* model) {
  const test_model_spec* s = &model->spec;
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  test_allocator_install(&model->allocator, &options);
  test_runner_install(&model->runner, s->n_threads == 0 ? 1 : s->n_threads,
                      &options);
  test_use_device(&options);
  model->context = s->context;
  if (s->context == NULL) {
    EXPECT_OK(kvevict_context_create(&options, &model->context));
  }
  const bool opaque = s->k_dtype == KVEVICT_DTYPE_OPAQUE;
  model->layer =
      test_layer(s->n_q_heads, s->n_kv_heads, opaque ? 0 : s->k_head_dim,
                 opaque ? 0 : s->v_head_dim);
  model->layer.q_dtype = s->q_dtype;
  model->layer.k_dtype = model->layer.v_dtype = s->k_dtype;
  model->geometry = test_geometry(s->n_layers, s->max_tokens, &model->layer);
  model->policy_handle = test_policy(s->policy);
  model->policy = oracle_policy_of(model->policy_handle);
  kvevict_plan_options plan_options = KVEVICT_PLAN_OPTIONS_INIT;
  plan_options.head_budgets = s->head_budgets;
  plan_options.report_mass = s->report_mass;
  plan_options.has_destinations = s->has_destinations;
  plan_options.draft_tokens = s->draft_tokens;
  if (s->head_budgets != NULL) {
    plan_options.head_budgets_len = (size_t)s->n_layers * s->n_kv_heads;
  }
  plan_options.layer_budgets = s->layer_budgets;
  if (s->layer_budgets != NULL) plan_options.layer_budgets_len = s->n_layers;
  EXPECT_OK(kvevict_plan_create(model->context, &model->geometry,
                                model->policy_handle, &plan_options,
                                &model->plan));
  EXPECT_OK(kvevict_sequence_create(model->plan, &model->sequence));
  EXPECT_OK(kvevict_sequence_begin_observing(model->sequence, NULL, 0));
  CreateWorkspace(model);
}

bool test_model_shares(const test_model* model, uint32_t layer) {
  return model->spec.last_shares && layer > 0 &&
         layer + 1 == model->spec.n_layers;
}

test_model* test_model_create(const test_model_spec* spec, test_random random) {
  test_model* model = calloc(1, sizeof(*model));
  model->spec = *spec;
  for (uint32_t l = 0; l < spec->n_layers; ++l) {
    const uint32_t seed = (uint32_t)test_random_u64(&random);
    const bool shares = test_model_shares(model, l);
    model->archive[l] =
        shares ? model->archive[0]
               : NewCache(spec, TEST_TOKEN_MAJOR, spec->max_positions, seed);
    model->live[l] =
        shares ? model->live[0]
               : NewCache(spec, spec->layout, spec->max_tokens, seed + 1);
    model->views[l] = model->live[l]->view;
    FillQueries(model, l, &random);
  }
  CreateHandles(model);
  return model;
}

test_model* test_model_of(const char* policy, uint64_t seed) {
  const test_model_spec spec = test_small_model(policy);
  return test_model_create(&spec, (test_random){seed});
}

kvevict_status test_model_go_on(test_model* model, const char* policy,
                                const kvevict_geometry* geometry,
                                const kvevict_plan_options* options) {
  kvevict_plan* plan = NULL;
  kvevict_sequence* sequence = NULL;
  const kvevict_policy* const handle = test_policy(policy);
  if (geometry == NULL) geometry = &model->geometry;
  EXPECT_OK(
      kvevict_plan_create(model->context, geometry, handle, options, &plan));
  kvevict_fork_options fork = {.struct_size = sizeof fork, .plan = plan};
  const kvevict_status status =
      kvevict_sequence_fork(model->sequence, &fork, &sequence, NULL);
  if (status != KVEVICT_OK) {
    kvevict_plan_destroy(plan);
    return status;
  }
  /* If it observes already, this fails and changes nothing. */
  (void)kvevict_sequence_begin_observing(sequence, NULL, 0);
  kvevict_sequence_destroy(model->sequence);
  kvevict_plan_destroy(model->plan);
  free(model->workspace);
  model->sequence = sequence;
  model->plan = plan;
  model->policy_handle = handle;
  model->policy = oracle_policy_of(handle);
  CreateWorkspace(model);
  return KVEVICT_OK;
}

void test_model_destroy(test_model* model) {
  kvevict_sequence_destroy(model->sequence);
  kvevict_plan_destroy(model->plan);
  if (model->spec.context == NULL) kvevict_context_destroy(model->context);
  EXPECT(model->allocator.n_live == 0, "%u allocations leaked",
         model->allocator.n_live);
  EXPECT(model->allocator.n_complaints == 0, "misused allocator hooks");
  for (uint32_t l = 0; l < model->spec.n_layers; ++l) {
    free(model->queries[l]);
    if (test_model_shares(model, l)) continue;
    test_cache_destroy(model->archive[l]);
    test_cache_destroy(model->live[l]);
  }
  free(model->workspace);
  free(model);
}

kvevict_plane test_model_queries(const test_model* model, uint32_t layer,
                                 uint32_t first_position) {
  const test_model_spec* s = &model->spec;
  const int64_t row = (int64_t)s->k_head_dim * oracle_element_bytes(s->q_dtype);
  kvevict_plane plane;
  memset(&plane, 0, sizeof plane);
  plane.head_stride_bytes = row;
  plane.token_stride_bytes = row * s->n_q_heads;
  plane.data = (uint64_t)(uintptr_t)model->queries[layer] +
               (uint64_t)(first_position * plane.token_stride_bytes);
  plane.dtype = s->q_dtype;
  plane.head_dim = s->k_head_dim;
  return plane;
}

void test_model_give_reference(const test_model* model, test_inputs* inputs,
                               kvevict_evict_options* options) {
  for (uint32_t l = 0; l < model->spec.n_layers; ++l) {
    inputs->planes[l] = test_model_queries(model, l, model->reference_first);
    inputs->inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    inputs->inputs[l].n_reference_rows = model->policy.reference;
    inputs->inputs[l].reference_queries = &inputs->planes[l];
    inputs->inputs[l].reference_positions = model->reference_positions;
  }
  options->inputs = inputs->inputs;
  options->inputs_len = model->spec.n_layers;
}

static void CopyToken(test_cache* to, uint32_t slot, uint32_t h,
                      const test_cache* from, uint32_t position) {
  for (uint32_t p = 0; p < TEST_MAX_PLANES; ++p) {
    const kvevict_plane* plane = test_cache_plane(to, p);
    if (plane == NULL) continue;
    oracle_copy_row(&to->view, plane, slot, &from->view,
                    test_cache_plane(from, p), position, h);
  }
}

void test_model_store(test_model* model, uint32_t n) {
  EXPECT(model->n_seen + n <= model->spec.max_positions, "archive too small");
  for (uint32_t l = 0; l < model->spec.n_layers; ++l) {
    for (uint32_t h = 0; h < model->spec.n_kv_heads; ++h) {
      const uint32_t stored = test_model_stored_of(model, l, h);
      for (uint32_t i = 0; i < n && stored + i < model->spec.max_tokens; ++i) {
        CopyToken(model->live[l], stored + i, h, model->archive[l],
                  model->n_seen + i);
      }
    }
  }
}

void test_model_adopt(test_model* model) {
  for (uint32_t l = 0; l < model->spec.n_layers; ++l) {
    for (uint32_t h = 0; h < model->spec.n_kv_heads; ++h) {
      const uint32_t n = test_model_stored_of(model, l, h);
      int32_t* const positions = malloc((n + 1) * sizeof *positions);
      test_model_positions(model, l, h, positions);
      for (uint32_t slot = 0; slot < n; ++slot) {
        CopyToken(model->archive[l], (uint32_t)positions[slot], h,
                  model->live[l], slot);
      }
      free(positions);
    }
  }
}

void test_model_append(test_model* model, uint32_t n) {
  test_model_store(model, n);
  EXPECT_OK(kvevict_sequence_append(model->sequence, n, NULL));
  model->n_seen += n;
}

void test_model_observe(test_model* model, uint32_t first, uint32_t n) {
  for (uint32_t l = 0; l < model->spec.n_layers; ++l) {
    const kvevict_plane queries = test_model_queries(model, l, first);
    EXPECT_OK(test_observe(model->sequence, l, &queries, n, first));
  }
}

float test_model_score(uint32_t layer, uint32_t head, uint32_t position) {
  return (float)((position * 37 + head * 11 + layer * 5) % 101) / 8.0f - 6.0f;
}

kvevict_status test_model_give_scores(test_model* model, uint32_t first,
                                      uint32_t n) {
  const uint32_t n_heads = model->spec.n_kv_heads;
  float* const scores = malloc((size_t)n_heads * n * sizeof *scores);
  kvevict_status status = KVEVICT_OK;
  for (uint32_t l = 0; status == KVEVICT_OK && l < model->spec.n_layers; ++l) {
    for (uint32_t h = 0; h < n_heads; ++h) {
      for (uint32_t i = 0; i < n; ++i) {
        scores[h * n + i] = test_model_score(l, h, first + i);
      }
    }
    const kvevict_plane plane = test_floats_plane(scores, n);
    kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
    inputs.scores = &plane;
    const kvevict_observation shown = {sizeof shown, l, &inputs};
    status =
        kvevict_sequence_observe(model->sequence, &shown, 1, n, first, NULL);
  }
  free(scores);
  return status;
}

void test_model_step(test_model* model, uint32_t n) {
  test_model_observe(model, model->n_seen, n);
  test_model_append(model, n);
}

kvevict_status test_model_evict(test_model* model,
                                const kvevict_evict_options* options,
                                kvevict_evict_report* report) {
  memset(model->workspace, TEST_GUARD, model->workspace_bytes + kGuardBytes);
  const kvevict_status status = kvevict_sequence_evict(
      model->sequence, model->views, model->spec.n_layers, options,
      model->workspace_bytes == 0 ? NULL : model->workspace,
      model->workspace_bytes, NULL);
  EXPECT(test_is_filled(model->workspace + model->workspace_bytes, kGuardBytes),
         "the eviction wrote beyond its workspace of %zu bytes",
         model->workspace_bytes);
  if (status == KVEVICT_OK && report != NULL) {
    EXPECT_OK(kvevict_sequence_report(model->sequence, report, NULL, 0));
  }
  return status;
}

uint32_t test_model_context(const test_model* model) {
  return model->n_seen < model->spec.max_tokens ? model->n_seen
                                                : model->spec.max_tokens;
}

uint32_t test_model_stored_of(const test_model* model, uint32_t layer,
                              uint32_t head) {
  uint32_t stored = 0;
  EXPECT_OK(
      kvevict_sequence_stored_length(model->sequence, layer, head, &stored));
  return stored;
}

uint32_t test_model_stored(const test_model* model, uint32_t layer) {
  uint32_t most = 0;
  for (uint32_t h = 0; h < model->spec.n_kv_heads; ++h) {
    const uint32_t stored = test_model_stored_of(model, layer, h);
    if (stored > most) most = stored;
  }
  return most;
}

uint32_t test_model_row_bytes(const test_model* model, uint32_t layer) {
  const test_cache* live = model->live[layer];
  uint32_t bytes = oracle_row_bytes(&live->view.k);
  if (live->spec.v_head_dim > 0) bytes += oracle_row_bytes(&live->view.v);
  for (uint32_t i = 0; i < live->view.n_companions; ++i) {
    bytes += oracle_row_bytes(&live->companions[i]);
  }
  return bytes;
}

void test_model_positions(const test_model* model, uint32_t layer,
                          uint32_t head, int32_t* positions) {
  const uint32_t stored = test_model_stored_of(model, layer, head);
  size_t n = 0;
  EXPECT_OK(kvevict_sequence_keep_positions(model->sequence, layer, head,
                                            positions, stored, &n));
  EXPECT(n == stored, "layer %u: %zu positions of %u slots", layer, n, stored);
}

uint32_t test_model_kept_slots(const test_model* model, uint32_t layer,
                               uint32_t head, const int32_t* before,
                               uint32_t n_before, int32_t* slots) {
  const uint32_t n = test_model_stored_of(model, layer, head);
  test_model_positions(model, layer, head, slots);
  for (uint32_t i = 0, slot = 0; i < n; ++i, ++slot) {
    while (slot < n_before && before[slot] != slots[i]) ++slot;
    EXPECT(slot < n_before, "layer %u, head %u holds %d, which it did not",
           layer, head, slots[i]);
    slots[i] = (int32_t)slot;
  }
  return n;
}

static void CheckRows(const test_model* model, uint32_t layer, uint32_t head,
                      const int32_t* positions, uint32_t n, const char* what) {
  const test_cache* live = model->live[layer];
  const test_cache* archive = model->archive[layer];
  for (uint32_t p = 0; p < TEST_MAX_PLANES; ++p) {
    const kvevict_plane* plane = test_cache_plane(live, p);
    if (plane == NULL) continue;
    for (uint32_t slot = 0; slot < n; ++slot) {
      EXPECT(oracle_first_difference(&live->view, plane, slot, &archive->view,
                                     test_cache_plane(archive, p),
                                     (uint32_t)positions[slot],
                                     head) == oracle_row_bytes(plane),
             "%s: layer %u, head %u, plane %u: slot %u is not token %d", what,
             layer, head, p, slot, positions[slot]);
    }
  }
}

void test_model_check(const test_model* model, const char* what) {
  uint32_t logical = 0;
  EXPECT_OK(kvevict_sequence_logical_length(model->sequence, &logical));
  EXPECT(logical == model->n_seen, "%s: logical length %u, not %u", what,
         logical, model->n_seen);
  int32_t* positions = malloc((logical + 1) * sizeof(int32_t));
  int32_t* slot_of = malloc((logical + 1) * sizeof(int32_t));
  for (uint32_t l = 0; l < model->spec.n_layers; ++l) {
    for (uint32_t h = 0; h < model->spec.n_kv_heads; ++h) {
      const uint32_t stored = test_model_stored_of(model, l, h);
      test_model_positions(model, l, h, positions);
      for (uint32_t p = 0; p < logical; ++p) slot_of[p] = -1;
      for (uint32_t slot = 0; slot < stored; ++slot) {
        const int32_t p = positions[slot];
        EXPECT(p >= 0 && (uint32_t)p < logical &&
                   (slot == 0 || p > positions[slot - 1]),
               "%s: layer %u, head %u, slot %u: position %d", what, l, h, slot,
               p);
        slot_of[p] = (int32_t)slot;
        int32_t answer = -2;
        EXPECT_OK(kvevict_sequence_position_of_slot(model->sequence, l, h, slot,
                                                    &answer));
        EXPECT(answer == p, "%s: slot %u: position %d, not %d", what, slot,
               answer, p);
      }
      for (uint32_t p = 0; p < logical; ++p) {
        int32_t answer = -2;
        EXPECT_OK(kvevict_sequence_slot_of_position(model->sequence, l, h, p,
                                                    &answer));
        EXPECT(answer == slot_of[p], "%s: position %u: slot %d, not %d", what,
               p, answer, slot_of[p]);
      }
      CheckRows(model, l, h, positions, stored, what);
    }
  }
  free(positions);
  free(slot_of);
}

void test_model_forced(const test_model* model, uint32_t layer, uint32_t head,
                       const kvevict_evict_options* options, uint8_t* forced) {
  const uint32_t n = test_model_stored_of(model, layer, head);
  kvevict_resolved_policy r = {.struct_size = sizeof r};
  oracle_policy policy = model->policy;
  uint32_t n_context = test_model_context(model);
  /* This budget does not exist in every context. */
  if (model->spec.head_budgets != NULL || policy.heads != ORACLE_HEADS_EQUAL) {
    n_context = INT32_MAX;
    policy.budget = n_context;
  }
  EXPECT(oracle_resolve(&policy, n_context, &r), "no such budget");
  const uint32_t n_last = oracle_last_tokens(&policy, &r);
  for (uint32_t slot = 0; slot < n; ++slot) {
    int32_t position = -1;
    EXPECT_OK(kvevict_sequence_position_of_slot(model->sequence, layer, head,
                                                slot, &position));
    forced[slot] = slot < r.n_sink || slot + n_last >= n;
    if (options == NULL) continue;
    for (size_t i = 0; i < options->protected_positions_len; ++i) {
      if (options->protected_positions[i] == position) forced[slot] = 1;
    }
  }
}

void test_expect_same_tokens(const test_model* a, const test_model* b,
                             const char* what) {
  for (uint32_t l = 0; l < a->spec.n_layers; ++l) {
    int32_t* pa = malloc((a->spec.max_tokens + 1) * sizeof(int32_t));
    int32_t* pb = malloc((b->spec.max_tokens + 1) * sizeof(int32_t));
    for (uint32_t h = 0; h < a->spec.n_kv_heads; ++h) {
      const uint32_t n = test_model_stored_of(a, l, h);
      EXPECT(n == test_model_stored_of(b, l, h),
             "%s: layer %u, head %u: %u and %u slots", what, l, h, n,
             test_model_stored_of(b, l, h));
      test_model_positions(a, l, h, pa);
      test_model_positions(b, l, h, pb);
      for (uint32_t i = 0; i < n; ++i) {
        EXPECT(pa[i] == pb[i],
               "%s: layer %u, head %u, slot %u: token %d and %d", what, l, h, i,
               pa[i], pb[i]);
      }
    }
    free(pa);
    free(pb);
  }
}
