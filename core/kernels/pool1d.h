// Pooling of scores along the tokens, and reduction of several rows of scores
// to one.
#ifndef KVEVICT_CORE_KERNELS_POOL1D_H_
#define KVEVICT_CORE_KERNELS_POOL1D_H_

#include <cstddef>
#include <cstdint>

#include "core/policy/params.h"
#include "core/simd.h"

namespace kvevict {

// out[i] = average or maximum of in[i - width/2 .. i + width/2], limited to [0,
// n). width is odd. An average divides by the full width (kPad) or by the
// number of terms (kShrink). in and out do not overlap. NaN in, NaN out.
void Pool1d(SimdTarget simd, const float* in, size_t n, uint32_t width,
            PoolKind pool, PoolEdge edge, float* out);

enum class Reduce { kMean, kMax, kSum };

// out[i] = mean, maximum or sum over r of rows[r * row_stride + i], added in
// order of r. out may be the first row. NaN in, NaN out.
void ReduceRows(SimdTarget simd, const float* rows, size_t n_rows,
                size_t row_stride, size_t n, Reduce reduce, float* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_POOL1D_H_
