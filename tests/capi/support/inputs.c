#include "tests/capi/support/inputs.h"

#include "tests/capi/support/expect.h"

kvevict_plane test_floats_plane(const float* numbers, uint64_t stride) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = (uint64_t)(uintptr_t)numbers;
  plane.token_stride_bytes = sizeof(float);
  plane.head_stride_bytes = (int64_t)(stride * sizeof(float));
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = 1;
  return plane;
}

kvevict_plane test_rows_plane(const float* rows, uint32_t n_heads,
                              uint32_t head_dim) {
  return kvevict_plane_token_major(rows, KVEVICT_DTYPE_F32, n_heads, head_dim);
}

void test_give_scores(kvevict_evict_options* options, test_inputs* inputs,
                      uint32_t n_layers, const float* scores,
                      uint64_t layer_stride, uint64_t head_stride) {
  for (uint32_t l = 0; l < n_layers; ++l) {
    inputs->planes[l] =
        test_floats_plane(scores + l * layer_stride, head_stride);
    inputs->inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    inputs->inputs[l].scores = &inputs->planes[l];
  }
  options->inputs = inputs->inputs;
  options->inputs_len = n_layers;
}

void test_give_statistics(const kvevict_layer_geometry* layer, uint32_t number,
                          uint64_t stride, kvevict_plane planes[3],
                          kvevict_signal_inputs* inputs) {
  enum { kMost = 1 << 15, kApart = 1000 };
  static float numbers[kMost + kApart * TEST_MAX_LAYERS];
  uint32_t bits = 1;
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
    bits = bits * 1664525u + 1013904223u;
    numbers[i] = (float)(bits >> 24) / 256.0f - 0.375f;
  }
  const float* const first = numbers + number * kApart;
  const uint32_t dim = layer->k_head_dim;
  EXPECT(layer->n_q_heads * dim * dim <= kMost &&
             layer->n_kv_heads * stride <= kMost,
         "%u heads of %u", layer->n_q_heads, dim);
  planes[0] = kvevict_plane_head_major(first, KVEVICT_DTYPE_F32, 1, dim);
  planes[1] = kvevict_plane_head_major(first, KVEVICT_DTYPE_F32, dim, dim);
  planes[2] = test_floats_plane(first, stride);
  inputs->query_mean = &planes[0];
  inputs->query_covariance = number % 3 == 2 ? NULL : &planes[1];
  inputs->token_weights = &planes[2];
}

static kvevict_status Observe(kvevict_sequence* sequence, uint32_t layer,
                              const kvevict_plane* queries,
                              const kvevict_plane* row_lse, uint32_t n_rows,
                              uint32_t first_position) {
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = queries;
  inputs.row_lse = row_lse;
  const kvevict_observation observation = {sizeof observation, layer, &inputs};
  return kvevict_sequence_observe(sequence, &observation, 1, n_rows,
                                  first_position, NULL);
}

kvevict_status test_observe(kvevict_sequence* sequence, uint32_t layer,
                            const kvevict_plane* queries, uint32_t n_rows,
                            uint32_t first_position) {
  return Observe(sequence, layer, queries, NULL, n_rows, first_position);
}

kvevict_status test_observe_lse(kvevict_sequence* sequence, uint32_t layer,
                                const kvevict_plane* row_lse, uint32_t n_rows,
                                uint32_t first_position) {
  return Observe(sequence, layer, NULL, row_lse, n_rows, first_position);
}

kvevict_status test_observe_layers(kvevict_sequence* sequence,
                                   const kvevict_plane* queries, uint32_t n,
                                   uint32_t n_rows, uint32_t first_position) {
  kvevict_signal_inputs inputs[TEST_MAX_LAYERS];
  kvevict_observation observations[TEST_MAX_LAYERS];
  for (uint32_t l = 0; l < n; ++l) {
    inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    inputs[l].queries = &queries[l];
    observations[l] =
        (kvevict_observation){sizeof observations[l], l, &inputs[l]};
  }
  return kvevict_sequence_observe(sequence, observations, n, n_rows,
                                  first_position, NULL);
}
