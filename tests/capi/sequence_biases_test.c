/* Biases of slots: they are part of the logits that score, live with the rows of paged
 * caches, and are refused where nothing reads them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/attention.h"
#include "kvevict/batch.h"
#include "kvevict/edit.h"
#include "kvevict/paged.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum {
  kHeads = 2,
  kQueryHeads = 4,
  kDim = 8,
  kTokens = 40,
  kMostRows = 40,
  kLayers = 2
};

/* ---- Scores ---- */

/* Elements beyond the first kDim, of keys and queries, make the bias of a slot. */
typedef struct tensors {
  float keys[kTokens][kHeads][kDim + 1];
  float queries[kMostRows][kQueryHeads][kDim + 1];
  float mean[kQueryHeads][kDim + 1];
  float biases[kTokens][kHeads];
  float values[kTokens][kHeads][kDim];
} tensors;

static const float kScale = 0.4f;

static void Draw(tensors* t, test_random* random) {
  for (int i = 0; i < kTokens; ++i) {
    for (int h = 0; h < kHeads; ++h) {
      for (int e = 0; e < kDim; ++e) {
        t->keys[i][h][e] = test_random_normal(random);
        t->values[i][h][e] = test_random_normal(random);
      }
      t->biases[i][h] = test_random_normal(random);
      t->keys[i][h][kDim] = t->biases[i][h] / kScale;
    }
  }
  for (int h = 0; h < kQueryHeads; ++h) {
    for (int i = 0; i < kMostRows; ++i) {
      for (int e = 0; e < kDim; ++e) {
        t->queries[i][h][e] = test_random_normal(random);
      }
      t->queries[i][h][kDim] = 1;
    }
    for (int e = 0; e < kDim; ++e) t->mean[h][e] = test_random_normal(random);
    t->mean[h][kDim] = 1;
  }
}

/* Scores with biases in a plane, or in an element of keys. */
static void Score(const tensors* t, const char* policy, uint32_t n_rows,
                  int in_plane, float* scores) {
  const uint32_t dim = in_plane ? kDim : kDim + 1;
  kvevict_layer_geometry layer = test_layer(kQueryHeads, kHeads, dim, kDim);
  layer.q_dtype = KVEVICT_DTYPE_F32;
  layer.softmax_scale = kScale;
  const kvevict_geometry geometry = test_geometry(1, kTokens, &layer);
  test_plan* plan =
      test_plan_create(policy, &geometry, KVEVICT_OPERATION_SCORE, 1);
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.k = kvevict_plane_token_major(t->keys, KVEVICT_DTYPE_F32, kHeads, dim);
  view.k.head_stride_bytes = sizeof t->keys[0][0];
  view.k.token_stride_bytes = sizeof t->keys[0];
  view.v =
      kvevict_plane_token_major(t->values, KVEVICT_DTYPE_F32, kHeads, kDim);
  view.n_kv_heads = kHeads;
  kvevict_plane bias =
      kvevict_plane_token_major(t->biases, KVEVICT_DTYPE_F32, kHeads, 1);
  bias.role = KVEVICT_ROLE_BIAS;
  if (in_plane) {
    view.companions = &bias;
    view.n_companions = 1;
  }
  kvevict_plane queries = kvevict_plane_token_major(
      t->queries[kMostRows - n_rows], KVEVICT_DTYPE_F32, kQueryHeads, dim);
  queries.head_stride_bytes = sizeof t->queries[0][0];
  queries.token_stride_bytes = sizeof t->queries[0];
  float mean[kQueryHeads][kDim + 1];
  for (int h = 0; h < kQueryHeads; ++h) {
    memcpy((float*)mean + (size_t)h * dim, t->mean[h], dim * sizeof(float));
  }
  const kvevict_plane means =
      kvevict_plane_head_major(mean, KVEVICT_DTYPE_F32, 1, dim);
  int32_t positions[kMostRows];
  for (int i = 0; i < kMostRows; ++i) positions[i] = 5 * i;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = n_rows > 0 ? &queries : NULL;
  inputs.query_mean = n_rows > 0 ? NULL : &means;
  if (strstr(policy, "h2o") != NULL) inputs.n_query_rows = n_rows;
  if (strstr(policy, "reference") != NULL) {
    inputs.reference_queries = &queries;
    inputs.n_reference_rows = n_rows;
    inputs.reference_positions = positions;
  }
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = kTokens;
  job.view = &view;
  job.inputs = &inputs;
  job.scores = scores;
  job.scores_len = kHeads * kTokens;
  EXPECT_OK(kvevict_score(plan->plan, &job, 1, plan->workspace,
                          plan->workspace_bytes, NULL));
  test_plan_destroy(plan);
}

