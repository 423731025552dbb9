/* Every preset keeps what its source keeps of random prompts of many sizes.
 * tests/oracle/presets has the sources' numbers and knows no policy. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/presets.h"

enum { kLayers = 3, kMostLists = kLayers * 4 };

typedef struct run {
  const char* text; /* a preset, and keys that make it small */
  oracle_sizes sizes;
  uint32_t tokens[5]; /* prompts, each in another shape; 0 ends them */
} run;

static const run kRuns[] = {
    {"snapkv-original:budget=60,window=16", {60, 16, 0}, {20, 59, 60, 61, 170}},
    {"snapkv-kvpress:budget=0.4,window=16",
     {0.4, 16, 0},
     {45, 99, 130, 171, 200}},
    {"snapkv-kvpress", {0.5, 64, 0}, {131, 180}},
    {"snapkv-kvf:budget=60,window=16", {60, 16, 0}, {20, 59, 60, 61, 170}},
    {"snapkv-sharpinference:budget=60,recent=16,window=16",
     {60, 16, 0},
     {20, 59, 60, 61, 170}},
    {"snapkv-mlx-lm:budget=60,recent=7", {60, 24, 0}, {20, 60, 129, 171, 200}},
    {"snapkv-mlx-lm", {512, 24, 0}, {300, 512, 513, 600}},
    {"snapkv-mlx-lm:budget=24,sink=3,recent=3,window=7",
     {24, 7, 0},
     {131, 200}},
    {"snapkv-web-llm:budget=60", {60, 32, 0}, {40, 59, 60, 61, 170}},
    {"pyramidkv-kvf:budget=60,window=16", {60, 16, 0}, {59, 60, 87, 88, 170}},
    {"pyramidkv-adakv:budget=60,window=16",
     {60, 16, 0},
     {59, 60, 61, 100, 170}},
    {"pyramidkv-kvpress:budget=0.5,window=4", {0.5, 4, 0}, {60, 100, 161, 200}},
    {"pyramidkv-kvpress", {0.5, 64, 0}, {150, 181}},
    {"chunkkv-kvpress:budget=0.5,window=16",
     {0.5, 16, 20},
     {100, 119, 161, 180}},
    {"chunkkv-kvpress", {0.5, 64, 20}, {200, 219, 301}},
    {"chunkkv-kvpress:budget=0.9", {0.9, 64, 20}, {399, 400}},
    {"adakv-kvpress:budget=0.4,window=16",
     {0.4, 16, 0},
     {45, 99, 130, 171, 200}},
    {"adakv-kvpress", {0.5, 64, 0}, {131, 180}},
    {"adakv-kvpress:budget=0.5,window=1", {0.5, 1, 0}, {60, 99, 160, 200}},
    {"adakv-original:budget=60,window=16", {60, 16, 0}, {20, 59, 61, 100, 170}},
    {"adakv-kvf:budget=60,window=16", {60, 16, 0}, {20, 59, 61, 100, 170}},
    {"adakv-kvf:budget=40,window=8", {40, 8, 0}, {41, 50, 90, 130, 200}},
    {"criticalkv-kvpress:budget=0.5,window=16",
     {0.5, 16, 0},
     {65, 99, 130, 171, 200}},
    {"criticalkv-kvpress:budget=0.7,window=8", {0.7, 8, 0}, {25, 40, 111, 160}},
    {"criticaladakv-kvpress:budget=0.5,window=16",
     {0.5, 16, 0},
     {65, 99, 130, 171, 200}},
    {"criticaladakv-kvpress:budget=0.3,window=8",
     {0.3, 8, 0},
     {60, 101, 160, 190}},
    {"tova-kvpress", {0.5, 0, 0}, {4, 5, 64, 131, 200}},
    {"tova-original:budget=40", {40, 0, 0}, {2, 39, 40, 41, 150}},
    {"finch-kvpress:window=11", {0.5, 11, 0}, {24, 25, 64, 131, 200}},
    {"r-kv-original", {128, 0, 0}, {127, 128, 129, 160, 220}},
    {"r-kv-original:budget=40", {40, 0, 0}, {41, 64, 131}},
    {"r-kv-original-decode", {128, 0, 128}, {128, 255, 256, 300}},
    {"r-kv-original-decode:budget=40,margin=15,every=16",
     {40, 0, 16},
     {41, 55, 56, 131}},
    {"h2o-original:budget=44,recent=40", {44, 40, 0}, {30, 43, 44, 45, 120}},
    {"h2o-kvf:budget=44,recent=8", {44, 8, 0}, {9, 43, 44, 45, 120}},
    {"observed-kvpress", {0.5, 0, 0}, {2, 3, 64, 131}},
    {"knorm-kvpress", {0.5, 0, 0}, {2, 3, 64, 131, 200}},
    /* Two keys are equally near to their mean. */
    {"keydiff-kvpress", {0.5, 0, 0}, {3, 64, 131, 200}},
    {"lagkv-kvpress:block=16", {0.5, 0, 16}, {20, 35, 36, 120, 200}},
    {"lagkv-original:block=32", {0.5, 0, 32}, {20, 79, 80, 120, 200}},
    {"cur-kvpress", {0.5, 0, 0}, {10, 16, 17, 131, 200}},
    {"expected-attention-kvpress", {0.5, 0, 0}, {10, 11, 60, 90}},
    {"triattention-original:budget=40,sink=10",
     {40, 10, 0},
     {20, 39, 40, 41, 150}},
    {"triattention-original-decode:budget=40",
     {40, 0, 128},
     {40, 167, 168, 175, 230}},
    {"triattention-tensorrt-llm:budget=40", {40, 0, 0}, {40, 152}},
    {"streaming-llm-original-decode:recent=40",
     {0, 40, 0},
     {3, 43, 44, 45, 200}},
    {"streaming-llm-original:recent=40", {0, 40, 0}, {3, 43, 44, 45, 200}},
    {"streaming-llm-original", {0, 512, 0}, {200, 515, 516, 517, 600}},
    {"streaming-llm-kvpress", {0.5, 0, 0}, {10, 11, 64, 131, 200}},
    {"merging-kvpress", {0.5, 64, 0}, {131, 180}},
    {"snapkv-kvf-pivot:budget=60,window=16",
     {60, 16, 0},
     {20, 59, 60, 61, 170}},
    {"snapkv-kvf-weighted:budget=60,window=16",
     {60, 16, 0},
     {20, 59, 60, 61, 170}},
    {"keydiff-block-kvpress", {0.5, 0, 128}, {100, 256, 300}},
    {"keydiff-block-kvpress:budget=0.3,block=20", {0.3, 0, 20}, {60, 131, 200}},
    {"knorm-chunk-kvpress:budget=0.3,chunk=48",
     {0.3, 0, 48},
     {47, 48, 49, 131, 200}},
    {"knorm-chunk-kvpress", {0.5, 0, 1024}, {300, 1029, 1100}},
    {"keydiff-chunk-kvpress:budget=0.7,chunk=48",
     {0.7, 0, 48},
     {47, 48, 51, 131, 200}},
    {"keydiff-chunk-kvpress", {0.5, 0, 1024}, {300, 1031}},
    {"non-causal-kvpress:budget=0.1", {0.1, 0, 0}, {60, 256, 300}},
    {"non-causal-kvpress", {0.5, 0, 0}, {60, 255, 257, 300}},
    {"leverage-kvpress", {0.5, 0, 0}, {60, 300}},
    {"compactor-kvpress:budget=0.3", {0.3, 0, 0}, {60, 267, 300}},
    {"cake-original:budget=60,window=16", {60, 16, 0}, {20, 59, 60, 90, 170}},
    {"simlayerkv-kvpress:budget=43,recent=39,lazy=0.5",
     {0.5, 40, 0},
     {20, 44, 45, 60, 170}},
    {"simlayerkv-kvpress", {1.0, 1024, 0}, {200}},
    {"vase-attnv-original:budget=60,window=16,secure_values=11,margin=0",
     {60, 16, 0},
     {20, 59, 60, 99, 170}},
    {"defensivekv-original:budget=0.4,window=8",
     {0.4, 8, 0},
     {45, 99, 130, 171, 200}},
    {"layer-defensivekv-original:budget=0.4,window=8",
     {0.4, 8, 0},
     {45, 99, 130, 171, 200}},
    {"defensivekv:budget=0.3,window=16", {0.3, 16, 0}, {60, 99, 130, 171, 200}},
    {"layer-defensivekv:budget=0.3,window=16",
     {0.3, 16, 0},
     {60, 99, 130, 171, 200}},
};

