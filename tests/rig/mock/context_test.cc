// Contexts, devices, and the driver's answers about itself.
#include <dlfcn.h>

#include <thread>

#include "tests/paths.h"
#include "tests/rig/mock/mock_test.h"

namespace kvevict::mock {
namespace {

TestSuite(mock_context);

Test(mock_context, the_stack_belongs_to_the_thread) {
  const Device device;
  std::thread([&] {
    CUcontext current = device.context;
    cr_expect_eq(device.d.cuCtxGetCurrent(&current), 0);
    cr_expect_null(current);
    CUdeviceptr address = 0;
    cr_expect_eq(device.d.cuMemAlloc(&address, 16), 201);
    cr_expect_eq(device.d.cuCtxPopCurrent(&current), 201);
  }).join();
  cr_expect_eq(Problems().size(), 2u);
  ClearProblems();

  CUcontext popped = nullptr;
  cr_expect_eq(device.d.cuCtxPushCurrent(device.context), 0);
  cr_expect_eq(device.d.cuCtxPopCurrent(&popped), 0);
  cr_expect_eq(popped, device.context);
  cr_expect_eq(device.d.cuCtxPopCurrent(&popped), 0);
  cr_expect_eq(device.d.cuCtxPopCurrent(&popped), 201);
  ExpectProblem("no context is current");
}

// A context cannot use memory and streams of another one.
Test(mock_context, contexts_are_apart) {
  const Device device;
  const CUdeviceptr address = device.Allocate(64);
  const CUstream stream = device.MakeStream();
  auto* create = reinterpret_cast<CUresult (*)(CUcontext*, unsigned, int)>(
      dlsym(RTLD_DEFAULT, "cuCtxCreate_v2"));
  cr_assert_not_null(create);
  CUcontext other = nullptr;
  cr_assert_eq(create(&other, 0, 0), 0);

  uint32_t word = 0;
  cr_expect_eq(device.d.cuMemcpyDtoH(&word, address, 4), 1);
  ExpectProblem("in no allocation of the current context");
  cr_expect_eq(device.d.cuMemsetD8Async(address, 0, 4, nullptr), 1);
  ExpectProblem("in no allocation of the current context");
  cr_expect_eq(device.d.cuMemFree(address), 1);
  ExpectProblem("no allocation");
  cr_expect_eq(device.d.cuStreamSynchronize(stream), 400);
  ExpectProblem("another context");
}

// Another test driver has a path of its own; see CMakeLists.txt.
Test(mock_context, an_older_driver_lacks_functions) {
  const Device device;
  cr_expect_not_null(dlsym(RTLD_DEFAULT, "cuLibraryLoadData"));
  void* older = dlopen(test_mock_cuda_11, RTLD_NOW | RTLD_LOCAL);
  cr_assert_not_null(older);
  cr_expect_null(dlsym(older, "cuLibraryLoadData"));
  cr_expect_not_null(dlsym(older, "cuModuleLoadData"));
}

Test(mock_context, leaks) {
  const Device device;
  cr_expect(Leaks().empty());
  const CUdeviceptr address = device.Allocate(64);
  const CUstream stream = device.MakeStream();
  CUmodule module = nullptr;
  LoadTest(device, AddModule(), &module);
  cr_expect_eq(Leaks().size(), 3u);
  cr_expect_eq(device.d.cuMemFree(address), 0);
  cr_expect_eq(device.d.cuStreamDestroy(stream), 0);
  cr_expect_eq(device.d.cuModuleUnload(module), 0);
  cr_expect(Leaks().empty());
  cr_expect_eq(device.d.cuMemFree(address), 1);
  ExpectProblem("freed before");
  cr_expect_eq(device.d.cuModuleUnload(module), 400);
  ExpectProblem("unknown module");
}

}  // namespace
}  // namespace kvevict::mock
