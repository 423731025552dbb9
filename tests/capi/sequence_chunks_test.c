/* Evictions chunk by chunk: each chunk keeps what it would keep if it were the cache,
 * and as many tokens as the header says. */
#include <math.h>
#include <stdlib.h>

#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/policy.h"

enum {
  kLayers = 3,
  kHeads = 2,
  kGroup = 2,
  kQueryHeads = kHeads * kGroup,
  kDim = 16,
  kMost = 330,
  kPage = 8,
  kPages = (kMost + kPage - 1) / kPage
};

/* What tokens have, by their position. */
typedef struct prompt {
  float keys[kLayers][kHeads][kMost][kDim];
  float values[kLayers][kHeads][kMost][kDim];
  float queries[kLayers][kQueryHeads][kMost][kDim];
  float scores[kLayers][kHeads][kMost];
  float weights[kLayers][kHeads][kMost];
  float mean[kLayers][kQueryHeads][kDim];
  float covariance[kLayers][kQueryHeads][kDim][kDim];
  float filter[kLayers][kHeads][kDim];
  float centers[kLayers][kQueryHeads][3][kDim / 2];
  float inv_freq[kDim / 2];
} prompt;

static void Fill(float* numbers, size_t bytes, test_random* random) {
  for (size_t i = 0; i < bytes / sizeof(float); ++i) {
    numbers[i] = test_random_normal(random);
  }
}

static prompt* MakePrompt(uint64_t seed) {
  test_random random = {seed};
  prompt* p = malloc(sizeof *p);
  Fill((float*)p, sizeof *p, &random);
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kQueryHeads; ++h) {
      for (uint32_t i = 0; i < kDim * kDim; ++i) {
        p->covariance[l][h][i / kDim][i % kDim] *= i % (kDim + 1) == 0 ? 1 : 0;
      }
      for (uint32_t f = 0; f < kDim / 2; ++f) {
        p->centers[l][h][2][f] =
            hypotf(p->centers[l][h][0][f], p->centers[l][h][1][f]) + 0.5f;
      }
    }
  }
  for (uint32_t f = 0; f < kDim / 2; ++f) p->inv_freq[f] = 1.0f / (1 + 9 * f);
  return p;
}

/* Which positions the slots of each layer and head hold. */
typedef struct held {
  uint32_t n[kLayers];
  int32_t position[kLayers][kHeads][kMost];
} held;

/* A cache of some of these slots, and all that an eviction may be given. */
typedef struct cache {
  bool is_paged;
  uint32_t n[kLayers];
  float k[kLayers]
         [kPages * kPage * kHeads * kDim]; /* [head, slot] or [page, head] */
  float v[kLayers][kPages * kPage * kHeads * kDim];
  int32_t table[kLayers][kPages];
  float queries[kLayers][kQueryHeads][kMost][kDim];
  float scores[kLayers][kHeads][kMost];
  float weights[kLayers][kHeads][kMost];
  kvevict_view views[kLayers];
  kvevict_plane planes[kLayers][7];
  kvevict_signal_inputs inputs[kLayers];
} cache;

static size_t RowAt(const cache* c, uint32_t layer, uint32_t head,
                    uint32_t slot) {
  if (!c->is_paged) return ((size_t)head * kMost + slot) * kDim;
  const size_t page = (size_t)c->table[layer][slot / kPage];
  return ((page * kHeads + head) * kPage + slot % kPage) * kDim;
}

static kvevict_plane Plane(const float* data, uint32_t head_dim,
                           size_t head_stride) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = (uint64_t)(uintptr_t)data;
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = head_dim;
  plane.token_stride_bytes = (int64_t)(head_dim * sizeof(float));
  plane.head_stride_bytes = (int64_t)(head_stride * sizeof(float));
  return plane;
}

