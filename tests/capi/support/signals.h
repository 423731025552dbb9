/* A model with inputs of every kind, and what its slots should score by any policy, in
 * double precision with bounds of f32. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_SIGNALS_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_SIGNALS_H_

#include <stdbool.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/contexts.h"
#include "tests/capi/support/model.h"

enum {
  TEST_SIGNAL_PAIRS = 256,
  TEST_SIGNAL_HEADS = 24,
  TEST_REFERENCE = 80,
  TEST_FEW_SLOTS = 12
};

typedef struct test_signals {
  test_model* m;
  test_any_context with;
  kvevict_layer_geometry layer; /* with the numbers that the model's lacks */
  kvevict_geometry geometry;
  float inv_freq[TEST_SIGNAL_PAIRS];
  float sinks[2 * TEST_SIGNAL_HEADS];
  /* Of the rows that the caller gives: */
  uint32_t stride;       /* slots of a row */
  uint32_t first;        /* of a chunk: the slot that counts as its first one */
  uint32_t n_sum_heads;  /* 0: queries in place of sums */
  uint32_t n_query_rows; /* given with each call */
  int32_t reference_positions[TEST_REFERENCE];
  float* numbers[2];
  uint8_t* scattered[2];  /* queries in other places */
  uint32_t shared[2][16]; /* scales and minima of all tokens, of any dtype */
  kvevict_plane planes[2][9];
  kvevict_signal_inputs inputs[2];
} test_signals;

/* A policy of this kind with random values of the parameters that change scores; most
 * have their default. Written to text[TEST_POLICY_TEXT]. */
void test_draw_scoring(const char* kind, const char* more, test_random* random,
                       char* text);

/* A model of one or two layers for the policy, of a random shape, on a random SIMD
 * target. most: the slots that it has room for; heads are large if there are few, and
 * small if there are many. */
test_signals* test_signals_create(const char* policy, uint32_t n_layers,
                                  uint32_t most, bool any_dtype,
                                  test_random* random);
void test_signals_destroy(test_signals* s);

/* Draws the inputs of all layers for rows of `stride` slots. n_rows: the query rows of
 * h2o and non-causal; others take their window. */
void test_signals_give(test_signals* s, uint32_t stride, uint32_t n_rows,
                       test_random* random);

/* Makes some of the rows odd that the next call reads, as far as its policy says what
 * comes of that: elements are not finite, and biases hide slots. */
void test_signals_make_odd(test_signals* s, uint32_t layer, uint32_t n,
                           test_random* random);

/* Lets all tokens, perhaps all heads, share the scales and minima of quantized rows, or
 * leaves the minima out. */
void test_signals_share_numbers(test_signals* s, uint32_t layer,
                                test_random* random);

/* Hands the queries of a layer over in an order of its own: with gaps between rows,
 * elements outermost, or backwards. */
void test_signals_scatter_queries(test_signals* s, uint32_t layer,
                                  test_random* random);

/* The numbers of a layer's inputs by kind, head after head. */
enum {
  TEST_SIGNAL_SCORES,
  TEST_SIGNAL_WEIGHTS,
  TEST_SIGNAL_SUMS,
  TEST_SIGNAL_MEAN,
  TEST_SIGNAL_COVARIANCE,
  TEST_SIGNAL_FILTER,
  TEST_SIGNAL_CENTERS
};
const float* test_signal_numbers(const test_signals* s, uint32_t layer,
                                 int kind);
bool test_has_window(const oracle_policy* policy);

/* Scores and bounds [n_kv_heads, stride] of the first counts[h] slots of every head of
 * a layer, which hold positions[h][] (NULL: slots). False if f32 may find other keys
 * similar. A score that is not finite has no bound. */
bool test_signals_expect(const test_signals* s, uint32_t layer,
                         const uint32_t* counts,
                         const int32_t* const* positions, uint32_t n_seen,
                         double* scores, double* bounds);

/* The numbers that the library gives a head by kind `random`, which other tests
 * compare. */
void test_signals_random(const test_signals* s, uint32_t layer, uint32_t head,
                         const uint32_t* counts, double* row);

/* lse[n_q_heads, n_query_rows] of the rows in n held slots, as f32. */
void test_signals_lse(const test_signals* s, uint32_t layer, uint32_t n,
                      float* lse);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_SIGNALS_H_ */
