/* Calibrations against sums in double of queries turned back one by one. */
#include "kvevict/calibration.h"

#include <complex.h>
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/random.h"

enum { kQHeads = 4, kHeads = 2, kMaxDim = 72, kRows = 61, kFirst = 1000 };

typedef struct shape {
  uint32_t dim, n_pairs;
  kvevict_rope_layout layout;
  kvevict_dtype dtype;
} shape;

static const shape kShapes[] = {
    {16, 8, KVEVICT_ROPE_LAYOUT_HALF, KVEVICT_DTYPE_F32},
    {72, 36, KVEVICT_ROPE_LAYOUT_INTERLEAVED, KVEVICT_DTYPE_F16},
    {72, 20, KVEVICT_ROPE_LAYOUT_HALF, KVEVICT_DTYPE_BF16},
    {33, 5, KVEVICT_ROPE_LAYOUT_INTERLEAVED, KVEVICT_DTYPE_F32},
    {9, 0, KVEVICT_ROPE_LAYOUT_HALF, KVEVICT_DTYPE_F16}};
enum { kNShapes = sizeof kShapes / sizeof kShapes[0] };

typedef struct scene {
  shape s;
  float inv_freq[kMaxDim / 2];
  test_plan* plan;
  /* [kRows, kQHeads, dim], which every dtype holds exactly */
  float queries[kRows * kQHeads * kMaxDim];
  uint8_t bytes[kRows * kQHeads * kMaxDim * 4]; /* the same, as the dtype */
} scene;

/* The bits of a number with up to 7 bits between 2^-4 and 4. */
static uint32_t BitsOf(float v, kvevict_dtype dtype) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  if (dtype == KVEVICT_DTYPE_BF16) return bits >> 16;
  if (dtype == KVEVICT_DTYPE_F32) return bits;
  const uint32_t sign = bits >> 16 & 0x8000;
  return v == 0 ? sign : sign | ((bits >> 13 & 0x3FFFF) - ((127 - 15) << 10));
}

static scene* SceneOf(const shape* s, const char* policy, const char* target,
                      uint32_t n_threads) {
  scene* c = calloc(1, sizeof *c);
  c->s = *s;
  for (uint32_t f = 0; f < s->n_pairs; ++f) {
    c->inv_freq[f] = powf(10000.0f, -(float)f / (float)s->n_pairs);
  }
  kvevict_layer_geometry layer = test_layer(kQHeads, kHeads, s->dim, s->dim);
  layer.q_dtype = layer.k_dtype = s->dtype;
  kvevict_geometry geometry = test_geometry(2, 100, &layer);
  geometry.rope_inv_freq = s->n_pairs == 0 ? NULL : c->inv_freq;
  geometry.rope_inv_freq_len = s->n_pairs;
  geometry.rope_layout = s->layout;
  c->plan = test_plan_create_for(target, policy, &geometry,
                                 KVEVICT_OPERATION_EVICT, n_threads);
  test_random random = {s->dim};
  const size_t size = s->dtype == KVEVICT_DTYPE_F32 ? 4 : 2;
  for (uint32_t i = 0; i < kRows * kQHeads * s->dim; ++i) {
    const float v = (float)((int)test_random_below(&random, 128) - 48) / 16.0f;
    const uint32_t bits = BitsOf(v, s->dtype);
    c->queries[i] = v;
    memcpy(c->bytes + i * size, &bits, size);
  }
  return c;
}

static void Free(scene* c) {
  test_plan_destroy(c->plan);
  free(c);
}

static kvevict_plane PlaneOf(scene* c, uint32_t first) {
  const int64_t row = kvevict_row_bytes(c->s.dtype, c->s.dim);
  return kvevict_plane_token_major(c->bytes + first * row * kQHeads, c->s.dtype,
                                   kQHeads, c->s.dim);
}

static kvevict_calibration* Create(const scene* c, uint32_t has_covariances) {
  kvevict_calibration* calibration = NULL;
  EXPECT_OK(
      kvevict_calibration_create(c->plan->plan, has_covariances, &calibration));
  return calibration;
}

/* Shows all rows to layer 1, in chunks. */
static void Show(scene* c, kvevict_calibration* calibration, uint32_t chunk) {
  for (uint32_t first = 0; first < kRows; first += chunk) {
    const kvevict_plane plane = PlaneOf(c, first);
    const uint32_t n = chunk < kRows - first ? chunk : kRows - first;
    EXPECT_OK(kvevict_calibration_observe(calibration, 1, &plane,
                                          kFirst + first, n, NULL));
  }
}

