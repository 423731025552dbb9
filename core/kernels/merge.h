// Merges evicted rows of one KV head into rows that stay.
#ifndef KVEVICT_CORE_KERNELS_MERGE_H_
#define KVEVICT_CORE_KERNELS_MERGE_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

enum class MergeRule { kValues, kPivot, kWeighted };

struct MergeRowsArgs {
  RowSource keys;  // n_tokens rows; written, except with kValues
  RowSource values;
  uint32_t n_tokens = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;         // 0: there are no values
  const int32_t* keep = nullptr;  // strictly ascending
  uint32_t n_keep = 0;
  MergeRule rule = MergeRule::kValues;
  float threshold = 0;  // kValues: least similarity that merges
  // kValues: if not 0, similarities from this quantile on merge.
  float quantile = 0;
  // MergeScratchBytes(), aligned to 4, any content.
  uint8_t* scratch = nullptr;
};

size_t MergeScratchBytes(uint32_t n_tokens, uint32_t key_dim,
                         uint32_t value_dim);

// See kvevict_merge. Blocks of evicted rows are multiplied with panels of rows
// that stay, in ascending order. Takes O(n_keep * (n_tokens - n_keep) *
// key_dim) multiply-adds, and no memory of that size. Every product is summed
// in the order of its elements, so that every target with a fused multiply-add
// gives the same bytes, whatever the layout.
void MergeRows(SimdTarget simd, const MergeRowsArgs& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_MERGE_H_
