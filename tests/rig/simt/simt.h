// Launches of kernels of cuda/kernels, which are compiled once for every set of constants
// that a program wants, each in a source file of its own:
//
//   #define KV_VARIANT bf16
//   #define KV_K_DTYPE 3
//   #include "cuda/kernels/window_attention.cu"
//
// An entry point is then an ordinary function in namespace kvevict::cuda, or in
// kvevict::cuda::KV_VARIANT. Everything else of the .cu file stands in an unnamed
// namespace, so that variants do not meet.
//
// LaunchErased() of tests/cuda/ptx runs the PTX that NVRTC makes of it.
#ifndef KVEVICT_TESTS_RIG_SIMT_SIMT_H_
#define KVEVICT_TESTS_RIG_SIMT_SIMT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/rig/tensor_core.h"

namespace kvevict::simt {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

// How PTX runs.
struct Options {
  uint64_t seed = 1;            // of the order of threads and blocks
  bool one_warp_ahead = false;  // as far as it can
  // Blocks at work side by side; the others start, in random order, as these
  // end. More than one for kernels in which blocks wait for blocks.
  unsigned resident_blocks = 1;
  rig::TensorCore tensor_core = rig::kToNearest;
};

// The part of Launch that does not depend on the parameters' type.
std::string LaunchErased(void (*call)(const void* context), const void* context,
                         Dim3 grid, Dim3 block, size_t dynamic_shared_bytes,
                         const Options& options);

// Returns the kernel's error, or an empty text.
template <class Params>
std::string Launch(void (*kernel)(const Params&), Dim3 grid, Dim3 block,
                   size_t dynamic_shared_bytes, const Params& params,
                   const Options& options = {}) {
  struct Context {
    void (*kernel)(const Params&);
    const Params* params;
  };
  const Context context = {kernel, &params};
  return LaunchErased(
      [](const void* c) {
        const auto* const call = static_cast<const Context*>(c);
        call->kernel(*call->params);
      },
      &context, grid, block, dynamic_shared_bytes, options);
}

}  // namespace kvevict::simt

#endif  // KVEVICT_TESTS_RIG_SIMT_SIMT_H_