static kvevict_view View(const cache* c, uint32_t layer) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = kHeads;
  const size_t head = (size_t)(c->is_paged ? kPage : kMost) * kDim;
  view.k = Plane(c->k[layer], kDim, head);
  view.v = Plane(c->v[layer], kDim, head);
  if (!c->is_paged) return view;
  view.block_size = kPage;
  view.block_table = c->table[layer];
  view.block_table_len = kPages;
  view.k.block_stride_bytes = view.v.block_stride_bytes =
      (int64_t)(kHeads * head * sizeof(float));
  return view;
}

/* Gives the policy of what it asks for; `begin` is the first slot of `h` that slot 0 of
 * the cache is. */
static void Load(const prompt* p, const held* h, uint32_t begin,
                 const kvevict_policy* policy, cache* c) {
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t i = 0; i < kPages; ++i) {
      c->table[l][i] = (int32_t)((i * 5 + l) % kPages); /* 42 pages */
    }
    for (uint32_t head = 0; head < kHeads; ++head) {
      for (uint32_t s = 0; s < c->n[l]; ++s) {
        const size_t t = (size_t)h->position[l][head][begin + s];
        const size_t at = RowAt(c, l, head, s);
        memcpy(c->k[l] + at, p->keys[l][head][t], sizeof p->keys[l][head][t]);
        memcpy(c->v[l] + at, p->values[l][head][t], sizeof p->keys[l][head][t]);
        c->scores[l][head][s] = p->scores[l][head][t];
        c->weights[l][head][s] = p->weights[l][head][t];
        for (uint32_t q = head * kGroup; q < (head + 1) * kGroup; ++q) {
          memcpy(c->queries[l][q][s], p->queries[l][q][t],
                 sizeof p->queries[l][q][t]);
        }
      }
    }
    c->views[l] = View(c, l);
    kvevict_plane* const planes = c->planes[l];
    planes[0] = Plane(c->queries[l][0][0], kDim, (size_t)kMost * kDim);
    planes[1] = Plane(c->scores[l][0], 1, kMost);
    planes[2] = Plane(c->weights[l][0], 1, kMost);
    planes[3] = Plane(p->mean[l][0], kDim, kDim);
    planes[4] = Plane(p->covariance[l][0][0], kDim, kDim * kDim);
    planes[5] = Plane(p->filter[l][0], kDim, kDim);
    planes[6] = Plane(p->centers[l][0][0], kDim / 2, 3 * kDim / 2);
    c->inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    const struct {
      kvevict_input input;
      const kvevict_plane** to;
    } kGiven[7] = {
        {KVEVICT_INPUT_QUERIES, &c->inputs[l].queries},
        {KVEVICT_INPUT_SCORES, &c->inputs[l].scores},
        {KVEVICT_INPUT_TOKEN_WEIGHTS, &c->inputs[l].token_weights},
        {KVEVICT_INPUT_QUERY_MEAN, &c->inputs[l].query_mean},
        {KVEVICT_INPUT_QUERY_COVARIANCE, &c->inputs[l].query_covariance},
        {KVEVICT_INPUT_KEY_FILTER, &c->inputs[l].key_filter},
        {KVEVICT_INPUT_QUERY_CENTERS, &c->inputs[l].query_centers}};
    for (uint32_t i = 0; i < 7; ++i) {
      kvevict_need need;
      EXPECT_OK(kvevict_policy_need(policy, kGiven[i].input, &need));
      if (need != KVEVICT_NEED_NONE) *kGiven[i].to = &planes[i];
    }
  }
}

static test_plan* PlanTo(kvevict_operation operation,
                         const kvevict_policy* policy, const prompt* p,
                         uint32_t n_threads) {
  char text[768];
  EXPECT_OK(kvevict_policy_format(policy, text, sizeof text, NULL));
  kvevict_layer_geometry layer = test_layer(kQueryHeads, kHeads, kDim, kDim);
  kvevict_geometry geometry = test_geometry(kLayers, kMost, &layer);
  geometry.rope_inv_freq = p->inv_freq;
  geometry.rope_inv_freq_len = kDim / 2;
  /* Layers one by one, or at once. */
  if (n_threads > 1) {
    return test_plan_create(text, &geometry, operation, n_threads);
  }
  return test_plan_create_least_for(NULL, text, &geometry, operation, 1);
}

