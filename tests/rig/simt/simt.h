// Runs the kernels of cuda/kernels on the CPU, one fiber per CUDA thread.
//
// How a test uses it. A kernel file is compiled once for every set of constants
// that the test wants, each in a source file of its own:
//
//   // pool1d_kernels.cc: a module without constants
//   #include "cuda/kernels/pool1d.cu"
//
//   // window_attention_bf16.cc: one variant of a module with constants
//   #define KV_VARIANT bf16
//   #define KV_K_DTYPE 3
//   #include "cuda/kernels/window_attention.cu"
//
// An entry point is then an ordinary function in namespace kvevict::cuda, or in
// kvevict::cuda::KV_VARIANT; everything else of the .cu file stands in an unnamed
// namespace, so that variants do not meet. The test declares what it calls:
//
//   namespace kvevict::cuda { void pool_rows(const PoolParams&); }
//   ...
//   simt::RunAll([&](auto options) {  // every policy, see run.h
//     ... fresh outputs ...
//     return simt::Launch(cuda::pool_rows, {n_rows, n_layers}, {256}, 0, params,
//                         options);
//   });
//
// Device addresses are host addresses as uint64_t. kvevict_simt_test() in
// CMakeLists.txt builds the program plain and under thread,undefined, which reports
// two threads that touch the same bytes with nothing between them to order them: a
// missing BlockSync or WarpSync, two blocks on one address. It finds stores only if
// somebody reads the result: do compare it.
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

// Chooses between the threads that can go on. The program must be right under
// every order. Each of these finds errors that the others miss.
enum class Policy {
  kUniform,           // any
  kOneWarpAhead,      // one warp runs as far as it can, then the next
  kRandomPriorities,  // one thread runs as far as it can, then the next
  kLastFirst,         // the one that became ready last
};
// The policies to test with. A race is a race in any order: two suffice for the
// thread sanitizer, which makes a barrier 20 times as slow.
inline constexpr Policy kPolicies[] = {
    Policy::kUniform,
    Policy::kRandomPriorities,
#ifndef KVEVICT_SIMT_TSAN
    Policy::kOneWarpAhead,
    Policy::kLastFirst,
#endif
};

struct Options {
  Policy policy = Policy::kUniform;
  uint64_t seed = 1;  // of the order of threads and blocks
  // Blocks at work side by side; the others start, in random order, as these
  // end. More than one for kernels in which blocks wait for blocks.
  unsigned resident_blocks = 1;
  rig::TensorCore tensor_core = rig::kToNearest;
};

// The part of Launch that does not depend on the parameters' type.
std::string LaunchErased(void (*call)(const void* context), const void* context,
                         Dim3 grid, Dim3 block, size_t dynamic_shared_bytes,
                         const Options& options);

// Returns the kernel's error with file and line, or an empty text. After an error
// the threads are abandoned where they are. Errors are: a BlockSync, BlockAny or a
// warp's collective that some threads miss, leave out by returning, or call from
// another line; threads that wait for ever; misaligned addresses; asynchronous
// copies and matrix rows outside shared memory.
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
