/* Decoding by a graph, on devices that have them: a token's query rows are observed and it
 * is counted as often as the graph is launched. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_GRAPH_STEP_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_GRAPH_STEP_H_

#include "tests/capi/support/model.h"

typedef struct test_graph_step test_graph_step;

/* Adds the model's next token by a step, or by one that is captured now if it is NULL.
 * Returns the step. */
test_graph_step* test_graph_step_run(test_graph_step* step, test_model* model);

/* NULL is ignored. */
void test_graph_step_free(test_graph_step* step);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_GRAPH_STEP_H_ */
