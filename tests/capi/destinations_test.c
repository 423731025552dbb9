/* Evictions into other caches, byte by byte against the same eviction in place
 * followed by kvevict_compact(). */
#include <stdlib.h>
#include <string.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "kvevict/paged.h"
#include "tests/capi/support/contexts.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/grouped_rows.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum { kSlots = 120, kHeads = 2, kDim = 32 };

static const char* const kPolicies[] = {
    "none",
    "streaming-llm:budget=40,sink=4",
    "snapkv:budget=40,sink=2,window=8",
    "snapkv:budget=40,sink=2,window=8,heads=adaptive",
    "snapkv:budget=40,window=8,margin=30,heads=adaptive",
    "pyramidkv:budget=40,window=8",
    "keydiff:budget=0.4,sink=1,margin=9",
    "random:budget=24,scope=model",
    "cake:budget=40,window=4",
    "knorm:budget=60,chunk=48",
    "knorm:budget=30,prompt=beside,select_block=4"};
enum { kPoliciesLen = sizeof kPolicies / sizeof *kPolicies };

/* ---- One model evicts in place, the other one elsewhere ---- */

typedef struct trial {
  test_model *in_place, *elsewhere;
  test_cache* before[TEST_MAX_LAYERS];
  test_cache* to[TEST_MAX_LAYERS];     /* destinations */
  test_cache* theirs[TEST_MAX_LAYERS]; /* the expected contents */
  kvevict_view destinations[TEST_MAX_LAYERS];
  kvevict_evict_options options;
} trial;

static test_cache* NewDestination(const test_model_spec* spec,
                                  kvevict_dtype dtype, test_layout layout,
                                  test_random* random) {
  const test_cache_spec to = {
      layout, spec->n_kv_heads, spec->max_tokens,  dtype, spec->k_head_dim,
      dtype,  spec->v_head_dim, spec->n_companions};
  return test_cache_create(&to, random);
}

static trial* Begin(test_model_spec spec, kvevict_dtype dtype,
                    test_layout layout, test_random* random) {
  trial* t = calloc(1, sizeof *t);
  const test_random seed = {test_random_u64(random)};
  t->in_place = test_model_create(&spec, seed);
  spec.has_destinations = 1;
  t->elsewhere = test_model_create(&spec, seed);
  for (uint32_t l = 0; l < spec.n_layers; ++l) {
    t->to[l] = NewDestination(&spec, dtype, layout, random);
    t->theirs[l] = test_cache_clone(t->to[l]);
    t->destinations[l] = t->to[l]->view;
  }
  t->options = (kvevict_evict_options)KVEVICT_EVICT_OPTIONS_INIT;
  t->options.destinations = t->destinations;
  t->options.destinations_len = spec.n_layers;
  return t;
}

static void End(trial* t) {
  for (uint32_t l = 0; l < t->in_place->spec.n_layers; ++l) {
    if (t->before[l] != NULL) test_cache_destroy(t->before[l]);
    test_cache_destroy(t->to[l]);
    test_cache_destroy(t->theirs[l]);
  }
  test_model_destroy(t->in_place);
  test_model_destroy(t->elsewhere);
  free(t);
}

static void Step(trial* t, uint32_t n) {
  test_model_step(t->in_place, n);
  test_model_step(t->elsewhere, n);
}

static void EndPrompt(trial* t) {
  EXPECT_OK(kvevict_sequence_end_prompt(t->in_place->sequence));
  EXPECT_OK(kvevict_sequence_end_prompt(t->elsewhere->sequence));
}

