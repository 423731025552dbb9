/* Presets that decode keep the same sets as their source at each of thousands of
 * evictions, and caches stay as short. This file says when the source evicts,
 * tests/oracle/presets what it keeps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"
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

typedef struct engine {
  test_model* m;
  float inv_freq[kPairs];
  float centers[kLayers * kQueryHeads][3][kPairs];
  kvevict_plane center_planes[kLayers];
  float* keys[kLayers]; /* of all tokens, [kHeads, max_positions, kDim] */
  uint32_t n_prompt;    /* valid once it has ended */
  /* What lists held before an eviction, [kLists, max_tokens]. */
  int32_t* positions;
  uint32_t stored[kLists];
} engine;

static engine* Create(const run* r) {
  test_random random = {0};
  for (const char* c = r->text; *c != '\0'; ++c) {
    random.state = random.state * 31 + (uint8_t)*c;
  }
  engine* e = calloc(1, sizeof *e);
  const uint32_t n_slots = r->n_prompt + r->most + 1;
  const test_model_spec spec = {.policy = "none",
                                .n_layers = kLayers,
                                .n_q_heads = kQueryHeads,
                                .n_kv_heads = kHeads,
                                .max_tokens = n_slots,
                                .max_positions = r->n_prompt + r->n_steps,
                                .k_head_dim = kDim,
                                .v_head_dim = kDim,
                                .q_dtype = KVEVICT_DTYPE_F32,
                                .k_dtype = KVEVICT_DTYPE_F32};
  e->m = test_model_create(&spec, random);
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
  kvevict_geometry geometry = e->m->geometry;
  geometry.rope_inv_freq = e->inv_freq;
  geometry.rope_inv_freq_len = kPairs;
  EXPECT_OK(test_model_go_on(e->m, r->text, &geometry, NULL));
  for (uint32_t l = 0; l < kLayers; ++l) {
    e->center_planes[l] = kvevict_plane_head_major(
        e->centers[l * kQueryHeads], KVEVICT_DTYPE_F32, 3, kPairs);
    e->keys[l] = malloc(sizeof(float) * kHeads * spec.max_positions * kDim);
    test_cache_keys(e->m->archive[l], spec.max_positions, e->keys[l]);
  }
  e->positions = malloc(sizeof(int32_t) * kLists * n_slots);
  return e;
}

static void Destroy(engine* e) {
  /* Keys may be rotated to their slots. */
  if (!e->m->policy.rotate) test_model_check(e->m, "decoded");
  test_model_destroy(e->m);
  for (uint32_t l = 0; l < kLayers; ++l) free(e->keys[l]);
  free(e->positions);
  free(e);
}

static const float* Key(const engine* e, uint32_t layer, uint32_t position,
                        uint32_t head) {
  return e->keys[layer] +
         ((size_t)head * e->m->spec.max_positions + position) * kDim;
}

static void Append(engine* e, uint32_t n) {
  test_model_step(e->m, n);
  for (uint32_t list = 0; list < kLists; ++list) {
    const uint32_t l = list / kHeads, h = list % kHeads;
    e->stored[list] = test_model_stored_of(e->m, l, h);
    test_model_positions(e->m, l, h,
                         e->positions + list * e->m->spec.max_tokens);
  }
}

static bool Evict(engine* e) {
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  test_inputs inputs;
  if (e->m->policy.kind == ORACLE_TRIATTENTION) {
    test_give_scores(&options, &inputs, kLayers, NULL, 0, 0);
    for (uint32_t l = 0; l < kLayers; ++l) {
      inputs.inputs[l].scores = NULL;
      inputs.inputs[l].query_centers = &e->center_planes[l];
    }
  }
  EXPECT_OK(test_model_evict(e->m, &options, &report));
  return report.evicted;
}

/* The source sees the stored rows and the last queries. All lists hold equally
 * many tokens. */
