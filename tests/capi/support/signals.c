#include "tests/capi/support/signals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

/* ---- Policies ---- */

/* Numbers that parameters are drawn from. Other words and flags are all drawn, and
 * numbers for which oracle_policy has no field are drawn from their range. */
static const struct {
  const char *key, *values;
} kNumbers[] = {{"sink", "0|3|5"},
                {"recent", "0|4|9"},
                {"window", "1|2|5|8|31|32|64|65|130"},
                {"pool", "none|avg1|avg3|avg9|max3|max7|avg63|max63|avg1023"},
                {"reference", "1|2|7|16|33|70"},
                {"reference_weight", "1|0.5|0.125|0.9"},
                {"half_life", "1|7|24|4096"},
                {"block", "2|7|16|33|100|255|256"},
                {"epsilon", "0.125|4"},
                {"spread", "0|3|200"},
                {"leverage", "0.75|2"},
                {"redundancy", "0.25|0.5|1"},
                {"similarity", "0.1|0.3|0.77"},
                {"seed", "0|5|18446744073709551615"},
                {"budget", "0.3|30|0.75|1"}};
static const char* const kWords[] = {
    "keep_window", "edge",  "rows",        "row_weight",     "softmax",
    "group",       "order", "prior",       "ranks",          "weight",
    "share",       "ends",  "standardize", "leverage_scale", "draw"};

static const char* ValuesOf(const kvevict_parameter_info* row) {
  for (size_t i = 0; i < sizeof kNumbers / sizeof *kNumbers; ++i) {
    if (strcmp(row->key, kNumbers[i].key) == 0) return kNumbers[i].values;
  }
  for (size_t i = 0; i < sizeof kWords / sizeof *kWords; ++i) {
    if (strcmp(row->key, kWords[i]) == 0) return row->words;
  }
  return NULL;
}

void test_draw_scoring(const char* kind, const char* more, test_random* random,
                       char* text) {
  for (;;) {
    kvevict_policy* policy = NULL;
    /* Key differences block by block have another test. */
    const char* const own = strcmp(kind, "cake") == 0      ? ":split=uniform"
                            : strcmp(kind, "keydiff") == 0 ? ":block=0"
                                                           : "";
    snprintf(text, TEST_POLICY_TEXT, "%s%s%s%s", kind, own,
             *more == 0  ? ""
             : *own == 0 ? ":"
                         : ",",
             more);
    EXPECT_OK(kvevict_policy_create(text, &policy));
    const oracle_policy numbers = oracle_policy_of(policy);
    kvevict_parameter_info row = {.struct_size = sizeof row};
    for (uint32_t i = 0; kvevict_parameter_at(kind, i, &row) == KVEVICT_OK;
         ++i) {
      const char* const values = ValuesOf(&row);
      char value[TEST_VALUE_TEXT];
      if ((values == NULL && oracle_own(&numbers, row.key) == NULL) ||
          strstr(text, row.key) != NULL || test_random_below(random, 4) != 0) {
        continue;
      }
      if (values == NULL) {
        test_set_at_random(random, &row, policy);
        continue;
      }
      test_random_word(random, values, value);
      EXPECT_OK(kvevict_policy_set(policy, row.key, value));
    }
    const bool is_valid = kvevict_policy_validate(policy) == KVEVICT_OK;
    if (is_valid) {
      EXPECT_OK(kvevict_policy_format(policy, text, TEST_POLICY_TEXT, NULL));
    }
    kvevict_policy_destroy(policy);
    if (is_valid) return;
  }
}

bool test_has_window(const oracle_policy* p) {
  return p->kind == ORACLE_SNAPKV || p->kind == ORACLE_PYRAMIDKV ||
         p->kind == ORACLE_TOVA || p->kind == ORACLE_R_KV ||
         p->kind == ORACLE_CAKE;
}

