// Included before a file of cuda/kernels, it makes a library of it that exports
// how to launch each entry point.
#ifndef KVEVICT_TESTS_RIG_SHIM_KERNEL_H_
#define KVEVICT_TESTS_RIG_SHIM_KERNEL_H_

#include <cstdint>

#include "cuda/kernels/device.cuh"

namespace kvevict::shim {

// Exported as kv_<name>.
struct Kernel {
  const char* name;
  uint32_t param_bytes;
  uint32_t max_threads;
  void (*run)(const void* params);
};

}  // namespace kvevict::shim

#undef KV_KERNEL
#define KV_KERNEL(name, Params, threads, min_blocks)                          \
  static void name(const Params& p);                                          \
  extern "C" __attribute__((visibility("default")))                           \
  const ::kvevict::shim::Kernel kv_##name = {                                 \
      #name, sizeof(Params), threads,                                         \
      [](const void* params) { name(*static_cast<const Params*>(params)); }}; \
  static void name([[maybe_unused]] const Params& p)

#endif  // KVEVICT_TESTS_RIG_SHIM_KERNEL_H_