/* A bias is what one more element of the key adds, with 1 in the query. The logits of
 * either are sums of up to 9 products of a magnitude of at most 50 in all, so weights
 * differ by 2 * 12 * 50 * 2^-24 of themselves, and sums of them by a few units more. The
 * first slots may be hidden. */
static void ExpectAlike(const tensors* t, const char* policy, uint32_t n_rows,
                        int n_hidden, float* plane) {
  float element[kHeads * kTokens];
  Score(t, policy, n_rows, 1, plane);
  Score(t, policy, n_rows, 0, element);
  for (int j = 0; j < kHeads * kTokens; ++j) {
    const double apart = fabs(plane[j] - element[j]);
    EXPECT(isinf(element[j])        ? plane[j] == element[j]
           : j % kTokens < n_hidden ? plane[j] <= 1e-6
                                    : apart <= 1e-4 * fabs(element[j]) + 1e-9,
           "%s: score %d is %.9g, not %.9g", policy, j, (double)plane[j],
           (double)element[j]);
  }
}

Test(sequence_biases, are_part_of_the_logits_that_score) {
  static const struct {
    const char* policy;
    uint32_t n_rows;
  } kRows[] = {{"snapkv:budget=20,window=6,pool=none", 6},
               {"snapkv:budget=20,window=6,order=pool-rows", 6},
               {"snapkv:budget=20,window=6,reference=9", 9},
               {"tova:budget=20", 1},
               {"cake:budget=20,window=6", 6},
               {"h2o:budget=20,recent=4", kTokens},
               {"expected-attention:budget=20", 0}};
  test_random random = test_random_start("biases score");
  for (size_t i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    tensors t;
    Draw(&t, &random);
    float plane[kHeads * kTokens], none[kHeads * kTokens];
    ExpectAlike(&t, kRows[i].policy, kRows[i].n_rows, 0, plane);
    memset(t.biases, 0, sizeof t.biases);
    Score(&t, kRows[i].policy, kRows[i].n_rows, 1, none);
    double most = 0;
    for (int j = 0; j < kHeads * kTokens; ++j) {
      if (isinf(plane[j])) continue;
      most =
          fmax(most, fabs(none[j] - plane[j]) / (1e-4 * fabs(plane[j]) + 1e-9));
    }
    EXPECT(most > 100, "%s: biases change scores by %g bounds at most",
           kRows[i].policy, most);
  }
}

/* Rows of which all slots are hidden add nothing: the first ones, the first chunk, and
 * the reference query at position 0. Elements of keys that make a weight of e^-100 do
 * the same to all other slots. Then all slots of a head are hidden. */