static bool Needs(const test_signals* s, kvevict_input input) {
  kvevict_need need = KVEVICT_NEED_NONE;
  EXPECT_OK(kvevict_policy_need(s->m->policy_handle, input, &need));
  return need != KVEVICT_NEED_NONE;
}

/* ---- The model ---- */

static uint32_t Pairs(const test_signals* s) {
  return s->geometry.rope_inv_freq_len;
}

static void MakeGeometry(test_signals* s, test_random* random) {
  const oracle_policy p = oracle_policy_of(s->m->policy_handle);
  const uint32_t dim = s->m->spec.k_head_dim;
  s->layer = s->m->layer;
  s->geometry = s->m->geometry;
  s->geometry.layers = &s->layer;
  s->geometry.rope_layout = (kvevict_rope_layout)test_random_below(random, 2);
  s->geometry.rope_inv_freq = s->inv_freq;
  /* Some elements are not rotated. */
  s->geometry.rope_inv_freq_len =
      test_random_coin(random) ? dim / 2 : (dim + 3) / 4;
  if (Pairs(s) > TEST_SIGNAL_PAIRS) {
    s->geometry.rope_inv_freq_len = TEST_SIGNAL_PAIRS;
  }
  for (uint32_t f = 0; f < Pairs(s); ++f) {
    s->inv_freq[f] = (float)pow(10000.0, -(double)f / Pairs(s));
  }
  if (test_random_coin(random)) s->layer.softmax_scale = 0.05f;
  if (!test_has_window(&p) && p.kind != ORACLE_H2O) return;
  static const float kCaps[] = {0.0f, 0.0f, 0.3f, 5.0f};
  s->layer.logit_softcap = kCaps[test_random_below(random, 4)];
  if (test_random_below(random, 3) != 0) return;
  const uint32_t n = s->m->spec.n_layers * s->m->spec.n_q_heads;
  for (uint32_t i = 0; i < n; ++i) {
    s->sinks[i] = (float)(6.0 * test_random_unit(random) - 3.0);
  }
  s->sinks[test_random_below(random, n)] = -INFINITY;
  s->geometry.sink_logits = s->sinks;
  s->geometry.sink_logits_len = n;
}

/* Heads of a few slots may be large. What computes as many products as a head's
 * elements squared, or more, gets smaller ones, and so does a softmax without a scale,
 * whose logits grow with them. */
static uint32_t DrawDim(const oracle_policy* p, uint32_t most,
                        test_random* random) {
  static const uint32_t kDims[] = {2, 3, 5, 16, 31, 64, 65, 80, 128, 257};
  static const uint32_t kLarge[] = {129, 300, 576, 1024, 1031};
  const bool has_inverse = p->leverage > 0.0 || p->kind >= ORACLE_OTHER;
  const bool is_square = p->kind == ORACLE_EXPECTED_ATTENTION;
  if (p->kind == ORACLE_NON_CAUSAL) return kDims[test_random_below(random, 4)];
  /* The filter by codes looks at 128 elements, and then at the others. */
  if (p->redundancy > 0.0 && test_random_coin(random)) return 128;
  if (most <= TEST_FEW_SLOTS && !has_inverse) {
    return kLarge[test_random_below(random, 5)];
  }
  return kDims[test_random_below(random, most > 600                 ? 4
                                         : has_inverse || is_square ? 6
                                                                    : 10)];
}

