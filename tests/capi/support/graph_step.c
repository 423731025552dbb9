#include "tests/capi/support/graph_step.h"

#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"

struct test_graph_step {
  void* graph;
  const test_model* model;
  uint8_t* rows[TEST_MAX_LAYERS]; /* which the graph reads */
};

static size_t RowBytes(const test_model* m) {
  return (size_t)m->spec.n_q_heads * m->spec.k_head_dim *
         oracle_element_bytes(m->spec.q_dtype);
}

static void Queue(void* of, kvevict_stream stream) {
  const test_graph_step* const step = of;
  const test_model* const m = step->model;
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    kvevict_plane plane = test_model_queries(m, l, 0);
    plane.data = (uint64_t)(uintptr_t)step->rows[l];
    kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
    inputs.queries = &plane;
    const kvevict_observation shown = {sizeof shown, l, &inputs};
    EXPECT(
        kvevict_sequence_observe(m->sequence, &shown, 1, 1,
                                 KVEVICT_POSITION_NEXT, stream) == KVEVICT_OK,
        "captured: %s", kvevict_last_error_message());
  }
  EXPECT(kvevict_sequence_append(m->sequence, 1, stream) == KVEVICT_OK,
         "captured: %s", kvevict_last_error_message());
}

static test_graph_step* Capture(const test_model* model) {
  test_graph_step* step = calloc(1, sizeof *step);
  step->model = model;
  for (uint32_t l = 0; l < model->spec.n_layers; ++l) {
    step->rows[l] = malloc(RowBytes(model) + 1);
  }
  EXPECT_OK(kvevict_context_prepare(model->context, model->plan));
  step->graph = test_capture(Queue, step);
  return step;
}

test_graph_step* test_graph_step_run(test_graph_step* step, test_model* model) {
  test_model_store(model, 1);
  if (step == NULL) {
    step = Capture(model);
  } else {
    EXPECT_OK(kvevict_sequence_replayed(model->sequence, 1));
  }
  for (uint32_t l = 0; l < model->spec.n_layers; ++l) {
    const kvevict_plane plane = test_model_queries(model, l, model->n_seen);
    memcpy(step->rows[l], (const void*)(uintptr_t)plane.data, RowBytes(model));
  }
  model->n_seen += 1;
  test_launch(step->graph);
  return step;
}

void test_graph_step_free(test_graph_step* step) {
  if (step == NULL) return;
  test_forget_graph(step->graph);
  for (uint32_t l = 0; l < TEST_MAX_LAYERS; ++l) free(step->rows[l]);
  free(step);
}
