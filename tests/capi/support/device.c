#include "tests/capi/support/device.h"

#include <stdlib.h>

#include "tests/capi/support/expect.h"

static const test_device* the_device;

void test_set_device(const test_device* device) { the_device = device; }

bool test_on_cuda(void) { return the_device != NULL; }

void test_wait(void) {
  if (the_device != NULL) the_device->wait();
}

void test_use_device(kvevict_context_options* options) {
  if (the_device == NULL) return;
  const kvevict_context_options before = *options;
  *options = the_device->options;
  options->alloc = before.alloc;
  options->free = before.free;
  options->alloc_user_data = before.alloc_user_data;
  options->select_on_host = before.n_threads > 0 && before.n_threads % 2 == 0;
  options->debug = before.n_threads > 2;
}

void* test_capture(test_queue queue, void* of) {
  return the_device->capture(queue, of);
}

void test_launch(void* graph) {
  the_device->launch(graph);
  the_device->wait();
}

void test_forget_graph(void* graph) { the_device->forget(graph); }

test_attend_errors test_errors_of(test_attend_shape shape) {
  return the_device == NULL ? (test_attend_errors){0, 0, 0}
                            : the_device->attend_errors(&shape);
}

kvevict_context* test_device_context(void) {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  kvevict_context* context = NULL;
  test_use_device(&options);
  EXPECT_OK(kvevict_context_create(&options, &context));
  return context;
}

uint64_t test_seed(void) {
  const char* const text = getenv("KVEVICT_TEST_SEED");
  if (text != NULL) return strtoull(text, NULL, 10);
  return the_device == NULL ? 1 : the_device->seed;
}

double test_score_error(kvevict_dtype q, kvevict_dtype k, uint32_t dim) {
  return the_device == NULL ? 0.0 : the_device->score_error(q, k, dim);
}

bool test_runs(uint32_t i) {
  if (the_device == NULL) return true;
  const uint64_t share = the_device->share;
  return (i * share + 99) / 100 != ((i + 1) * share + 99) / 100;
}

int64_t test_gap(int64_t n_bytes) {
  return test_on_cuda() ? 4 * n_bytes : n_bytes;
}

int64_t test_whole(int64_t n_bytes) {
  return test_on_cuda() ? (n_bytes + 15) / 16 * 16 : n_bytes;
}

void* test_workspace_memory(size_t n_bytes) {
  const size_t alignment = test_on_cuda() ? 256 : 64;
  return aligned_alloc(alignment,
                       (n_bytes + 64 + alignment - 1) / alignment * alignment);
}