test_signals* test_signals_create(const char* policy, uint32_t n_layers,
                                  uint32_t most, bool any_dtype,
                                  test_random* random) {
  static const uint32_t kGroups[] = {1, 2, 3, 4, 8};
  static const kvevict_dtype kTypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                         KVEVICT_DTYPE_BF16};
  test_signals* s = calloc(1, sizeof *s);
  const oracle_policy p = oracle_policy_from(policy);
  test_model_spec spec = test_small_model("none");
  spec.n_layers = n_layers;
  spec.n_kv_heads = test_random_between(random, 1, 3);
  spec.n_q_heads = spec.n_kv_heads * kGroups[test_random_below(random, 5)];
  spec.k_head_dim = DrawDim(&p, most, random);
  spec.v_head_dim = test_random_coin(random)
                        ? spec.k_head_dim
                        : test_random_between(random, 1, 40);
  spec.max_tokens = most;
  spec.max_positions = 3 * most + TEST_REFERENCE; /* whose queries are read */
  spec.q_dtype = kTypes[test_random_below(random, 3)];
  spec.k_dtype = kTypes[test_random_below(random, 3)];
  if (any_dtype && test_random_below(random, 4) == 0) {
    test_draw_quantized(&spec, random);
  }
  spec.layout = (test_layout)test_random_below(random, TEST_N_LAYOUTS);
  spec.n_companions = test_random_below(random, 3) == 0;
  s->with = test_draw_context(random);
  spec.context = s->with.context;
  s->m = test_model_create(&spec, (test_random){test_random_u64(random)});
  s->m->policy_handle = test_policy(policy);
  for (uint32_t l = 0; spec.n_companions > 0 && l < n_layers; ++l) {
    s->m->live[l]->companions[0].role = KVEVICT_ROLE_BIAS;
  }
  MakeGeometry(s, random);
  EXPECT_OK(test_model_go_on(s->m, policy, &s->geometry, NULL));
  return s;
}

void test_signals_destroy(test_signals* s) {
  test_model_destroy(s->m);
  free(s->numbers[0]);
  free(s->numbers[1]);
  free(s->scattered[0]);
  free(s->scattered[1]);
  free(s);
}

/* ---- Odd rows ---- */

/* Products of infinity and numbers of both signs are NaN or not as their order is, so
 * some kinds get NaN only. */
void test_signals_make_odd(test_signals* s, uint32_t layer, uint32_t n,
                           test_random* random) {
  static const float kOdd[] = {NAN, INFINITY, -INFINITY, 1e30f};
  const oracle_policy* p = &s->m->policy;
  test_cache* const cache = s->m->live[layer];
  const test_model_spec* spec = &s->m->spec;
  const uint32_t first = test_random_below(random, n);
  const uint32_t head = test_random_below(random, spec->n_kv_heads);
  if (spec->n_companions > 0 && test_random_coin(random)) {
    const uint32_t n_hidden = test_random_below(random, 3) == 0 ? n : first;
    for (uint32_t t = 0; t < n_hidden; ++t) {
      test_cache_set(cache, cache->companions, t, head, 0, -INFINITY);
    }
  }
  if (p->leverage > 0.0 || p->kind >= ORACLE_OTHER) return;
  if (spec->k_dtype > KVEVICT_DTYPE_BF16) return;
  if (s->layer.logit_softcap != 0.0f || test_random_coin(random)) return;
  /* Its square leaves f32, which only directions know. */
  const bool has_huge = spec->k_dtype != KVEVICT_DTYPE_F16 &&
                        (p->kind == ORACLE_KEYDIFF ||
                         (p->kind == ORACLE_CUSTOM && p->redundancy > 0.0));
  const uint32_t n_odd =
      p->kind == ORACLE_EXPECTED_ATTENTION ? 1 : 3 + has_huge;
  const float odd = kOdd[test_random_below(random, n_odd)];
  const uint32_t element = test_random_below(random, spec->k_head_dim);
  const bool in_all = test_random_below(random, 4) == 0;
  for (uint32_t t = first; t < (in_all ? n : first + 1); ++t) {
    test_cache_set(cache, &cache->view.k, t, head, element, odd);
  }
  if (test_random_coin(random)) {
    test_cache_set(cache, &cache->view.v, first, head, 0, odd);
  }
  if (s->n_query_rows == 0 || test_random_below(random, 4) != 0) return;
  const uint32_t row =
      s->m->n_seen - 1 - test_random_below(random, s->n_query_rows);
  test_store(spec->q_dtype, NAN,
             s->m->queries[layer] + (size_t)row * spec->n_q_heads *
                                        spec->k_head_dim *
                                        oracle_element_bytes(spec->q_dtype));
}