typedef struct saved {
  uint8_t* data;
  size_t n_bytes;
} saved;

static saved Save(const kvevict_calibration* calibration) {
  saved s = {0};
  EXPECT_OK(kvevict_calibration_save(calibration, NULL, 0, &s.n_bytes));
  s.data = malloc(s.n_bytes);
  size_t written = 0;
  EXPECT_OK(kvevict_calibration_save(calibration, s.data, s.n_bytes, &written));
  EXPECT(written == s.n_bytes, "%zu of %zu bytes", written, s.n_bytes);
  return s;
}

static void ExpectSame(const kvevict_calibration* calibration,
                       const saved* expected, const char* what) {
  saved s = Save(calibration);
  EXPECT(s.n_bytes == expected->n_bytes &&
             memcmp(s.data, expected->data, s.n_bytes) == 0,
         "%s changes the sums", what);
  free(s.data);
}

/* All rows at once, in another dtype or layout, give the same sums. */
static void ExpectRows(const scene* c, const kvevict_plane* rows,
                       const saved* expected, const char* what) {
  kvevict_calibration* const calibration = Create(c, 1);
  EXPECT_OK(
      kvevict_calibration_observe(calibration, 1, rows, kFirst, kRows, NULL));
  ExpectSame(calibration, expected, what);
  kvevict_calibration_destroy(calibration);
}

/* A row, turned by an angle per frequency. */
static void Turned(const scene* c, const double* row, double position,
                   double* out) {
  memcpy(out, row, c->s.dim * sizeof *out);
  for (uint32_t f = 0; f < c->s.n_pairs; ++f) {
    const bool halves = c->s.layout == KVEVICT_ROPE_LAYOUT_HALF;
    const uint32_t x = halves ? f : 2 * f;
    const uint32_t y = halves ? f + c->s.n_pairs : 2 * f + 1;
    const double complex z =
        (row[x] + I * row[y]) * cexp(I * position * (double)c->inv_freq[f]);
    out[x] = creal(z);
    out[y] = cimag(z);
  }
}

/* Row r of a head before RoPE. */
static void Before(const scene* c, uint32_t head, uint32_t r, double* out) {
  double row[kMaxDim];
  for (uint32_t i = 0; i < c->s.dim; ++i) {
    row[i] = c->queries[(r * kQHeads + head) * c->s.dim + i];
  }
  Turned(c, row, -(double)(kFirst + r), out);
}

/* Rows of this size are up to 8 long and are turned by sines that are off by a few
 * 2^-53; means are rounded to f32. */
static void ExpectNear(double got, double expected, const char* what,
                       uint32_t head, uint32_t i) {
  EXPECT(fabs(got - expected) <= 2e-6 * (1.0 + fabs(expected)),
         "%s of head %u, %u: %.9g, not %.9g", what, head, i, got, expected);
}

static void ExpectCenters(const scene* c, const kvevict_calibration* from) {
  const uint32_t n = c->s.n_pairs;
  float centers[kQHeads * 3 * kMaxDim / 2];
  EXPECT_OK(kvevict_calibration_query_centers(from, 1, centers,
                                              (size_t)kQHeads * 3 * n));
  for (uint32_t h = 0; h < kQHeads; ++h) {
    for (uint32_t f = 0; f < n; ++f) {
      const bool halves = c->s.layout == KVEVICT_ROPE_LAYOUT_HALF;
      double sums[3] = {0};
      for (uint32_t r = 0; r < kRows; ++r) {
        double row[kMaxDim];
        Before(c, h, r, row);
        const double x = row[halves ? f : 2 * f];
        const double y = row[halves ? f + n : 2 * f + 1];
        sums[0] += x, sums[1] += y, sums[2] += hypot(x, y);
      }
      for (uint32_t k = 0; k < 3; ++k) {
        ExpectNear(centers[(h * 3 + k) * n + f], sums[k] / kRows, "center", h,
                   f);
      }
    }
  }
}

