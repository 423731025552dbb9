// Checks that doors share.
#ifndef KVEVICT_CORE_DOORS_CHECKS_H_
#define KVEVICT_CORE_DOORS_CHECKS_H_

#include <cstdint>
#include <span>

#include "core/checked_math.h"
#include "core/context.h"
#include "core/evict/keep_lists.h"
#include "core/status.h"

namespace kvevict {

Status CheckTokenCount(uint32_t n_tokens, uint32_t least, uint32_t most,
                       const char* most_name);

// Checks the caller's counts per list. On a device they cannot be read and are
// trusted.
Status CheckCounts(const Context& context, const char* name,
                   const ListCounts& counts, uint32_t n_lists);

// Checks that a workspace can be addressed.
Status CheckFits(CheckedSize bytes);

// Checks that a device can count n_lists lists.
Status CheckListCount(const char* name, uint32_t n_lists);

// Checks the lists and converts them for operations, whose strides have 32
// bits.
Status CheckKeepLists(const kvevict_keep_lists& keep, KeepLists* out);

// Checks that slots or positions ascend in [first_slot, n_tokens). The message
// begins with the index of the bad one.
Status CheckAscending(std::span<const int32_t> slots, uint32_t n_tokens,
                      uint32_t first_slot = 0);

}  // namespace kvevict

#endif  // KVEVICT_CORE_DOORS_CHECKS_H_
