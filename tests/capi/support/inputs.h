/* Inputs of signals beside keys, as the calls take them. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_INPUTS_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_INPUTS_H_

#include <stdint.h>

#include "kvevict/kvevict.h"

enum { TEST_MAX_LAYERS = 8 };

/* f32 numbers, `stride` elements from one head's to the next's. */
kvevict_plane test_floats_plane(const float* numbers, uint64_t stride);
/* f32 rows [tokens, n_heads, head_dim]. */
kvevict_plane test_rows_plane(const float* rows, uint32_t n_heads,
                              uint32_t head_dim);

/* The inputs of every layer of a model with their planes. Not to be copied. */
typedef struct test_inputs {
  kvevict_plane planes[TEST_MAX_LAYERS];
  kvevict_signal_inputs inputs[TEST_MAX_LAYERS];
} test_inputs;

/* Gives an eviction the scores of all layers. Strides are in elements.
 * A layer_stride of 0 gives all layers the same ones. */
void test_give_scores(kvevict_evict_options* options, test_inputs* inputs,
                      uint32_t n_layers, const float* scores,
                      uint64_t layer_stride, uint64_t head_stride);

/* Gives a layer of any geometry the mean and covariance of queries, and weights of
 * up to `stride` slots. The numbers are always the same. Writes `planes` and points
 * to them. */
void test_give_statistics(const kvevict_layer_geometry* layer, uint32_t number,
                          uint64_t stride, kvevict_plane planes[3],
                          kvevict_signal_inputs* inputs);

/* kvevict_sequence_observe() of one layer. */
kvevict_status test_observe(kvevict_sequence* sequence, uint32_t layer,
                            const kvevict_plane* queries, uint32_t n_rows,
                            uint32_t first_position);
kvevict_status test_observe_lse(kvevict_sequence* sequence, uint32_t layer,
                                const kvevict_plane* row_lse, uint32_t n_rows,
                                uint32_t first_position);

/* Observes layers 0 .. n - 1, whose queries are planes[n]. */
kvevict_status test_observe_layers(kvevict_sequence* sequence,
                                   const kvevict_plane* queries, uint32_t n,
                                   uint32_t n_rows, uint32_t first_position);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_INPUTS_H_ */