/* R q and the covariance of R q, where R is the mean of the turns to come. */
static void ExpectExpected(const scene* c, const kvevict_calibration* from) {
  enum { kCome = 2000, kPositions = 37 };
  const uint32_t dim = c->s.dim;
  float mean[kQHeads * kMaxDim];
  float* covariance = malloc(sizeof(float) * kQHeads * dim * dim);
  EXPECT_OK(kvevict_calibration_query_mean(from, 1, kCome, kPositions, mean,
                                           (size_t)kQHeads * dim, covariance,
                                           (size_t)kQHeads * dim * dim));
  for (uint32_t h = 0; h < kQHeads; ++h) {
    static double rows[kRows][kMaxDim];
    double means[kMaxDim] = {0};
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < kRows; ++r) {
      double row[kMaxDim], turned[kMaxDim];
      Before(c, h, r, row);
      for (uint32_t p = 0; p < kPositions; ++p) {
        Turned(c, row, kCome + p, turned);
        for (uint32_t i = 0; i < dim; ++i) rows[r][i] += turned[i] / kPositions;
      }
      for (uint32_t i = 0; i < dim; ++i) means[i] += rows[r][i] / kRows;
    }
    for (uint32_t i = 0; i < dim; ++i) {
      ExpectNear(mean[h * dim + i], means[i], "mean", h, i);
      for (uint32_t j = 0; j < dim; ++j) {
        double product = 0.0;
        for (uint32_t r = 0; r < kRows; ++r) {
          product += (rows[r][i] - means[i]) * (rows[r][j] - means[j]) / kRows;
        }
        ExpectNear(covariance[(h * dim + i) * dim + j], product, "covariance",
                   h, i * dim + j);
      }
    }
  }
  free(covariance);
}

Test(calibration, tells_what_policies_want_of_any_chunks_threads_and_dtypes) {
  for (int k = 0; k < kNShapes; ++k) {
    scene* c = SceneOf(&kShapes[k], "knorm", NULL, 1);
    kvevict_calibration* calibration = Create(c, 1);
    Show(c, calibration, kRows);
    uint64_t n[2] = {1, 1};
    EXPECT_OK(kvevict_calibration_rows(calibration, 0, &n[0]));
    EXPECT_OK(kvevict_calibration_rows(calibration, 1, &n[1]));
    cr_expect(n[0] == 0 && n[1] == kRows);
    saved whole = Save(calibration);
    kvevict_calibration_destroy(calibration);
    for (uint32_t chunk = 1; chunk < 20; chunk += 3) {
      calibration = Create(c, 1);
      Show(c, calibration, chunk);
      ExpectSame(calibration, &whole, "a chunk");
      kvevict_calibration_destroy(calibration);
    }
    const char* target = NULL;
    for (uint32_t i = 0; (target = kvevict_simd_target_at(i)) != NULL; ++i) {
      scene* other = SceneOf(&kShapes[k], "knorm", target, 4);
      calibration = Create(other, 1);
      Show(other, calibration, 7);
      if (i == 0) ExpectSame(calibration, &whole, "a number of threads");
      if (c->s.n_pairs > 0) ExpectCenters(other, calibration);
      ExpectExpected(other, calibration);
      kvevict_calibration_destroy(calibration);
      Free(other);
    }
    const kvevict_plane floats = test_rows_plane(c->queries, kQHeads, c->s.dim);
    ExpectRows(c, &floats, &whole, "f32");
    const int64_t row = kvevict_row_bytes(c->s.dtype, c->s.dim);
    const int64_t apart = row + test_gap(4);
    uint8_t* const rows = calloc(kQHeads * kRows, (size_t)apart);
    for (int64_t i = 0; i < kRows * kQHeads; ++i) {
      memcpy(rows + (i % kQHeads * kRows + i / kQHeads) * apart,
             c->bytes + i * row, (size_t)row);
    }
    kvevict_plane by_head = PlaneOf(c, 0);
    by_head.data = (uintptr_t)rows;
    by_head.head_stride_bytes = kRows * apart;
    by_head.token_stride_bytes = apart;
    ExpectRows(c, &by_head, &whole, "an order of rows, with gaps");
    free(rows);
    free(whole.data);
    Free(c);
  }
}

Test(calibration, is_saved_loaded_and_joined) {
  scene* c = SceneOf(&kShapes[2], "triattention", NULL, 1);
  kvevict_calibration* a = Create(c, 1);
  kvevict_calibration* b = Create(c, 1);
  Show(c, a, kRows);
  saved s = Save(a);
  EXPECT_OK(kvevict_calibration_load(b, s.data, s.n_bytes));
  ExpectSame(b, &s, "a load");
  /* Twice the same rows have the same means. */
  EXPECT_OK(kvevict_calibration_load(b, s.data, s.n_bytes));
  uint64_t n = 0;
  EXPECT_OK(kvevict_calibration_rows(b, 1, &n));
  cr_expect_eq(n, 2 * kRows);
  ExpectCenters(c, b);
  ExpectExpected(c, b);
  /* Without covariances those of the saved one are left out. */
  kvevict_calibration* small = Create(c, 0);
  EXPECT_OK(kvevict_calibration_load(small, s.data, s.n_bytes));
  ExpectCenters(c, small);
  saved less = Save(small);
  cr_expect_lt(less.n_bytes, s.n_bytes);
  EXPECT_INVALID(kvevict_calibration_load(a, less.data, less.n_bytes),
                 "no covariances");
  ExpectSame(a, &s, "a load that failed");
  kvevict_calibration_destroy(small);
  free(less.data);
  kvevict_calibration_destroy(a);
  kvevict_calibration_destroy(b);
  free(s.data);
  Free(c);
}

