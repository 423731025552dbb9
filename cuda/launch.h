// Launching a kernel of cuda/kernels.
#ifndef KVEVICT_CUDA_LAUNCH_H_
#define KVEVICT_CUDA_LAUNCH_H_

#include <cstdint>

#include "core/backend.h"
#include "core/context.h"
#include "core/status.h"
#include "core/view/view.h"
#include "cuda/module_cache.h"

namespace kvevict::cuda {

// The driver takes up to 2^31 - 1 blocks along x, but along y and z only:
inline constexpr uint32_t kMaxGridY = 65535;
static_assert(kMaxHeads <= kMaxGridY, "lists and KV heads are along y");

struct LaunchShape {
  uint32_t grid_x = 1;
  uint32_t grid_y = 1;
  uint32_t grid_z = 1;
  uint32_t threads = 1;
  uint32_t shared_bytes = 0;  // dynamic
};

// The key of a module without variants, for the context's GPU.
ModuleKey KeyOf(const Context& context, ModuleId id);

// The kinds of rows that a kernel must be able to read: see KindsOf() in
// row_layout.h.
struct RowKinds {
  uint32_t dtypes = 0;        // a bit for each dtype
  bool token_groups = false;  // scales of token groups, or recent rows

  RowKinds operator|(const RowKinds& other) const {
    return {dtypes | other.dtypes, token_groups || other.token_groups};
  }
  bool operator==(const RowKinds&) const = default;
};

// The key of a module that reads such rows; for quantized ones it has a
// variant. See cuda/kernels/dtypes.cuh.
ModuleKey ReaderOf(const Context& context, ModuleId id, const RowKinds& kinds);

// Finds or compiles a module; one without variants by its id. Operations of
// several launches call this before the first, so that a graph gets all of them
// or none.
Status Require(const Context& context, Stream stream, const ModuleKey& module);
inline Status Require(const Context& context, Stream stream, ModuleId id) {
  return Require(context, stream, KeyOf(context, id));
}

// Queues a kernel whose argument is *params. With debug set it also waits for
// it.
Status LaunchKernel(const Context& context, Stream stream,
                    const ModuleKey& module, KernelId kernel,
                    const LaunchShape& shape, const void* params);

template <typename Params>
Status Launch(const Context& context, Stream stream, const ModuleKey& module,
              KernelId kernel, const LaunchShape& shape, const Params& params) {
  static_assert(sizeof(Params) <= 4096, "kernel arguments are this long");
  return LaunchKernel(context, stream, module, kernel, shape, &params);
}

// The same for kernels without variants.
template <typename Params>
Status Launch(const Context& context, Stream stream, KernelId kernel,
              const LaunchShape& shape, const Params& params) {
  return Launch(context, stream, KeyOf(context, InfoOf(kernel).module), kernel,
                shape, params);
}

// Zeroes device memory in stream order.
Status Clear(const Context& context, Stream stream, uint64_t address,
             size_t n_bytes);

constexpr uint32_t BlocksFor(uint64_t n, uint32_t per_block) {
  return static_cast<uint32_t>((n + per_block - 1) / per_block);
}

inline uint64_t AddressOf(const void* device) {
  return reinterpret_cast<uintptr_t>(device);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_LAUNCH_H_