static test_plan* Plan(const kvevict_policy* policy, const prompt* p,
                       uint32_t n_threads) {
  return PlanTo(KVEVICT_OPERATION_EVICT, policy, p, n_threads);
}

static void Evict(const test_plan* plan, kvevict_sequence* sequence,
                  const cache* c, const int32_t* protect, size_t n_protect) {
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = c->inputs;
  options.inputs_len = kLayers;
  options.protected_positions = n_protect == 0 ? NULL : protect;
  options.protected_positions_len = n_protect;
  EXPECT_OK(kvevict_sequence_evict(sequence, c->views, kLayers, &options,
                                   plan->workspace, plan->workspace_bytes,
                                   NULL));
  test_plan_check(plan);
}

static uint32_t Positions(const kvevict_sequence* sequence, uint32_t layer,
                          uint32_t head, int32_t* positions) {
  size_t n = 0;
  EXPECT_OK(kvevict_sequence_keep_positions(sequence, layer, head, positions,
                                            kMost, &n));
  return (uint32_t)n;
}

/* ---- What a chunk by itself keeps ---- */

/* Numbers that know of positions, which a chunk by itself does not. */
static bool ScoresByPosition(const kvevict_policy* policy) {
  return policy->kind == KVEVICT_POLICY_RANDOM ||
         policy->kind == KVEVICT_POLICY_TRIATTENTION;
}

typedef struct chunk {
  uint32_t layer, head;
  uint32_t begin, end; /* slots */
  uint32_t n_keep;
  uint32_t n_recent; /* of its last slots */
} chunk;

/* Slots of `h`, ascending. */
static void KeepOfChunk(const prompt* p, const held* h, kvevict_policy policy,
                        const chunk* of, const int32_t* protect,
                        size_t n_protect, int32_t* out) {
  const uint32_t n = of->end - of->begin;
  if (of->n_keep == n) {
    for (uint32_t i = 0; i < n; ++i) out[i] = (int32_t)(of->begin + i);
    return;
  }
  if (ScoresByPosition(&policy)) policy.kind = KVEVICT_POLICY_CUSTOM;
  policy.chunk = 0;
  policy.layer_split = KVEVICT_LAYER_SPLIT_UNIFORM;
  policy.n_recent = of->n_recent;
  policy.budget = of->n_keep + 0.5; /* 1 would be all */
  cache* c = calloc(1, sizeof *c);
  for (uint32_t l = 0; l < kLayers; ++l) c->n[l] = n;
  Load(p, h, of->begin, &policy, c);
  int32_t slots[8];
  size_t n_slots = 0;
  for (uint32_t s = of->begin; s < of->end; ++s) {
    for (size_t i = 0; i < n_protect; ++i) {
      if (h->position[of->layer][of->head][s] != protect[i]) continue;
      slots[n_slots++] = (int32_t)(s - of->begin);
    }
  }
  test_plan* plan = Plan(&policy, p, 1);
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(plan->plan, &sequence));
  EXPECT_OK(kvevict_sequence_append(sequence, n, NULL));
  Evict(plan, sequence, c, slots, n_slots);
  EXPECT(Positions(sequence, of->layer, of->head, out) == of->n_keep,
         "a chunk of %u keeps another number than %u", n, of->n_keep);
  for (uint32_t i = 0; i < of->n_keep; ++i) out[i] += (int32_t)of->begin;
  kvevict_sequence_destroy(sequence);
  test_plan_destroy(plan);
  free(c);
}