/* The text up to its keys. */
static const char* PresetOf(const run* r) {
  static char name[64];
  snprintf(name, sizeof name, "%.*s", (int)strcspn(r->text, ":"), r->text);
  return name;
}

/* These sources have a query head per KV head. */
static bool IsOneToOne(const char* preset) {
  return strcmp(preset, "snapkv-original") == 0 ||
         strcmp(preset, "h2o-original") == 0;
}

/* ---- A prompt ---- */

typedef struct prompt {
  oracle_prompt p;
  float* memory;
} prompt;

static prompt MakePrompt(uint32_t n_q_heads, uint32_t n_kv_heads,
                         uint32_t head_dim, uint32_t n_tokens, uint64_t seed) {
  const size_t d = head_dim, n = n_tokens;
  const size_t q = (size_t)kLayers * n_q_heads;
  const size_t kv = (size_t)kLayers * n_kv_heads;
  prompt out = {.p = {.n_layers = kLayers,
                      .n_q_heads = n_q_heads,
                      .n_kv_heads = n_kv_heads,
                      .head_dim = head_dim,
                      .n_tokens = n_tokens}};
  float* at = malloc(sizeof(float) * (q * n * d + 2 * kv * n * d + kv * n +
                                      q * d + q * d * d + d / 2 + q * 3 * d));
  out.memory = at;
  test_random random = {seed};
  out.p.queries = at;
  for (size_t i = 0; i < q * n * d; ++i) {
    /* Some heads look at few tokens and others at all, so they share unevenly. */
    const size_t head = i / (n * d) * n_kv_heads / n_q_heads;
    *at++ = (head % 2 == 0 ? 8.0f : 0.5f) * test_random_normal(&random);
  }
  out.p.keys = at;
  for (size_t i = 0; i < kv * n * d; ++i) *at++ = test_random_normal(&random);
  out.p.values = at;
  for (size_t i = 0; i < kv * n * d; ++i) *at++ = test_random_normal(&random);
  out.p.weights = at;
  for (size_t i = 0; i < kv * n; ++i) {
    *at++ = 0.1f + 2 * (float)test_random_unit(&random);
  }
  out.p.mean = at;
  for (size_t i = 0; i < q * d; ++i) *at++ = test_random_normal(&random);
  out.p.covariance = at;
  for (size_t i = 0; i < q * d * d; ++i) {
    const bool on_diagonal = i / d % d == i % d;
    *at++ = (on_diagonal ? 0.5f : 0.02f) * test_random_normal(&random);
  }
  out.p.inv_freq = at;
  for (size_t i = 0; i < d / 2; ++i) {
    *at++ = (float)pow(10000.0, -2.0 * (double)i / (double)d);
  }
  out.p.centers = at;
  for (size_t i = 0; i < q; ++i) {
    for (size_t f = 0; f < d / 2; ++f) {
      const float re = test_random_normal(&random);
      const float im = test_random_normal(&random);
      at[f] = re;
      at[d / 2 + f] = im;
      at[d + f] = sqrtf(re * re + im * im) + (float)test_random_unit(&random);
    }
    at += 3 * d / 2;
  }
  return out;
}

