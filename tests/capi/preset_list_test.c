#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"

Test(preset, every_preset_is_its_policy_text) {
  uint32_t n = 0;
  for (;; ++n) {
    kvevict_preset_info info = {.struct_size = sizeof info};
    if (kvevict_preset_at(n, &info) != KVEVICT_OK) break;
    cr_expect_eq(info.struct_size, sizeof info);
    cr_expect_eq(info.reserved, 0);
    cr_expect(strlen(info.reproduces) > 0);
    cr_assert(
        test_same_policy(test_policy(info.name), test_policy(info.policy_text)),
        "%s", info.name);
  }
  cr_assert_geq(n, 4);
}

Test(preset, keys_after_a_preset_change_it) {
  kvevict_policy* expected = test_policy("snapkv-kvpress");
  EXPECT_OK(kvevict_policy_set_number(expected, "budget", 0.25));
  EXPECT_OK(kvevict_policy_set_number(expected, "window", 16));
  cr_assert(test_same_policy(
      test_policy("snapkv-kvpress:budget=0.25,window=16"), expected));
}

Test(preset, enumeration_ends) {
  uint32_t n = 0;
  kvevict_preset_info info = {.struct_size = sizeof info};
  while (kvevict_preset_at(n, &info) == KVEVICT_OK) ++n;
  EXPECT_ENDS_AT(n, kvevict_preset_info, kvevict_preset_at);
}
