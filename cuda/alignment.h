// Checks that elements are aligned for the loads of kernels.
#ifndef KVEVICT_CUDA_ALIGNMENT_H_
#define KVEVICT_CUDA_ALIGNMENT_H_

#include <cstdint>
#include <initializer_list>

#include "core/backend.h"
#include "core/status.h"
#include "cuda/launch.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {

// Elements are loaded whole. A stride of 0 stands for an axis of one step.
Status CheckAligned(const char* what, uint64_t data,
                    std::initializer_list<int64_t> strides,
                    uint32_t element_bytes);

// The same for a plane of a view whose rows are read.
Status CheckRowsAligned(const char* what, const kvevict_view& view,
                        const kvevict_plane& plane);

// The same for a view's keys.
Status CheckKeysAligned(const kvevict_view& view);

// The same for the biases of a view's slots, if there are any.
Status CheckBiasesAligned(const kvevict_view& view);

// Finds or compiles a module that reads planes of jobs' views.
template <typename Job>
Status RequireReader(
    const Context& context, Stream stream, Jobs<Job> jobs, ModuleId module,
    std::initializer_list<kvevict_plane kvevict_view::*> read) {
  RowKinds last;
  for (const Job& job : jobs) {
    RowKinds kinds;
    for (const auto plane : read) {
      const kvevict_view& view = *Scored(job).view;
      kinds = kinds | KindsOf(RowsOf(view, view.*plane));
    }
    if (kinds == last) continue;
    KV_RETURN_IF_ERROR(
        Require(context, stream, ReaderOf(context, module, kinds)));
    last = kinds;
  }
  return Status();
}

// All checks of a signal that reads rows of the cache: the keys and values that
// it needs, and its modules that read them in addition to those of shaping.
Status CheckReading(const Context& context, Stream stream,
                    const ScoreArgs& args,
                    std::initializer_list<ModuleId> modules);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_ALIGNMENT_H_
