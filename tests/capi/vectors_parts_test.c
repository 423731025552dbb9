/* Reproduces parts of published implementations, each alone: budgets of partitions,
 * redundancy, and compaction bit for bit. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/npy.h"
#include "tests/capi/support/plan.h"
#include "tests/paths.h"

typedef struct vector_files {
  char folder[1200];
  test_npy k, v;
} vector_files;

static vector_files Open(const char* name) {
  vector_files v;
  snprintf(v.folder, sizeof v.folder, "%s/vectors/%s", test_shared_dir, name);
  v.k = test_npy_read(v.folder, "K", "<f2", 3);
  v.v = test_npy_read(v.folder, "V", "<f2", 3);
  if (v.k.bytes == NULL) {
    fprintf(stderr, "skipped: no reference vectors in %s\n", v.folder);
    cr_skip_test("no reference vectors in %s", v.folder);
  }
  return v;
}

static void Close(vector_files* v) {
  test_npy_free(&v->k);
  test_npy_free(&v->v);
}

/* The authors' LagKV shows no scores, so everything it keeps is compared. */
Test(vectors, budgets_of_partitions_keep_the_published_set) {
  vector_files v = Open("lagkv_official__S300_lag64");
  test_npy theirs = test_npy_read(v.folder, "keep", "<i4", 2);
  EXPECT(theirs.bytes != NULL && v.v.bytes != NULL, "%s is incomplete",
         v.folder);
  const uint32_t n_heads = v.k.shape[0], n = v.k.shape[1];
  const kvevict_layer_geometry layer =
      test_layer(n_heads, n_heads, v.k.shape[2], v.v.shape[2]);
  const kvevict_geometry geometry = test_geometry(1, n, &layer);
  const char* const policy = "lagkv-original:sink=4,block=64";
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = n_heads;
  view.k = test_npy_plane(&v.k, KVEVICT_DTYPE_F32);
  view.v = test_npy_plane(&v.v, KVEVICT_DTYPE_F32);
  const size_t n_scores = (size_t)n_heads * n;
  float* scores = malloc(n_scores * sizeof(float));
  int32_t* keep = malloc(n_scores * sizeof(int32_t));
  test_plan* p =
      test_plan_create(policy, &geometry, KVEVICT_OPERATION_SCORE, 1);
  EXPECT_OK(test_score(p, NULL, &view, n, scores, n_scores));
  test_plan_destroy(p);
  p = test_plan_create_to_select(policy, &geometry, 1);
  uint32_t n_keep = 0;
  EXPECT_OK(
      test_select(p, 0, scores, n_scores, n, NULL, 0, keep, n_scores, &n_keep));
  EXPECT(n_keep == theirs.shape[1], "%u kept, not %u", n_keep, theirs.shape[1]);
  for (size_t i = 0; i < (size_t)n_heads * n_keep; ++i) {
    const int32_t want = ((const int32_t*)theirs.bytes)[i];
    EXPECT(keep[i] == want, "kept %d, not %d", keep[i], want);
  }
  test_plan_destroy(p);
  test_npy_plane_free(&view.k);
  test_npy_plane_free(&view.v);
  free(scores);
  free(keep);
  test_npy_free(&theirs);
  Close(&v);
}

/* R-KV's redundancy, with scores that are all 0. */
Test(vectors, redundancy_is_the_published_one) {
  vector_files v = Open("rkv_official__gqa8x2_D64_S256");
  test_npy theirs = test_npy_read(v.folder, "redundancy", "<f4", 2);
  EXPECT(theirs.bytes != NULL, "%s is incomplete", v.folder);
  const uint32_t n_heads = v.k.shape[0], n = v.k.shape[1];
  const kvevict_layer_geometry layer =
      test_layer(n_heads, n_heads, v.k.shape[2], 0);
  const kvevict_geometry geometry = test_geometry(1, n, &layer);
  float* zeros = calloc((size_t)n_heads * n, sizeof(float));
  float* scores = malloc((size_t)n_heads * n * sizeof(float));
  const kvevict_plane given = test_floats_plane(zeros, n);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.scores = &given;
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = n_heads;
  view.k = test_npy_plane(&v.k, KVEVICT_DTYPE_F32);
  test_plan* p = test_plan_create("custom:sink=0,redundancy=1", &geometry,
                                  KVEVICT_OPERATION_SCORE, 1);
  kvevict_score_job job = test_score_job(n, &view, &inputs, scores, n_heads);
  EXPECT_OK(test_score_jobs(p, &job, 1));
  for (size_t i = 0; i < (size_t)n_heads * n; ++i) {
    const float want = ((const float*)theirs.bytes)[i];
    EXPECT(fabsf(-scores[i] - want) <= 2e-5f * want,
           "score %zu: %.9g, not %.9g", i, (double)-scores[i], (double)want);
  }
  test_plan_destroy(p);
  test_npy_plane_free(&view.k);
  free(zeros);
  free(scores);
  test_npy_free(&theirs);
  Close(&v);
}

Test(vectors, compaction_reproduces_published_rows) {
  vector_files v = Open("snapkv_kvpress__mha4x4_D64_S96_W8");
  test_npy keep = test_npy_read(v.folder, "keep", "<i4", 2);
  test_npy k_out = test_npy_read(v.folder, "K_out", "<f2", 3);
  test_npy v_out = test_npy_read(v.folder, "V_out", "<f2", 3);
  EXPECT(v.v.bytes != NULL && keep.bytes != NULL && k_out.bytes != NULL &&
             v_out.bytes != NULL,
         "%s is incomplete", v.folder);
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = v.k.shape[0];
  view.k = test_npy_plane(&v.k, KVEVICT_DTYPE_F16);
  view.v = test_npy_plane(&v.v, KVEVICT_DTYPE_F16);
  kvevict_context* const context = test_context();
  EXPECT_OK(test_compact(context, &view, v.k.shape[1],
                         (const int32_t*)keep.bytes, keep.shape[1],
                         keep.shape[0]));
  const size_t head_bytes = (size_t)k_out.shape[1] * v.k.shape[2] * 2;
  for (uint32_t h = 0; h < v.k.shape[0]; ++h) {
    cr_expect(
        memcmp((uint8_t*)(uintptr_t)view.k.data + h * view.k.head_stride_bytes,
               k_out.bytes + h * head_bytes, head_bytes) == 0,
        "K of head %u", h);
    cr_expect(
        memcmp((uint8_t*)(uintptr_t)view.v.data + h * view.v.head_stride_bytes,
               v_out.bytes + h * head_bytes, head_bytes) == 0,
        "V of head %u", h);
  }
  test_npy_plane_free(&view.k);
  test_npy_plane_free(&view.v);
  test_npy_free(&keep);
  test_npy_free(&k_out);
  test_npy_free(&v_out);
  Close(&v);
}
