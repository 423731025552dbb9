/* Evictions that are taken back, in a model in miniature. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_UNDO_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_UNDO_H_

#include <stddef.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/model.h"

/* Memory of exactly so many bytes between guards. */
typedef struct test_lent {
  uint8_t* memory;
  size_t n_bytes;
} test_lent;

test_lent test_lend(size_t n_bytes);
/* Fails unless the guards are untouched. */
void test_lent_check(test_lent undo, const char* what);
void test_lent_return(test_lent undo);

/* kvevict_sequence_undo_bytes(), which must succeed. */
size_t test_undo_bytes(test_model* model);
/* test_model_evict() with memory for an undo. */
kvevict_status test_evict_lending(test_model* model, test_lent undo,
                                  kvevict_evict_report* report);
kvevict_status test_undo(test_model* model, test_lent undo);

/* A model of 3 layers with a companion and 100 slots, n of them filled. */
test_model* test_undo_model(const char* policy, uint32_t n);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_UNDO_H_ */