static oracle_prompt Stored(const engine* e, float** memory) {
  const uint32_t n = e->stored[0], n_seen = e->m->n_seen;
  const size_t n_keys = (size_t)kLists * n * kDim;
  float* keys = *memory = calloc(n_keys * (1 + kGroup), sizeof(float));
  float* queries = keys + n_keys;
  for (uint32_t list = 0; list < kLists; ++list) {
    EXPECT(e->stored[list] == n, "list %u holds %u, not %u", list,
           e->stored[list], n);
    const int32_t* positions = e->positions + list * e->m->spec.max_tokens;
    for (uint32_t i = 0; i < n; ++i) {
      memcpy(keys + ((size_t)list * n + i) * kDim,
             Key(e, list / kHeads, (uint32_t)positions[i], list % kHeads),
             kDim * sizeof(float));
    }
  }
  for (uint32_t q = 0; q < kLayers * kQueryHeads; ++q) {
    const float* const all = (const float*)e->m->queries[q / kQueryHeads];
    for (uint32_t i = 0; i < 8 && i < n; ++i) {
      const size_t row =
          (size_t)(n_seen - 1 - i) * kQueryHeads + q % kQueryHeads;
      memcpy(queries + ((size_t)q * n + n - 1 - i) * kDim, all + row * kDim,
             kDim * sizeof(float));
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
                         .n_seen = n_seen,
                         .positions = e->positions};
}

typedef struct tally {
  uint32_t evictions, lists, sure;
} tally;

/* Compares the lists after an eviction with the source's. Later steps go on from the
 * library's, which may have chosen another token among nearly equal scores. */
static void Compare(const run* r, const engine* e, bool evicts, bool evicted,
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
         r->text, e->m->n_seen, evicted, n);
  for (uint32_t list = 0; list < kLists; ++list) {
    const uint32_t l = list / kHeads, h = list % kHeads;
    const int32_t* before = e->positions + list * e->m->spec.max_tokens;
    int32_t* kept = malloc((n + 1) * sizeof *kept);
    const uint32_t n_kept = test_model_stored_of(e->m, l, h);
    test_model_positions(e->m, l, h, kept);
    EXPECT(n_kept >= least[list] && n_kept <= most[list],
           "%s at %u tokens: list %u keeps %u of %u, not %u .. %u", r->text,
           e->m->n_seen, list, n_kept, n, least[list], most[list]);
    bool sure = true;
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const bool is_kept = k < n_kept && kept[k] == before[i];
      k += is_kept;
      const size_t at = (size_t)list * n + i;
      EXPECT(is_kept ? may[at] : !must[at],
             "%s at %u tokens: list %u %s token %d", r->text, e->m->n_seen,
             list, is_kept ? "kept" : "lost", before[i]);
      sure = sure && must[at] == may[at];
    }
    EXPECT(k == n_kept, "%s: list %u holds others", r->text, list);
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
  if ((r->flags & kEngineAsks) != 0) return (e->m->n_seen - 1) % r->every == 0;
  return (e->m->n_seen - e->n_prompt) % r->every == 0;
}

static void Decode(const run* r) {
  const char* const text = r->text;
  engine* e = Create(r);
  tally all = {0, 0, 0};
  Append(e, r->n_prompt);
  const bool is_due = IsDue(r, e);
  Compare(r, e, is_due, Evict(e), &all);
  EXPECT_OK(kvevict_sequence_end_prompt(e->m->sequence));
  e->n_prompt = r->n_prompt;
  for (uint32_t step = 0; step < r->n_steps; ++step) {
    Append(e, 1);
    const bool due = IsDue(r, e);
    const bool asks = (r->flags & kEngineAsks) == 0 || due;
    Compare(r, e, due, asks && Evict(e), &all);
    const uint32_t beside = (r->flags & kBeside) != 0 ? r->n_prompt : 0;
    const uint32_t n = test_model_stored(e->m, 0);
    EXPECT(n <= beside + r->most, "%s at %u tokens: %u slots", text,
           e->m->n_seen, n);
  }
  EXPECT(all.evictions >= 2, "%s: %u evictions", text, all.evictions);
  /* Plateaus of a maximum pool usually end at the cut, but not always. */
  const uint32_t part = e->m->policy.pool == ORACLE_POOL_MAX ? 20 : 2;
  EXPECT(all.sure * part >= all.lists, "%s: %u of %u lists are in doubt", text,
         all.lists - all.sure, all.lists);
  Destroy(e);
}

Test(decode_presets, keep_what_their_sources_keep_for_thousands_of_steps) {
  for (size_t i = 0; i < sizeof kRuns / sizeof *kRuns; ++i) Decode(&kRuns[i]);
}
