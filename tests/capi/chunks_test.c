/* Evictions by chunks: each chunk keeps what it would keep as the whole cache, and
 * as many tokens as the header says. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
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

/* The inputs of tokens, by position. */
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

/* The positions that each layer and head holds. */
typedef struct held {
  uint32_t n[kLayers];
  int32_t position[kLayers][kHeads][kMost];
} held;

/* A cache of some of these slots, with all inputs of an eviction. */
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
  kvevict_view view = {.struct_size = sizeof view, .n_kv_heads = kHeads};
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

/* Gives the policy the inputs it asks for. Slot 0 of the cache is slot `begin` of
 * `h`. */
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
  char text[TEST_POLICY_TEXT];
  EXPECT_OK(kvevict_policy_format(policy, text, sizeof text, NULL));
  kvevict_layer_geometry layer = test_layer(kQueryHeads, kHeads, kDim, kDim);
  kvevict_geometry geometry = test_geometry(kLayers, kMost, &layer);
  geometry.rope_inv_freq = p->inv_freq;
  geometry.rope_inv_freq_len = kDim / 2;
  /* Layers are done one by one or at once. */
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

/* ---- What a chunk keeps by itself ---- */

/* These scores depend on positions, which a chunk by itself does not know. */
static bool ScoresByPosition(const oracle_policy* policy) {
  return policy->kind == ORACLE_RANDOM || policy->kind == ORACLE_TRIATTENTION;
}

typedef struct chunk {
  uint32_t layer, head;
  uint32_t begin, end; /* slots */
  uint32_t n_keep;
  uint32_t n_recent; /* the last slots */
} chunk;

static kvevict_policy* OfChunk(const kvevict_policy* whole, const chunk* of) {
  const oracle_policy values = oracle_policy_of(whole);
  kvevict_policy* policy = ScoresByPosition(&values)
                               ? test_policy_of("custom:sink=%u", values.sink)
                               : test_policy_copy(whole);
  EXPECT_OK(kvevict_policy_set_number(policy, "chunk", 0));
  EXPECT_OK(kvevict_policy_set(policy, "split", "uniform"));
  EXPECT_OK(kvevict_policy_set_number(policy, "recent", of->n_recent));
  /* A value of 1 would keep everything. */
  EXPECT_OK(kvevict_policy_set_number(policy, "budget", of->n_keep + 0.5));
  return policy;
}

/* Finds the slots of `h` to keep, ascending. */
static void KeepOfChunk(const prompt* p, const held* h,
                        const kvevict_policy* whole, const chunk* of,
                        const int32_t* protect, size_t n_protect,
                        int32_t* out) {
  const uint32_t n = of->end - of->begin;
  if (of->n_keep == n) {
    for (uint32_t i = 0; i < n; ++i) out[i] = (int32_t)(of->begin + i);
    return;
  }
  const kvevict_policy* policy = OfChunk(whole, of);
  cache* c = calloc(1, sizeof *c);
  for (uint32_t l = 0; l < kLayers; ++l) c->n[l] = n;
  Load(p, h, of->begin, policy, c);
  int32_t slots[8];
  size_t n_slots = 0;
  for (uint32_t s = of->begin; s < of->end; ++s) {
    for (size_t i = 0; i < n_protect; ++i) {
      if (h->position[of->layer][of->head][s] != protect[i]) continue;
      slots[n_slots++] = (int32_t)(s - of->begin);
    }
  }
  test_plan* plan = Plan(policy, p, 1);
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

/* Counts the tokens that the oracle keeps of each chunk of a layer. */
static void CountChunks(const oracle_policy* policy, const held* h,
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
        bool forced = s - begin < policy->sink || s + policy->recent >= n;
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

static void ExpectKept(const char* text, const prompt* p, const test_plan* plan,
                       const held* before, const held* after, uint32_t n_seen,
                       const int32_t* protect, size_t n_protect) {
  const oracle_policy* policy = &plan->policy;
  uint32_t budgets[kLayers];
  EXPECT_OK(kvevict_policy_layer_budgets(plan->policy_handle, n_seen, budgets,
                                         kLayers));
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
          of.n_recent += s + policy->recent >= n;
        }
        int32_t slots[kMost];
        KeepOfChunk(p, before, plan->policy_handle, &of, protect, n_protect,
                    slots);
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
  uint32_t first, more; /* tokens before the first and the second eviction */
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

/* Scores the slots [begin, end) of a layer by kvevict_score(). */
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
  kvevict_score_job job = test_score_job(n, &view, &inputs, scores, kHeads);
  job.layer = layer;
  job.n_seen = n_seen;
  EXPECT_OK(test_score_jobs(plan, &job, 1));
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (uint32_t s = 0; s < n; ++s) {
      p->scores[layer][head][h->position[layer][head][begin + s]] =
          scores[head * n + s];
    }
  }
}

static void FindScores(const test_plan* chunks, const held* h, uint32_t n_seen,
                       prompt* p) {
  const oracle_policy* policy = &chunks->policy;
  const bool draws = policy->kind == ORACLE_RANDOM;
  kvevict_policy* alone = test_policy_copy(chunks->policy_handle);
  EXPECT_OK(kvevict_policy_set_number(alone, "chunk", 0));
  EXPECT_OK(kvevict_policy_set_number(alone, "budget", 1));
  test_plan* plan = PlanTo(KVEVICT_OPERATION_SCORE, alone, p, 1);
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
  const kvevict_policy* policy = test_policy(r->policy);
  test_plan* plan = Plan(policy, p, n_threads);
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
    if (ScoresByPosition(&plan->policy)) FindScores(plan, &before, n_seen, p);
    cache* c = calloc(1, sizeof *c);
    c->is_paged = r->is_paged;
    memcpy(c->n, before.n, sizeof c->n);
    Load(p, &before, 0, policy, c);
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
    ExpectKept(r->policy, p, plan, &before, &after, n_seen, kProtected,
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
