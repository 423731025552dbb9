// Options of a pool of blocks: see kvevict_paged_cache_options.
#ifndef KVEVICT_CORE_PAGED_PAGED_OPTIONS_H_
#define KVEVICT_CORE_PAGED_PAGED_OPTIONS_H_

#include <cstdint>

#include "core/status.h"
#include "kvevict/paged.h"

namespace kvevict {

class Plan;

Status CheckPagedOptions(const Plan& plan,
                         const kvevict_paged_cache_options& options);

// Whether no row shares scales with others and none is recent. Then a row means
// the same in any block.
bool RowsStandAlone(const kvevict_paged_cache_options& options);

uint32_t BlockSizeOf(const kvevict_paged_cache_options& options);

// The most rows of a sequence's layer that are not quantized, for checked
// options; 0 if all rows are in blocks.
uint32_t MostRecent(const Plan& plan,
                    const kvevict_paged_cache_options& options);

}  // namespace kvevict

#endif  // KVEVICT_CORE_PAGED_PAGED_OPTIONS_H_
