/* Presets that decode keep the same sets as their source at each of thousands of
 * evictions, and caches stay as short. This file says when the source evicts,
 * tests/oracle/presets what it keeps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/presets.h"

enum {
  kLayers = 2,
  kHeads = 2,
  kGroup = 2,
  kQueryHeads = kHeads * kGroup,
  kDim = 16,
  kPairs = kDim / 2,
  kLists = kLayers * kHeads
};

enum {
  kPlain = 0,
  kAtPrompt = 1, /* it evicts at the end of the prompt too */
  kEngineAsks =
      2,      /* when the length before the last token is a multiple of every */
  kBeside = 4 /* the prompt does not count into the most slots */
};

typedef struct run {
  const char* text; /* a preset, and keys that make it small */
  oracle_sizes sizes;
  uint32_t n_prompt;
  uint32_t n_steps;
  uint32_t every; /* period of its checks in tokens; 0: each token */
  uint32_t flags;
  uint32_t most; /* the most slots after a step */
} run;

static const run kRuns[] = {
    {"tova-original:budget=24", {24, 0, 0}, 60, 3000, 0, kAtPrompt, 24},
    {"tova-original:budget=24", {24, 0, 0}, 5, 1000, 0, kAtPrompt, 24},
    {"r-kv-original-decode:budget=40,margin=15,every=16",
     {40, 0, 16},
     50,
     3000,
     16,
     kPlain,
     70},
    {"r-kv-original-decode", {128, 0, 128}, 70, 1500, 128, kPlain, 382},
    /* The Hugging Face version marks the next step's eviction one step before. */
    {"r-kv-original:budget=40",
     {40, 0, 0},
     53,
     3000,
     16,
     kAtPrompt | kEngineAsks,
     55},
    {"streaming-llm-original-decode:recent=30",
     {0, 30, 0},
     50,
     3000,
     0,
     kAtPrompt,
     34},
    {"streaming-llm-original-decode",
     {0, 512, 0},
     300,
     1000,
     0,
     kAtPrompt,
     516},
    {"triattention-original-decode:budget=48,margin=15",
     {48, 0, 16},
     21,
     3000,
     0,
     kPlain,
     63},
    {"triattention-original-decode",
     {2048, 0, 128},
     100,
     2400,
     0,
     kPlain,
     2175},
    {"triattention-tensorrt-llm:budget=24,every=16",
     {24, 0, 0},
     33,
     3000,
     16,
     kBeside,
     39},
};

/* A model's tokens, and the rows that are stored. */
typedef struct engine {
  uint32_t n_most;
  float* queries; /* [kLayers, n_most, kQueryHeads, kDim] */
  float* keys;    /* [kLayers, n_most, kHeads, kDim] */
  float inv_freq[kPairs];
  float centers[kLayers * kQueryHeads][3][kPairs];
  uint32_t n_slots;
  float* k; /* [kLayers, n_slots, kHeads, kDim] */
  float* v;
  kvevict_layer_geometry layer;
  test_plan* plan;
  kvevict_sequence* sequence;
  kvevict_view views[kLayers];
  kvevict_plane center_planes[kLayers];
  kvevict_signal_inputs inputs[kLayers];
  bool has_inputs;
  uint32_t n_seen;
  uint32_t n_prompt; /* valid once it has ended */
  /* The positions that the library reports, [kLists, n_slots]. */
  int32_t* positions;
  uint32_t stored[kLists];
} engine;

static float* Normals(size_t n, float scale, test_random* random) {
  float* out = malloc(n * sizeof *out);
  for (size_t i = 0; i < n; ++i) out[i] = scale * test_random_normal(random);
  return out;
}

