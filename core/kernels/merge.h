// Rows of one KV head that go, merged into those that stay.
#ifndef KVEVICT_CORE_KERNELS_MERGE_H_
#define KVEVICT_CORE_KERNELS_MERGE_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

enum class MergeRule { kValues, kPivot, kWeighted };

struct MergeRowsArgs {
  RowSource keys;  // n_tokens rows; written to, but by kValues
  RowSource values;
  uint32_t n_tokens = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;         // 0: there are no values
  const int32_t* keep = nullptr;  // strictly ascending
  uint32_t n_keep = 0;
  MergeRule rule = MergeRule::kValues;
  float threshold = 0;  // kValues: of similarities that merge
  float quantile =
      0;  // kValues: of similarities; not 0: those from it on merge
  // MergeScratchBytes(), aligned to 4, any content.
  uint8_t* scratch = nullptr;
};

size_t MergeScratchBytes(uint32_t n_tokens, uint32_t key_dim,
                         uint32_t value_dim);

// See kvevict_merge. Rows in blocks meet panels of those that stay, in ascending order:
// O(n_keep * (n_tokens - n_keep) * key_dim) multiply-adds, no memory of that size. Every
// product is added up in the order of its elements, so that every target with a fused
// multiply-add makes the same bytes, whatever the layout.
void MergeRows(SimdTarget simd, const MergeRowsArgs& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_MERGE_H_
