// The mass of a list's scores, and of those that it keeps.
#ifndef KVEVICT_CORE_KERNELS_MASS_H_
#define KVEVICT_CORE_KERNELS_MASS_H_

#include <cstdint>

#include "core/evict/mass.h"

namespace kvevict {

// The mass of scores[n], the first of which is slot `first`. keep[n_keep] are
// ascending slots. Sums are of every 256th score, then of halves, so the bits
// are the same everywhere.
Mass MeasureMass(const float* scores, uint32_t n, uint32_t first,
                 const int32_t* keep, uint32_t n_keep);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_MASS_H_