Test(sequence_biases, that_hide_all_that_a_row_sees_leave_others_alone) {
  enum { kHidden = 4 };
  static const struct {
    const char* policy;
    uint32_t n_rows;
  } kRows[] = {
      {"snapkv:budget=20,window=6,pool=none", 6},
      {"snapkv:budget=20,sink=0,window=6,pool=none,reference=9", 9},
      {"tova:budget=20", 1},
      {"h2o:budget=20,sink=0,recent=4", kTokens},
      {"non-causal:budget=20,sink=0,block=4,pool=none", kTokens},
      {"snapkv:budget=20,window=6,pool=none,order=reduce-logits,group=max", 6},
      {"expected-attention:budget=20,sink=0", 0}};
  test_random random = test_random_start("hidden biases score");
  for (size_t i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    const char* policy = kRows[i].policy;
    tensors t;
    Draw(&t, &random);
    float plane[kHeads * kTokens];
    /* Chunks have no scale. */
    const float scale = strstr(policy, "non-causal") != NULL ? 1 : kScale;
    for (int j = 0; j < kTokens * kHeads; ++j) {
      const int slot = j / kHeads, head = j % kHeads;
      if (slot < kHidden) t.biases[slot][head] = -INFINITY;
      t.keys[slot][head][kDim] =
          (slot < kHidden ? -100 : t.biases[slot][head]) / scale;
    }
    ExpectAlike(&t, policy, kRows[i].n_rows, kHidden, plane);
    for (int slot = 0; slot < kTokens; ++slot) t.biases[slot][1] = -INFINITY;
    Score(&t, policy, kRows[i].n_rows, 1, plane);
    for (int j = 0; j < kHeads * kTokens; ++j) {
      EXPECT(!isnan(plane[j]), "%s: score %d of a hidden head is NaN", policy,
             j);
    }
  }
}

/* ---- What is refused ---- */

static void ExpectBias(kvevict_view* view, kvevict_plane bias,
                       const char* problem) {
  view->companions = &bias;
  view->n_companions = 1;
  if (problem == NULL) {
    EXPECT_OK(kvevict_view_validate(view, 10));
  } else {
    EXPECT_INVALID(kvevict_view_validate(view, 10), "companions", "bias",
                   problem);
  }
}

Test(sequence_biases, are_one_f32_of_each_slot) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = 2;
  view.k = kvevict_plane_token_major((void*)0x10000, KVEVICT_DTYPE_F16, 2, 8);
  kvevict_plane bias =
      kvevict_plane_token_major((void*)0x20000, KVEVICT_DTYPE_F32, 2, 1);
  bias.role = KVEVICT_ROLE_BIAS;
  ExpectBias(&view, bias, NULL);
  kvevict_plane others[4] = {bias, bias, bias, bias};
  static const char* const kProblems[] = {
      "dtype f16", "head_dim 2", "token_stride_bytes 0", "group_tokens 2"};
  others[0].dtype = KVEVICT_DTYPE_F16;
  others[1].head_dim = 2, others[1].head_stride_bytes = 8;
  others[1].token_stride_bytes = 16;
  others[2].token_stride_bytes = 0;
  others[3].group_tokens = 2;
  for (int i = 0; i < 4; ++i) ExpectBias(&view, others[i], kProblems[i]);
  kvevict_plane two[2] = {bias, bias};
  two[1].data += 0x10000;
  view.companions = two;
  view.n_companions = 2;
  EXPECT_INVALID(kvevict_view_validate(&view, 10), "role bias",
                 "companions[0]");
  view.v = view.k;
  view.v.data += 0x100000;
  memset(&view.k, 0, sizeof view.k);
  ExpectBias(&view, bias, "k.data is 0");
}

static test_model* Model(const char* policy) {
  test_model_spec spec = test_small_model(policy);
  spec.n_companions = 1;
  return test_model_create(&spec, (test_random){4});
}

Test(sequence_biases, evictions_say_what_is_missing) {
  test_model* m = Model("snapkv:budget=40,window=8,fit=bias-values");
  test_model_step(m, 80);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "views[0]",
                 "none has role bias", "fit bias-values");
  m->live[0]->companions[0].role = KVEVICT_ROLE_BIAS;
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "views[1]",
                 "none has role bias");
  test_model_check(m, "after errors");
  m->live[1]->companions[0].role = KVEVICT_ROLE_BIAS;
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

