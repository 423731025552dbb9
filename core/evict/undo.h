// Undoes an eviction.
#ifndef KVEVICT_CORE_EVICT_UNDO_H_
#define KVEVICT_CORE_EVICT_UNDO_H_

#include <cstddef>

#include "core/sequence/sequence.h"
#include "core/status.h"

namespace kvevict {

// See kvevict_sequence_undo_bytes() and kvevict_sequence_undo(). Views are
// those stored in the call.
Status FindUndoBytes(EvictCall* call, size_t* out);
Status Undo(Sequence* sequence, const void* memory, size_t memory_bytes);

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_UNDO_H_
