/* An eviction refuses bad destinations before the first byte moves. */
#include <stdlib.h>
#include <string.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "kvevict/prefill.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"

enum { kDim = 32, kSlots = 100 };

typedef struct scene {
  test_model* model;
  test_cache *to[2], *live[2], *before[2];
  kvevict_view destinations[2];
  kvevict_evict_options options;
} scene;

static scene* Begin(const char* policy, kvevict_dtype dtype,
                    test_layout layout) {
  scene* s = calloc(1, sizeof *s);
  test_random random = test_random_start("destinations errors");
  test_model_spec spec = test_small_model(policy);
  spec.k_head_dim = spec.v_head_dim = kDim;
  spec.has_destinations = 1;
  s->model = test_model_create(&spec, random);
  const test_cache_spec to = {layout, 2, kSlots, dtype, kDim, dtype, kDim, 0};
  for (int l = 0; l < 2; ++l) {
    s->to[l] = test_cache_create(&to, &random);
    s->before[l] = test_cache_clone(s->to[l]);
    s->destinations[l] = s->to[l]->view;
  }
  s->options = (kvevict_evict_options)KVEVICT_EVICT_OPTIONS_INIT;
  s->options.destinations = s->destinations;
  s->options.destinations_len = 2;
  test_model_step(s->model, 80);
  for (int l = 0; l < 2; ++l) s->live[l] = test_cache_clone(s->model->live[l]);
  return s;
}

static void End(scene* s) {
  for (int l = 0; l < 2; ++l) {
    test_expect_same_bytes(s->to[l], s->before[l], "destination");
    test_expect_same_bytes(s->model->live[l], s->live[l], "view");
    EXPECT(test_model_stored(s->model, (uint32_t)l) == 80, "slots are gone");
    test_cache_destroy(s->to[l]);
    test_cache_destroy(s->before[l]);
    test_cache_destroy(s->live[l]);
  }
  test_model_destroy(s->model);
  free(s);
}

#define EXPECT_REFUSED(change, ...)                                     \
  do {                                                                  \
    const scene kept = *s;                                              \
    const test_model kept_model = *s->model;                            \
    change;                                                             \
    EXPECT_INVALID(test_model_evict(s->model, &s->options, NULL),       \
                   __VA_ARGS__);                                        \
    memcpy(s->model->views, kept_model.views, sizeof kept_model.views); \
    *s = kept;                                                          \
  } while (0)

TestSuite(destinations_errors);

Test(destinations_errors, rows_have_to_fit) {
  scene* s = Begin("knorm:budget=40", KVEVICT_DTYPE_U8, TEST_PAGED_16);
  kvevict_view* d = s->destinations;
  kvevict_view* views = s->model->views;
  kvevict_plane numbers[4];
  memcpy(numbers, d[1].companions, sizeof numbers);
  EXPECT_REFUSED(s->options.destinations_len = 1, "destinations_len 1");
  EXPECT_REFUSED(s->options.destinations = NULL, "destinations is NULL", "2");
  EXPECT_REFUSED(d[1].n_kv_heads = 1, "layer 1: destination: n_kv_heads 1");
  EXPECT_REFUSED(d[1].k.head_dim = 16, "layer 1: destination", "16");
  EXPECT_REFUSED(d[1].v = (kvevict_plane)KVEVICT_PLANE_INIT,
                 "layer 1: destination");
  EXPECT_REFUSED(d[1].n_companions = 0, "layer 1: destination: companions",
                 "key_scale");
  EXPECT_REFUSED(
      (numbers[0].dtype = KVEVICT_DTYPE_U8, d[1].companions = numbers),
      "layer 1: destination: companions[0]");
  memcpy(numbers, d[1].companions, sizeof numbers);
  EXPECT_REFUSED(d[1].block_table_len = 2, "layer 1: destination",
                 "block_table_len 2");
  EXPECT_REFUSED(d[0].n_shared_blocks = 1, "layer 0: destination",
                 "n_shared_blocks 1");
  EXPECT_REFUSED(d[0] = views[0], "layer 0", "destination is the view itself");
  EXPECT_REFUSED(d[1] = views[0], "layers[0].k", "layers[1].destination.k",
                 "overlap");
  EXPECT_REFUSED(d[1] = d[0], "layer 1: its view is that of layer 1",
                 "its destination is that of layer 0");
  EXPECT_REFUSED(views[1] = views[0], "layer 1: its view is that of layer 0",
                 "its destination is that of layer 1");
  EXPECT_REFUSED(d[1].k = d[0].k, "layers[0].destination.k",
                 "layers[1].destination.k", "overlap");
  numbers[2] = d[0].companions[2];
  EXPECT_REFUSED((d[1] = d[0], d[1].k = s->to[1]->view.k,
                  d[1].v = s->to[1]->view.v, d[1].companions = numbers),
                 "layer 1: destination.companions[2] is also another cache's");
  End(s);
}