/* Every byte counts, and no cut goes unnoticed. */
Test(calibration, damaged_bytes_add_nothing) {
  const shape small = {4, 2, KVEVICT_ROPE_LAYOUT_HALF, KVEVICT_DTYPE_F32};
  scene* c = SceneOf(&small, "knorm", NULL, 1);
  kvevict_calibration* a = Create(c, 1);
  Show(c, a, kRows);
  saved s = Save(a);
  kvevict_calibration* b = Create(c, 1);
  saved none = Save(b);
  for (size_t i = 0; i < s.n_bytes; ++i) {
    s.data[i] ^= 0x10;
    EXPECT_INVALID(kvevict_calibration_load(b, s.data, s.n_bytes), "data");
    s.data[i] ^= 0x10;
    EXPECT_INVALID(kvevict_calibration_load(b, s.data, i), "data");
  }
  ExpectSame(b, &none, "damaged bytes");
  EXPECT_INVALID(kvevict_calibration_load(b, NULL, 9), "data is NULL");
  free(none.data);

  /* Another model's. */
  static const struct {
    shape of;
    const char* why;
  } kOthers[] = {{{4, 2, KVEVICT_ROPE_LAYOUT_INTERLEAVED, KVEVICT_DTYPE_F32},
                  "rope_layout 0 is not the plan's 1"},
                 {{5, 2, KVEVICT_ROPE_LAYOUT_HALF, KVEVICT_DTYPE_F32},
                  "k_head_dim 4 is not the plan's 5"},
                 {{4, 1, KVEVICT_ROPE_LAYOUT_HALF, KVEVICT_DTYPE_F32},
                  "rope_inv_freq_len 2 is not the plan's 1"}};
  for (int i = 0; i < 3; ++i) {
    scene* o = SceneOf(&kOthers[i].of, "knorm", NULL, 1);
    kvevict_calibration* of_other = Create(o, 1);
    EXPECT_INVALID(kvevict_calibration_load(of_other, s.data, s.n_bytes),
                   kOthers[i].why);
    kvevict_calibration_destroy(of_other);
    Free(o);
  }
  kvevict_calibration_destroy(a);
  kvevict_calibration_destroy(b);
  free(s.data);
  Free(c);
}

Test(calibration, rows_that_are_not_numbers_add_nothing) {
  scene* c = SceneOf(&kShapes[0], "knorm", NULL, 2);
  kvevict_calibration* calibration = Create(c, 1);
  saved none = Save(calibration);
  const kvevict_plane plane = PlaneOf(c, 0);
  const float bad[] = {NAN, INFINITY, -INFINITY};
  for (int i = 0; i < 3; ++i) {
    float kept;
    uint8_t* const at = c->bytes + 4 * (c->s.dim * (kQHeads * 50 + 2) + 3);
    memcpy(&kept, at, sizeof kept);
    memcpy(at, &bad[i], sizeof kept);
    EXPECT_INVALID(kvevict_calibration_observe(calibration, 1, &plane, kFirst,
                                               kRows, NULL),
                   "head 2 holds NaN or infinity");
    memcpy(at, &kept, sizeof kept);
  }
  ExpectSame(calibration, &none, "a row with NaN");
  free(none.data);
  kvevict_calibration_destroy(calibration);
  Free(c);
}

