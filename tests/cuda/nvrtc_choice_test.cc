// Tests which of several libnvrtc is taken: LD_LIBRARY_PATH names fakes of 13.4
// (sm_75 80 90 120), 12.4 (70 75 80 90) and 11.8 (52 70 72 80).
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <string.h>

#include <string>

#include "core/context.h"
#include "cuda/device.h"
#include "cuda/jit.h"
#include "tests/paths.h"
#include "tests/rig/mock/mock.h"

namespace kvevict::cuda {
namespace {

const std::string kFakes = std::string(test_fakes_dir) + "/lib";

// The major version that is taken; 0: UNAVAILABLE.
int Choice(int driver_major, int sm) {
  const Nvrtc* nvrtc = nullptr;
  const Status status = Nvrtc::Open(nullptr, driver_major, sm, &nvrtc);
  if (status.ok()) return CudaMajor(nvrtc->version());
  cr_expect_eq(status.code(), KVEVICT_ERROR_UNAVAILABLE);
  return 0;
}

void ExpectInMessage(std::initializer_list<const char*> words) {
  for (const char* word : words) {
    cr_expect(strstr(LastErrorMessage(), word) != nullptr, "'%s' is not in: %s",
              word, LastErrorMessage());
  }
}

TestSuite(nvrtc_choice);

Test(nvrtc_choice, newest_that_suits_driver_and_gpu) {
  const struct {
    int driver_major, sm, nvrtc_major;
  } kRows[] = {// The newest with cubins for the GPU.
               {13, 75, 13},
               {13, 120, 13},
               {13, 70, 12},
               {14, 70, 12},
               {13, 72, 11},  // 13.4 cannot, 12.4 makes PTX
               // Nothing newer than the driver.
               {12, 80, 12},
               {12, 120, 12},
               {11, 80, 11},
               {11, 90, 11},
               // Else the newest with PTX: none knows 7.1, 9.7 and 40.1.
               {13, 71, 12},
               {11, 71, 11},
               {12, 97, 12},
               {13, 401, 13}};
  for (const auto& row : kRows) {
    cr_expect_eq(Choice(row.driver_major, row.sm), row.nvrtc_major,
                 "CUDA %d, sm_%d", row.driver_major, row.sm);
  }
}

// An older one would make PTX for the same architecture, which is no better.
Test(nvrtc_choice, what_an_older_one_makes_ptx_for_too) {
  const Nvrtc* nvrtc = nullptr;
  Target target;
  cr_assert(Nvrtc::Open("", 13, 81, &nvrtc).ok());
  cr_assert(nvrtc->FindTarget(81, &target).ok());
  cr_expect_eq(CudaMajor(nvrtc->version()), 13);
  cr_expect(target.sm == 80 && target.ptx);
}

Test(nvrtc_choice, tells_what_was_found_if_none_is_old_enough) {
  cr_expect_eq(Choice(13, 50), 0);
  ExpectInMessage({"device cuda: ", "sm_50", "NVRTC 13.4 (sm 75 80 90 120), ",
                   "NVRTC 12.4 (sm 70 75 80 90), ",
                   "NVRTC 11.8 (sm 52 70 72 80)"});
  cr_expect_eq(Choice(12, 50), 0);
  cr_expect_null(strstr(LastErrorMessage(), "13.4"));
}

// A board's chip knows less than the GPUs after it, and CUDA 13 gave sm_101
// another number.
Test(nvrtc_choice, ptx_for_no_board) {
  const auto target = [](const char* library, int sm) {
    const Nvrtc* nvrtc = nullptr;
    Target target;
    cr_assert(Nvrtc::Open((kFakes + library).c_str(), 13, sm, &nvrtc).ok(),
              "%s", LastErrorMessage());
    cr_assert(nvrtc->FindTarget(sm, &target).ok());
    return target.name();
  };
  cr_expect_str_eq(target("fake_nvrtc_12_8.so", 103).c_str(), "compute_100");
  cr_expect_str_eq(target("fake_nvrtc_12_8.so", 88).c_str(), "compute_80");
  cr_expect_str_eq(target("fake_nvrtc_12_8.so", 101).c_str(), "sm_101");
  cr_expect_str_eq(target("fake_nvrtc_12_8.so", 87).c_str(), "sm_87");
  cr_expect_str_eq(target("fake_nvrtc_12_8.so", 121).c_str(), "compute_120");
  cr_expect_str_eq(target("fake_nvrtc_11.so", 75).c_str(), "compute_70");
}

Test(nvrtc_choice, tells_what_was_tried_if_there_is_none) {
  cr_expect_eq(Choice(10, 80), 0);
  ExpectInMessage({"no libnvrtc that suits a driver of CUDA 10"});
}

Test(nvrtc_choice, opens_nothing_older_without_need) {
  cr_expect_eq(Choice(13, 80), 13);
  cr_expect_not_null(dlopen("libnvrtc.so.13", RTLD_NOW | RTLD_NOLOAD));
  cr_expect_null(dlopen("libnvrtc.so.12", RTLD_NOW | RTLD_NOLOAD));
}

Test(nvrtc_choice, the_same_again) {
  const Nvrtc* first = nullptr;
  const Nvrtc* second = nullptr;
  cr_assert(Nvrtc::Open(nullptr, 13, 70, &first).ok());
  cr_assert(Nvrtc::Open("libnvrtc.so.12", 12, 90, &second).ok());
  cr_expect_eq(first, second);
}

Test(nvrtc_choice, serves_the_gpu_that_is_there) {
  const std::string driver = kFakes + "fake_driver_sm70.so";
  cr_expect(CheckAvailable({.driver = driver.c_str()}).ok(), "%s",
            LastErrorMessage());
}

// The context is on a GPU 7.0 with a driver of CUDA 13.
Test(nvrtc_choice, serves_the_gpu_of_a_context) {
  mock::Reset({.compute_capability = 70, .driver_version = 13000});
  const Driver* driver = nullptr;
  cr_assert(Driver::Open(test_mock_cuda, &driver).ok());
  CUcontext cuda_context = nullptr;
  cr_assert(driver->cuDevicePrimaryCtxRetain(&cuda_context, 0) == CUDA_SUCCESS);

  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.device = KVEVICT_DEVICE_CUDA;
  options.cuda_context = cuda_context;
  options.libcuda_path = test_mock_cuda;
  Context* context = nullptr;
  cr_assert(Context::Create(options, &context).ok(), "%s", LastErrorMessage());
  context->Unref();

  const std::string too_new = kFakes + "fake_nvrtc_13.so";
  options.libnvrtc_path = too_new.c_str();
  cr_expect_eq(Context::Create(options, &context).code(),
               KVEVICT_ERROR_UNAVAILABLE);
  ExpectInMessage(
      {"NVRTC 13.4 (sm 75 80 90 120)", "sm_70", "name an older libnvrtc"});
  cr_assert(driver->cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
}

}  // namespace
}  // namespace kvevict::cuda
