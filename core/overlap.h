// Whether caches share memory.
#ifndef KVEVICT_CORE_OVERLAP_H_
#define KVEVICT_CORE_OVERLAP_H_

#include <cstdint>

#include "core/status.h"

namespace kvevict {

enum class Sharing {
  kNone,
  kEqual,    // the same rows
  kOverlap,  // some of the same bytes
};

// Compares two layers' views, each valid for `n_tokens` slots. Overlaps are found
// where both lie in plain strides of the same size; of paged caches only those that
// begin with the same row, and where the tables are not `on_host` those with one
// table.
Sharing CompareViews(const kvevict_view& a, const kvevict_view& b,
                     uint32_t n_tokens, bool on_host);

// Checks that the planes of one valid view do not share bytes (of paged caches: in
// the same block).
Status CheckPlanesApart(const kvevict_view& view, uint32_t n_tokens);

}  // namespace kvevict

#endif  // KVEVICT_CORE_OVERLAP_H_