/* Layers that keep the same tokens may share other companions. */
Test(sequence_biases, belong_to_one_layer) {
  for (int fits = 0; fits < 2; ++fits) {
    test_model* m =
        Model(fits ? "streaming-llm:budget=40,reference=4,fit=bias-values"
                   : "streaming-llm:budget=40,reference=4,fit=values");
    test_model_step(m, 80);
    m->live[0]->companions[0].role = KVEVICT_ROLE_BIAS;
    m->views[1].companions = m->views[0].companions;
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    test_inputs inputs;
    test_model_give_reference(m, &inputs, &options);
    if (fits) {
      EXPECT_INVALID(test_model_evict(m, &options, NULL),
                     "views[1].companions[0]", "views[0]", "biases of its own");
    } else {
      EXPECT_OK(test_model_evict(m, &options, NULL));
    }
    test_model_destroy(m);
  }
}

/* ---- Sequences that move, and paged caches ---- */

static kvevict_plane* BiasOf(kvevict_view* view) {
  EXPECT(
      view->n_companions == 1 && view->companions[0].role == KVEVICT_ROLE_BIAS,
      "the view has no bias");
  return (kvevict_plane*)view->companions;
}

static float* BiasAt(const kvevict_view* view, uint32_t head, uint32_t slot) {
  const kvevict_plane* bias = BiasOf((kvevict_view*)view);
  return (float*)(uintptr_t)(bias->data +
                             head * (uint64_t)bias->head_stride_bytes +
                             view->block_table[slot / view->block_size] *
                                 (uint64_t)bias->block_stride_bytes +
                             slot % view->block_size *
                                 (uint64_t)bias->token_stride_bytes);
}

typedef struct paged {
  test_plan* plan;
  kvevict_sequence* sequence;
  kvevict_paged_cache* cache;
  kvevict_paged_sequence* cached;
} paged;

static kvevict_view ViewOf(const kvevict_paged_sequence* cached,
                           uint32_t layer) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  EXPECT_OK(kvevict_paged_sequence_view(cached, layer, &view));
  return view;
}

static void ExpectZero(const kvevict_paged_sequence* cached, uint32_t first,
                       uint32_t end, const char* what) {
  for (uint32_t l = 0; l < kLayers; ++l) {
    const kvevict_view view = ViewOf(cached, l);
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t slot = first; slot < end; ++slot) {
        EXPECT(*BiasAt(&view, h, slot) == 0, "%s: layer %u, head %u, slot %u",
               what, l, h, slot);
      }
    }
  }
}

/* Appends tokens and writes their rows. */
static void Write(const paged* p, test_random* random, uint32_t n) {
  uint32_t held = 0;
  EXPECT_OK(kvevict_paged_sequence_length(p->cached, 0, &held));
  EXPECT_OK(kvevict_paged_sequence_append(p->cached, n, NULL));
  ExpectZero(p->cached, held, held + n, "appended");
  for (uint32_t l = 0; l < kLayers; ++l) {
    static float rows[2][kTokens][kHeads][kDim];
    for (size_t i = 0; i < sizeof rows / sizeof(float); ++i) {
      ((float*)rows)[i] = test_random_normal(random);
    }
    kvevict_paged_rows job = KVEVICT_PAGED_ROWS_INIT;
    job.layer = l;
    job.first_slot = held;
    job.n_tokens = n;
    job.k = kvevict_plane_token_major(rows[0], KVEVICT_DTYPE_F32, kHeads, kDim);
    job.v = kvevict_plane_token_major(rows[1], KVEVICT_DTYPE_F32, kHeads, kDim);
    EXPECT_OK(kvevict_paged_sequence_write(p->cached, &job, 1, NULL));
  }
  EXPECT_OK(kvevict_sequence_append(p->sequence, n, NULL));
}