/* Compacts by the lists of the model in place, whose slots were positions. */
static void CompactTo(const trial* t, uint32_t layer) {
  const test_model* m = t->in_place;
  const uint32_t n_lists = m->spec.n_kv_heads;
  int32_t slots[kHeads * kSlots];
  uint32_t counts[kHeads];
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  keep.n_lists = n_lists;
  keep.slots = slots;
  keep.slots_len = (size_t)n_lists * kSlots;
  keep.list_stride = kSlots;
  keep.counts = counts;
  for (uint32_t h = 0; h < n_lists; ++h) {
    counts[h] = test_model_stored_of(m, layer, h);
    if (counts[h] > keep.count) keep.count = counts[h];
    test_model_positions(m, layer, h, slots + (size_t)h * kSlots);
  }
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.view = &t->before[layer]->view;
  move.n_tokens = m->n_seen;
  move.keep = &keep;
  move.destination = &t->theirs[layer]->view;
  EXPECT_OK(kvevict_compact(m->context, &move, 1, NULL, 0, NULL));
}

/* Evicts one model elsewhere and the other one in place, in one call. */
static void EvictInBatch(const trial* t) {
  test_model* const models[] = {t->elsewhere, t->in_place};
  kvevict_sequence_eviction items[2];
  for (int i = 0; i < 2; ++i) {
    items[i] = (kvevict_sequence_eviction)KVEVICT_SEQUENCE_EVICTION_INIT;
    items[i].sequence = models[i]->sequence;
    items[i].views = models[i]->views;
    items[i].views_len = models[i]->spec.n_layers;
  }
  items[0].options = &t->options;
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_sequences_workspace(items, 2, &size));
  void* workspace = aligned_alloc(64, (size.best_bytes + 63) / 64 * 64);
  EXPECT_OK(
      kvevict_sequences_evict(items, 2, workspace, size.best_bytes, NULL));
  free(workspace);
}

/* Models of one context may be evicted in one call. */
static void EvictBoth(trial* t, const char* what) {
  const uint32_t n_layers = t->in_place->spec.n_layers;
  uint64_t bytes_after = 0;
  kvevict_evict_report ours = {.struct_size = sizeof ours};
  kvevict_evict_report theirs = {.struct_size = sizeof theirs};
  for (uint32_t l = 0; l < n_layers; ++l) {
    t->before[l] = test_cache_clone(t->elsewhere->live[l]);
  }
  uint32_t kept[TEST_MAX_LAYERS];
  EXPECT_OK(kvevict_sequence_kept_slots(
      t->elsewhere->sequence, t->elsewhere->views, n_layers, kept, n_layers));
  if (t->in_place->spec.context != NULL) {
    EvictInBatch(t);
    EXPECT_OK(kvevict_sequence_report(t->in_place->sequence, &theirs, NULL, 0));
    EXPECT_OK(kvevict_sequence_report(t->elsewhere->sequence, &ours, NULL, 0));
  } else {
    EXPECT_OK(test_model_evict(t->in_place, NULL, &theirs));
    EXPECT_OK(test_model_evict(t->elsewhere, &t->options, &ours));
  }
  test_expect_same_tokens(t->in_place, t->elsewhere, what);
  for (uint32_t l = 0; l < n_layers; ++l) {
    const bool by_score =
        strstr(what, "adaptive") != NULL || strstr(what, "cake") != NULL;
    const uint32_t stored = test_model_stored(t->elsewhere, l);
    EXPECT(by_score ? kept[l] >= stored : kept[l] == stored,
           "%s: layer %u: %u slots kept, %u said", what, l, stored, kept[l]);
    test_expect_same_bytes(t->elsewhere->live[l], t->before[l], "view");
    CompactTo(t, l);
    test_expect_same_bytes(t->to[l], t->theirs[l], what);
    test_cache* const live = t->elsewhere->live[l];
    t->elsewhere->live[l] = t->to[l];
    for (uint32_t h = 0; h < t->in_place->spec.n_kv_heads; ++h) {
      bytes_after += (uint64_t)test_model_stored_of(t->elsewhere, l, h) *
                     test_model_row_bytes(t->elsewhere, l);
    }
    t->elsewhere->live[l] = live;
  }
  EXPECT(ours.evicted == theirs.evicted &&
             ours.bytes_before == theirs.bytes_before &&
             ours.tokens_before == theirs.tokens_before &&
             ours.tokens_after == theirs.tokens_after &&
             ours.bytes_after == bytes_after && ours.blocks_freed == 0,
         "%s: report", what);
}

