/* Policies for tests: from text, and at random. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_POLICIES_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_POLICIES_H_

#include <stdbool.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/policy_values.h"

/* Room for any policy's text, and for any value's. */
enum { TEST_POLICY_TEXT = 2048, TEST_VALUE_TEXT = 40 };

/* Fails the test if the text is wrong. The policy lives as long as the process. */
kvevict_policy* test_policy(const char* text);

/* A copy, which lives as long as the process. */
kvevict_policy* test_policy_copy(const kvevict_policy* policy);

/* The text makes no policy, and every text after it stands in the message. */
#define EXPECT_NO_POLICY(text, ...)                                           \
  do {                                                                        \
    kvevict_policy* expect_policy = NULL;                                     \
    EXPECT_INVALID(kvevict_policy_create(text, &expect_policy), __VA_ARGS__); \
    EXPECT(expect_policy == NULL, "out_policy was written");                  \
  } while (0)

/* A random valid policy of any kind with parameters that the library lists. It
 * lives as long as the process. */
kvevict_policy* test_random_policy(test_random* random);

/* Sets a parameter to a value of its range. */
void test_set_at_random(test_random* random, const kvevict_parameter_info* row,
                        kvevict_policy* policy);

/* One of "this|that", which fits TEST_VALUE_TEXT. */
void test_random_word(test_random* random, const char* words, char* out);

bool test_same_policy(const kvevict_policy* a, const kvevict_policy* b);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_POLICIES_H_ */
