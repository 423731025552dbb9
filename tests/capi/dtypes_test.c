/* Quantized rows score bit by bit as the f32 rows they stand for, and move with
 * their scales. */
#include <stdbool.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/compact.h"
#include "tests/oracle/quantized.h"

enum { kHeads = 2, kGroup = 2, kTokens = 53, kMostDim = 96, kPairs = 12 };

/* Finds the next quantized dtype of the table, and what one block of it has. */
static bool NextQuantized(uint32_t* i, kvevict_dtype_info* info) {
  info->struct_size = sizeof *info;
  while (kvevict_dtype_at((*i)++, info) == KVEVICT_OK) {
    if (info->can_score && !info->can_rotate) return true;
  }
  return false;
}

/* A cache of one dtype, and one of the f32 rows that it stands for. */
typedef struct pair {
  test_cache* stored;
  test_cache* decoded;
} pair;

static void CopyDecoded(const test_cache* from, const kvevict_plane* plane,
                        test_cache* to, const kvevict_plane* to_plane) {
  for (uint32_t h = 0; h < kHeads; ++h) {
    for (uint32_t t = 0; t < kTokens; ++t) {
      for (uint32_t e = 0; e < plane->head_dim; ++e) {
        const double value = oracle_element(&from->view, plane, t, h, e);
        test_cache_set(to, to_plane, t, h, e, (float)value);
        EXPECT((double)(float)value == value, "%g is no f32", value);
      }
    }
  }
}

static pair DrawPair(kvevict_dtype dtype, uint32_t dim, test_layout layout,
                     test_random* random) {
  test_cache_spec spec = {layout, kHeads, kTokens, dtype, dim, dtype, dim, 1};
  pair p;
  p.stored = test_cache_create(&spec, random);
  spec.layout = TEST_TOKEN_MAJOR;
  spec.k_dtype = spec.v_dtype = KVEVICT_DTYPE_F32;
  p.decoded = test_cache_create(&spec, random);
  CopyDecoded(p.stored, &p.stored->view.k, p.decoded, &p.decoded->view.k);
  CopyDecoded(p.stored, &p.stored->view.v, p.decoded, &p.decoded->view.v);
  return p;
}

static void DestroyPair(pair* p) {
  test_cache_destroy(p->stored);
  test_cache_destroy(p->decoded);
}

/* Options that read keys or values, and shapes of policies; every other policy that
 * the library lists comes after these. */
static const char* const kReading[] = {"snapkv:window=5,pool=avg3",
                                       "snapkv:window=4,rows=max,group=max",
                                       "tova",
                                       "h2o",
                                       "knorm",
                                       "keydiff",
                                       "keydiff:budget=20,block=7",
                                       "q-filter",
                                       "lagkv:block=9",
                                       "cur:block=8",
                                       "expected-attention:weight=none",
                                       "triattention",
                                       "non-causal:block=16",
                                       "r-kv:window=4",
                                       "cake:window=4",
                                       "knorm:weight=norm",
                                       "custom:weight=norm,redundancy=0.5"};
enum { kOptions = sizeof kReading / sizeof kReading[0] };

/* Policy i of all that read rows; NULL beyond the last. */
static const char* Reading(uint32_t i) {
  if (i < kOptions) return kReading[i];
  kvevict_policy_info info = {.struct_size = sizeof info};
  uint32_t n = kOptions;
  for (uint32_t k = 0; kvevict_policy_at(k, &info) == KVEVICT_OK; ++k) {
    kvevict_need keys = KVEVICT_NEED_NONE, values = KVEVICT_NEED_NONE;
    const kvevict_policy* policy = test_policy(info.name);
    EXPECT_OK(kvevict_policy_need(policy, KVEVICT_INPUT_KEYS, &keys));
    EXPECT_OK(kvevict_policy_need(policy, KVEVICT_INPUT_VALUES, &values));
    bool is_new = keys != KVEVICT_NEED_NONE || values != KVEVICT_NEED_NONE;
    for (uint32_t o = 0; o < kOptions; ++o) {
      is_new &= strncmp(kReading[o], info.name, strlen(info.name)) != 0;
    }
    if (!is_new || n++ != i) continue;
    static char text[100];
    char window[TEST_VALUE_TEXT];
    const bool has_window =
        kvevict_policy_get(policy, "window", window, sizeof window, NULL) ==
        KVEVICT_OK;
    snprintf(text, sizeof text, "%s%s", info.name,
             has_window ? ":window=4" : "");
    return text;
  }
  return NULL;
}

