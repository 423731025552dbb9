// A context that has some of a GPU's multiprocessors (CUDA 12.4).
#ifndef KVEVICT_TESTS_GPU_GREEN_CONTEXT_H_
#define KVEVICT_TESTS_GPU_GREEN_CONTEXT_H_

#include <memory>

#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

class GreenContext {
 public:
  // Throws the reason if the driver is older or the GPU cannot be divided so.
  GreenContext(const Gpu& gpu, uint32_t n_multiprocessors);
  ~GreenContext();
  GreenContext(const GreenContext&) = delete;
  GreenContext& operator=(const GreenContext&) = delete;

  // A stream of the context, which is current meanwhile.
  const Gpu& gpu() const { return *gpu_; }
  // As many as asked for, or more: GPUs divide by groups.
  uint32_t n_multiprocessors() const { return n_multiprocessors_; }

 private:
  struct Calls;

  std::unique_ptr<Calls> calls_;
  void* green_ = nullptr;
  uint32_t n_multiprocessors_ = 0;
  std::unique_ptr<Gpu> gpu_;
};

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_GREEN_CONTEXT_H_