/* ---- Other places ---- */

void test_signals_share_numbers(test_signals* s, uint32_t layer,
                                test_random* random) {
  test_cache* const cache = s->m->live[layer];
  const uint32_t first = s->m->spec.n_companions;
  const bool has_minima = cache->view.n_companions > first + 2;
  if (has_minima && test_random_coin(random)) {
    s->m->views[layer].n_companions = cache->view.n_companions -= 2;
  }
  const kvevict_dtype dtype =
      test_random_between(random, KVEVICT_DTYPE_F32, KVEVICT_DTYPE_BF16);
  const int64_t size = oracle_element_bytes(dtype);
  const bool is_of_heads = test_random_coin(random);
  for (uint32_t c = first; c < cache->view.n_companions; ++c) {
    const kvevict_role role = cache->companions[c].role;
    const bool is_scale =
        role == KVEVICT_ROLE_KEY_SCALE || role == KVEVICT_ROLE_VALUE_SCALE;
    uint32_t* const numbers = s->shared[layer] + 4 * (c - first);
    for (uint32_t h = 0; h < s->m->spec.n_kv_heads; ++h) {
      const float number = (float)test_random_between(random, 1, 63) / 8192.0f;
      test_store(dtype, is_scale ? number : -8.0f * number,
                 (uint8_t*)numbers + h * size);
    }
    kvevict_plane* const plane = &cache->companions[c];
    *plane = (kvevict_plane)KVEVICT_PLANE_INIT;
    plane->data = (uintptr_t)numbers;
    plane->dtype = dtype;
    plane->head_dim = 1;
    plane->role = role;
    if (is_of_heads) plane->head_stride_bytes = size;
  }
}

void test_signals_scatter_queries(test_signals* s, uint32_t layer,
                                  test_random* random) {
  const test_model_spec* spec = &s->m->spec;
  kvevict_plane* const plane = &s->planes[layer][7];
  if (s->inputs[layer].queries != plane) return;
  const kvevict_plane packed = *plane;
  const int64_t size = oracle_element_bytes(spec->q_dtype);
  const int64_t n_rows = s->n_query_rows, n_heads = spec->n_q_heads;
  const int64_t dim = spec->k_head_dim, gap = test_gap(3);
  const int64_t strides[3][3] = {
      {n_heads * (dim * size + gap) + gap, dim * size + gap, size},
      {size, n_rows * size, n_heads * n_rows * size},
      {-n_heads * dim * size, -dim * size, -size}};
  const int64_t* const stride = strides[test_random_below(random, 3)];
  const int64_t n_bytes = (n_rows + 1) * n_heads * (dim * size + 2 * gap);
  free(s->scattered[layer]);
  s->scattered[layer] = malloc((size_t)(2 * n_bytes + 64));
  uint8_t* const base = s->scattered[layer] + test_whole(n_bytes) + test_gap(1);
  plane->data = (uintptr_t)base;
  plane->token_stride_bytes = stride[0];
  plane->head_stride_bytes = stride[1];
  plane->element_stride_bytes = stride[2];
  for (int64_t i = 0; i < n_rows * n_heads * dim; ++i) {
    const int64_t row = i / dim / n_heads, head = i / dim % n_heads;
    const uint8_t* const from = (const uint8_t*)(uintptr_t)packed.data;
    memcpy(base + row * stride[0] + head * stride[1] + i % dim * stride[2],
           from + row * packed.token_stride_bytes +
               head * packed.head_stride_bytes + i % dim * size,
           (size_t)size);
  }
}

/* ---- Inputs ---- */

