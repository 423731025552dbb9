// Kernels of the tests' own, compiled by the libnvrtc of the library under test.
#ifndef KVEVICT_TESTS_GPU_PROGRAM_H_
#define KVEVICT_TESTS_GPU_PROGRAM_H_

#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

class Program {
 public:
  Program(const Gpu& gpu, const char* name, const char* source);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void Launch(const char* kernel, unsigned n_blocks, unsigned n_threads,
              void** arguments) const;

 private:
  const Gpu& gpu_;
  cuda::CUmodule module_ = nullptr;
};

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_PROGRAM_H_
