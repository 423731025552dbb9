// The forms of compaction; kOp_compact takes whichever suits a launch.
#ifndef KVEVICT_CUDA_COMPACT_H_
#define KVEVICT_CUDA_COMPACT_H_

#include "core/backend.h"
#include "core/status.h"

namespace kvevict::cuda {

enum class CompactForm { kColumns, kChunks };

// In one form, whatever suits; timings set them side by side. By chunks the
// scratch must hold the tickets.
Status CompactIn(CompactForm form, const Context& context, Stream stream,
                 const CompactArgs& args);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_COMPACT_H_
