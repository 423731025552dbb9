// The mock through the library's own table of driver functions.
#ifndef KVEVICT_TESTS_RIG_MOCK_MOCK_TEST_H_
#define KVEVICT_TESTS_RIG_MOCK_MOCK_TEST_H_

#include <criterion/criterion.h>

#include <string>
#include <vector>

#include "cuda/driver.h"
#include "tests/paths.h"
#include "tests/rig/mock/mock.h"
#include "tests/rig/ptx/ptx_test.h"

namespace kvevict::mock {

using cuda::CUcontext;
using cuda::CUdeviceptr;
using cuda::CUfunction;
using cuda::CUgraph;
using cuda::CUgraphExec;
using cuda::CUmodule;
using cuda::CUresult;
using cuda::CUstream;

inline const cuda::Driver& Driver() {
  const cuda::Driver* driver = nullptr;
  cr_assert(cuda::Driver::Open(test_mock_cuda, &driver).ok(), "%s",
            LastErrorMessage());
  return *driver;
}

// A reset mock with the primary context current.
class Device {
 public:
  explicit Device(const Settings& settings = {}) : d(Driver()) {
    Reset(settings);
    cr_assert_eq(d.cuDevicePrimaryCtxRetain(&context, 0), 0);
    cr_assert_eq(d.cuCtxPushCurrent(context), 0);
  }

  const cuda::Driver& d;
  CUcontext context = nullptr;

  CUdeviceptr Allocate(size_t n_bytes) const {
    CUdeviceptr address = 0;
    cr_assert_eq(d.cuMemAlloc(&address, n_bytes), 0);
    return address;
  }
  CUstream MakeStream(unsigned flags = 0) const {
    CUstream stream = nullptr;
    cr_assert_eq(d.cuStreamCreate(&stream, flags), 0);
    return stream;
  }
  uint32_t Word(CUdeviceptr address) const {
    uint32_t word = 0;
    cr_assert_eq(d.cuMemcpyDtoH(&word, address, 4), 0);
    return word;
  }
};

// test(out, in): out[thread in block] = in[0] + thread.
inline std::string AddModule() {
  return ptx::TestModule(R"(
    ld.global.u32 %r0, [%rd19];
    add.u32 %r0, %r0, %r19;
    mul.wide.u32 %rd0, %r19, 4;
    add.s64 %rd0, %rd18, %rd0;
    st.global.u32 [%rd0], %r0;
  )");
}

inline CUresult LaunchTest(const Device& device, CUfunction function,
                           CUdeviceptr out, CUdeviceptr in, CUstream stream,
                           unsigned n_threads = 32, unsigned shared = 0) {
  void* parameters[] = {&out, &in};
  return device.d.cuLaunchKernel(function, 1, 1, 1, n_threads, 1, 1, shared,
                                 stream, parameters, nullptr);
}

inline CUfunction LoadTest(const Device& device, const std::string& ptx,
                           CUmodule* out_module = nullptr) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  cr_assert_eq(device.d.cuModuleLoadData(&module, ptx.c_str()), 0);
  cr_assert_eq(device.d.cuModuleGetFunction(&function, module, "test"), 0);
  if (out_module != nullptr) *out_module = module;
  return function;
}

// Fails unless there is one problem, with these words. Forgets it.
inline void ExpectProblem(const char* words) {
  const std::vector<std::string> problems = Problems();
  cr_expect_eq(problems.size(), 1u, "%zu problems", problems.size());
  for (const std::string& problem : problems) {
    cr_expect(problem.find(words) != std::string::npos, "'%s' is not in: %s",
              words, problem.c_str());
  }
  ClearProblems();
}

inline void ExpectNoProblems() {
  for (const std::string& problem : Problems()) {
    cr_expect_fail("%s", problem.c_str());
  }
}

}  // namespace kvevict::mock

#endif  // KVEVICT_TESTS_RIG_MOCK_MOCK_TEST_H_