/* [kHeads, n] scores of a view whose K and V have a dtype; `counts` NULL or per head. */
static void Score(const char* policy, kvevict_dtype dtype, uint32_t dim,
                  const kvevict_view* view, uint32_t n, const uint32_t* counts,
                  float* scores) {
  static float numbers[kHeads * kGroup * kTokens * kMostDim];
  float inv_freq[kPairs];
  test_random random = {7}; /* the same draws for all */
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
    numbers[i] = test_random_normal(&random);
  }
  for (int f = 0; f < kPairs; ++f) inv_freq[f] = 1.0f / (float)(f + 1);
  kvevict_layer_geometry layer = test_layer(kHeads * kGroup, kHeads, dim, dim);
  layer.k_dtype = layer.v_dtype = dtype;
  kvevict_geometry geometry = test_geometry(1, kTokens, &layer);
  geometry.rope_inv_freq = inv_freq;
  geometry.rope_inv_freq_len = kPairs;
  test_plan* plan =
      test_plan_create(policy, &geometry, KVEVICT_OPERATION_SCORE, 3);
  const bool by_all = strncmp(policy, "non-causal", 10) == 0;
  const bool by_some = strncmp(policy, "h2o", 3) == 0;
  const uint32_t n_rows = by_all ? n : by_some ? 6 : plan->policy.window;

  kvevict_plane queries =
      kvevict_plane_head_major(numbers, KVEVICT_DTYPE_F32, n_rows, dim);
  kvevict_plane filter = test_floats_plane(numbers, dim); /* also the means */
  filter.head_dim = dim;
  kvevict_plane centers =
      kvevict_plane_head_major(numbers, KVEVICT_DTYPE_F32, 3, kPairs);
  kvevict_plane given = test_floats_plane(numbers, kTokens), statistics[3];
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  if (dim * dim * kHeads * kGroup <= 1 << 15) {
    test_give_statistics(&layer, 0, kTokens, statistics, &inputs);
  }
  inputs.token_weights = NULL;
  inputs.query_mean = &filter;
  inputs.queries = &queries;
  inputs.scores = &given;
  inputs.key_filter = &filter;
  inputs.query_centers = &centers;
  if (by_some || by_all) inputs.n_query_rows = n_rows;

  kvevict_score_job job = test_score_job(n, view, &inputs, scores, kHeads);
  job.token_counts = counts;
  EXPECT_OK(test_score_jobs(plan, &job, 1));
  test_plan_destroy(plan);
}

static void ExpectAlike(const pair* p, kvevict_dtype dtype, uint32_t dim,
                        const char* name, test_layout layout,
                        const uint32_t* counts) {
  static float a[kHeads * kTokens], b[kHeads * kTokens];
  const char* policy;
  for (uint32_t i = 0; (policy = Reading(i)) != NULL; ++i) {
    Score(policy, dtype, dim, &p->stored->view, kTokens, counts, a);
    Score(policy, KVEVICT_DTYPE_F32, dim, &p->decoded->view, kTokens, counts,
          b);
    for (uint32_t h = 0; h < kHeads; ++h) {
      const uint32_t n = counts == NULL ? kTokens : counts[h];
      for (uint32_t t = h * kTokens; t < h * kTokens + n; ++t) {
        EXPECT(memcmp(&a[t], &b[t], sizeof(float)) == 0,
               "%s, %s, %s, dim %u: score %u is %.9g, of f32 %.9g", policy,
               name, test_layout_name(layout), dim, t, a[t], b[t]);
      }
    }
  }
}

