// Reports on three GPUs, 6.1, 9.0 and 8.9, with a CUDA 12.4 driver and NVRTC 12.4.
// LD_LIBRARY_PATH puts these libraries before the system's.
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"

static kvevict_gpu_info gpu_at(uint32_t index) {
  kvevict_gpu_info info = {.struct_size = sizeof info};
  EXPECT_OK(kvevict_gpu_at(index, &info));
  cr_assert_eq(info.struct_size, sizeof info);
  cr_expect_str_eq(info.name, "Fake GPU");
  cr_expect_eq(info.driver_version, 12040);
  return info;
}

static void expect_usable(uint32_t index, uint32_t capability,
                          const char* target) {
  const kvevict_gpu_info info = gpu_at(index);
  cr_expect_eq(info.compute_capability, capability);
  cr_expect_eq(info.nvrtc_version, 12040);
#ifdef _WIN32
  cr_expect_str_eq(info.nvrtc, "nvrtc64_120_0.dll");
#else
  cr_expect_str_eq(info.nvrtc, "libnvrtc.so.12");
#endif
  cr_expect_str_eq(info.target, target);
  cr_expect_str_eq(info.problem, "");
}

Test(gpus, one_that_is_too_old_says_so) {
  const kvevict_gpu_info info = gpu_at(0);
  cr_expect_eq(info.compute_capability, 61);
  cr_expect_eq(info.nvrtc_version, 0);
  cr_expect_str_eq(info.nvrtc, "");
  cr_expect_str_eq(info.target, "");
  cr_expect_str_eq(info.problem,
                   "device cuda: GPU 0, Fake GPU, has compute capability 6.1; "
                   "7.0 or newer is needed");
  // A row that names a problem is no failure.
  cr_expect_str_eq(kvevict_last_error_message(), "");
}

Test(gpus, machine_code_for_those_that_nvrtc_knows) {
  expect_usable(1, 90, "sm_90");
}

Test(gpus, ptx_for_the_others) { expect_usable(2, 89, "compute_80"); }

Test(gpus, texts_are_static) {
  for (uint32_t i = 0; i < 3; ++i) {
    const kvevict_gpu_info first = gpu_at(i);
    const kvevict_gpu_info second = gpu_at(i);
    cr_expect(memcmp(&first, &second, sizeof first) == 0);
  }
}

Test(gpus, end_after_the_last) {
  EXPECT_ENDS_AT(3, kvevict_gpu_info, kvevict_gpu_at);
}

Test(gpus, one_is_enough_for_the_device) {
  EXPECT_OK(kvevict_device_check(KVEVICT_DEVICE_CUDA));
}