/* What each chunk of a layer keeps, by the oracle. */
static void CountChunks(const kvevict_policy* policy, const held* h,
                        uint32_t layer, uint32_t budget, const int32_t* protect,
                        size_t n_protect, uint32_t* counts) {
  const uint32_t n = h->n[layer];
  memset(counts, 0, kMost * sizeof *counts);
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (uint32_t begin = 0; begin < n; begin += policy->chunk) {
      const uint32_t end =
          n - begin < policy->chunk ? n : begin + policy->chunk;
      uint32_t n_forced = 0;
      for (uint32_t s = begin; s < end; ++s) {
        bool forced = s - begin < policy->n_sink || s + policy->n_recent >= n;
        for (size_t i = 0; i < n_protect; ++i) {
          forced = forced || h->position[layer][head][s] == protect[i];
        }
        n_forced += forced;
      }
      uint32_t* const count = &counts[begin / policy->chunk];
      if (*count < n_forced) *count = n_forced;
    }
  }
  oracle_chunk_counts(policy, n, budget, counts);
}

static void ExpectKept(const char* text, const prompt* p,
                       const kvevict_policy* policy, const held* before,
                       const held* after, uint32_t n_seen,
                       const int32_t* protect, size_t n_protect) {
  uint32_t budgets[kLayers];
  EXPECT_OK(kvevict_policy_layer_budgets(policy, n_seen, budgets, kLayers));
  for (uint32_t l = 0; l < kLayers; ++l) {
    const uint32_t n = before->n[l];
    const uint32_t n_keep = budgets[l] < n ? budgets[l] : n;
    EXPECT(after->n[l] == n_keep, "%s: layer %u keeps %u of %u, not %u", text,
           l, after->n[l], n, n_keep);
    if (n_keep == n) continue;
    uint32_t counts[kMost];
    CountChunks(policy, before, l, n_keep, protect, n_protect, counts);
    for (uint32_t head = 0; head < kHeads; ++head) {
      uint32_t at = 0;
      for (uint32_t i = 0; i * policy->chunk < n; ++i) {
        const uint32_t begin = i * policy->chunk;
        chunk of = {l, head, begin, begin + policy->chunk, counts[i], 0};
        if (of.end > n) of.end = n;
        for (uint32_t s = begin; s < of.end; ++s) {
          of.n_recent += s + policy->n_recent >= n;
        }
        int32_t slots[kMost];
        KeepOfChunk(p, before, *policy, &of, protect, n_protect, slots);
        for (uint32_t k = 0; k < of.n_keep; ++k, ++at) {
          const int32_t want = before->position[l][head][slots[k]];
          EXPECT(after->position[l][head][at] == want,
                 "%s, of %u: layer %u, head %u, chunk %u keeps %d, not %d",
                 text, n, l, head, i, after->position[l][head][at], want);
        }
      }
      EXPECT(at == n_keep, "%s: %u of %u", text, at, n_keep);
    }
  }
}

/* ---- Two evictions of a sequence ---- */

typedef struct run {
  const char* policy;
  uint32_t first, more; /* tokens before each eviction */
  bool is_paged, protects;
} run;

