/* Paged caches of quantized rows are written as floats. Blocks hold scales and minima. */
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "kvevict/paged.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/quantize.h"
#include "tests/oracle/quantized.h"

enum { kHeads = 2, kDim = 64, kTokens = 70, kBlocks = 40, kBlockSize = 4 };

/* [kTokens, kHeads, kDim], keys and values. */
typedef struct rows {
  float k[kTokens][kHeads][kDim], v[kTokens][kHeads][kDim];
} rows;

typedef struct stage {
  test_plan* plan;
  kvevict_paged_cache* cache;
  kvevict_paged_sequence* cached;
  rows given, got;
} stage;

static void Draw(rows* out, test_random* random) {
  float* const all = &out->k[0][0][0];
  for (size_t i = 0; i < sizeof *out / sizeof *all; ++i) {
    all[i] = test_random_normal(random);
  }
}

static stage* BeginRecent(const char* policy, kvevict_dtype k, kvevict_dtype v,
                          kvevict_dtype numbers, kvevict_block_layout layout,
                          uint32_t recent_tokens) {
  stage* s = calloc(1, sizeof *s);
  kvevict_layer_geometry layer = test_layer(2 * kHeads, kHeads, kDim, kDim);
  layer.k_dtype = k;
  layer.v_dtype = v;
  const kvevict_geometry geometry = test_geometry(1, kTokens, &layer);
  s->plan = test_plan_create(policy, &geometry, KVEVICT_OPERATION_EVICT, 1);
  kvevict_paged_cache_options options = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  options.n_blocks = kBlocks;
  options.block_size = kBlockSize;
  options.layout = layout;
  options.number_dtype = numbers;
  options.recent_tokens = recent_tokens;
  EXPECT_OK(kvevict_paged_cache_create(s->plan->plan, &options, &s->cache));
  EXPECT_OK(kvevict_paged_sequence_create(s->cache, &s->cached));
  return s;
}

static stage* Begin(const char* policy, kvevict_dtype k, kvevict_dtype v,
                    kvevict_dtype numbers, kvevict_block_layout layout) {
  return BeginRecent(policy, k, v, numbers, layout, 0);
}

static void End(stage* s) {
  kvevict_paged_sequence_destroy(s->cached);
  kvevict_paged_cache_destroy(s->cache);
  test_plan_destroy(s->plan);
  free(s);
}

static kvevict_paged_rows RowsOf(const rows* of, uint32_t first, uint32_t n) {
  kvevict_paged_rows in = KVEVICT_PAGED_ROWS_INIT;
  in.first_slot = first;
  in.n_tokens = n;
  in.k = test_rows_plane(&of->k[first][0][0], kHeads, kDim);
  in.v = test_rows_plane(&of->v[first][0][0], kHeads, kDim);
  return in;
}

static void Write(kvevict_paged_sequence* cached, const rows* from,
                  uint32_t first, uint32_t n) {
  const kvevict_paged_rows in = RowsOf(from, first, n);
  EXPECT_OK(kvevict_paged_sequence_write(cached, &in, 1, NULL));
}

static kvevict_view ViewOf(kvevict_paged_sequence* cached) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  EXPECT_OK(kvevict_paged_sequence_view(cached, 0, &view));
  return view;
}

/* The view has what the oracle makes of the floats. Reading gives the oracle's numbers. */
static void ExpectRow(const kvevict_view* view, const kvevict_plane* plane,
                      uint32_t slot, uint32_t head, const float* given,
                      const float* got) {
  for (uint32_t e = 0; e < kDim; ++e) {
    const float there = (float)oracle_element(view, plane, slot, head, e);
    EXPECT(memcmp(&there, &got[e], sizeof there) == 0,
           "dtype %d, slot %u, element %u: read %.9g, not %.9g",
           (int)plane->dtype, slot, e, got[e], there);
  }
  oracle_store_row(view, plane, slot, head, true, given); /* changes nothing */
  for (uint32_t e = 0; e < kDim; ++e) {
    const float wanted = (float)oracle_element(view, plane, slot, head, e);
    EXPECT(memcmp(&wanted, &got[e], sizeof wanted) == 0,
           "dtype %d, slot %u, element %u: %.9g, not %.9g", (int)plane->dtype,
           slot, e, got[e], wanted);
  }
}

