// The table of operations that each device implements, with a file per
// operation: core/cpu with Highway kernels, cuda with launches. Policies, plans
// and sequences do not know which device runs. core/evict/stages.cc has the
// order in which an eviction runs the operations.
#ifndef KVEVICT_CORE_BACKEND_H_
#define KVEVICT_CORE_BACKEND_H_

#include <cstddef>
#include <cstdint>

#include "core/attention.h"
#include "core/ops/fit.h"
#include "core/ops/move.h"
#include "core/ops/op.h"
#include "core/ops/score.h"
#include "core/ops/select.h"
#include "core/status.h"

namespace kvevict {

// The state that a context keeps for its backend.
class DeviceState;

// A kind of device.
struct Backend {
  const char* name;
  size_t workspace_alignment;
  bool on_host;  // device memory can be read and written by this code

  // UNAVAILABLE, with the reason, if no context can be created here.
  Status (*check)();
  // Null if the backend lists no GPUs.
  Status (*gpu_at)(uint32_t index, kvevict_gpu_info* out);
  Status (*open)(const Context& context, const kvevict_context_options& options,
                 DeviceState** out);
  void (*close)(DeviceState* state);
  // Compiles the kernels that all calls launch.
  Status (*prepare)(const Context& context);

  // UNSUPPORTED if the stream is captured into a graph and an eviction by this
  // policy would have to wait or to compile. `ranks`: it also ranks tokens by
  // ranges. `measures`: it also measures mass.
  Status (*check_capture)(const Context& context, Stream stream,
                          const Policy& policy, bool ranks, bool measures);

  // Allocates memory that is aligned to 256 bytes and not cleared.
  Status (*allocate)(const Context& context, const char* what, size_t n_bytes,
                     void** out);
  void (*free)(const Context& context, void* memory, size_t n_bytes);
  // Fills with zeros before it returns.
  Status (*clear)(const Context& context, void* memory, size_t n_bytes);
  // Both wait until `host` has been written or may be overwritten. UNSUPPORTED
  // if the stream is captured into a graph.
  Status (*read)(const Context& context, Stream stream, const void* device,
                 size_t n_bytes, void* host);
  Status (*write)(const Context& context, Stream stream, const void* host,
                  size_t n_bytes, void* device);
  // Queues a copy. Both are in device memory and do not overlap.
  Status (*copy)(const Context& context, Stream stream, const void* from,
                 size_t n_bytes, void* to);

  const ScoreOp* no_score = nullptr;  // for signals that rank nothing
#define KVEVICT_SCORE_OP(name) const ScoreOp* name;
#define KVEVICT_OP(name, Args) const Op<Args>& name;
#include "core/ops.inc"
};

extern const Backend kCpuBackend;
extern const Backend kCudaBackend;

Status FindBackend(kvevict_device device, const Backend** out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_BACKEND_H_
