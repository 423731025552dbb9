// The main job: a whole model's cache scored, selected and compacted in place.
#ifndef KVEVICT_CORE_EVICT_EVICT_H_
#define KVEVICT_CORE_EVICT_EVICT_H_

#include <cstddef>

#include "core/sequence.h"
#include "core/status.h"

namespace kvevict {

// See kvevict_sequence_evict(). The views are sequence->views(), the inputs
// sequence->inputs(); it fills sequence->report().
Status Evict(Sequence* sequence, const kvevict_evict_options& options,
             void* workspace, size_t workspace_bytes);

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_EVICT_H_
