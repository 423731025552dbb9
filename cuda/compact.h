// The forms of compaction; kOp_compact chooses one for each launch.
#ifndef KVEVICT_CUDA_COMPACT_H_
#define KVEVICT_CUDA_COMPACT_H_

#include "core/backend.h"
#include "core/status.h"

namespace kvevict::cuda {

enum class CompactForm { kColumns, kChunks };

// Compacts in the given form; benchmarks compare them. With chunks the scratch
// must have room for the tickets.
Status CompactIn(CompactForm form, const Context& context, Stream stream,
                 const CompactArgs& args);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_COMPACT_H_