static const run kRuns[] = {
    {"knorm:sink=0,budget=0.3,chunk=64", 130, 90, false, false},
    {"knorm:sink=0,budget=0.3,chunk=64", 65, 200, false, true},
    {"knorm:sink=0,budget=50,chunk=64,pool=avg5,edge=shrink,tie=higher", 257,
     13, true, false},
    {"keydiff:sink=0,budget=0.5,chunk=48", 239, 91, true, true},
    {"keydiff:sink=0,budget=60,chunk=50,block=16", 211, 40, false, false},
    {"lagkv:budget=0.6,chunk=64,block=16,sink=4", 200, 64, false, true},
    {"lagkv:budget=60,chunk=80,block=9,sink=2,ranks=no,recent=5", 170, 64, true,
     false},
    {"cur:budget=0.5,chunk=40,sink=2", 201, 30, true, false},
    {"expected-attention:budget=0.4,chunk=64", 195, 50, false, true},
    {"expected-attention:budget=70,chunk=40,pool=max3,order=pool-reduce", 163,
     60, true, false},
    {"q-filter:sink=0,budget=0.25,chunk=56,recent=70", 321, 9, true, false},
    {"triattention:budget=0.5,chunk=64,sink=3", 190, 60, false, false},
    {"non-causal:sink=0,budget=0.4,chunk=64,block=24", 150, 70, false, false},
    {"non-causal:sink=0,budget=0.4,chunk=72,block=24", 150, 70, true, true},
    {"random:sink=0,budget=0.25,chunk=32,seed=9", 140, 150, false, true},
    {"custom:budget=70,chunk=64,recent=37,sink=3,pool=max5", 140, 150, true,
     true},
    {"custom:sink=0,budget=0.5,chunk=30,weight=given,secure=0.5", 141, 150,
     false, false},
    {"knorm:sink=0,budget=0.5,chunk=64,weight=norm,epsilon=20,redundancy=0.4",
     140, 50, true, false},
    {"keydiff:sink=0,budget=0.4,chunk=48,scope=layer,over=max", 180, 90, true,
     true},
    {"keydiff:sink=0,budget=60,chunk=48,scope=model", 180, 90, false, true},
    {"knorm:sink=0,budget=60,chunk=64,split=geometric,alpha=0.8", 200, 60,
     false, false},
    {"knorm:budget=0.3,chunk=64,split=arithmetic-kvf,sink=1", 200, 60, true,
     false},
    {"custom:sink=0,budget=0.9,chunk=2", 21, 9, false, false},
    {"custom:sink=0,budget=30,chunk=2147483647", 45, 9, false, false},
};

/* Of the slots [begin, end) of a layer, by the door. */
static void ScoreSlots(const test_plan* plan, prompt* p, const held* h,
                       uint32_t layer, uint32_t begin, uint32_t end,
                       uint32_t n_seen) {
  static float keys[kHeads][kMost][kDim], scores[kHeads * kMost];
  const uint32_t n = end - begin;
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (uint32_t s = 0; s < n; ++s) {
      memcpy(keys[head][s],
             p->keys[layer][head][h->position[layer][head][begin + s]],
             sizeof keys[head][s]);
    }
  }
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = kHeads;
  view.k = Plane(keys[0][0], kDim, (size_t)kMost * kDim);
  const kvevict_plane centers =
      Plane(p->centers[layer][0][0], kDim / 2, 3 * kDim / 2);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.query_centers = &centers;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.layer = layer;
  job.n_tokens = n;
  job.n_seen = n_seen;
  job.view = &view;
  job.inputs = &inputs;
  job.scores = scores;
  job.scores_len = (size_t)kHeads * n;
  EXPECT_OK(kvevict_score(plan->plan, &job, 1, plan->workspace,
                          plan->workspace_bytes, NULL));
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (uint32_t s = 0; s < n; ++s) {
      p->scores[layer][head][h->position[layer][head][begin + s]] =
          scores[head * n + s];
    }
  }
}

static void FindScores(const kvevict_policy* policy, const held* h,
                       uint32_t n_seen, prompt* p) {
  const bool draws = policy->kind == KVEVICT_POLICY_RANDOM;
  kvevict_policy alone = *policy;
  alone.chunk = 0;
  alone.budget = 1;
  test_plan* plan = PlanTo(KVEVICT_OPERATION_SCORE, &alone, p, 1);
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t begin = 0; begin < h->n[l]; begin += policy->chunk) {
      const uint32_t left = h->n[l] - begin;
      const uint32_t n = left < policy->chunk ? left : policy->chunk;
      if (!draws) ScoreSlots(plan, p, h, l, begin, begin + n, n_seen);
    }
    if (!draws) continue;
    held all = {{kMost, kMost, kMost}, {{{0}}}};
    for (uint32_t i = 0; i < kHeads * kMost; ++i) {
      all.position[l][i / kMost][i % kMost] = (int32_t)(i % kMost);
    }
    ScoreSlots(plan, p, &all, l, 0, kMost, 0);
  }
  test_plan_destroy(plan);
}

