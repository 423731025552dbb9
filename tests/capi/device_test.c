#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"

Test(device, cpu_is_always_there) {
  EXPECT_OK(kvevict_device_check(KVEVICT_DEVICE_CPU));
}

Test(device, cuda_is_there_or_says_why_not) {
  const kvevict_status status = kvevict_device_check(KVEVICT_DEVICE_CUDA);
  if (status == KVEVICT_OK) return;
  cr_assert_eq(status, KVEVICT_ERROR_UNAVAILABLE);
  cr_assert(strlen(kvevict_last_error_message()) > 0);
}

Test(device, gpus_are_listed_where_cuda_is_there) {
  kvevict_gpu_info info = {.struct_size = sizeof info};
  const kvevict_status status = kvevict_gpu_at(0, &info);
  if (status == KVEVICT_OK) return;
  cr_assert_eq(status, KVEVICT_ERROR_UNAVAILABLE);
  char reason[512];
  strcpy(reason, kvevict_last_error_message());
  cr_assert_eq(kvevict_device_check(KVEVICT_DEVICE_CUDA),
               KVEVICT_ERROR_UNAVAILABLE);
  cr_expect_str_eq(kvevict_last_error_message(), reason);
}

Test(device, unknown_number_is_an_error) {
  EXPECT_INVALID(kvevict_device_check(2), "device", "2");
  EXPECT_INVALID(kvevict_device_check(-1), "device", "-1");
}

Test(dtype, enumeration_ends) {
  EXPECT_ENDS_AT((uint32_t)test_last_dtype() + 1, kvevict_dtype_info,
                 kvevict_dtype_at);
}

Test(simd, targets_end_with_null_and_are_distinct) {
  cr_assert_not_null(kvevict_simd_target_at(0));
  uint32_t n = 0;
  while (kvevict_simd_target_at(n) != NULL) {
    cr_assert(kvevict_simd_target_at(n) == kvevict_simd_target_at(n));
    for (uint32_t i = 0; i < n; ++i) {
      cr_assert_str_neq(kvevict_simd_target_at(i), kvevict_simd_target_at(n));
    }
    cr_assert(++n < 64, "the list of targets does not end");
  }
  cr_assert_null(kvevict_simd_target_at(n + 1));
  cr_assert_null(kvevict_simd_target_at(UINT32_MAX));
}