static kvevict_plane Plane(const float* data, uint32_t n_rows,
                           uint32_t head_dim) {
  return kvevict_plane_head_major(data, KVEVICT_DTYPE_F32, n_rows, head_dim);
}

/* ---- The library's answer ---- */

typedef struct layer_inputs {
  kvevict_plane queries, weights, mean, covariance, centers;
} layer_inputs;

/* The inputs that the policy asks for, and no others. */
static kvevict_signal_inputs InputsOf(const kvevict_policy* policy,
                                      const oracle_prompt* p, uint32_t layer,
                                      layer_inputs* planes) {
  const uint32_t d = p->head_dim, n = p->n_tokens;
  const size_t q = (size_t)layer * p->n_q_heads;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  kvevict_resolved_policy resolved = {.struct_size = sizeof resolved};
  EXPECT_OK(kvevict_policy_resolve(policy, 1 << 20, &resolved));
  const uint32_t rows = resolved.n_query_rows;
  const uint32_t n_rows = rows > 0 && rows < n ? rows : n;
  planes->queries = Plane(p->queries + q * n * d, n, d);
  planes->queries.data += (uint64_t)(n - n_rows) * d * sizeof(float);
  planes->weights = Plane(p->weights + (size_t)layer * p->n_kv_heads * n, n, 1);
  planes->mean = Plane(p->mean + q * d, 1, d);
  planes->covariance = Plane(p->covariance + q * d * d, d, d);
  planes->centers = Plane(p->centers + q * 3 * (d / 2), 3, d / 2);
  const struct {
    kvevict_input input;
    const kvevict_plane** to;
    const kvevict_plane* plane;
  } kGiven[] = {
      {KVEVICT_INPUT_QUERIES, &inputs.queries, &planes->queries},
      {KVEVICT_INPUT_TOKEN_WEIGHTS, &inputs.token_weights, &planes->weights},
      {KVEVICT_INPUT_QUERY_MEAN, &inputs.query_mean, &planes->mean},
      {KVEVICT_INPUT_QUERY_COVARIANCE, &inputs.query_covariance,
       &planes->covariance},
      {KVEVICT_INPUT_QUERY_CENTERS, &inputs.query_centers, &planes->centers},
  };
  for (size_t i = 0; i < sizeof kGiven / sizeof *kGiven; ++i) {
    kvevict_need need = KVEVICT_NEED_NONE;
    EXPECT_OK(kvevict_policy_need(policy, kGiven[i].input, &need));
    if (need != KVEVICT_NEED_NONE) *kGiven[i].to = kGiven[i].plane;
  }
  return inputs;
}

