/* What goes with the rows of an edit, and what ends with it. */
#include <stdlib.h>

#include "kvevict/batch.h"
#include "kvevict/edit.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/life.h"
#include "tests/capi/support/plan.h"
#include "tests/oracle/compact.h"

enum { kFew = 12 };

/* Sums of single queries, which are exact, so that slots tell their tokens. */
static void ObserveSums(test_life* a, uint32_t first, const float* sums,
                        uint32_t n) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = (uintptr_t)sums;
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = 1;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.attention_sums = &plane;
  inputs.n_sum_heads = TEST_LIFE_HEADS;
  for (uint32_t l = 0; l < TEST_LIFE_LAYERS; ++l) {
    kvevict_observation one = KVEVICT_OBSERVATION_INIT;
    one.layer = l;
    one.inputs = &inputs;
    EXPECT_OK(kvevict_sequence_observe(a->sequence, &one, 1, n, first, NULL));
  }
}

static float SumAt(const test_life* a, uint32_t layer, uint32_t row,
                   uint32_t slot) {
  kvevict_sequence_memory m = {.struct_size = sizeof m};
  EXPECT_OK(kvevict_sequence_memory_of(a->sequence, layer, &m));
  EXPECT(m.n_sum_heads == TEST_LIFE_HEADS, "%u rows of sums", m.n_sum_heads);
  return ((const float*)(uintptr_t)m.sums)[row * m.sum_stride + slot];
}

Test(edit, sums_stay_with_their_tokens_and_go_on) {
  test_random random = {6};
  test_life* a = test_life_begin("h2o:budget=9,sink=0,recent=2,sums=head",
                                 false, false, TEST_HEAD_MAJOR, &random);
  EXPECT_OK(kvevict_sequence_begin_observing(a->sequence, NULL, 0));
  test_life_append(a, kFew);
  float sums[TEST_LIFE_HEADS * (kFew + 2)];
  for (int i = 0; i < TEST_LIFE_HEADS * kFew; ++i) sums[i] = (float)(i + 1);
  ObserveSums(a, 0, sums, kFew);
  kvevict_edit e = KVEVICT_EDIT_INIT;
  e.first = 3;
  e.end = 5;
  e.n_new = 3;
  EXPECT(test_life_edit(a, &e, false, "replace"), "replaced");
  const uint32_t n = kFew + 1;
  for (uint32_t h = 0; h < TEST_LIFE_HEADS; ++h) {
    for (uint32_t slot = 0; slot < n; ++slot) {
      const uint32_t from = slot < 3 ? slot : slot - 1;
      const float want =
          slot >= 3 && slot < 6 ? 0.0f : (float)(h * kFew + from + 1);
      EXPECT(SumAt(a, 1, h, slot) == want, "head %u, slot %u: %g, not %g", h,
             slot, (double)SumAt(a, 1, h, slot), (double)want);
    }
  }
  test_life_append(a, 1);
  for (uint32_t i = 0; i < TEST_LIFE_HEADS * (n + 1); ++i) sums[i] = 0.5f;
  ObserveSums(a, n, sums, 1);
  EXPECT(SumAt(a, 0, 1, 3) == 0.5f && SumAt(a, 0, 1, 0) == kFew + 1.5f,
         "sums do not go on");
  test_life_evict(a);
  test_life_check(a, "after the eviction");
  test_life_end(a);
}

Test(edit, the_last_eviction_cannot_be_undone) {
  test_random random = {7};
  test_life* a = test_life_begin("streaming-llm:budget=10,sink=2", false, false,
                                 TEST_TOKEN_MAJOR, &random);
  test_life_append(a, 30);
  const kvevict_view views[TEST_LIFE_LAYERS] = {test_life_view(a, 0),
                                                test_life_view(a, 1)};
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  EXPECT_OK(kvevict_sequence_undo_bytes(a->sequence, views, TEST_LIFE_LAYERS,
                                        &options.undo_bytes));
  options.undo = aligned_alloc(64, options.undo_bytes / 64 * 64 + 64);
  EXPECT_OK(kvevict_sequence_evict(a->sequence, views, TEST_LIFE_LAYERS,
                                   &options, a->workspace, a->workspace_bytes,
                                   NULL));
  kvevict_edit e = KVEVICT_EDIT_INIT;
  e.first = 24;
  e.end = 26;
  EXPECT_OK(
      kvevict_sequence_edit(a->sequence, views, TEST_LIFE_LAYERS, &e, NULL));
  EXPECT_INVALID(kvevict_sequence_undo(a->sequence, views, TEST_LIFE_LAYERS,
                                       options.undo, options.undo_bytes, NULL),
                 "nothing to undo");
  free(options.undo);
  test_life_end(a);
}

/* Quantized keys do not rotate, but their codes and scales move. */
Test(edit, quantized_rows_move_and_do_not_rotate) {
  test_random random = {8};
  const test_cache_spec spec = {
      TEST_PAGED_3,  TEST_LIFE_HEADS,  TEST_LIFE_SLOTS, KVEVICT_DTYPE_I8,
      TEST_LIFE_DIM, KVEVICT_DTYPE_U8, TEST_LIFE_DIM,   2};
  test_cache* cache = test_cache_create(&spec, &random);
  kvevict_layer_geometry layer = test_layer(TEST_LIFE_HEADS, TEST_LIFE_HEADS,
                                            TEST_LIFE_DIM, TEST_LIFE_DIM);
  layer.k_dtype = KVEVICT_DTYPE_I8;
  layer.v_dtype = KVEVICT_DTYPE_U8;
  float inv_freq[TEST_LIFE_PAIRS] = {1.0f, 0.1f, 0.01f};
  kvevict_geometry geometry = test_geometry(1, TEST_LIFE_SLOTS, &layer);
  geometry.rope_inv_freq = inv_freq;
  geometry.rope_inv_freq_len = TEST_LIFE_PAIRS;
  test_plan* plan =
      test_plan_create("none", &geometry, KVEVICT_OPERATION_EVICT, 3);
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(plan->plan, &sequence));
  EXPECT_OK(kvevict_sequence_start(sequence, NULL, 0, 40, NULL));
  kvevict_edit e = KVEVICT_EDIT_INIT;
  e.kind = KVEVICT_EDIT_MOVE;
  e.first = 30;
  e.end = 36;
  e.to = 5;
  test_cache* want = test_cache_clone(cache);
  EXPECT_FAILS(kvevict_sequence_edit(sequence, &cache->view, 1, &e, NULL),
               KVEVICT_ERROR_UNSUPPORTED, "layer 0", "quantized");
  test_expect_same_bytes(cache, want, "refused");
  e.positions = KVEVICT_EDIT_RENUMBER;
  EXPECT_OK(kvevict_sequence_edit(sequence, &cache->view, 1, &e, NULL));
  int32_t from[40];
  for (int i = 0; i < 40; ++i) {
    from[i] = i < 5 || i >= 36 ? i : i < 11 ? i + 25 : i - 6;
  }
  oracle_compact(&want->view, from, 40, 1);
  test_expect_same_bytes(cache, want, "moved");
  kvevict_sequence_destroy(sequence);
  test_plan_destroy(plan);
  test_cache_destroy(cache);
  test_cache_destroy(want);
}