static engine* Create(const run* r) {
  test_random random = {0};
  for (const char* c = r->text; *c != '\0'; ++c) {
    random.state = random.state * 31 + (uint8_t)*c;
  }
  engine* e = calloc(1, sizeof *e);
  e->n_most = r->n_prompt + r->n_steps;
  e->queries =
      Normals((size_t)kLayers * e->n_most * kQueryHeads * kDim, 2.0f, &random);
  e->keys = Normals((size_t)kLayers * e->n_most * kHeads * kDim, 1.0f, &random);
  for (uint32_t f = 0; f < kPairs; ++f) {
    e->inv_freq[f] = powf(10000.0f, -(float)f / kPairs);
  }
  for (uint32_t i = 0; i < kLayers * kQueryHeads; ++i) {
    for (uint32_t f = 0; f < kPairs; ++f) {
      const float re = test_random_normal(&random);
      const float im = test_random_normal(&random);
      e->centers[i][0][f] = re;
      e->centers[i][1][f] = im;
      e->centers[i][2][f] =
          sqrtf(re * re + im * im) + (float)test_random_unit(&random);
    }
  }
  e->n_slots = r->n_prompt + r->most + 1;
  const size_t n = (size_t)kLayers * e->n_slots * kHeads * kDim;
  e->k = calloc(n, sizeof(float));
  e->v = calloc(n, sizeof(float));
  e->layer = test_layer(kQueryHeads, kHeads, kDim, kDim);
  e->layer.q_dtype = e->layer.k_dtype = e->layer.v_dtype = KVEVICT_DTYPE_F32;
  kvevict_geometry geometry = test_geometry(kLayers, e->n_slots, &e->layer);
  geometry.rope_inv_freq = e->inv_freq;
  geometry.rope_inv_freq_len = kPairs;
  e->plan = test_plan_create(r->text, &geometry, KVEVICT_OPERATION_EVICT, 1);
  EXPECT_OK(kvevict_sequence_create(e->plan->plan, &e->sequence));
  EXPECT_OK(kvevict_sequence_begin_observing(e->sequence, NULL, 0));
  e->has_inputs = e->plan->policy.kind == ORACLE_TRIATTENTION;
  for (uint32_t l = 0; l < kLayers; ++l) {
    const size_t at = (size_t)l * e->n_slots * kHeads * kDim;
    e->views[l] = (kvevict_view)KVEVICT_VIEW_INIT;
    e->views[l].n_kv_heads = kHeads;
    e->views[l].k = test_rows_plane(e->k + at, kHeads, kDim);
    e->views[l].v = test_rows_plane(e->v + at, kHeads, kDim);
    kvevict_plane* centers = &e->center_planes[l];
    *centers = test_rows_plane(e->centers[l * kQueryHeads][0], 1, kDim);
    centers->head_dim = kPairs;
    centers->token_stride_bytes = (int64_t)sizeof e->centers[0][0];
    centers->head_stride_bytes = (int64_t)sizeof e->centers[0];
    e->inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    e->inputs[l].query_centers = centers;
  }
  e->positions = malloc(sizeof(int32_t) * kLists * e->n_slots);
  return e;
}

static void Destroy(engine* e) {
  kvevict_sequence_destroy(e->sequence);
  test_plan_destroy(e->plan);
  free(e->queries);
  free(e->keys);
  free(e->k);
  free(e->v);
  free(e->positions);
  free(e);
}

static const float* Key(const engine* e, uint32_t layer, uint32_t position,
                        uint32_t head) {
  const size_t row = ((size_t)layer * e->n_most + position) * kHeads + head;
  return e->keys + row * kDim;
}

static void Append(engine* e, uint32_t n) {
  for (uint32_t l = 0; l < kLayers; ++l) {
    const kvevict_plane queries = test_rows_plane(
        e->queries + ((size_t)l * e->n_most + e->n_seen) * kQueryHeads * kDim,
        kQueryHeads, kDim);
    EXPECT_OK(test_observe(e->sequence, l, &queries, n, e->n_seen));
    for (uint32_t h = 0; h < kHeads; ++h) {
      const uint32_t list = l * kHeads + h;
      for (uint32_t i = 0; i < n; ++i) {
        const uint32_t slot = e->stored[list]++;
        EXPECT(slot < e->n_slots, "layer %u has no slot %u", l, slot);
        const size_t row = ((size_t)l * e->n_slots + slot) * kHeads + h;
        memcpy(e->k + row * kDim, Key(e, l, e->n_seen + i, h),
               kDim * sizeof(float));
        e->positions[(size_t)list * e->n_slots + slot] =
            (int32_t)(e->n_seen + i);
      }
    }
  }
  EXPECT_OK(kvevict_sequence_append(e->sequence, n, NULL));
  e->n_seen += n;
}

static kvevict_evict_report Evict(engine* e) {
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  if (e->has_inputs) {
    options.inputs = e->inputs;
    options.inputs_len = kLayers;
  }
  EXPECT_OK(kvevict_sequence_evict(e->sequence, e->views, kLayers, &options,
                                   e->plan->workspace, e->plan->workspace_bytes,
                                   NULL));
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  EXPECT_OK(kvevict_sequence_report(e->sequence, &report, NULL, 0));
  return report;
}

/* The source sees the stored rows and the last queries. All lists hold equally
 * many tokens. */
static oracle_prompt Stored(const engine* e, float** memory) {
  const uint32_t n = e->stored[0];
  const size_t n_keys = (size_t)kLists * n * kDim;
  float* keys = *memory = calloc(n_keys * (1 + kGroup), sizeof(float));
  float* queries = keys + n_keys;
  for (uint32_t list = 0; list < kLists; ++list) {
    const uint32_t l = list / kHeads, h = list % kHeads;
    EXPECT(e->stored[list] == n, "list %u holds %u, not %u", list,
           e->stored[list], n);
    const int32_t* positions = e->positions + (size_t)list * e->n_slots;
    for (uint32_t i = 0; i < n; ++i) {
      memcpy(keys + ((size_t)list * n + i) * kDim,
             Key(e, l, (uint32_t)positions[i], h), kDim * sizeof(float));
    }
  }
  for (uint32_t q = 0; q < kLayers * kQueryHeads; ++q) {
    for (uint32_t i = 0; i < 8 && i < n; ++i) {
      const size_t row =
          ((size_t)(q / kQueryHeads) * e->n_most + e->n_seen - 1 - i) *
              kQueryHeads +
          q % kQueryHeads;
      memcpy(queries + ((size_t)q * n + n - 1 - i) * kDim,
             e->queries + row * kDim, kDim * sizeof(float));
    }
  }
  return (oracle_prompt){.n_layers = kLayers,
                         .n_q_heads = kQueryHeads,
                         .n_kv_heads = kHeads,
                         .head_dim = kDim,
                         .n_tokens = n,
                         .queries = queries,
                         .keys = keys,
                         .values = keys,
                         .inv_freq = e->inv_freq,
                         .centers = e->centers[0][0],
                         .n_prompt = e->n_prompt,
                         .n_seen = e->n_seen,
                         .positions = e->positions};
}