/* `scores` is NULL, or the planes of the layers' scores. */
static void EvictBy(const paged* p, test_random* random,
                    const kvevict_plane* scores) {
  static float rows[12][kQueryHeads][kDim];
  for (size_t i = 0; i < sizeof rows / sizeof(float); ++i) {
    ((float*)rows)[i] = test_random_normal(random);
  }
  const kvevict_plane queries =
      kvevict_plane_token_major(rows, KVEVICT_DTYPE_F32, kQueryHeads, kDim);
  kvevict_signal_inputs inputs[kLayers];
  for (uint32_t l = 0; l < kLayers; ++l) {
    inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    inputs[l].reference_queries = &queries;
    inputs[l].n_reference_rows = 12;
    inputs[l].scores = scores == NULL ? NULL : &scores[l];
  }
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = inputs;
  options.inputs_len = kLayers;
  kvevict_paged_eviction item = KVEVICT_PAGED_EVICTION_INIT;
  item.cached = p->cached;
  item.sequence = p->sequence;
  item.options = &options;
  EXPECT_OK(kvevict_paged_evict(&item, 1, p->plan->workspace,
                                p->plan->workspace_bytes, NULL));
}

static paged Begin(const char* policy) {
  kvevict_layer_geometry layer = test_layer(kQueryHeads, kHeads, kDim, kDim);
  layer.q_dtype = KVEVICT_DTYPE_F32;
  static const float kInvFreq[kDim / 2] = {1, 0.3f, 0.1f, 0.03f};
  kvevict_geometry geometry = test_geometry(kLayers, kTokens, &layer);
  geometry.rope_inv_freq = kInvFreq;
  geometry.rope_inv_freq_len = kDim / 2;
  paged p = {
      .plan = test_plan_create(policy, &geometry, KVEVICT_OPERATION_EVICT, 1)};
  EXPECT_OK(kvevict_sequence_create(p.plan->plan, &p.sequence));
  kvevict_paged_cache_options options = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  options.n_blocks = 40;
  options.block_size = 8;
  EXPECT_OK(kvevict_paged_cache_create(p.plan->plan, &options, &p.cache));
  EXPECT_OK(kvevict_paged_sequence_create(p.cache, &p.cached));
  return p;
}

static void End(const paged* p) {
  kvevict_paged_sequence_destroy(p->cached);
  kvevict_paged_cache_destroy(p->cache);
  kvevict_sequence_destroy(p->sequence);
  test_plan_destroy(p->plan);
}

/* New rows have none, an eviction fits them, and they move with their rows. A fork has
 * blocks of its own once rows change, and a trimmed sequence begins anew. */
Test(sequence_biases, live_in_paged_caches) {
  const char* const policy =
      "keydiff:sink=2,budget=20,reference=12,fit=bias-values";
  test_random random = test_random_start("paged biases");
  paged p = Begin(policy);
  Write(&p, &random, kTokens - 5);
  kvevict_paged_sequence* fork = NULL;
  EXPECT_OK(kvevict_paged_sequence_fork(p.cached, &fork, NULL));
  EvictBy(&p, &random, NULL);
  ExpectZero(fork, 0, kTokens - 5, "the fork");
  double most = 0;
  static float fitted[kLayers][kHeads][20];
  for (uint32_t l = 0; l < kLayers; ++l) {
    const kvevict_view view = ViewOf(p.cached, l);
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t slot = 0; slot < 20; ++slot) {
        fitted[l][h][slot] = *BiasAt(&view, h, slot);
        most = fmax(most, fabs(fitted[l][h][slot]));
      }
    }
  }
  EXPECT(most > 0.05 && most <= 3.001, "biases are up to %g", most);
  /* A fork of the evicted sequence has the same, and keeps them. */
  kvevict_paged_sequence* twin = NULL;
  EXPECT_OK(kvevict_paged_sequence_fork(p.cached, &twin, NULL));
  Write(&p, &random, 15);
  EvictBy(&p, &random, NULL);
  for (uint32_t l = 0; l < kLayers; ++l) {
    const kvevict_view view = ViewOf(twin, l);
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t slot = 0; slot < 20; ++slot) {
        EXPECT(*BiasAt(&view, h, slot) == fitted[l][h][slot],
               "the twin's layer %u, head %u, slot %u", l, h, slot);
      }
    }
  }
  EXPECT_OK(kvevict_paged_sequence_truncate(p.cached, 10));
  EXPECT_OK(kvevict_paged_sequence_append(p.cached, 8, NULL));
  ExpectZero(p.cached, 10, 18, "after a trim");
  kvevict_paged_sequence_destroy(twin);
  kvevict_paged_sequence_destroy(fork);
  End(&p);
}

