#include "tests/capi/support/undo.h"

#include <stdlib.h>

#include "kvevict/edit.h"
#include "tests/capi/support/expect.h"

enum { kGuardBytes = 256 };

test_lent test_lend(size_t n_bytes) {
  const size_t all = n_bytes + 2 * kGuardBytes;
  test_lent out = {aligned_alloc(kGuardBytes, (all + 255) / 256 * 256),
                   n_bytes};
  memset(out.memory, TEST_GUARD, all);
  out.memory += kGuardBytes;
  return out;
}

void test_lent_check(test_lent undo, const char* what) {
  EXPECT(test_is_filled(undo.memory - kGuardBytes, kGuardBytes) &&
             test_is_filled(undo.memory + undo.n_bytes, kGuardBytes),
         "%s: written beyond %zu bytes", what, undo.n_bytes);
}

void test_lent_return(test_lent undo) { free(undo.memory - kGuardBytes); }

size_t test_undo_bytes(test_model* m) {
  size_t n_bytes = SIZE_MAX;
  EXPECT_OK(kvevict_sequence_undo_bytes(m->sequence, m->views, m->spec.n_layers,
                                        &n_bytes));
  return n_bytes;
}

kvevict_status test_evict_lending(test_model* m, test_lent undo,
                                  kvevict_evict_report* report) {
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.undo = undo.memory;
  options.undo_bytes = undo.n_bytes;
  return test_model_evict(m, &options, report);
}

kvevict_status test_undo(test_model* m, test_lent undo) {
  return kvevict_sequence_undo(m->sequence, m->views, m->spec.n_layers,
                               undo.memory, undo.n_bytes, NULL);
}

test_model* test_undo_model(const char* policy, uint32_t n) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = 3;
  spec.n_companions = 1;
  spec.max_positions = 400;
  test_model* m = test_model_create(&spec, (test_random){7});
  test_model_step(m, n);
  return m;
}