static test_model_spec Draw(const char* policy, test_random* random) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = test_random_between(random, 1, 3);
  spec.n_kv_heads = kHeads;
  spec.max_tokens = kSlots;
  spec.k_head_dim = spec.v_head_dim = kDim;
  spec.layout = (test_layout)test_random_below(random, TEST_N_LAYOUTS);
  spec.n_companions = test_random_below(random, 3);
  spec.n_threads = test_random_between(random, 1, 3);
  return spec;
}

TestSuite(destinations);

Test(destinations, get_the_bytes_of_compaction_by_the_same_lists) {
  test_random random = test_random_start("destinations");
  for (uint32_t i = 0; i < 8 * kPoliciesLen; ++i) {
    const char* policy = kPolicies[i % kPoliciesLen];
    test_model_spec spec = Draw(policy, &random);
    if (test_random_coin(&random)) {
      spec.context = test_draw_context(&random).context;
    }
    trial* t =
        Begin(spec, test_random_between(&random, 1, test_last_dtype()),
              (test_layout)test_random_below(&random, TEST_N_LAYOUTS), &random);
    /* Some rounds lose nothing or store nothing. */
    if (i % 9 != 0) Step(t, test_random_between(&random, 12, kSlots));
    if (test_random_coin(&random)) EndPrompt(t);
    EvictBoth(t, policy);
    End(t);
  }
}

Test(destinations, are_gone_on_over_by_a_fork) {
  test_random random = test_random_start("destinations go on");
  for (uint32_t i = 0; i < 3 * kPoliciesLen; ++i) {
    const char* policy = kPolicies[i % kPoliciesLen];
    const kvevict_dtype dtype = i % 2 ? KVEVICT_DTYPE_U8 : KVEVICT_DTYPE_BF16;
    trial* t = Begin(Draw(policy, &random), dtype, TEST_TOKEN_MAJOR, &random);
    Step(t, kSlots - 20);
    EvictBoth(t, policy);
    kvevict_layer_geometry layer = t->in_place->layer;
    layer.k_dtype = layer.v_dtype = dtype;
    kvevict_geometry geometry = t->in_place->geometry;
    geometry.layers = &layer;
    test_model* both[] = {t->in_place, t->elsewhere};
    for (int m = 0; m < 2; ++m) {
      EXPECT_OK(test_model_go_on(both[m], policy, &geometry, NULL));
      for (uint32_t l = 0; l < both[m]->spec.n_layers; ++l) {
        both[m]->views[l] = (m == 0 ? t->theirs[l] : t->to[l])->view;
      }
      test_model_observe(both[m], both[m]->n_seen, 10);
      EXPECT_OK(kvevict_sequence_append(both[m]->sequence, 10, NULL));
      both[m]->n_seen += 10;
      EXPECT_OK(test_model_evict(both[m], NULL, NULL));
    }
    test_expect_same_tokens(t->in_place, t->elsewhere, policy);
    for (uint32_t l = 0; l < t->in_place->spec.n_layers; ++l) {
      test_expect_same_bytes(t->to[l], t->theirs[l], policy);
    }
    End(t);
  }
}

/* With equal dtypes the sequence goes on in the destination, back and forth, and keys are
 * rotated there. */
