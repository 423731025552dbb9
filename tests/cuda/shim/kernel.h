// Before a file of cuda/kernels: makes its entry points functions of KV_VARIANT,
// as tests/simt does, and exports with each one how to launch it, for the shim
// driver to find by name.
#ifndef KVEVICT_TESTS_CUDA_SHIM_KERNEL_H_
#define KVEVICT_TESTS_CUDA_SHIM_KERNEL_H_

#include <cstdint>

#include "cuda/kernels/device.cuh"

namespace kvevict::shim {

struct Kernel {
  const char* name;
  uint32_t param_bytes;
  uint32_t max_threads;
  void (*run)(const void* params);
};
// What a kernel exports, as <variant>_<name>.
using GetKernel = const Kernel* (*)();

}  // namespace kvevict::shim

#define KV_SYMBOL(variant, name) KV_JOIN(variant, name)
#define KV_JOIN(variant, name) variant##_##name

#undef KV_KERNEL
#define KV_KERNEL(name, Params, threads, min_blocks)             \
  namespace KV_VARIANT {                                         \
  void name(const Params& p);                                    \
  }                                                              \
  extern "C" __attribute__((visibility("default")))              \
  const ::kvevict::shim::Kernel*                                 \
  KV_SYMBOL(KV_VARIANT, name)() {                                \
    static constexpr ::kvevict::shim::Kernel kKernel = {         \
        #name, sizeof(Params), threads, [](const void* params) { \
          KV_VARIANT::name(*static_cast<const Params*>(params)); \
        }};                                                      \
    return &kKernel;                                             \
  }                                                              \
  void KV_VARIANT::name([[maybe_unused]] const Params& p)

#endif  // KVEVICT_TESTS_CUDA_SHIM_KERNEL_H_