/* kept[n_layers, n_kv_heads, n_tokens] of 0 and 1; counts[n_layers, n_kv_heads]. */
static void Evict(const char* text, const oracle_prompt* p, uint8_t* kept,
                  uint32_t* counts) {
  const uint32_t d = p->head_dim, n = p->n_tokens;
  kvevict_layer_geometry layer = test_layer(p->n_q_heads, p->n_kv_heads, d, d);
  layer.q_dtype = layer.k_dtype = layer.v_dtype = KVEVICT_DTYPE_F32;
  kvevict_geometry geometry = test_geometry(kLayers, n, &layer);
  geometry.rope_inv_freq = p->inv_freq;
  geometry.rope_inv_freq_len = d / 2;
  test_plan* plan =
      test_plan_create(text, &geometry, KVEVICT_OPERATION_EVICT, 1);
  const size_t bytes = (size_t)kLayers * p->n_kv_heads * n * d * sizeof(float);
  float* cache = malloc(2 * bytes); /* an eviction moves rows */
  memcpy(cache, p->keys, bytes);
  memcpy((uint8_t*)cache + bytes, p->values, bytes);
  kvevict_view views[kLayers];
  kvevict_signal_inputs inputs[kLayers];
  layer_inputs planes[kLayers];
  for (uint32_t l = 0; l < kLayers; ++l) {
    const size_t at = (size_t)l * p->n_kv_heads * n * d;
    views[l] = (kvevict_view)KVEVICT_VIEW_INIT;
    views[l].n_kv_heads = p->n_kv_heads;
    views[l].k = Plane(cache + at, n, d);
    views[l].v = Plane(cache + bytes / sizeof(float) + at, n, d);
    inputs[l] = InputsOf(plan->policy_handle, p, l, &planes[l]);
  }
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(plan->plan, &sequence));
  if (p->n_prompt > 0) {
    EXPECT_OK(kvevict_sequence_append(sequence, p->n_prompt, NULL));
    EXPECT_OK(kvevict_sequence_end_prompt(sequence));
  }
  EXPECT_OK(kvevict_sequence_append(sequence, n - p->n_prompt, NULL));
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = inputs;
  options.inputs_len = kLayers;
  EXPECT_OK(kvevict_sequence_evict(sequence, views, kLayers, &options,
                                   plan->workspace, plan->workspace_bytes,
                                   NULL));
  memset(kept, 0, (size_t)kLayers * p->n_kv_heads * n);
  int32_t* positions = malloc(n * sizeof *positions);
  for (uint32_t i = 0; i < kLayers * p->n_kv_heads; ++i) {
    size_t n_kept = 0;
    EXPECT_OK(kvevict_sequence_keep_positions(
        sequence, i / p->n_kv_heads, i % p->n_kv_heads, positions, n, &n_kept));
    counts[i] = (uint32_t)n_kept;
    for (size_t s = 0; s < n_kept; ++s) {
      kept[(size_t)i * n + (size_t)positions[s]] = 1;
    }
  }
  free(positions);
  kvevict_sequence_destroy(sequence);
  test_plan_destroy(plan);
  free(cache);
}

/* ---- Against the oracle's ---- */

/* How many lists there are, how many are beyond doubt, and how many lose tokens. */
typedef struct tally {
  uint32_t lists, sure, shorter;
} tally;