Test(destinations, of_the_same_dtype_take_turns_with_the_views) {
  static const char* const kTurning[] = {
      "knorm:budget=40,sink=2,rotate=yes",
      "streaming-llm:budget=40,sink=4,rotate=yes", "random:budget=30"};
  test_random random = test_random_start("destinations turns");
  for (uint32_t i = 0; i < 12; ++i) {
    const char* policy = kTurning[i % 3];
    test_model_spec spec = Draw("none", &random);
    trial* t =
        Begin(spec, KVEVICT_DTYPE_F32,
              (test_layout)test_random_below(&random, TEST_N_LAYOUTS), &random);
    float frequencies[kDim / 2];
    for (int f = 0; f < kDim / 2; ++f) frequencies[f] = 1.0f / (float)(1 + f);
    kvevict_geometry geometry = t->in_place->geometry;
    geometry.rope_inv_freq = frequencies;
    geometry.rope_inv_freq_len = kDim / 2;
    kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
    options.has_destinations = 1;
    EXPECT_OK(test_model_go_on(t->in_place, policy, &geometry, NULL));
    EXPECT_OK(test_model_go_on(t->elsewhere, policy, &geometry, &options));
    for (uint32_t round = 0; round < 3; ++round) {
      Step(t, round == 0 ? 70 : 20);
      EXPECT_OK(test_model_evict(t->in_place, NULL, NULL));
      EXPECT_OK(test_model_evict(t->elsewhere, &t->options, NULL));
      test_expect_same_tokens(t->in_place, t->elsewhere, policy);
      for (uint32_t l = 0; l < spec.n_layers; ++l) {
        test_cache* const live = t->elsewhere->live[l];
        t->elsewhere->live[l] = t->to[l];
        t->elsewhere->views[l] = t->to[l]->view;
        t->to[l] = live;
        t->destinations[l] = live->view;
        test_expect_same_rows(t->in_place->live[l], t->elsewhere->live[l],
                              test_model_stored(t->in_place, l), policy);
      }
    }
    End(t);
  }
}

/* ---- KIVI's groups ---- */

/* f32 rows become groups of tokens and recent rows on the way. */
Test(destinations, may_have_groups_of_tokens) {
  test_random random = test_random_start("destinations grouped");
  for (int i = 0; i < 24; ++i) {
    test_grouped_spec spec = test_grouped_draw(&random);
    spec.n_heads = kHeads;
    test_model_spec of = test_small_model("knorm:budget=40,sink=2,scope=head");
    of.k_head_dim = of.v_head_dim = spec.dim;
    of.n_layers = 1;
    of.has_destinations = 1;
    test_model* m = test_model_create(&of, random);
    test_grouped* to = test_grouped_create(&spec, &random);
    if (spec.has_recent)
      to->view.first_recent = 8 * test_random_below(&random, 6);
    test_grouped* theirs = test_grouped_clone(to);
    const uint32_t n = test_random_between(&random, 30, 80);
    test_model_step(m, n);
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.destinations = &to->view;
    options.destinations_len = 1;
    EXPECT_OK(test_model_evict(m, &options, NULL));
    int32_t slots[kHeads * 80];
    kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
    keep.n_lists = kHeads;
    keep.count = keep.list_stride = test_model_stored(m, 0);
    keep.slots = slots;
    keep.slots_len = (size_t)kHeads * keep.count;
    for (uint32_t h = 0; h < kHeads; ++h) {
      test_model_positions(m, 0, h, slots + (size_t)h * keep.count);
    }
    kvevict_move move = KVEVICT_MOVE_INIT;
    move.view = &m->views[0];
    move.n_tokens = n;
    move.keep = &keep;
    move.destination = &theirs->view;
    EXPECT_OK(kvevict_compact(m->context, &move, 1, NULL, 0, NULL));
    EXPECT(memcmp(to->memory, theirs->memory, to->n_bytes) == 0,
           "trial %d: other bytes", i);
    test_grouped_destroy(to);
    test_grouped_destroy(theirs);
    test_model_destroy(m);
  }
}

/* ---- Pages of another pool ---- */

