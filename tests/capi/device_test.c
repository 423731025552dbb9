#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"

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

Test(dtype, table_is_what_the_header_says) {
  const kvevict_dtype_info kRows[] = {
      {0, KVEVICT_DTYPE_OPAQUE, "opaque", 0, 1, 0, 0, 0, 0, 0, 0},
      {0, KVEVICT_DTYPE_F32, "f32", 4, 1, 1, 1, 1, 4, 0, 0},
      {0, KVEVICT_DTYPE_F16, "f16", 2, 1, 1, 1, 1, 2, 0, 0},
      {0, KVEVICT_DTYPE_BF16, "bf16", 2, 1, 1, 1, 1, 2, 0, 0},
      {0, KVEVICT_DTYPE_FP8_E4M3, "fp8_e4m3", 1, 1, 1, 0, 1, 1, 1, 0},
      {0, KVEVICT_DTYPE_FP8_E5M2, "fp8_e5m2", 1, 1, 1, 0, 1, 1, 1, 0},
      {0, KVEVICT_DTYPE_U8, "u8", 1, 1, 1, 0, 1, 1, 2, 1},
      {0, KVEVICT_DTYPE_I8, "i8", 1, 1, 1, 0, 1, 1, 2, 1},
      {0, KVEVICT_DTYPE_U4, "u4", 0, 1, 1, 0, 2, 1, 2, 1},
      {0, KVEVICT_DTYPE_U4_HALVES, "u4_halves", 0, 1, 1, 0, 2, 1, 2, 1},
      {0, KVEVICT_DTYPE_Q8_0, "q8_0", 0, 1, 1, 0, 32, 34, 0, 0},
      {0, KVEVICT_DTYPE_Q4_0, "q4_0", 0, 1, 1, 0, 32, 18, 0, 0},
  };
  for (uint32_t i = 0; i < sizeof kRows / sizeof kRows[0]; ++i) {
    kvevict_dtype_info info = {.struct_size = sizeof info};
    EXPECT_OK(kvevict_dtype_at(i, &info));
    cr_expect_eq(info.struct_size, sizeof info);
    cr_expect_eq(info.dtype, kRows[i].dtype);
    cr_expect_str_eq(info.name, kRows[i].name);
    cr_expect_eq(info.element_bytes, kRows[i].element_bytes);
    cr_expect_eq(info.can_move, kRows[i].can_move);
    cr_expect_eq(info.can_score, kRows[i].can_score);
    cr_expect_eq(info.can_rotate, kRows[i].can_rotate);
    cr_expect_eq(info.block_elements, kRows[i].block_elements);
    cr_expect_eq(info.block_bytes, kRows[i].block_bytes);
    cr_expect_eq(info.takes_scale, kRows[i].takes_scale);
    cr_expect_eq(info.takes_minimum, kRows[i].takes_minimum);
  }
}

Test(dtype, enumeration_ends_with_an_error_and_untouched_output) {
  kvevict_dtype_info info;
  GUARD(info);
  info.struct_size = sizeof info;
  const kvevict_dtype_info before = info;
  EXPECT_INVALID(kvevict_dtype_at(12, &info), "index", "12");
  EXPECT_INVALID(kvevict_dtype_at(UINT32_MAX, &info), "index");
  cr_assert(memcmp(&info, &before, sizeof info) == 0);
}

Test(dtype, null_and_wrong_struct_size_are_errors) {
  EXPECT_INVALID(kvevict_dtype_at(0, NULL), "out", "NULL");
  GROWN(kvevict_dtype_info) info = {{.struct_size = 0}};
  EXPECT_CHECKS_OUT_STRUCT_SIZE(info, kvevict_dtype_at(1, &info.value));
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
