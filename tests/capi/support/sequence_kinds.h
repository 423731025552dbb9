/* The policies that random lives have, and models for them. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_SEQUENCE_KINDS_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_SEQUENCE_KINDS_H_

#include <stdbool.h>
#include <stdint.h>

#include "tests/capi/support/random.h"
#include "tests/capi/support/sequence_life.h"

/* The text of policy i; NULL beyond the last. */
const char* test_sequence_kind(uint32_t i);

/* Lives a random model of policy i, see test_live(). */
void test_live_kind(uint32_t i, test_random* random, bool decodes,
                    test_lived* sum);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_SEQUENCE_KINDS_H_ */