typedef struct tally {
  uint32_t evictions, lists, sure;
} tally;

/* Compares the lists after an eviction with the source's, then adopts the
 * library's: it may have chosen another token among nearly equal scores. */
static void Follow(const run* r, engine* e, bool evicts, bool evicted,
                   tally* all) {
  float* memory = NULL;
  const oracle_prompt p = Stored(e, &memory);
  const uint32_t n = p.n_tokens;
  uint8_t* must = calloc((size_t)kLists * n, 2);
  uint8_t* may = must + (size_t)kLists * n;
  uint32_t least[kLists], most[kLists];
  const oracle_kept expected = {must, may, least, most};
  if (evicts) {
    char preset[64];
    snprintf(preset, sizeof preset, "%.*s", (int)strcspn(r->text, ":"),
             r->text);
    EXPECT(oracle_preset(preset, &p, &r->sizes, &expected), "%s", preset);
  } else {
    memset(must, 1, (size_t)kLists * n * 2);
    for (uint32_t list = 0; list < kLists; ++list) least[list] = most[list] = n;
  }
  EXPECT(evicted == (most[0] < n), "%s at %u tokens: evicted is %u of %u",
         r->text, e->n_seen, evicted, n);
  for (uint32_t list = 0; list < kLists; ++list) {
    int32_t* before = e->positions + (size_t)list * e->n_slots;
    int32_t* kept = malloc((n + 1) * sizeof *kept);
    size_t n_kept = 0;
    EXPECT_OK(kvevict_sequence_keep_positions(e->sequence, list / kHeads,
                                              list % kHeads, kept, n, &n_kept));
    EXPECT(n_kept >= least[list] && n_kept <= most[list],
           "%s at %u tokens: list %u keeps %zu of %u, not %u .. %u", r->text,
           e->n_seen, list, n_kept, n, least[list], most[list]);
    bool sure = true;
    size_t k = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const bool is_kept = k < n_kept && kept[k] == before[i];
      k += is_kept;
      const size_t at = (size_t)list * n + i;
      EXPECT(is_kept ? may[at] : !must[at],
             "%s at %u tokens: list %u %s token %d", r->text, e->n_seen, list,
             is_kept ? "kept" : "lost", before[i]);
      sure = sure && must[at] == may[at];
    }
    EXPECT(k == n_kept, "%s: list %u holds others", r->text, list);
    memcpy(before, kept, n_kept * sizeof *kept);
    e->stored[list] = (uint32_t)n_kept;
    all->lists += evicted;
    all->sure += evicted && sure;
    free(kept);
  }
  all->evictions += evicted;
  free(must);
  free(memory);
}

static bool IsDue(const run* r, const engine* e) {
  if (e->n_prompt == 0) return (r->flags & kAtPrompt) != 0;
  if (r->every == 0) return true;
  if ((r->flags & kEngineAsks) != 0) return (e->n_seen - 1) % r->every == 0;
  return (e->n_seen - e->n_prompt) % r->every == 0;
}

static void Decode(const run* r) {
  const char* const text = r->text;
  engine* e = Create(r);
  tally all = {0, 0, 0};
  Append(e, r->n_prompt);
  Follow(r, e, IsDue(r, e), Evict(e).evicted, &all);
  EXPECT_OK(kvevict_sequence_end_prompt(e->sequence));
  e->n_prompt = r->n_prompt;
  for (uint32_t step = 0; step < r->n_steps; ++step) {
    Append(e, 1);
    const bool due = IsDue(r, e);
    const bool asks = (r->flags & kEngineAsks) == 0 || due;
    Follow(r, e, due, asks && Evict(e).evicted, &all);
    const uint32_t beside = (r->flags & kBeside) != 0 ? r->n_prompt : 0;
    EXPECT(e->stored[0] <= beside + r->most, "%s at %u tokens: %u slots", text,
           e->n_seen, e->stored[0]);
  }
  EXPECT(all.evictions >= 2, "%s: %u evictions", text, all.evictions);
  /* Plateaus of a maximum pool usually end at the cut, but not always. */
  const uint32_t part = e->plan->policy.pool == ORACLE_POOL_MAX ? 20 : 2;
  EXPECT(all.sure * part >= all.lists, "%s: %u of %u lists are in doubt", text,
         all.lists - all.sure, all.lists);
  Destroy(e);
}

Test(decode_presets, keep_what_their_sources_keep_for_thousands_of_steps) {
  for (size_t i = 0; i < sizeof kRuns / sizeof *kRuns; ++i) Decode(&kRuns[i]);
}
