// Evictions that leave rows in place and permute the tables of their blocks.
#ifndef KVEVICT_CORE_EVICT_BLOCK_TABLES_H_
#define KVEVICT_CORE_EVICT_BLOCK_TABLES_H_

#include <span>

#include "core/plan/plan.h"
#include "core/status.h"

namespace kvevict {

// Checks that the plan's evictions of these valid views, one per layer, can use
// by_table.
Status CheckTables(const Plan& plan, std::span<const kvevict_view> views);

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_BLOCK_TABLES_H_
