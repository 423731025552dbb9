/* Policies for tests: from text, and at random. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_POLICIES_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_POLICIES_H_

#include <stdbool.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/policy_values.h"

/* Fails the test if the text is wrong. The policy lives as long as the process. */
kvevict_policy* test_policy(const char* text);

/* The same by a format. */
kvevict_policy* test_policy_of(const char* format, ...)
    __attribute__((format(printf, 1, 2)));

/* A random valid policy of any kind, of parameters that the library lists. It lives as
 * long as the process. */
kvevict_policy* test_random_policy(test_random* random);

bool test_same_policy(const kvevict_policy* a, const kvevict_policy* b);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_POLICIES_H_ */