Test(destinations_errors, views_share_no_byte_with_them) {
  scene* s = Begin("knorm:budget=40", KVEVICT_DTYPE_F32, TEST_TOKEN_MAJOR);
  EXPECT_REFUSED(s->destinations[1].k.data = s->model->views[0].k.data + 4,
                 "layers[0].k", "layers[1].destination.k", "overlap");
  /* The last of the 40 rows that stay. */
  const uint64_t row = (uint64_t)s->destinations[0].k.token_stride_bytes;
  EXPECT_REFUSED(
      s->destinations[1].k.data = s->destinations[0].k.data + 39 * row,
      "overlap");
  End(s);
}

Test(destinations_errors, the_workspace_is_none) {
  scene* s = Begin("knorm:budget=40", KVEVICT_DTYPE_F32, TEST_TOKEN_MAJOR);
  for (uint32_t l = 0; l < 2; ++l) {
    char where[48];
    snprintf(where, sizeof where, "overlaps views[%u].destination", l);
    EXPECT_INVALID(
        kvevict_sequence_evict(
            s->model->sequence, s->model->views, 2, &s->options,
            (void*)(uintptr_t)((s->destinations[l].k.data + 64) / 64 * 64),
            s->model->workspace_bytes, NULL),
        "workspace 0x", where);
  }
  End(s);
}

Test(destinations_errors, what_belongs_in_place_is_refused) {
  scene* s = Begin("knorm:budget=40", KVEVICT_DTYPE_BF16, TEST_PAGED_16);
  uint8_t undo[64];
  EXPECT_REFUSED(s->options.by_table = 1, "destinations with by_table 1");
  EXPECT_REFUSED((s->options.undo = undo, s->options.undo_bytes = sizeof undo),
                 "destinations with undo");
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.has_destinations = 2;
  kvevict_plan* plan = NULL;
  EXPECT_INVALID(kvevict_plan_create(s->model->context, &s->model->geometry,
                                     s->model->policy_handle, &options, &plan),
                 "has_destinations 2");
  End(s);
  s = Begin("knorm:budget=40,merge=values", KVEVICT_DTYPE_F32, TEST_PAGED_16);
  EXPECT_REFUSED((void)0, "destinations with merge");
  End(s);
}

Test(destinations_errors, a_plan_says_whether_there_is_room) {
  scene* s = Begin("knorm:budget=40", KVEVICT_DTYPE_F32, TEST_PAGED_16);
  EXPECT_OK(test_model_go_on(s->model, "knorm:budget=40", NULL, NULL));
  EXPECT_REFUSED((void)0, "has_destinations of the plan is 0");
  End(s);
}

Test(destinations_errors, quantized_keys_are_not_turned) {
  scene* s = Begin("none", KVEVICT_DTYPE_U8, TEST_TOKEN_MAJOR);
  float frequencies[kDim / 2] = {1.0f};
  kvevict_geometry geometry = s->model->geometry;
  geometry.rope_inv_freq = frequencies;
  geometry.rope_inv_freq_len = 1;
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.has_destinations = 1;
  EXPECT_OK(test_model_go_on(s->model, "knorm:budget=40,rotate=yes", &geometry,
                             &options));
  EXPECT_FAILS(test_model_evict(s->model, &s->options, NULL),
               KVEVICT_ERROR_UNSUPPORTED, "layer 0: destination: cannot rotate",
               kvevict_reason_text(KVEVICT_REASON_QUANTIZED_KEYS));
  End(s);
}