static void Try(const run* r, uint32_t n_threads, uint64_t seed) {
  static const int32_t kProtected[] = {9, 10, 63, 64, 100, 101};
  const size_t n_protected = r->protects ? 6 : 0;
  prompt* p = MakePrompt(seed);
  const kvevict_policy policy = test_policy(r->policy);
  test_plan* plan = Plan(&policy, p, n_threads);
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(plan->plan, &sequence));
  held before = {0}, after = {0};
  uint32_t n_seen = 0;
  for (uint32_t round = 0; round < 2; ++round) {
    const uint32_t n_new = round == 0 ? r->first : r->more;
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        for (uint32_t i = 0; i < n_new; ++i) {
          before.position[l][h][before.n[l] + i] = (int32_t)(n_seen + i);
        }
      }
      before.n[l] += n_new;
    }
    n_seen += n_new;
    EXPECT_OK(kvevict_sequence_append(sequence, n_new, NULL));
    if (ScoresByPosition(&policy)) FindScores(&policy, &before, n_seen, p);
    cache* c = calloc(1, sizeof *c);
    c->is_paged = r->is_paged;
    memcpy(c->n, before.n, sizeof c->n);
    Load(p, &before, 0, &policy, c);
    Evict(plan, sequence, c, kProtected,
          n_seen > 101 ? n_protected : n_protected / 3);
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        after.n[l] = Positions(sequence, l, h, after.position[l][h]);
        for (uint32_t s = 0; s < after.n[l]; ++s) {
          const size_t t = (size_t)after.position[l][h][s];
          EXPECT(memcmp(c->k[l] + RowAt(c, l, h, s), p->keys[l][h][t],
                        sizeof p->keys[l][h][t]) == 0,
                 "%s: slot %u is not token %zu's", r->policy, s, t);
        }
      }
    }
    free(c);
    ExpectKept(r->policy, p, &policy, &before, &after, n_seen, kProtected,
               n_seen > 101 ? n_protected : n_protected / 3);
    before = after;
  }
  kvevict_sequence_destroy(sequence);
  test_plan_destroy(plan);
  free(p);
}

Test(chunks, keep_what_each_would_keep_as_a_cache) {
  for (size_t i = 0; i < sizeof kRuns / sizeof *kRuns; ++i) {
    Try(&kRuns[i], i % 2 == 0 ? 1 : 3, i + 1);
  }
}

/* ---- Budgets ---- */

static void ExpectBudget(const char* text, uint32_t n_context, uint32_t budget,
                         uint32_t n_sink) {
  const kvevict_policy policy = test_policy(text);
  kvevict_resolved_policy r = {.struct_size = sizeof r};
  EXPECT_OK(kvevict_policy_resolve(&policy, n_context, &r));
  EXPECT(r.budget == budget && r.n_sink == n_sink,
         "%s of %u: %u, sinks %u, not %u, %u", text, n_context, r.budget,
         r.n_sink, budget, n_sink);
}

Test(chunks, a_ratio_is_of_each_chunk) {
  /* int(1024 * 0.3) = 307, not 0.3 of all */
  ExpectBudget("knorm:sink=0,budget=0.3,chunk=1024", 16384, 16 * 307, 0);
  ExpectBudget("knorm:sink=0,budget=0.3,chunk=1024", 16384 + 3, 16 * 307 + 1,
               0);
  ExpectBudget("knorm:sink=0,budget=0.3,chunk=1024", 1000, 300, 0);
  ExpectBudget("knorm:sink=0,budget=0.001,chunk=100", 1050, 11, 0);
  ExpectBudget("lagkv:budget=0.5,chunk=100,sink=4", 303, 150 + 3, 15);
  ExpectBudget("knorm:sink=0,budget=0.5,chunk=100,recent=80", 230, 50 + 50 + 30,
               0);
  ExpectBudget("knorm:sink=0,budget=0.5,chunk=100,recent=90", 230, 50 + 60 + 30,
               0);
  ExpectBudget("knorm:sink=0,budget=500,chunk=100", 2300, 500, 0);
}

