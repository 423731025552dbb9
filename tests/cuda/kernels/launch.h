// Launches kernels and compares what they leave in memory.
#ifndef KVEVICT_TESTS_CUDA_KERNELS_LAUNCH_H_
#define KVEVICT_TESTS_CUDA_KERNELS_LAUNCH_H_

#include <bit>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <type_traits>
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

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// NaN has many bit patterns, so all count as one.
inline uint32_t BitsOf(float v) {
  return std::isnan(v) ? 0x7FC00000u : std::bit_cast<uint32_t>(v);
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

// Floats are compared by their bits.
template <class T>
void ExpectSame(const std::vector<T>& actual, const std::vector<T>& expected,
                const char* what, uint32_t turn) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      if (BitsOf(actual[i]) == BitsOf(expected[i])) continue;
    } else {
      if (actual[i] == expected[i]) continue;
    }
    Fail("%s, case %u: element %zu of %zu is %.9g, not %.9g", what, turn, i,
         expected.size(), static_cast<double>(actual[i]),
         static_cast<double>(expected[i]));
  }
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_CUDA_KERNELS_LAUNCH_H_