/* Where each kind of numbers begins in a layer's; the last one is their number. */
static void Lay(const test_signals* s, size_t* begins) {
  const test_model_spec* spec = &s->m->spec;
  const size_t n = s->stride, dim = spec->k_head_dim;
  const size_t square =
      Needs(s, KVEVICT_INPUT_QUERY_COVARIANCE) ? dim * dim : 0;
  const size_t lengths[] = {spec->n_kv_heads * n,
                            spec->n_kv_heads * n,
                            spec->n_q_heads * n,
                            spec->n_q_heads * dim,
                            spec->n_q_heads * square,
                            spec->n_kv_heads * dim,
                            3 * (size_t)spec->n_q_heads * Pairs(s)};
  begins[0] = 0;
  for (int i = 0; i < 7; ++i) begins[i + 1] = begins[i] + lengths[i];
}

const float* test_signal_numbers(const test_signals* s, uint32_t layer,
                                 int kind) {
  size_t begins[8];
  Lay(s, begins);
  return s->numbers[layer] + begins[kind];
}

static void DrawNumbers(test_signals* s, uint32_t layer, test_random* random) {
  const oracle_policy* p = &s->m->policy;
  size_t begins[8];
  Lay(s, begins);
  free(s->numbers[layer]);
  s->numbers[layer] = malloc((begins[7] + 1) * sizeof(float));
  for (size_t i = 0; i < begins[7]; ++i) {
    float* const at = &s->numbers[layer][i];
    if (i < begins[TEST_SIGNAL_WEIGHTS]) { /* some are equal */
      *at = (float)test_random_below(random, 640) / 64.0f - 3.0f;
    } else if (i < begins[TEST_SIGNAL_SUMS]) {
      *at = test_random_below(random, 9) == 0
                ? 0.0f
                : (float)test_random_below(random, 640) / 64.0f;
      if (p->share == ORACLE_SHARE_NONE) *at -= 1.0f;
    } else if (i < begins[TEST_SIGNAL_MEAN]) {
      *at = 40.0f * (float)test_random_unit(random);
    } else {
      *at = test_random_normal(random) / (i >= begins[TEST_SIGNAL_COVARIANCE] &&
                                                  i < begins[TEST_SIGNAL_FILTER]
                                              ? 8.0f
                                              : 1.0f);
    }
  }
  /* The last of a center's three rows is a mean of lengths. */
  const uint32_t n = Pairs(s);
  for (size_t i = begins[TEST_SIGNAL_CENTERS]; i < begins[7]; i += 3 * n) {
    float* const head = s->numbers[layer] + i;
    for (uint32_t f = 0; f < n; ++f) {
      head[2 * n + f] = hypotf(head[f], head[n + f]) + fabsf(head[2 * n + f]);
    }
  }
  const bool is_plain = p->weight == ORACLE_WEIGHT_NONE &&
                        p->pool == ORACLE_POOL_NONE && !p->standardize;
  static const float kSpecial[] = {NAN, INFINITY, -INFINITY, 0.0f, 3e38f};
  const bool is_odd = is_plain || test_random_coin(random);
  for (size_t i = 0; is_odd && i < begins[TEST_SIGNAL_SUMS]; ++i) {
    if (test_random_below(random, 30) != 0) continue;
    if (i >= begins[TEST_SIGNAL_WEIGHTS] && p->share != ORACLE_SHARE_NONE)
      break;
    s->numbers[layer][i] =
        kSpecial[test_random_below(random, is_plain && p->draw ? 5 : 4)];
  }
}