Test(chunks, share_what_is_less_than_they_must_keep_is_an_error) {
  const kvevict_policy few = test_policy("knorm:sink=0,budget=10,chunk=100");
  kvevict_resolved_policy r = {.struct_size = sizeof r};
  EXPECT_OK(kvevict_policy_resolve(&few, 1000, &r));
  EXPECT_INVALID(kvevict_policy_resolve(&few, 1001, &r), "budget 10 < 11",
                 "11 chunks of 100");
  const kvevict_policy sinks = test_policy("knorm:budget=43,chunk=100,sink=4");
  EXPECT_OK(kvevict_policy_resolve(&sinks, 1003, &r));
  EXPECT_INVALID(kvevict_policy_resolve(&sinks, 1004, &r), "budget 43 < 44",
                 "sink 4 of each");
  test_model_spec spec = test_small_model("knorm:sink=0,budget=12,chunk=20");
  test_model* m = test_model_create(&spec, (test_random){1});
  test_model_append(m, 100);
  const int32_t protect[] = {41, 42, 43, 44, 45, 46, 47, 48, 49};
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.protected_positions = protect;
  options.protected_positions_len = 9;
  EXPECT_INVALID(test_model_evict(m, &options, NULL),
                 "layer 0: budget 12 < 13 tokens", "5 chunks of 20",
                 "9 protected");
  test_model_check(m, "refused");
  options.protected_positions_len = 8;
  EXPECT_OK(test_model_evict(m, &options, NULL));
  test_model_check(m, "kept");
  cr_assert_eq(test_model_stored(m, 0), 12);
  test_model_destroy(m);
}

/* ---- What does not go together ---- */

Test(chunks, have_no_meaning_with_some) {
  kvevict_policy p = KVEVICT_POLICY_INIT;
#define EXPECT_NONE(text, ...) \
  EXPECT_INVALID(kvevict_policy_parse(text, &p), "chunk 64", __VA_ARGS__)
  EXPECT_NONE("snapkv:chunk=64", "window attention");
  EXPECT_NONE("tova:chunk=64", "window attention");
  EXPECT_NONE("h2o:chunk=64", "accumulated attention");
  EXPECT_NONE("knorm:sink=0,chunk=64,heads=adaptive",
              "heads that are not equal");
  EXPECT_NONE("knorm:sink=0,chunk=64,heads=threshold",
              "heads that are not equal");
  EXPECT_NONE("knorm:sink=0,chunk=64,select_block=16", "select_block above 1");
  EXPECT_NONE("lagkv:chunk=64,of=partition", "of partition");
  EXPECT_NONE("knorm:sink=0,chunk=64,prompt=pinned",
              "prompt that is pinned or beside");
#undef EXPECT_NONE
  EXPECT_INVALID(kvevict_policy_parse("streaming-llm:chunk=64", &p), "chunk",
                 "no key");
  /* It is no number of theirs. */
  p = test_policy("streaming-llm:budget=64");
  p.chunk = 64;
  EXPECT_OK(kvevict_policy_validate(&p));

  kvevict_layer_geometry layer = test_layer(2, 2, 16, 16);
  kvevict_geometry geometry = test_geometry(1, 100, &layer);
  kvevict_context* context = NULL;
  EXPECT_OK(kvevict_context_create(NULL, &context));
  const uint32_t budgets[] = {20, 30};
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.head_budgets = budgets;
  options.head_budgets_len = 2;
  kvevict_plan* plan = NULL;
  const kvevict_policy policy = test_policy("knorm:sink=0,budget=20,chunk=64");
  EXPECT_INVALID(
      kvevict_plan_create(context, &geometry, &policy, &options, &plan),
      "head_budgets", "chunk 64");
  kvevict_context_destroy(context);
}

