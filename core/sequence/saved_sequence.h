// A sequence's positions and lengths as bytes that are the same on any machine.
#ifndef KVEVICT_CORE_SEQUENCE_SAVED_SEQUENCE_H_
#define KVEVICT_CORE_SEQUENCE_SAVED_SEQUENCE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/sequence/sequence.h"
#include "core/status.h"

namespace kvevict {

size_t SavedBytes(const Sequence& sequence);
// Writes SavedBytes() bytes.
Status SaveSequence(const Sequence& sequence, std::span<uint8_t> out);
// On failure the sequence is unchanged.
Status LoadSequence(Sequence* sequence, std::span<const uint8_t> data);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_SAVED_SEQUENCE_H_
