// What a sequence hands over to a sequence of another plan.
#ifndef KVEVICT_CORE_SEQUENCE_HANDOVER_H_
#define KVEVICT_CORE_SEQUENCE_HANDOVER_H_

#include <span>

#include "core/sequence/layer_positions.h"
#include "core/sequence/sequence.h"
#include "core/status.h"

namespace kvevict {

// Fills `out`, the layers of `plan` with empty lists, from what `from` holds.
// The positions lie in host memory of `from` and are valid until its next call.
Status HandOver(const Sequence& from, const Plan& plan,
                std::span<LayerPositions> out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_HANDOVER_H_
