/* What the authors' code of VaSE-AttnV computed and kept, reproduced by its preset and,
 * with the numbers that they drew, by the caller's scores. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/npy.h"
#include "tests/capi/support/plan.h"

enum { kHeads = 2, kQueryHeads = 4, kTokens = 96, kDim = 64, kWindow = 16 };

static kvevict_plane Plane(const test_npy* array) {
  return kvevict_plane_head_major(array->bytes, KVEVICT_DTYPE_F16, kTokens,
                                  kDim);
}

Test(vectors, vase_keeps_what_its_authors_code_keeps) {
  test_npy k, v, q, p, noise, large, keep;
  const test_npy_entry entries[] = {
      {&k, "K", "<f2", 3},         {&v, "V", "<f2", 3},
      {&q, "Q", "<f2", 3},         {&p, "p", "<f4", 3},
      {&noise, "noise", "<f4", 3}, {&large, "large", "|b1", 3},
      {&keep, "keep", "<i4", 3}};
  test_npy_read_all("vase_official__attnv_gqa4x2_D64_S80_b48_r16", entries, 7);
  kvevict_layer_geometry layer = test_layer(kQueryHeads, kHeads, kDim, kDim);
  layer.q_dtype = layer.k_dtype = layer.v_dtype = KVEVICT_DTYPE_F16;
  const kvevict_geometry geometry = test_geometry(1, kTokens, &layer);
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = kHeads;
  view.k = Plane(&k);
  view.v = Plane(&v);

  /* Their probabilities, by the preset's signal. */
  kvevict_plane queries = Plane(&q);
  queries.data += (kTokens - kWindow) * 2 * kDim;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = &queries;
  static float scores[kHeads * kTokens];
  kvevict_score_job job =
      test_score_job(kTokens, &view, &inputs, scores, kHeads);
  test_plan* plan = test_plan_create(
      "vase-attnv-original:budget=48,window=16,secure_values=4,margin=15,"
      "draw=no",
      &geometry, KVEVICT_OPERATION_SCORE, 1);
  EXPECT_OK(test_score_jobs(plan, &job, 1));
  test_plan_destroy(plan);
  const float* const theirs = (const float*)p.bytes;
  uint32_t n_compared = 0;
  for (uint32_t i = 0; i < kHeads * kTokens; ++i) {
    if (i % kTokens >= kTokens - kWindow) {
      EXPECT(isnan(theirs[i]) && isinf(scores[i]), "slot %u", i);
      continue;
    }
    if (large.bytes[i]) continue;
    ++n_compared;
    EXPECT(fabsf(scores[i] - theirs[i]) <= 2e-5f * theirs[i], "%u: %g, not %g",
           i, (double)scores[i], (double)theirs[i]);
  }
  cr_expect_eq(n_compared, kHeads * (kTokens - kWindow - 8));

  /* What they kept, by the quotients that they drew. */
  for (uint32_t i = 0; i < kHeads * kTokens; ++i) {
    scores[i] = i % kTokens < kTokens - kWindow
                    ? theirs[i] / ((const float*)noise.bytes)[i]
                    : 0.0f;
  }
  plan = test_plan_create("custom:budget=48,sink=4,recent=16,secure_values=4",
                          &geometry, KVEVICT_OPERATION_EVICT, 1);
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(plan->plan, &sequence));
  EXPECT_OK(kvevict_sequence_append(sequence, kTokens, NULL));
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs given;
  test_give_scores(&options, &given, 1, scores, 0, kTokens);
  EXPECT_OK(kvevict_sequence_evict(sequence, &view, 1, &options,
                                   plan->workspace, plan->workspace_bytes,
                                   NULL));
  for (uint32_t h = 0; h < kHeads; ++h) {
    int32_t positions[kTokens];
    uint32_t n = 0;
    size_t n_written = 0;
    EXPECT_OK(kvevict_sequence_stored_length(sequence, 0, h, &n));
    cr_assert_eq(n, keep.shape[2]);
    EXPECT_OK(kvevict_sequence_keep_positions(sequence, 0, h, positions, n,
                                              &n_written));
    for (uint32_t i = 0; i < n; ++i) {
      const int32_t wanted = ((const int32_t*)keep.bytes)[h * n + i];
      EXPECT(positions[i] == wanted, "head %u: %d, not %d", h, positions[i],
             wanted);
    }
  }
  kvevict_sequence_destroy(sequence);
  test_plan_destroy(plan);
  test_npy_free_all(entries, 7);
}