static void ExpectRows(stage* s, kvevict_paged_sequence* cached,
                       const rows* given, uint32_t n) {
  const kvevict_paged_rows out = RowsOf(&s->got, 0, n);
  EXPECT_OK(kvevict_paged_sequence_read(cached, &out, 1, NULL));
  kvevict_view view = ViewOf(cached);
  EXPECT_OK(kvevict_view_validate(&view, n));
  const bool has_recent =
      view.n_companions > 0 &&
      view.companions[view.n_companions - 1].role == KVEVICT_ROLE_VALUE_RECENT;
  const uint32_t n_coded = has_recent ? view.first_recent : n;
  const size_t n_bytes = (n - n_coded) * sizeof *given->k;
  EXPECT(memcmp(given->k[n_coded], s->got.k[n_coded], n_bytes) == 0 &&
             memcmp(given->v[n_coded], s->got.v[n_coded], n_bytes) == 0,
         "recent rows were rounded");
  if (has_recent) view.n_companions -= 2; /* the oracle does not know them */
  for (uint32_t t = 0; t < n_coded; ++t) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      ExpectRow(&view, &view.k, t, h, given->k[t][h], s->got.k[t][h]);
      ExpectRow(&view, &view.v, t, h, given->v[t][h], s->got.v[t][h]);
    }
  }
}

Test(paged_quantized, holds_rows_of_every_dtype_with_their_numbers) {
  test_random random = test_random_start("paged quantized");
  for (kvevict_dtype k = KVEVICT_DTYPE_F32; k <= test_last_dtype(); ++k) {
    for (kvevict_dtype numbers = 0; numbers <= KVEVICT_DTYPE_BF16; ++numbers) {
      const kvevict_dtype v =
          test_random_between(&random, 1, test_last_dtype());
      stage* s = Begin("none", k, v, numbers,
                       (kvevict_block_layout)test_random_below(&random, 2));
      Draw(&s->given, &random);
      for (uint32_t t = 0, n = 0; t < kTokens; t += n) {
        n = test_random_between(&random, 1, kTokens - t < 9 ? kTokens - t : 9);
        EXPECT_OK(kvevict_paged_sequence_append(s->cached, n, NULL));
        Write(s->cached, &s->given, t, n);
      }
      ExpectRows(s, s->cached, &s->given, kTokens);
      /* Writes keys alone; values stay. */
      kvevict_paged_rows keys = RowsOf(&s->given, 3, 5);
      keys.k.data = (uintptr_t)s->given.k[20];
      keys.v = (kvevict_plane)KVEVICT_PLANE_INIT;
      EXPECT_OK(kvevict_paged_sequence_write(s->cached, &keys, 1, NULL));
      memcpy(s->given.k[3], s->given.k[20], 5 * sizeof *s->given.k);
      ExpectRows(s, s->cached, &s->given, kTokens);
      keys.k.data = (uintptr_t)s->got.k[3];
      memset(s->got.k[3], 0, sizeof s->got.k[3]);
      EXPECT_OK(kvevict_paged_sequence_read(s->cached, &keys, 1, NULL));
      const kvevict_view view = ViewOf(s->cached);
      EXPECT(
          s->got.k[3][1][7] == (float)oracle_element(&view, &view.k, 3, 1, 7),
          "keys alone");
      End(s);
    }
  }
}

/* Rows come one by one after a prompt. */
Test(paged_quantized, recent_rows_go_with_every_quantized_dtype) {
  test_random random = test_random_start("paged quantized recent");
  for (kvevict_dtype k = KVEVICT_DTYPE_FP8_E4M3; k <= test_last_dtype(); ++k) {
    const kvevict_dtype v =
        test_random_between(&random, KVEVICT_DTYPE_FP8_E4M3, test_last_dtype());
    stage* s =
        BeginRecent("none", k, v, test_random_below(&random, 4),
                    (kvevict_block_layout)test_random_below(&random, 2), 7);
    Draw(&s->given, &random);
    for (uint32_t t = 0, n = 30; t < kTokens; t += n, n = 1) {
      EXPECT_OK(kvevict_paged_sequence_append(s->cached, n, NULL));
      Write(s->cached, &s->given, t, n);
    }
    EXPECT(ViewOf(s->cached).first_recent == 60, "first_recent %u",
           ViewOf(s->cached).first_recent);
    ExpectRows(s, s->cached, &s->given, kTokens);
    End(s);
  }
}

/* Prints what blocks of 8 heads of 128 take beside f32 and a 16-bit source, as
 * docs/dtypes.md has it. */