/* An error even if nothing is lost. */
Test(destinations_errors, no_view_is_one) {
  scene* s = Begin("none", KVEVICT_DTYPE_F32, TEST_TOKEN_MAJOR);
  EXPECT_REFUSED(s->destinations[1] = s->model->views[0],
                 "layer 1: destination is the view of layer 0");
  uint32_t kept[2];
  EXPECT_OK(kvevict_sequence_kept_slots(s->model->sequence, s->model->views, 2,
                                        kept, 2));
  EXPECT(kept[0] == 80 && kept[1] == 80, "%u, %u slots", kept[0], kept[1]);
  EXPECT_INVALID(kvevict_sequence_kept_slots(s->model->sequence,
                                             s->model->views, 2, kept, 1),
                 "slots_len 1 is not n_layers 2");
  EXPECT_INVALID(kvevict_sequence_kept_slots(s->model->sequence,
                                             s->model->views, 2, NULL, 2),
                 "slots is NULL");
  End(s);
}

/* Two items share a destination, or one writes to the other's view. */
Test(destinations_errors, of_a_batch_lie_apart) {
  kvevict_context* const context = test_context();
  test_model_spec spec = test_small_model("knorm:budget=40");
  spec.context = context;
  spec.n_layers = 1;
  spec.has_destinations = 1;
  test_random random = test_random_start("destinations batch errors");
  test_model* models[] = {test_model_create(&spec, random),
                          test_model_create(&spec, random)};
  test_model* to = test_model_create(&spec, random);
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.destinations = to->views;
  options.destinations_len = 1;
  kvevict_sequence_eviction items[2];
  for (int i = 0; i < 2; ++i) {
    test_model_step(models[i], 80);
    items[i] = (kvevict_sequence_eviction)KVEVICT_SEQUENCE_EVICTION_INIT;
    items[i].sequence = models[i]->sequence;
    items[i].views = models[i]->views;
    items[i].views_len = 1;
    items[i].options = &options;
  }
  void* const workspace = models[0]->workspace;
  const size_t n_bytes = models[0]->workspace_bytes;
  EXPECT_INVALID(kvevict_sequences_evict(items, 2, workspace, n_bytes, NULL),
                 "items[0] and [1]", "overlap");
  kvevict_evict_options other = options;
  other.destinations = models[0]->views;
  items[1].options = &other;
  EXPECT_INVALID(kvevict_sequences_evict(items, 2, workspace, n_bytes, NULL),
                 "items[0] and [1]", "overlap");
  /* Both may read the same view. */
  test_model* more = test_model_create(&spec, random);
  other.destinations = more->views;
  items[1].views = models[0]->views;
  EXPECT_OK(kvevict_sequences_evict(items, 2, workspace, n_bytes, NULL));
  EXPECT(test_model_stored(models[0], 0) == 40, "first");
  EXPECT(test_model_stored(models[1], 0) == 40, "second");
  for (int i = 0; i < 2; ++i) test_model_destroy(models[i]);
  test_model_destroy(to);
  test_model_destroy(more);
}

static kvevict_status Forward(uint32_t first, uint32_t n, void* user_data) {
  (void)first, (void)n, (void)user_data;
  return KVEVICT_OK;
}

/* Calls that evict on behalf of others accept no destinations. */
Test(destinations_errors, paged_evictions_and_prefill_have_none) {
  scene* s = Begin("knorm:budget=40", KVEVICT_DTYPE_F32, TEST_TOKEN_MAJOR);
  kvevict_prefill_options prefill = KVEVICT_PREFILL_OPTIONS_INIT;
  prefill.n_tokens = prefill.chunk = 4;
  prefill.forward = Forward;
  prefill.views = s->model->views;
  prefill.views_len = 2;
  prefill.evict = &s->options;
  EXPECT_INVALID(
      kvevict_sequence_prefill(s->model->sequence, &prefill, NULL, NULL),
      "evict.destinations is not NULL");
  kvevict_paged_cache_options pool = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  pool.n_blocks = 12;
  kvevict_paged_cache* cache;
  kvevict_paged_sequence* cached;
  EXPECT_OK(kvevict_paged_cache_create(s->model->plan, &pool, &cache));
  EXPECT_OK(kvevict_paged_sequence_create(cache, &cached));
  EXPECT_OK(kvevict_paged_sequence_append(cached, 80, NULL));
  kvevict_paged_eviction item = KVEVICT_PAGED_EVICTION_INIT;
  item.cached = cached;
  item.sequence = s->model->sequence;
  item.options = &s->options;
  EXPECT_INVALID(kvevict_paged_evict(&item, 1, s->model->workspace,
                                     s->model->workspace_bytes, NULL),
                 "destinations is not NULL");
  kvevict_paged_sequence_destroy(cached);
  kvevict_paged_cache_destroy(cache);
  End(s);
}
