// Small kernels written in PTX, run and read back.
#ifndef KVEVICT_TESTS_RIG_PTX_PTX_TEST_H_
#define KVEVICT_TESTS_RIG_PTX_PTX_TEST_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/launch.h"
#include "tests/rig/ptx/memory.h"
#include "tests/rig/ptx/module.h"

namespace kvevict::ptx {

// A module with the entry `test(out, in)` and the given body. It has registers %p
// %rs %r %rd %f %fd 0 to 19; %rd18 holds `out`, %rd19 `in`, %r19 the thread in
// the block.
inline std::string TestModule(const std::string& body,
                              const std::string& variables = "",
                              int target = 80) {
  return ".version 7.8\n.target sm_" + std::to_string(target) +
         "\n.address_size 64\n" + variables + R"(
.visible .entry test(.param .u64 out, .param .u64 in)
{
  .reg .pred %p<20>;
  .reg .b16 %rs<20>;
  .reg .b32 %r<20>;
  .reg .f32 %f<20>;
  .reg .b64 %rd<20>;
  .reg .f64 %fd<20>;
  ld.param.u64 %rd18, [out];
  ld.param.u64 %rd19, [in];
  mov.u32 %r19, %tid.x;
)" + body +
         "\n  ret;\n}\n";
}

// The line of the first statement of `body`, without variables.
constexpr uint32_t kFirstLineOfBody = 16;

struct TestRun {
  std::string ptx;
  std::vector<uint8_t> in;  // at least one byte
  size_t out_bytes = 8;     // 0xFF before
  LaunchShape shape;
  LaunchOptions options;
  Counters counters;  // out
};

// The bytes of `out`. Throws Error.
inline std::vector<uint8_t> Run(TestRun& run) {
  Memory memory;
  const Module module(run.ptx, memory);
  struct {
    uint64_t out;
    uint64_t in;
  } params = {memory.Allocate(run.out_bytes),
              memory.Allocate(run.in.size() + 1)};
  if (!run.in.empty()) {
    std::memcpy(memory.At(params.in, run.in.size()), run.in.data(),
                run.in.size());
  }
  Launch(*module.Find("test"), run.shape,
         {reinterpret_cast<const uint8_t*>(&params), sizeof(params)}, memory,
         run.options, run.counters);
  const uint8_t* out = memory.At(params.out, run.out_bytes);
  return {out, out + run.out_bytes};
}

// Returns n numbers.
template <class T>
std::vector<T> RunFor(const std::string& ptx, size_t n,
                      const LaunchShape& shape = {},
                      const std::vector<uint8_t>& in = {},
                      const LaunchOptions& options = {}) {
  TestRun run = {ptx, in, n * sizeof(T), shape, options, {}};
  const std::vector<uint8_t> bytes = Run(run);
  std::vector<T> values(n);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The error; "" if there was none.
inline std::string ErrorOf(const std::string& ptx,
                           const LaunchShape& shape = {},
                           const LaunchOptions& options = {}) {
  try {
    TestRun run = {ptx, {}, 64, shape, options, {}};
    Run(run);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_PTX_TEST_H_
