// Modules, libraries, launches; failures on demand.
#include "tests/rig/mock/mock_test.h"

namespace kvevict::mock {
namespace {

TestSuite(mock_code);

Test(mock_code, images) {
  const Device device;
  CUmodule module = nullptr;
  cr_expect_eq(device.d.cuModuleLoadData(&module,
                                         "\x7f"
                                         "ELF"),
               200);
  ExpectProblem("PTX only");
  cr_expect_eq(device.d.cuModuleLoadData(
                   &module, ptx::TestModule("what.u32 %r0;").c_str()),
               218);
  ExpectProblem("line 16: unknown opcode what.u32");
  cr_expect_eq(
      device.d.cuModuleLoadData(&module, ptx::TestModule("", "", 92).c_str()),
      209);
  std::string newer = ptx::TestModule("");
  newer.replace(newer.find("7.8"), 3, "8.5");
  cr_expect_eq(device.d.cuModuleLoadData(&module, newer.c_str()), 222);
  std::string comments = "// made by hand\n//\n" + ptx::TestModule("");
  cr_expect_eq(device.d.cuModuleLoadData(&module, comments.c_str()), 0);
  CUfunction function = nullptr;
  cr_expect_eq(device.d.cuModuleGetFunction(&function, module, "none"), 500);
  std::string wide = ptx::TestModule("");
  wide.replace(wide.find(".param .u64 in"), 14, ".param .b8 in[4096]");
  cr_expect_eq(device.d.cuModuleLoadData(&module, wide.c_str()), 218);
  ExpectProblem("4096 bytes of arguments");
}

Test(mock_code, libraries_follow_the_context) {
  const Device device;
  cuda::CUlibrary library = nullptr;
  cuda::CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  const std::string ptx = AddModule();
  cr_assert_eq(device.d.cuLibraryLoadData(&library, ptx.c_str(), nullptr,
                                          nullptr, 0, nullptr, nullptr, 0),
               0);
  cr_expect_eq(device.d.cuLibraryGetKernel(&kernel, library, "none"), 500);
  cr_assert_eq(device.d.cuLibraryGetKernel(&kernel, library, "test"), 0);
  cr_assert_eq(device.d.cuKernelGetFunction(&function, kernel), 0);
  const CUdeviceptr memory = device.Allocate(128);
  cr_assert_eq(device.d.cuMemsetD32Async(memory, 3, 1, nullptr), 0);
  cr_expect_eq(LaunchTest(device, function, memory, memory, nullptr, 1), 0);
  cr_expect_eq(device.Word(memory), 3u);
  cr_expect_eq(device.d.cuLibraryUnload(library), 0);
  cr_expect_eq(LaunchTest(device, function, memory, memory, nullptr), 400);
  ExpectProblem("unknown function");
}

Test(mock_code, shapes_and_shared_memory) {
  const Device device;
  const CUfunction function =
      LoadTest(device, ptx::TestModule("st.shared.u32 [d], %r19;",
                                       ".extern .shared .align 16 .b8 d[];"));
  const CUdeviceptr memory = device.Allocate(4);
  cr_expect_eq(LaunchTest(device, function, memory, memory, nullptr, 1025), 1);
  ExpectProblem("block 1025");
  cr_expect_eq(LaunchTest(device, function, memory, memory, nullptr, 0), 1);
  ExpectProblem("block 0");
  cr_expect_eq(device.d.cuLaunchKernel(function, 1, 65536, 1, 1, 1, 1, 0,
                                       nullptr, nullptr, nullptr),
               1);
  ExpectProblem("grid 1 x 65536 x 1");

  constexpr unsigned kMore = 100 << 10;
  cr_expect_eq(LaunchTest(device, function, memory, memory, nullptr, 1, kMore),
               1);
  ExpectProblem("dynamic shared memory");
  const auto attribute = cuda::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  cr_expect_eq(device.d.cuFuncSetAttribute(function, attribute, 228 << 10), 1);
  ExpectProblem("more shared memory");
  cr_expect_eq(device.d.cuFuncSetAttribute(function, attribute, kMore), 0);
  cr_expect_eq(LaunchTest(device, function, memory, memory, nullptr, 1, kMore),
               0);
  cr_expect_eq(device.d.cuCtxSynchronize(), 0);
}

// A fault shows at the next wait, and stays.
Test(mock_code, faults_end_the_context) {
  const Device device;
  const CUfunction function = LoadTest(device, AddModule());
  const CUdeviceptr memory = device.Allocate(64);
  cr_expect_eq(LaunchTest(device, function, memory, memory, nullptr), 0);
  ExpectNoProblems();
  cr_expect_eq(device.d.cuCtxSynchronize(), 700);
  ExpectProblem("kernel test, line");
  CUdeviceptr other = 0;
  cr_expect_eq(device.d.cuMemAlloc(&other, 4), 700);
  cr_expect_eq(LaunchTest(device, function, memory, memory, nullptr), 700);
  // Contexts are still known.
  CUcontext current = nullptr;
  cr_expect_eq(device.d.cuCtxGetCurrent(&current), 0);
  Reset();
  cr_expect_eq(device.d.cuDevicePrimaryCtxRetain(&current, 0), 0);
}

Test(mock_code, failures_on_demand) {
  const Device device;
  CUdeviceptr a = 0;
  FailCall("cuMemAlloc_v2", 2, 2);
  cr_expect_eq(device.d.cuMemAlloc(&a, 4), 0);
  cr_expect_eq(device.d.cuMemAlloc(&a, 4), 2);
  cr_expect_eq(device.d.cuMemAlloc(&a, 4), 0);

  const CUfunction function = LoadTest(device, AddModule());
  const CUdeviceptr memory = device.Allocate(128);
  const CUdeviceptr in = device.Allocate(4);
  FailCall("cuLaunchKernel", 1, 701);
  cr_expect_eq(LaunchTest(device, function, memory, in, nullptr), 701);
  cr_expect_eq(LaunchTest(device, function, memory, in, nullptr), 0);
  FailKernel(2, 719);
  cr_expect_eq(LaunchTest(device, function, memory, in, nullptr), 0);
  cr_expect_eq(device.d.cuStreamSynchronize(nullptr), 719);
  cr_expect_eq(Launches("test"), 1u);
  cr_expect_eq(device.d.cuMemAlloc(&a, 4), 719);

  Reset({.n_devices = 0});
  cr_expect_eq(device.d.cuInit(0), 100);
  FailCall("cuInit", 1, 803);
  cr_expect_eq(device.d.cuInit(0), 803);
  FailCall("cuInit", 1, 803);
  ForgetFailures();
  cr_expect_eq(device.d.cuInit(0), 100);
}

}  // namespace
}  // namespace kvevict::mock
