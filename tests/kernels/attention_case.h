// One call of the window attention kernel, with all of its memory checked.
#ifndef KVEVICT_TESTS_KERNELS_ATTENTION_CASE_H_
#define KVEVICT_TESTS_KERNELS_ATTENTION_CASE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "core/kernels/pool1d.h"
#include "core/kernels/window_attention.h"
#include "core/simd.h"
#include "tests/kernels/random.h"
#include "tests/kernels/row_store.h"
#include "tests/oracle/window_attention.h"

namespace kvevict {

// Gaussian queries and keys, scale 1 / sqrt(head_dim), rounded to the dtypes. One
// key in 50 points towards a query, so that the softmax is not flat.
oracle::WindowAttentionInput RandomInput(uint32_t n_tokens, uint32_t window,
                                         uint32_t group, uint32_t head_dim,
                                         Random& random,
                                         DType queries = DType::kF32,
                                         DType keys = DType::kF32);

// Runs the kernel for a target with inputs in the given layout. Scratch has the
// best size less so many bytes, at least the least, and is full of NaN. Scratch and
// output touch inaccessible pages. Returns one row if heads are reduced. lse:
// empty, or the log-sum-exps of all rows, [group, window].
std::vector<float> RunKernel(
    SimdTarget simd, const oracle::WindowAttentionInput& in,
    const RowLayout& queries = {}, const RowLayout& keys = {},
    size_t scratch_less = 0, std::optional<Reduce> group_reduce = {},
    const std::vector<float>& lse = {}, WindowMeasure* measure = nullptr);

// Fails the test if a weight is further from the oracle's than its tolerance, or NaN
// where the oracle's is not.
void ExpectWeights(const oracle::WindowAttentionInput& in,
                   const oracle::WindowAttentionResult& expected,
                   const std::vector<float>& weights, const char* target);

bool SameBytes(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace kvevict

#endif  // KVEVICT_TESTS_KERNELS_ATTENTION_CASE_H_
