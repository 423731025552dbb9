/* Lives of sequences whose steps are drawn from bytes, against a naive model and the
 * oracle: see tests/capi/support/sequence_life.h. */
#include "tests/capi/support/random.h"
#include "tests/capi/support/sequence_kinds.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  test_random random = test_random_feed(data, size);
  test_lived sum = {0};
  uint32_t n_kinds = 0;
  while (test_sequence_kind(n_kinds) != NULL) ++n_kinds;
  const uint32_t kind = test_random_below(&random, n_kinds);
  test_live_kind(kind, &random, test_random_coin(&random), &sum);
  return 0;
}
