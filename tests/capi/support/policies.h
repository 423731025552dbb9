/* Policies for tests: from text, and at random. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_POLICIES_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_POLICIES_H_

#include <stdbool.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/random.h"

/* Fails the test if the text is wrong. */
kvevict_policy test_policy(const char* text);

/* A random valid policy of any kind. */
kvevict_policy test_random_policy(test_random* random);

bool test_same_policy(const kvevict_policy* a, const kvevict_policy* b);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_POLICIES_H_ */