void test_signals_give(test_signals* s, uint32_t stride, uint32_t n_rows,
                       test_random* random) {
  const test_model* m = s->m;
  const oracle_policy* p = &m->policy;
  const uint32_t n_kv = m->spec.n_kv_heads, dim = m->spec.k_head_dim;
  s->stride = stride;
  s->n_query_rows = test_has_window(p) ? p->window : n_rows;
  s->n_sum_heads = p->kind != ORACLE_H2O || n_rows > 0 ? 0
                   : test_random_coin(random)          ? n_kv
                                                       : m->spec.n_q_heads;
  for (uint32_t i = 0; i < TEST_REFERENCE; ++i) {
    s->reference_positions[i] =
        (int32_t)test_random_below(random, m->n_seen * 5 / 4 + 1);
  }
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    DrawNumbers(s, l, random);
    kvevict_plane* const planes = s->planes[l];
    kvevict_signal_inputs* const in = &s->inputs[l];
    *in = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    const struct {
      kvevict_input input;
      const kvevict_plane** place;
      int kind;
      uint32_t rows, head_dim;
    } each[] = {
        {KVEVICT_INPUT_SCORES, &in->scores, TEST_SIGNAL_SCORES, stride, 1},
        {KVEVICT_INPUT_TOKEN_WEIGHTS, &in->token_weights, TEST_SIGNAL_WEIGHTS,
         stride, 1},
        {KVEVICT_INPUT_ATTENTION_SUMS, &in->attention_sums, TEST_SIGNAL_SUMS,
         stride, 1},
        {KVEVICT_INPUT_QUERY_MEAN, &in->query_mean, TEST_SIGNAL_MEAN, 1, dim},
        {KVEVICT_INPUT_QUERY_COVARIANCE, &in->query_covariance,
         TEST_SIGNAL_COVARIANCE, dim, dim},
        {KVEVICT_INPUT_KEY_FILTER, &in->key_filter, TEST_SIGNAL_FILTER, 1, dim},
        {KVEVICT_INPUT_QUERY_CENTERS, &in->query_centers, TEST_SIGNAL_CENTERS,
         3, Pairs(s)}};
    for (int i = 0; i < 7; ++i) {
      if (!Needs(s, each[i].input)) continue;
      if (each[i].kind == TEST_SIGNAL_SUMS && s->n_sum_heads == 0) continue;
      planes[i] = kvevict_plane_head_major(
          test_signal_numbers(s, l, each[i].kind), KVEVICT_DTYPE_F32,
          each[i].rows, each[i].head_dim);
      *each[i].place = &planes[i];
    }
    if (each[0].place != NULL) in->n_sum_heads = s->n_sum_heads;
    if (Needs(s, KVEVICT_INPUT_QUERIES) && s->n_sum_heads == 0) {
      planes[7] = test_model_queries(m, l, m->n_seen - s->n_query_rows);
      in->queries = &planes[7];
      in->n_query_rows = s->n_query_rows;
    }
    if (!Needs(s, KVEVICT_INPUT_REFERENCE_QUERIES)) continue;
    planes[8] = test_model_queries(m, l, 0);
    in->reference_queries = &planes[8];
    in->n_reference_rows = p->reference;
    if (m->n_seen % 2 == 0) in->reference_positions = s->reference_positions;
  }
}

void test_signals_random(const test_signals* s, uint32_t layer, uint32_t head,
                         const uint32_t* counts, double* row) {
  char text[TEST_POLICY_TEXT];
  snprintf(text, sizeof text, "random:seed=%llu",
           (unsigned long long)s->m->policy.seed);
  const kvevict_policy* plain = test_policy(text);
  kvevict_plan* plan = NULL;
  EXPECT_OK(
      kvevict_plan_create(s->with.context, &s->geometry, plain, NULL, &plan));
  const uint32_t n_kv = s->m->spec.n_kv_heads;
  float* scores = malloc(sizeof(float) * n_kv * s->stride);
  kvevict_score_job job =
      test_score_job(s->stride, &s->m->views[layer], NULL, scores, n_kv);
  job.layer = layer;
  job.token_counts = counts;
  const size_t bytes =
      test_workspace(plan, KVEVICT_OPERATION_SCORE, 0).best_bytes;
  void* workspace = test_workspace_memory(bytes);
  EXPECT_OK(kvevict_score(plan, &job, 1, workspace, bytes, NULL));
  for (uint32_t t = 0; t < counts[head]; ++t) {
    row[t] = scores[(size_t)head * s->stride + t];
  }
  free(scores);
  free(workspace);
  kvevict_plan_destroy(plan);
}