Test(dtypes, score_as_the_f32_rows_they_stand_for) {
  test_random random = test_random_start("dtypes score");
  static const uint32_t kCounts[kHeads] = {kTokens, 31};
  kvevict_dtype_info info;
  for (uint32_t i = 0; NextQuantized(&i, &info);) {
    const uint32_t block = info.block_elements;
    const uint32_t dims[] = {64, 32, 96, block > 2 ? 64 : 37 / block * block,
                             block > 2 ? 32 : 90};
    for (uint32_t turn = 0; turn < TEST_N_LAYOUTS + 4; ++turn) {
      /* Every layout, and then every size. */
      const uint32_t d = turn < TEST_N_LAYOUTS ? 0 : turn - TEST_N_LAYOUTS + 1;
      const test_layout layout = (test_layout)(d > 0 ? TEST_TOKEN_MAJOR : turn);
      pair p = DrawPair(info.dtype, dims[d], layout, &random);
      ExpectAlike(&p, info.dtype, dims[d], info.name, layout,
                  d % 2 == 0 ? NULL : kCounts);
      DestroyPair(&p);
    }
  }
}

/* Scales may be one per head or one for all, of every dtype that scales may have.
 * Minima may be absent. */
Test(dtypes, numbers_may_be_of_all_tokens) {
  test_random random = test_random_start("dtypes constants");
  /* 0.0078125, 0.015625 and -0.5, 0.25 */
  static const float kF32[4] = {0x1p-7f, 0x1p-6f, -0.5f, 0.25f};
  static const uint16_t kF16[4] = {0x2000, 0x2400, 0xB800, 0x3400};
  static const uint16_t kBF16[4] = {0x3C00, 0x3C80, 0xBF00, 0x3E80};
  static const void* const kNumbers[] = {kF32, kF16, kBF16};
  kvevict_dtype_info info;
  for (uint32_t i = 0; NextQuantized(&i, &info);) {
    if (!info.takes_scale) continue;
    for (int trial = 0; trial < 12; ++trial) {
      const test_layout layout = trial % 2 ? TEST_PAGED_3 : TEST_TOKEN_MAJOR;
      test_cache_spec spec = {layout, kHeads,     kTokens, info.dtype,
                              64,     info.dtype, 64,      0};
      pair p;
      p.stored = test_cache_create(&spec, &random);
      const kvevict_dtype dtype = (kvevict_dtype)(1 + trial / 2 % 3);
      const int64_t size = dtype == KVEVICT_DTYPE_F32 ? 4 : 2;
      kvevict_view* view = &p.stored->view;
      if (trial == 3 && info.takes_minimum) view->n_companions = 2;
      for (uint32_t c = 0; c < view->n_companions; ++c) {
        kvevict_plane* plane = &p.stored->companions[c];
        const bool is_minimum = c >= 2;
        plane->data = (uint64_t)(uintptr_t)kNumbers[dtype - 1] +
                      (uint64_t)(is_minimum ? 2 * size : 0);
        plane->dtype = dtype;
        plane->token_stride_bytes = plane->block_stride_bytes = 0;
        plane->element_stride_bytes = 0;
        plane->head_stride_bytes = trial < 6 ? size : 0;
      }
      spec.layout = TEST_TOKEN_MAJOR;
      spec.k_dtype = spec.v_dtype = KVEVICT_DTYPE_F32;
      p.decoded = test_cache_create(&spec, &random);
      CopyDecoded(p.stored, &view->k, p.decoded, &p.decoded->view.k);
      CopyDecoded(p.stored, &view->v, p.decoded, &p.decoded->view.v);
      ExpectAlike(&p, info.dtype, 64, info.name, layout, NULL);
      DestroyPair(&p);
    }
  }
}
