// Messages say exactly why CUDA cannot be used. The paths of the fakes come from CMake.
#include <criterion/criterion.h>
#include <string.h>

#include <string>
#include <thread>
#include <vector>

#include "cuda/device.h"
#include "cuda/jit.h"
#include "tests/paths.h"

namespace kvevict::cuda {
namespace {

const std::string kFakes = std::string(test_fakes_dir) + "/";

std::string Fake(const char* name) {
  return kFakes + KVEVICT_FAKE_PREFIX + name + KVEVICT_FAKE_SUFFIX;
}

TestSuite(available);

Test(available, all_is_there) {
  const Status status =
      CheckAvailable({.driver = Fake("fake_driver").c_str(),
                      .nvrtc = Fake("fake_nvrtc_12").c_str()});
  cr_assert(status.ok(), "%s", LastErrorMessage());
}

// A driver and a libnvrtc with which CUDA is UNAVAILABLE, by their paths, or names of
// fakes, and the words that say why.
struct Refused {
  const char* driver;
  const char* nvrtc;
  std::vector<const char*> words;
};

Test(available, says_why_not) {
  const Refused kRows[] = {
      {"/nowhere/libcuda.so.1",
       "",
       {"no driver", "/nowhere/libcuda.so.1", "No such file"}},
      {"fake_nvrtc_12", "", {"has no cuInit"}},
      {"fake_driver_without_launch", "", {"no cuLaunchKernel"}},
      {"fake_driver_stub", "", {"cuInit", "34", "stub"}},
      {"fake_driver_no_device",
       "",
       {"cuInit", "CUDA_ERROR_NO_DEVICE", "100", "no GPU"}},
      {"fake_driver_no_count", "", {"sees no GPU"}},
      {"fake_driver_old", "", {"CUDA 11.1", "11.2 or newer"}},
      // It is too old to have all symbols.
      {"fake_driver_old_and_short", "", {"CUDA 10.2", "11.2 or newer"}},
      {"fake_driver_sm61",
       "fake_nvrtc_12",
       {"Fake GPU", "6.1", "7.0 or newer"}},
      {"fake_driver",
       "/nowhere/libnvrtc.so.12",
       {"no libnvrtc", "/nowhere/libnvrtc.so.12", "No such file"}},
      {"fake_driver", "fake_driver", {"libnvrtc", "no symbol nvrtcVersion"}},
      {"fake_driver",
       "fake_nvrtc_13",
       {"libnvrtc is of CUDA 13.4", "driver is of CUDA 12"}},
      {"fake_driver_sm70",
       "fake_nvrtc_13",
       {"NVRTC 13.4 (sm 75 80 90 120)", "sm_70", "older libnvrtc"}},
      // Without a path it is passed over: see nvrtc_choice_test.cc.
      {"fake_driver",
       "fake_nvrtc_11_6",
       {"libnvrtc is of CUDA 11.6", "11.7 or newer", "arguments"}},
  };
  const auto path_of = [](const char* name) {
    return *name == '\0' || *name == '/' ? std::string(name) : Fake(name);
  };
  for (const Refused& row : kRows) {
    const std::string driver = path_of(row.driver);
    const std::string nvrtc = path_of(row.nvrtc);
    const Status status =
        CheckAvailable({.driver = driver.c_str(), .nvrtc = nvrtc.c_str()});
    cr_expect_eq(status.code(), KVEVICT_ERROR_UNAVAILABLE, "%s, %s", row.driver,
                 row.nvrtc);
    for (const char* word : row.words) {
      cr_expect(strstr(LastErrorMessage(), word) != nullptr,
                "%s, %s: '%s' is not in: %s", row.driver, row.nvrtc, word,
                LastErrorMessage());
    }
  }
}

Test(available, no_driver_under_the_systems_name) {
  const Driver* driver;
  if (Driver::Open(nullptr, &driver).ok()) return;  // there is one
  // Everything that is opened is named in the message, and only once.
  const std::string first = LastErrorMessage();
  cr_assert_not(Driver::Open("", &driver).ok());
  cr_assert_str_eq(LastErrorMessage(), first.c_str());
  cr_assert(strstr(first.c_str(), "device cuda: ") != nullptr);
}

// Only names that suit the driver are tried.
Test(available, libnvrtc_of_the_drivers_major_or_older) {
  const Nvrtc* nvrtc;
  if (Nvrtc::Open(nullptr, 11, 80, &nvrtc).ok()) {
    cr_assert_eq(CudaMajor(nvrtc->version()), 11);
    return;
  }
  const std::string message = LastErrorMessage();
#ifdef _WIN32
  const char *const of_11 = "nvrtc64_112_0.dll", *const of_12 = "nvrtc64_12";
#else
  const char *const of_11 = "libnvrtc.so.11.2", *const of_12 = "libnvrtc.so.12";
#endif
  cr_expect(message.find(of_11) != std::string::npos);
  cr_expect(message.find("driver of CUDA 11") != std::string::npos);
  cr_expect(message.find(of_12) == std::string::npos);
}

Test(available, a_path_is_opened_once) {
  const std::string path = Fake("fake_driver");
  std::vector<const Driver*> drivers(8);
  std::vector<std::thread> threads;
  for (const Driver*& driver : drivers) {
    threads.emplace_back([&] { (void)Driver::Open(path.c_str(), &driver); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Driver* driver : drivers) {
    cr_assert_not_null(driver);
    cr_assert_eq(driver, drivers[0]);
  }
  cr_assert_eq(drivers[0]->version, 12040);
}

Test(available, errors_name_the_call_and_the_result) {
  const Driver* driver;
  cr_assert(Driver::Open(Fake("fake_driver").c_str(), &driver).ok());
  const auto fail = [&](int result) {
    return DriverStatus(*driver, static_cast<CUresult>(result),
                        "cuLaunchKernel of topk.select_topk, grid %u", 3u);
  };
  cr_expect_eq(fail(1).code(), KVEVICT_ERROR_DEVICE);
  cr_expect_str_eq(
      LastErrorMessage(),
      "cuLaunchKernel of topk.select_topk, grid 3: CUDA_OTHER (1)");
  cr_expect_eq(fail(2).code(), KVEVICT_ERROR_OUT_OF_MEMORY);
  for (const int lost :
       {214, 220, 226, 700, 702, 709, 714, 716, 719, 721, 810, 911}) {
    (void)fail(lost);
    cr_expect(strstr(LastErrorMessage(), "context lost") != nullptr, "%d",
              lost);
  }
  for (const int kept : {1, 2, 201, 400, 701, 720, 906}) {
    (void)fail(kept);
    cr_expect(strstr(LastErrorMessage(), "lost") == nullptr, "%d", kept);
  }
}

}  // namespace
}  // namespace kvevict::cuda