static tally Compare(const run* r, const oracle_prompt* p) {
  const char* const text = r->text;
  const uint32_t n = p->n_tokens, n_lists = kLayers * p->n_kv_heads;
  const size_t size = (size_t)n_lists * n;
  uint8_t* bytes = calloc(3, size);
  uint32_t least[kMostLists], most[kMostLists], counts[kMostLists];
  const oracle_kept expected = {bytes, bytes + size, least, most};
  EXPECT(oracle_preset(PresetOf(r), p, &r->sizes, &expected),
         "%s has no oracle", text);
  uint8_t* const kept = bytes + 2 * size;
  Evict(text, p, kept, counts);
  tally out = {n_lists, 0, 0};
  for (uint32_t i = 0; i < n_lists; ++i) {
    bool sure = true;
    EXPECT(counts[i] >= least[i] && counts[i] <= most[i],
           "%s of %u tokens, %u:%u heads of %u: list %u keeps %u, not %u .. %u",
           text, n, p->n_q_heads, p->n_kv_heads, p->head_dim, i, counts[i],
           least[i], most[i]);
    for (uint32_t t = 0; t < n; ++t) {
      const size_t at = (size_t)i * n + t;
      EXPECT(!expected.must[at] || kept[at],
             "%s of %u tokens, %u:%u heads of %u: list %u lost %u", text, n,
             p->n_q_heads, p->n_kv_heads, p->head_dim, i, t);
      EXPECT(expected.may[at] || !kept[at],
             "%s of %u tokens, %u:%u heads of %u: list %u kept %u", text, n,
             p->n_q_heads, p->n_kv_heads, p->head_dim, i, t);
      sure = sure && expected.must[at] == expected.may[at];
    }
    out.sure += sure;
    out.shorter += most[i] < n;
  }
  free(bytes);
  return out;
}

/* Scores tie at the cut, or are nearly equal block after block. key_diff_blocks
 * tests these presets with keys that leave less doubt. */
static bool IsMostlyInDoubt(const char* preset) {
  const oracle_policy policy = oracle_policy_from(preset);
  return policy.pool == ORACLE_POOL_MAX || policy.kind == ORACLE_LAGKV ||
         (policy.kind == ORACLE_KEYDIFF && policy.block > 0);
}

static void Conform(const run* r) {
  static const uint32_t kShapes[4][3] = {
      {4, 2, 64}, {8, 2, 64}, {4, 4, 128}, {3, 1, 128}};
  const char* const text = r->text;
  uint64_t seed = 0; /* the run's own, apart from other runs */
  for (const char* c = text; *c != '\0'; ++c) seed = seed * 31 + (uint8_t)*c;
  /* Policies with another `prompt` evict only after the prompt has ended. */
  const bool waits = oracle_policy_from(text).prompt != ORACLE_PROMPT_INSIDE;
  tally all = {0, 0, 0};
  for (uint32_t i = 0; i < 5 && r->tokens[i] > 0; ++i) {
    const uint32_t* const shape = kShapes[(i + seed) % 4];
    const uint32_t n_q_heads = IsOneToOne(PresetOf(r)) ? shape[1] : shape[0];
    prompt made =
        MakePrompt(n_q_heads, shape[1], shape[2], r->tokens[i], seed + i);
    made.p.n_prompt = waits ? 24 : 0;
    const tally one = Compare(r, &made.p);
    all.lists += one.lists;
    all.sure += one.sure;
    all.shorter += one.shorter;
    free(made.memory);
  }
  EXPECT(all.shorter > 0 || r->sizes.budget == 1.0, "%s: no list loses a token",
         text);
  /* A test whose answers are all in doubt would prove nothing. */
  EXPECT(IsMostlyInDoubt(PresetOf(r)) || all.sure * 4 >= all.lists * 3,
         "%s: %u of %u lists are in doubt", text, all.lists - all.sure,
         all.lists);
}

Test(preset_sets, every_preset_keeps_what_its_source_keeps) {
  for (size_t i = 0; i < sizeof kRuns / sizeof *kRuns; ++i) {
    Conform(&kRuns[i]);
  }
}

/* These add up the attention of many steps as OpenVINO GenAI does by default.
 * sequence_life_test.c lives them against models of its code, with small numbers. */
#define OPENVINO                                             \
  "h2o:budget=703,sink=32,recent=128,pool=none,scope=layer," \
  "tie=higher,select_block=32,prompt=at-end,sums=layer,sum_pool=7,"