static uint32_t Stored(const paged* p, uint32_t layer, uint32_t head) {
  uint32_t n = 0;
  EXPECT_OK(kvevict_sequence_stored_length(p->sequence, layer, head, &n));
  return n;
}

/* Makes the bias of each slot that is held 1, whatever a fit has found. */
static void SetToOne(const paged* p) {
  for (uint32_t l = 0; l < kLayers; ++l) {
    const kvevict_view view = ViewOf(p->cached, l);
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t i = 0; i < Stored(p, l, h); ++i) *BiasAt(&view, h, i) = 1;
    }
  }
}

/* Evicts so that `winner` keeps the most. */
static void EvictFor(const paged* p, test_random* random, uint32_t winner) {
  static float scores[kLayers][kHeads][kTokens];
  kvevict_plane planes[kLayers];
  uint32_t held = 0;
  for (uint32_t l = 0; l < kLayers; ++l) {
    EXPECT_OK(kvevict_paged_sequence_length(p->cached, l, &held));
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t i = 0; i < held; ++i) {
        scores[l][h][i] = (h == winner ? 5 : i < 6 ? 6 : 0) + 0.01f * i;
      }
    }
    planes[l] =
        kvevict_plane_head_major(scores[l], KVEVICT_DTYPE_F32, kTokens, 1);
  }
  EvictBy(p, random, planes);
  for (uint32_t l = 0; l < kLayers; ++l) {
    EXPECT(Stored(p, l, winner) > Stored(p, l, 1 - winner),
           "layer %u: heads hold %u and %u", l, Stored(p, l, 0),
           Stored(p, l, 1));
  }
  SetToOne(p);
}

/* Checks that each head has 0 in its next n rows, and 1 in those before. */
static void ExpectNew(const paged* p, const kvevict_paged_sequence* cached,
                      uint32_t n, const char* what) {
  for (uint32_t l = 0; l < kLayers; ++l) {
    const kvevict_view view = ViewOf(cached, l);
    for (uint32_t h = 0; h < kHeads; ++h) {
      const uint32_t stored = Stored(p, l, h);
      for (uint32_t i = 0; i < stored + n; ++i) {
        EXPECT(*BiasAt(&view, h, i) == (i < stored ? 1 : 0),
               "%s: layer %u, head %u of %u, slot %u is %g", what, l, h, stored,
               i, (double)*BiasAt(&view, h, i));
      }
    }
  }
}

/* Heads of different lengths: new rows of a head begin at its own end. Slots there have
 * the biases of rows that went, and a fork may hold the same block. */
