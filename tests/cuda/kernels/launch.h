// Launches kernels and compares what they leave in memory.
#ifndef KVEVICT_TESTS_CUDA_KERNELS_LAUNCH_H_
#define KVEVICT_TESTS_CUDA_KERNELS_LAUNCH_H_

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/kernels/random.h"
#include "tests/rig/simt/simt.h"

namespace kvevict {

[[noreturn, gnu::format(printf, 1, 2)]] inline void Fail(const char* format,
                                                         ...) {
  std::va_list args;
  va_start(args, format);
  std::vfprintf(stderr, format, args);
  va_end(args);
  std::fputc('\n', stderr);
  std::exit(1);
}

inline uint64_t Address(const void* p) { return reinterpret_cast<uint64_t>(p); }

// Warps take turns, or one runs ahead.
inline simt::Options Schedule(uint32_t turn, uint32_t resident_blocks = 1) {
  simt::Options options;
  options.one_warp_ahead = turn % 4 == 2;
  options.seed = turn + 1;
  options.resident_blocks = resident_blocks;
  return options;
}

template <class Params>
void Run(void (*kernel)(const Params&), simt::Dim3 grid, uint32_t n_threads,
         const Params& params, const simt::Options& options) {
  const std::string error =
      simt::Launch(kernel, grid, {n_threads}, 0, params, options);
  if (!error.empty()) Fail("%s", error.c_str());
}

template <class T>
void ExpectSame(const std::vector<T>& actual, const std::vector<T>& expected,
                const char* what, uint32_t turn) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (actual[i] == expected[i]) continue;
    Fail("%s, case %u: element %zu of %zu is %lld, not %lld", what, turn, i,
         expected.size(), static_cast<long long>(actual[i]),
         static_cast<long long>(expected[i]));
  }
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_CUDA_KERNELS_LAUNCH_H_