/* One pool is bf16, the other u8, with blocks of as many tokens as stay. */
Test(destinations, may_be_blocks_of_another_pool) {
  test_random random = test_random_start("destinations pools");
  test_model_spec spec = Draw("snapkv:budget=40,sink=2,window=8", &random);
  spec.layout = TEST_TOKEN_MAJOR;
  spec.n_companions = 0;
  trial* t = Begin(spec, KVEVICT_DTYPE_U8, TEST_TOKEN_MAJOR, &random);
  Step(t, 100);
  kvevict_layer_geometry layer = t->in_place->layer;
  layer.k_dtype = layer.v_dtype = KVEVICT_DTYPE_U8;
  kvevict_geometry geometry = t->in_place->geometry;
  geometry.layers = &layer;
  const kvevict_policy* policy = test_policy(spec.policy);
  kvevict_plan* plan;
  EXPECT_OK(kvevict_plan_create(t->elsewhere->context, &geometry, policy, NULL,
                                &plan));
  kvevict_paged_cache_options pool = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  pool.n_blocks = 3 * 8;
  kvevict_paged_cache* cache;
  kvevict_paged_sequence* cached;
  EXPECT_OK(kvevict_paged_cache_create(plan, &pool, &cache));
  EXPECT_OK(kvevict_paged_sequence_create(cache, &cached));
  EXPECT_OK(kvevict_paged_sequence_append(cached, 50, NULL));
  for (uint32_t l = 0; l < spec.n_layers; ++l) {
    t->destinations[l] = (kvevict_view)KVEVICT_VIEW_INIT;
    EXPECT_OK(kvevict_paged_sequence_view(cached, l, &t->destinations[l]));
    t->before[l] = test_cache_clone(t->elsewhere->live[l]);
  }
  EXPECT_OK(test_model_evict(t->in_place, NULL, NULL));
  EXPECT_OK(test_model_evict(t->elsewhere, &t->options, NULL));
  EXPECT_OK(test_model_go_on(t->elsewhere, spec.policy, &geometry, NULL));
  EXPECT_OK(kvevict_paged_sequence_fit(cached, t->elsewhere->sequence));
  for (uint32_t l = 0; l < spec.n_layers; ++l) {
    CompactTo(t, l);
    float ours[kHeads * 40 * kDim], theirs[kHeads * 40 * kDim];
    float* const out[] = {ours, theirs};
    for (int i = 0; i < 2; ++i) {
      kvevict_view view = t->theirs[l]->view;
      if (i == 0) EXPECT_OK(kvevict_paged_sequence_view(cached, l, &view));
      kvevict_view to = KVEVICT_VIEW_INIT;
      to.n_kv_heads = kHeads;
      to.v = kvevict_plane_head_major(out[i], KVEVICT_DTYPE_F32, 40, kDim);
      kvevict_plane numbers[2];
      uint32_t n = 0;
      for (uint32_t c = 0; c < view.n_companions; ++c) {
        if (view.companions[c].role < KVEVICT_ROLE_VALUE_SCALE) continue;
        numbers[n++] = view.companions[c];
      }
      view.k = (kvevict_plane)KVEVICT_PLANE_INIT;
      view.companions = numbers;
      view.n_companions = n;
      kvevict_move move = KVEVICT_MOVE_INIT;
      move.view = &view;
      move.n_tokens = 40;
      move.destination = &to;
      EXPECT_OK(kvevict_compact(t->in_place->context, &move, 1, NULL, 0, NULL));
    }
    EXPECT(memcmp(ours, theirs, sizeof ours) == 0, "layer %u: values", l);
  }
  kvevict_paged_cache_usage usage = {.struct_size = sizeof usage};
  EXPECT_OK(kvevict_paged_cache_get_usage(cache, &usage));
  EXPECT(usage.n_slots == 40u * spec.n_layers, "blocks were not given back");
  kvevict_paged_sequence_destroy(cached);
  kvevict_paged_cache_destroy(cache);
  kvevict_plan_destroy(plan);
  End(t);
}