Test(sequence_biases, of_new_rows_begin_at_each_heads_end) {
  test_random random = test_random_start("paged biases of heads");
  paged p = Begin(
      "custom:budget=12,sink=0,heads=adaptive,floor=0,reference=12,"
      "fit=bias-values");
  Write(&p, &random, 30);
  EvictFor(&p, &random, 0);
  EXPECT_OK(kvevict_paged_sequence_append(p.cached, 2, NULL));
  ExpectNew(&p, p.cached, 2, "once");
  EXPECT_OK(kvevict_paged_sequence_fit(p.cached, p.sequence));
  EXPECT_OK(kvevict_paged_sequence_append(p.cached, 14, NULL));
  ExpectNew(&p, p.cached, 14, "once more");
  EXPECT_OK(kvevict_sequence_append(p.sequence, 14, NULL));
  EvictFor(&p, &random, 1);
  /* New rows get biases, and a trim takes them away. A fork keeps them. */
  EXPECT_OK(kvevict_paged_sequence_append(p.cached, 5, NULL));
  EXPECT_OK(kvevict_sequence_append(p.sequence, 5, NULL));
  SetToOne(&p);
  kvevict_paged_sequence* fork = NULL;
  EXPECT_OK(kvevict_paged_sequence_fork(p.cached, &fork, NULL));
  kvevict_sequence* const whole = p.sequence;
  EXPECT_OK(kvevict_sequence_fork(whole, NULL, &p.sequence, NULL));
  EXPECT_OK(kvevict_sequence_trim_to(p.sequence, 44, NULL));
  EXPECT_OK(kvevict_paged_sequence_fit(p.cached, p.sequence));
  EXPECT_OK(kvevict_paged_sequence_append(p.cached, 5, NULL));
  ExpectNew(&p, p.cached, 5, "trimmed");
  kvevict_sequence_destroy(p.sequence);
  p.sequence = whole;
  ExpectNew(&p, fork, 0, "the fork");
  EXPECT_OK(kvevict_paged_sequence_append(fork, 3, NULL));
  ExpectNew(&p, fork, 3, "the fork's own");
  kvevict_paged_sequence_destroy(fork);
  End(&p);
}

/* An edit's new rows are 0 too, and others keep theirs. */
Test(sequence_biases, of_rows_that_an_edit_inserts_are_0) {
  test_random random = test_random_start("paged biases of edits");
  for (int ragged = 0; ragged < 2; ++ragged) {
    paged p = Begin(ragged ? "custom:budget=12,sink=0,heads=adaptive,floor=0,"
                             "reference=12,fit=bias-values"
                           : "keydiff:sink=0,budget=12,reference=12,"
                             "fit=bias-values");
    Write(&p, &random, 30);
    if (ragged) {
      EvictFor(&p, &random, 0);
    } else {
      EvictBy(&p, &random, NULL);
    }
    SetToOne(&p);
    uint32_t before[kLayers][kHeads];
    for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
      before[i / kHeads][i % kHeads] = Stored(&p, i / kHeads, i % kHeads);
    }
    kvevict_edit edit = KVEVICT_EDIT_INIT;
    edit.first = edit.end = 15;
    edit.n_new = 3;
    EXPECT_OK(kvevict_paged_edit(p.cached, p.sequence, &edit, NULL));
    for (uint32_t l = 0; l < kLayers; ++l) {
      const kvevict_view view = ViewOf(p.cached, l);
      for (uint32_t h = 0; h < kHeads; ++h) {
        int32_t first = -1;
        EXPECT_OK(
            kvevict_sequence_slot_of_position(p.sequence, l, h, 15, &first));
        EXPECT(first >= 0 && Stored(&p, l, h) == before[l][h] + 3,
               "layer %u, head %u: slot %d", l, h, first);
        for (int32_t i = 0; i < (int32_t)Stored(&p, l, h); ++i) {
          const int is_new = i >= first && i < first + 3;
          EXPECT(*BiasAt(&view, h, i) == (is_new ? 0 : 1),
                 "ragged %d: layer %u, head %u, slot %d is %g", ragged, l, h, i,
                 (double)*BiasAt(&view, h, i));
        }
      }
    }
    SetToOne(&p);
    EXPECT_OK(kvevict_paged_sequence_append(p.cached, 4, NULL));
    ExpectNew(&p, p.cached, 4, "appended");
    End(&p);
  }
}
