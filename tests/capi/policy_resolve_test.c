#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"

Test(policy_resolve, bad_arguments_are_errors) {
  const kvevict_policy* policy = test_policy("snapkv:budget=2048");
  kvevict_resolved_policy r;
  GUARD(r);
  r.struct_size = sizeof r;
  const kvevict_resolved_policy before = r;
  EXPECT_INVALID(kvevict_policy_resolve(NULL, 4096, &r), "policy", "NULL");
  EXPECT_INVALID(kvevict_policy_resolve(policy, 4096, NULL), "out", "NULL");
  EXPECT_INVALID(kvevict_policy_resolve(policy, 0, &r), "n_context", "0");
  EXPECT_INVALID(kvevict_policy_resolve(policy, 2147483648u, &r), "n_context",
                 "2147483648", "2147483647");
  kvevict_policy* bad = test_policy_copy(policy);
  EXPECT_OK(kvevict_policy_set_number(bad, "budget", 36));
  EXPECT_INVALID(kvevict_policy_resolve(bad, 4096, &r),
                 "sink 4 + window 32 >= budget 36");
  cr_assert(memcmp(&r, &before, sizeof r) == 0, "out was written");
}

Test(policy_resolve, struct_size_is_checked) {
  const kvevict_policy* policy = test_policy("none");
  GROWN(kvevict_resolved_policy) r = {{.struct_size = sizeof r.value}};
  EXPECT_CHECKS_OUT_STRUCT_SIZE(r,
                                kvevict_policy_resolve(policy, 100, &r.value));
}
