// Tests the way from source text to the result of a kernel: the loader, a real NVRTC and
// the driver that runs PTX on the CPU. Built twice: for drivers with and without
// libraries.
#include <criterion/criterion.h>
#include <string.h>

#include <cstdio>
#include <string>
#include <vector>

#include "cuda/context_scope.h"
#include "cuda/device.h"
#include "cuda/kernels/positions.h"
#include "cuda/module_cache.h"
#include "tests/paths.h"
#include "tests/rig/mock/mock.h"
#include "tests/rig/nvrtcs.h"

namespace kvevict::cuda {
namespace {

constexpr uint32_t kLayers = 5;

// No NVRTC knows this GPU, so it compiles PTX for sm_80.
constexpr int kUnknownGpu = 81;

const Driver& OpenDriver() {
  const Driver* driver = nullptr;
  cr_assert(Driver::Open(KVEVICT_MOCK_PATH, &driver).ok(), "%s",
            LastErrorMessage());
  return *driver;
}

// The newest NVRTC whose code the mock's driver takes.
const Nvrtc& OpenNvrtc() {
  for (const Nvrtc* nvrtc : FindNvrtcs()) {
    if (nvrtc->version() <= KVEVICT_MOCK_VERSION) return *nvrtc;
  }
  fprintf(stderr,
          "skipped: no libnvrtc here for a driver of CUDA %d; "
          "pkg/fetch_nvrtc.sh gets one\n",
          CudaMajor(KVEVICT_MOCK_VERSION));
  cr_skip_test("no libnvrtc");
}

struct Scene {
  explicit Scene(int compute_capability = kUnknownGpu) {
    mock::Reset({.compute_capability = compute_capability,
                 .driver_version = KVEVICT_MOCK_VERSION});
    cr_assert(driver.cuDevicePrimaryCtxRetain(&cuda_context, 0) ==
              CUDA_SUCCESS);
    cr_assert(scope.Enter(cuda_context).ok());
    cr_assert(Context::Create(KVEVICT_CONTEXT_OPTIONS_INIT, &context).ok());
    cache = std::make_unique<ModuleCache>(*context, driver, nvrtc);
  }
  ~Scene() {
    cache.reset();
    context->Unref();
    for (const std::string& problem : mock::Problems()) {
      cr_expect(false, "%s", problem.c_str());
    }
    cr_assert(driver.cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    for (const std::string& leak : mock::Leaks()) {
      cr_expect(false, "left: %s", leak.c_str());
    }
  }

  Status Find(ModuleId module, CUstream stream, const Module** out) {
    return cache->Find({.module = module}, stream, out);
  }

  const Driver& driver = OpenDriver();
  const Nvrtc& nvrtc = OpenNvrtc();
  CUcontext cuda_context = nullptr;
  Context* context = nullptr;
  ContextScope scope{driver};
  std::unique_ptr<ModuleCache> cache;
};

TestSuite(loader);

Test(loader, runs_a_kernel_that_it_compiled) {
  Scene s;
  const Driver& driver = s.driver;
  const Module* module = nullptr;
  cr_assert(s.Find(ModuleId::positions, nullptr, &module).ok(), "%s",
            LastErrorMessage());

  CUdeviceptr lengths = 0;
  cr_assert(driver.cuMemAlloc(&lengths, kLayers * 8) == CUDA_SUCCESS);
  LengthsParams params = {};
  params.lengths = lengths;
  params.n_lists = kLayers;
  params.logical = 1000;
  for (uint32_t i = 0; i < kLayers; ++i) params.values[i] = 10 + i;
  void* arguments[] = {&params};
  cr_assert(driver.cuLaunchKernel(module->function(KernelId::set_lengths), 1, 1,
                                  1, kPositionsThreads, 1, 1, 0, nullptr,
                                  arguments, nullptr) == CUDA_SUCCESS);
  uint32_t found[2 * kLayers];
  cr_assert(driver.cuMemcpyDtoH(found, lengths, sizeof(found)) == CUDA_SUCCESS);
  for (uint32_t i = 0; i < kLayers; ++i) {
    cr_expect_eq(found[2 * i], 10 + i);
    cr_expect_eq(found[2 * i + 1], 1000);
  }
  cr_assert(driver.cuMemFree(lengths) == CUDA_SUCCESS);
}

Test(loader, loads_nothing_within_a_capture) {
  Scene s;
  const Driver& driver = s.driver;
  const Module* prepared = nullptr;
  const Module* module = nullptr;
  cr_assert(s.Find(ModuleId::positions, nullptr, &prepared).ok());
  CUstream stream = nullptr;
  cr_assert(driver.cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  cr_assert(driver.cuStreamBeginCapture(
                stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);

  cr_expect(s.Find(ModuleId::positions, stream, &module).ok());
  cr_expect_eq(module, prepared);
  cr_expect_eq(s.Find(ModuleId::observe, stream, &module).code(),
               KVEVICT_ERROR_UNSUPPORTED);
  cr_expect(strstr(LastErrorMessage(), "not prepared") != nullptr);
  // The legacy default stream would wait for the captured one.
  cr_expect_eq(s.Find(ModuleId::observe, nullptr, &module).code(),
               KVEVICT_ERROR_UNSUPPORTED);

  CUgraph graph = nullptr;
  cr_assert(driver.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS,
            "the capture was spoilt");
  cr_assert(driver.cuGraphDestroy(graph) == CUDA_SUCCESS);
  cr_assert(driver.cuStreamDestroy(stream) == CUDA_SUCCESS);
}

// A capture on another stream does not keep this one from being prepared.
Test(loader, loads_while_another_stream_captures) {
  Scene s;
  const Driver& driver = s.driver;
  CUstream streams[2] = {};
  for (CUstream& stream : streams) {
    cr_assert(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) ==
              CUDA_SUCCESS);
  }
  cr_assert(driver.cuStreamBeginCapture(
                streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  const Module* module = nullptr;
  cr_expect(s.Find(ModuleId::observe, streams[1], &module).ok(), "%s",
            LastErrorMessage());
  CUgraph graph = nullptr;
  cr_assert(driver.cuStreamEndCapture(streams[0], &graph) == CUDA_SUCCESS,
            "the capture was spoilt");
  cr_assert(driver.cuGraphDestroy(graph) == CUDA_SUCCESS);
  for (CUstream stream : streams) {
    cr_assert(driver.cuStreamDestroy(stream) == CUDA_SUCCESS);
  }
}

// Whichever driver call fails, the error names it, nothing is left, and the
// next try succeeds.
Test(loader, every_call_may_fail) {
  Scene s;
  std::vector<const char*> calls = {"cuStreamIsCapturing", "cuCtxGetDevice",
                                    "cuDeviceGetAttribute"};
  if (s.driver.has_libraries()) {
    calls.insert(calls.end(), {"cuLibraryLoadData", "cuLibraryGetKernel",
                               "cuKernelGetFunction"});
  } else {
    calls.insert(calls.end(), {"cuModuleLoadData", "cuModuleGetFunction"});
  }
  for (const char* call : calls) {
    mock::FailCall(call, 1, CUDA_ERROR_OUT_OF_MEMORY);
    const Module* module = nullptr;
    cr_expect_eq(s.Find(ModuleId::positions, nullptr, &module).code(),
                 KVEVICT_ERROR_OUT_OF_MEMORY, "%s", call);
    cr_expect(strstr(LastErrorMessage(), call) != nullptr &&
                  strstr(LastErrorMessage(), "CUDA_ERROR_OUT_OF_MEMORY (2)"),
              "%s: %s", call, LastErrorMessage());
    cr_expect_null(module);
  }
  const Module* module = nullptr;
  cr_expect(s.Find(ModuleId::positions, nullptr, &module).ok());
}

Test(loader, says_when_the_context_is_lost) {
  Scene s;
  mock::FailCall(
      s.driver.has_libraries() ? "cuLibraryLoadData" : "cuModuleLoadData", 1,
      CUDA_ERROR_ILLEGAL_ADDRESS);
  const Module* module = nullptr;
  cr_expect_eq(s.Find(ModuleId::positions, nullptr, &module).code(),
               KVEVICT_ERROR_DEVICE);
  cr_expect(strstr(LastErrorMessage(),
                   "of positions: CUDA_ERROR_ILLEGAL_ADDRESS (700); context "
                   "lost") != nullptr,
            "%s", LastErrorMessage());
  mock::ClearProblems();
}

}  // namespace
}  // namespace kvevict::cuda