Test(paged_quantized, usage_says_what_is_saved) {
  static const struct {
    kvevict_dtype dtype, numbers;
    uint32_t row_bytes; /* a token's row in a head, K or V */
  } kWanted[] = {
      {KVEVICT_DTYPE_F32, 0, 512},
      {KVEVICT_DTYPE_BF16, 0, 256},
      {KVEVICT_DTYPE_FP8_E4M3, 0, 128},
      {KVEVICT_DTYPE_FP8_E4M3, KVEVICT_DTYPE_F32, 132},
      {KVEVICT_DTYPE_U8, 0, 136},
      {KVEVICT_DTYPE_U8, KVEVICT_DTYPE_F16, 132},
      {KVEVICT_DTYPE_U4, 0, 72},
      {KVEVICT_DTYPE_U4, KVEVICT_DTYPE_F16, 68},
      {KVEVICT_DTYPE_Q8_0, 0, 136},
      {KVEVICT_DTYPE_Q4_0, 0, 72},
  };
  kvevict_context* const context = test_context();
  for (size_t i = 0; i < sizeof kWanted / sizeof *kWanted; ++i) {
    kvevict_layer_geometry layer = test_layer(8, 8, 128, 128);
    layer.k_dtype = layer.v_dtype = kWanted[i].dtype;
    const kvevict_geometry geometry = test_geometry(2, 64, &layer);
    kvevict_policy* policy = test_policy("none");
    kvevict_plan* plan = NULL;
    EXPECT_OK(kvevict_plan_create(context, &geometry, policy, NULL, &plan));
    kvevict_paged_cache_options options = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
    options.n_blocks = 3;
    options.number_dtype = kWanted[i].numbers;
    size_t bytes = 0;
    EXPECT_OK(kvevict_paged_cache_bytes(plan, &options, &bytes));
    kvevict_paged_cache* cache = NULL;
    EXPECT_OK(kvevict_paged_cache_create(plan, &options, &cache));
    kvevict_paged_cache_usage usage = {.struct_size = sizeof usage};
    EXPECT_OK(kvevict_paged_cache_get_usage(cache, &usage));
    const uint64_t n_rows = 2 * 3 * 16 * 8 * 2;
    EXPECT(usage.bytes == n_rows * kWanted[i].row_bytes, "%zu: %llu bytes", i,
           (unsigned long long)usage.bytes);
    EXPECT(bytes >= usage.bytes && bytes < usage.bytes + 12 * 256, "%zu bytes",
           bytes);
    EXPECT(usage.f32_bytes == n_rows * 512, "%llu bytes of f32",
           (unsigned long long)usage.f32_bytes);
    const double ratio = (double)usage.f32_bytes / (double)usage.bytes;
    fprintf(stderr, "dtype %d, numbers %d: %.2f of f32, %.2f of bf16\n",
            (int)kWanted[i].dtype, (int)kWanted[i].numbers, ratio, ratio / 2);
    kvevict_paged_cache_destroy(cache);
    kvevict_plan_destroy(plan);
  }
}

Test(paged_quantized, what_cannot_be_is_an_error) {
  stage* s = Begin("none", KVEVICT_DTYPE_U8, KVEVICT_DTYPE_U8, 0,
                   KVEVICT_BLOCK_LAYOUT_HEAD_MAJOR);
  EXPECT_OK(kvevict_paged_sequence_append(s->cached, 8, NULL));
  kvevict_paged_rows in = RowsOf(&s->given, 0, 8);
  in.v.dtype = KVEVICT_DTYPE_U8; /* codes without scales */
  EXPECT_INVALID(kvevict_paged_sequence_write(s->cached, &in, 1, NULL),
                 "rows[0]", "none has role value_scale", "u8");
  in.v.dtype = KVEVICT_DTYPE_I8;
  EXPECT_INVALID(kvevict_paged_sequence_write(s->cached, &in, 1, NULL),
                 "rows[0]", "v.dtype i8", "geometry's u8");
  in = RowsOf(&s->given, 0, 8);
  in.k.head_dim = 32;
  EXPECT_INVALID(kvevict_paged_sequence_read(s->cached, &in, 1, NULL),
                 "rows[0]", "k.head_dim 32", "64");
  kvevict_paged_cache_options options = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  options.n_blocks = 1;
  options.number_dtype = KVEVICT_DTYPE_U8;
  size_t bytes;
  EXPECT_INVALID(kvevict_paged_cache_bytes(s->plan->plan, &options, &bytes),
                 "number_dtype u8");
  options.number_dtype = 99;
  EXPECT_INVALID(kvevict_paged_cache_bytes(s->plan->plan, &options, &bytes),
                 "number_dtype 99");
  End(s);
}