static const char* const kTrajectories[][2] = {
    {"openvino-genai", OPENVINO "rows=mean"},
    {"openvino-genai-sum", OPENVINO "rows=sum"},
    {"openvino-genai-adaptive-r-kv",
     OPENVINO "rows=sum,sum_last=8,raw_first=yes,diverse_mass=0.9"}};
#undef OPENVINO
enum { kNTrajectories = sizeof kTrajectories / sizeof *kTrajectories };

static bool IsTrajectory(const char* preset) {
  bool is = false;
  for (size_t i = 0; i < kNTrajectories; ++i) {
    is = is || strcmp(kTrajectories[i][0], preset) == 0;
  }
  return is;
}

Test(preset_sets, those_of_openvino_have_its_numbers) {
  for (size_t i = 0; i < kNTrajectories; ++i) {
    EXPECT(test_same_policy(test_policy(kTrajectories[i][0]),
                            test_policy(kTrajectories[i][1])),
           "%s", kTrajectories[i][0]);
  }
}

/* Sources evict at every decoding step, except those listed. */
Test(preset_sets, evict_when_their_sources_do) {
  static const struct {
    const char* preset;
    uint32_t margin, every;
    int prompt;
  } kWhen[] = {
      {"r-kv-original-decode", 127, 128, ORACLE_PROMPT_INSIDE},
      {"triattention-original-decode", 127, 0, ORACLE_PROMPT_PINNED},
      {"triattention-tensorrt-llm", 0, 128, ORACLE_PROMPT_PINNED_BESIDE},
      {"vase-attnv-original", 63, 0, ORACLE_PROMPT_INSIDE},
  };
  kvevict_preset_info info = {.struct_size = sizeof info};
  for (uint32_t n = 0; kvevict_preset_at(n, &info) == KVEVICT_OK; ++n) {
    uint32_t margin = 0, every = 0;
    int prompt =
        IsTrajectory(info.name) ? ORACLE_PROMPT_AT_END : ORACLE_PROMPT_INSIDE;
    for (size_t i = 0; i < sizeof kWhen / sizeof *kWhen; ++i) {
      if (strcmp(kWhen[i].preset, info.name) != 0) continue;
      margin = kWhen[i].margin;
      every = kWhen[i].every;
      prompt = kWhen[i].prompt;
    }
    const oracle_policy p = oracle_policy_from(info.name);
    EXPECT(p.margin == margin && p.every == every && p.prompt == prompt,
           "%s: margin %u, every %u, prompt %d", info.name, p.margin, p.every,
           p.prompt);
  }
}

static bool IsRun(const char* preset) {
  if (IsTrajectory(preset)) return true;
  for (size_t i = 0; i < sizeof kRuns / sizeof *kRuns; ++i) {
    if (strcmp(PresetOf(&kRuns[i]), preset) == 0) return true;
  }
  return false;
}

Test(preset_sets, every_preset_is_held_against_its_source) {
  uint32_t n = 0;
  for (;; ++n) {
    kvevict_preset_info info = {.struct_size = sizeof info};
    if (kvevict_preset_at(n, &info) != KVEVICT_OK) break;
    EXPECT(IsRun(info.name), "%s has no run here", info.name);
  }
  uint32_t n_oracles = 0;
  for (; oracle_preset_at(n_oracles) != NULL; ++n_oracles) {
    EXPECT(IsRun(oracle_preset_at(n_oracles)), "%s is not run",
           oracle_preset_at(n_oracles));
  }
  EXPECT(n == n_oracles + kNTrajectories, "%u presets, %u oracles", n,
         n_oracles);
}

/* kvpress would drop a part of the window here, so the context is left alone: the
 * budget holds 3 chunks, but the window's 64 tokens lie in 4. */
Test(preset_sets, chunkkv_kvpress_keeps_the_window) {
  test_model_spec spec = test_small_model("chunkkv-kvpress:budget=0.2");
  spec.max_tokens = spec.max_positions = 300;
  test_model* m = test_model_create(&spec, (test_random){1});
  test_model_step(m, 300);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  EXPECT_OK(kvevict_sequence_report(m->sequence, &report, NULL, 0));
  EXPECT(!report.evicted && report.reason == KVEVICT_REASON_SMALL_BUDGET,
         "evicted %u, reason %d", report.evicted, report.reason);
  test_model_destroy(m);
}
