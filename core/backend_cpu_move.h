// The operations of the CPU that move rows.
#ifndef KVEVICT_CORE_BACKEND_CPU_MOVE_H_
#define KVEVICT_CORE_BACKEND_CPU_MOVE_H_

#include "core/backend.h"

namespace kvevict {

Status CpuCompact(const Context& context, Stream, const CompactArgs& args);

Status CpuReorder(const Context& context, Stream, const ReorderArgs& args);
CheckedSize CpuReorderScratchBytes(const Context& context, const LayerJob& job,
                                   uint32_t n_lists);

}  // namespace kvevict

#endif  // KVEVICT_CORE_BACKEND_CPU_MOVE_H_
