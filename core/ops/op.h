// The type of an operation on a device.
#ifndef KVEVICT_CORE_OPS_OP_H_
#define KVEVICT_CORE_OPS_OP_H_

#include <cstdint>

#include "core/checked_math.h"
#include "core/policy/params.h"
#include "core/status.h"

namespace kvevict {

class Context;

// A CUstream on CUDA; unused on the CPU.
using Stream = kvevict_stream;

// The least scratch in which an operation runs, and the most that it can make
// use of. Results are the same in any size.
struct ScratchNeeds {
  CheckedSize least{0};
  CheckedSize best{0};

  ScratchNeeds() = default;
  ScratchNeeds(CheckedSize least_bytes, CheckedSize best_bytes)
      : least(least_bytes), best(best_bytes) {}
  // NOLINTNEXTLINE: most have one size
  ScratchNeeds(CheckedSize bytes) : least(bytes), best(bytes) {}
};

// A size that overflows is larger than any other.
inline CheckedSize Larger(CheckedSize a, CheckedSize b) {
  if (!a.ok() || !b.ok()) return a.ok() ? b : a;
  return a.value() < b.value() ? b : a;
}
inline ScratchNeeds Larger(const ScratchNeeds& a, const ScratchNeeds& b) {
  return {Larger(a.least, b.least), Larger(a.best, b.best)};
}

// What the scratch of an operation depends on: jobs of n_layers like layers
// with up to n_tokens each.
struct LayerSize {
  const kvevict_layer_geometry& geometry;
  const Policy& policy;
  uint32_t n_layers;
  uint32_t n_tokens;
};

// Args::Size, or int if there is none.
template <typename Args>
struct SizeOf {
  using Type = int;
};
template <typename Args>
requires requires { typename Args::Size; }
struct SizeOf<Args> {
  using Type = typename Args::Size;
};

// How a device runs an operation. run() queues it on a stream and returns an
// error if that fails.
template <typename Args>
struct Op {
  using Size = typename SizeOf<Args>::Type;

  static ScratchNeeds NoScratch(const Context&, const Size&) {
    return CheckedSize(0);
  }
  static Status NoCheck(const Context&, Stream, const Args&) {
    return Status();
  }

  Status (*run)(const Context& context, Stream stream, const Args& args);
  ScratchNeeds (*scratch)(const Context& context, const Size& size) = NoScratch;
  // Checks that a call can run, before the first one does: the device can load
  // the rows, and the code is loaded if a stream is being captured. Scratch,
  // and data that earlier operations will write, may be missing.
  Status (*check)(const Context& context, Stream stream,
                  const Args& args) = NoCheck;

  Status operator()(const Context& context, Stream stream,
                    const Args& args) const {
    return run(context, stream, args);
  }
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_OPS_OP_H_