Test(calibration, bad_arguments_are_errors) {
  scene* c = SceneOf(&kShapes[0], "knorm", NULL, 1);
  kvevict_calibration* made = NULL;
  EXPECT_INVALID(kvevict_calibration_create(NULL, 0, &made), "plan is NULL");
  EXPECT_INVALID(kvevict_calibration_create(c->plan->plan, 2, &made),
                 "has_covariances 2");
  EXPECT_INVALID(kvevict_calibration_create(c->plan->plan, 0, NULL),
                 "out_calibration is NULL");
  cr_expect_null(made);
  kvevict_calibration_destroy(NULL);

  kvevict_calibration* calibration = Create(c, 0);
  kvevict_plane plane = PlaneOf(c, 0);
  EXPECT_INVALID(kvevict_calibration_observe(NULL, 1, &plane, 0, kRows, NULL),
                 "calibration is NULL");
  EXPECT_INVALID(
      kvevict_calibration_observe(calibration, 1, NULL, 0, kRows, NULL),
      "queries is NULL");
  EXPECT_INVALID(
      kvevict_calibration_observe(calibration, 2, &plane, 0, kRows, NULL),
      "layer 2 >= n_layers 2");
  EXPECT_INVALID(kvevict_calibration_observe(calibration, 1, &plane, INT32_MAX,
                                             kRows, NULL),
                 "first_position");
  plane.head_dim = 15;
  EXPECT_INVALID(
      kvevict_calibration_observe(calibration, 1, &plane, 0, kRows, NULL),
      "head_dim", "15");
  plane.head_dim = 16;
  plane.dtype = KVEVICT_DTYPE_BF16;
  EXPECT_INVALID(
      kvevict_calibration_observe(calibration, 1, &plane, 0, kRows, NULL),
      "dtype");
  plane.dtype = KVEVICT_DTYPE_F32;
  EXPECT_OK(kvevict_calibration_observe(calibration, 1, &plane, 0, 0, NULL));

  float numbers[kQHeads * 16 * 16];
  GUARD(numbers);
  EXPECT_INVALID(kvevict_calibration_query_centers(calibration, 1, numbers,
                                                   kQHeads * 3 * 8),
                 "no query of layer 1");
  EXPECT_INVALID(kvevict_calibration_query_mean(calibration, 1, 0, 512, numbers,
                                                kQHeads * 16, NULL, 0),
                 "no query of layer 1");
  Show(c, calibration, kRows);
  EXPECT_INVALID(kvevict_calibration_query_centers(calibration, 1, numbers,
                                                   kQHeads * 3 * 8 - 1),
                 "centers_len 95 is not 96");
  EXPECT_INVALID(
      kvevict_calibration_query_centers(calibration, 1, NULL, kQHeads * 3 * 8),
      "centers is NULL");
  EXPECT_INVALID(kvevict_calibration_query_mean(calibration, 1, 0, 0, numbers,
                                                kQHeads * 16, NULL, 0),
                 "n_positions 0 is not in [1, 65536]");
  EXPECT_INVALID(kvevict_calibration_query_mean(calibration, 1, 0, 512, numbers,
                                                kQHeads, NULL, 0),
                 "mean_len 4 is not 64");
  EXPECT_INVALID(kvevict_calibration_query_mean(calibration, 1, 0, 512, numbers,
                                                kQHeads * 16, NULL, 5),
                 "covariance_len 5 is not 0");
  EXPECT_INVALID(
      kvevict_calibration_query_mean(calibration, 1, 0, 512, numbers,
                                     kQHeads * 16, numbers, kQHeads * 16 * 16),
      "the calibration has no covariances");
  EXPECT_INVALID(kvevict_calibration_query_mean(calibration, 1, INT32_MAX, 512,
                                                numbers, kQHeads * 16, NULL, 0),
                 "first_position");
  EXPECT_UNTOUCHED(numbers);
  uint8_t few[8];
  GUARD(few);
  EXPECT_INVALID(kvevict_calibration_save(calibration, few, sizeof few, NULL),
                 "data_capacity 8");
  EXPECT_INVALID(kvevict_calibration_save(calibration, NULL, 8, NULL),
                 "data is NULL");
  EXPECT_UNTOUCHED(few);
  EXPECT_INVALID(kvevict_calibration_rows(calibration, 1, NULL),
                 "out_rows is NULL");
  kvevict_calibration_destroy(calibration);
  Free(c);

  /* Models without RoPE have means, but no pairs. */
  c = SceneOf(&kShapes[4], "knorm", NULL, 1);
  calibration = Create(c, 0);
  Show(c, calibration, kRows);
  EXPECT_INVALID(kvevict_calibration_query_centers(calibration, 1, numbers, 0),
                 "no rope_inv_freq");
  EXPECT_OK(kvevict_calibration_query_mean(calibration, 1, 0, 512, numbers,
                                           kQHeads * 9, NULL, 0));
  kvevict_calibration_destroy(calibration);
  Free(c);
}
