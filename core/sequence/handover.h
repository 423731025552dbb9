// What a sequence hands over to one of another plan.
#ifndef KVEVICT_CORE_SEQUENCE_HANDOVER_H_
#define KVEVICT_CORE_SEQUENCE_HANDOVER_H_

#include <span>

#include "core/sequence/layer_positions.h"
#include "core/sequence/sequence.h"
#include "core/status.h"

namespace kvevict {

// Fills the layers of `plan`, whose lists are empty, with what `from` holds. The
// positions are its own, in host memory, until its next call.
Status HandOver(const Sequence& from, const Plan& plan,
                std::span<LayerPositions> out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_HANDOVER_H_
