/* Tests run on the CPU, or on CUDA if the program says so (tests/gpu/cases.cc). CUDA then
 * reads and writes the process's own memory. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_DEVICE_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_DEVICE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvevict/kvevict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Products on tensor cores may be off by so much of their magnitude. */
typedef struct test_attend_shape {
  kvevict_dtype q_dtype, k_dtype, v_dtype;
  uint32_t k_dim, v_dim, n_tokens;
} test_attend_shape;
typedef struct test_attend_errors {
  double dot, value, lost_weight;
} test_attend_errors;

/* Queues calls on a stream. */
typedef void (*test_queue)(void* of, kvevict_stream stream);

typedef struct test_device {
  kvevict_context_options options;
  void (*wait)(void); /* for all queued work */
  void* (*capture)(test_queue queue, void* of);
  void (*launch)(void* graph);
  void (*forget)(void* graph);
  test_attend_errors (*attend_errors)(const test_attend_shape* shape);
  double (*score_error)(kvevict_dtype q, kvevict_dtype k, uint32_t dim);
  uint64_t seed;  /* of random cases */
  uint32_t share; /* percent of the random cases of the CPU */
} test_device;

/* NULL: the CPU. The device must live until the next call. */
void test_set_device(const test_device* device);
bool test_on_cuda(void);
void test_wait(void);
uint64_t test_seed(void);

/* Creates a context of default options on the device. */
kvevict_context* test_device_context(void);

/* Makes options those of a context on the device. The hooks for memory stay. A number of
 * threads means something else on CUDA: contexts of an even number select on the host, and
 * those of more than two wait after every kernel. */
void test_use_device(kvevict_context_options* options);

/* Captures what `queue` queues as a graph, on CUDA alone. A launch waits for its work. */
void* test_capture(test_queue queue, void* of);
void test_launch(void* graph);
void test_forget_graph(void* graph);

/* All 0 on the CPU. */
test_attend_errors test_errors_of(test_attend_shape shape);
/* The error of a product of window scores, of its magnitude. 0 on the CPU. */
double test_score_error(kvevict_dtype q, kvevict_dtype k, uint32_t dim);

/* Whether the i-th of many random cases runs: all do on the CPU, and elsewhere the first
 * one and the device's share of the others. */
bool test_runs(uint32_t i);

/* CUDA reads whole elements. There gaps are multiples of 4 bytes, the largest element, and
 * sizes are multiples of 16. */
int64_t test_gap(int64_t n_bytes);
int64_t test_whole(int64_t n_bytes);

/* Aligned memory for a workspace, with 64 bytes or more behind it. To be freed. */
void* test_workspace_memory(size_t n_bytes);

#ifdef __cplusplus
}
#endif

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_DEVICE_H_ */