/* Tokens that were evicted are in no chunk: a cache decodes for ever. */
Test(chunks, of_a_cache_that_decodes_are_of_its_slots) {
  const struct {
    const char* text;
    uint32_t most; /* slots after an eviction */
  } kRuns[] = {{"knorm:budget=64,sink=4,chunk=16", 64},
               {"keydiff:budget=40,sink=1,chunk=8,margin=5", 45},
               {"random:budget=30,sink=0,recent=9,chunk=10,scope=model", 30}};
  for (size_t i = 0; i < sizeof kRuns / sizeof *kRuns; ++i) {
    test_model_spec spec = test_small_model(kRuns[i].text);
    spec.max_tokens = spec.max_positions = 700;
    test_model* m = test_model_create(&spec, (test_random){i + 1});
    test_model_step(m, 140);
    for (uint32_t step = 0; step < 500; ++step) {
      EXPECT_OK(test_model_evict(m, NULL, NULL));
      for (uint32_t l = 0; l < spec.n_layers; ++l) {
        EXPECT(test_model_stored(m, l) <= kRuns[i].most, "%s: %u slots",
               kRuns[i].text, test_model_stored(m, l));
      }
      test_model_step(m, 1);
    }
    test_model_check(m, kRuns[i].text);
    test_model_destroy(m);
  }
}

Test(chunks, begin_with_a_block) {
  test_model_spec spec = test_small_model("knorm:sink=0,budget=30,chunk=24");
  spec.layout = TEST_PAGED_16;
  test_model* m = test_model_create(&spec, (test_random){1});
  test_model_append(m, 90);
  EXPECT_FAILS(test_model_evict(m, NULL, NULL), KVEVICT_ERROR_UNSUPPORTED,
               "views[0].block_size 16", "chunk 24");
  test_model_check(m, "refused");
  test_model_destroy(m);
}

Test(chunks, doors_take_one_at_a_time) {
  kvevict_layer_geometry layer = test_layer(2, 2, kDim, kDim);
  kvevict_geometry geometry = test_geometry(1, 100, &layer);
  static float rows[2 * 100 * kDim], scores[2 * 100];
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = 2;
  view.k = Plane(rows, kDim, 100 * kDim);
  test_plan* plan = test_plan_create("knorm:sink=0,budget=0.5,chunk=64",
                                     &geometry, KVEVICT_OPERATION_SCORE, 1);
  EXPECT_OK(test_score(plan, NULL, &view, 64, scores, 128));
  EXPECT_FAILS(test_score(plan, NULL, &view, 65, scores, 130),
               KVEVICT_ERROR_UNSUPPORTED, "n_tokens 65", "chunk 64");
  kvevict_select_options select = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  EXPECT_OK(kvevict_plan_selection(plan->plan, 0, 64, 0, &select, &keep));
  cr_assert_eq(keep.count, 32);
  EXPECT_FAILS(kvevict_plan_selection(plan->plan, 0, 65, 0, &select, &keep),
               KVEVICT_ERROR_UNSUPPORTED, "n_tokens 65", "chunk 64");
  test_plan_destroy(plan);
}

/* Scores and scratch are those of a chunk. */
Test(chunks, need_little_workspace) {
  kvevict_layer_geometry layer = test_layer(8, 8, 128, 128);
  kvevict_geometry geometry = test_geometry(32, 65536, &layer);
  size_t bytes[2];
  for (int i = 0; i < 2; ++i) {
    test_plan* plan = test_plan_create_least_for(
        NULL,
        i == 0 ? "knorm:sink=0,budget=1024"
               : "knorm:sink=0,budget=1024,chunk=1024",
        &geometry, KVEVICT_OPERATION_EVICT, 1);
    bytes[i] = plan->workspace_bytes;
    test_plan_destroy(plan);
  }
  const size_t lists = (size_t)32 * 8 * 1024 * sizeof(int32_t);
  cr_assert_geq(bytes[0], lists + (size_t)8 * 65536 * sizeof(float));
  cr_assert_leq(bytes[1], lists + (size_t)2 * 8 * 1024 * sizeof(float));
}
