// Queries and keys of a layer as the kernels read them, for launch.cc.
#ifndef KVEVICT_TESTS_CUDA_WINDOW_ATTENTION_STORED_H_
#define KVEVICT_TESTS_CUDA_WINDOW_ATTENTION_STORED_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/cuda/kernels/codes.h"
#include "tests/cuda/window_attention/launch.h"

namespace kvevict::cuda {

// The nearest number with the dtype's digits, 0 for tiny ones. NaN and infinity
// stay.
float RoundTo(uint32_t dtype, float v);

// Rows of several heads in memory of exactly their size; gaps are NaN patterns.
struct Rows {
  std::unique_ptr<uint8_t[]> memory;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  int64_t element_stride = 0;
  uint64_t base = 0;  // row 0, head 0
};

Rows StoreQueries(const AttentionVariant& v, const AttentionLayer& layer,
                  const AttentionLayout& layout);

// One scale and one minimum for quantized keys, which all layers of a launch share:
// by rows of a layer's memory and by heads, or fewer.
struct KeyNumbers {
  Numbers scales;
  Numbers minima;
};
KeyNumbers DrawKeyNumbers(const AttentionVariant& v, uint32_t n_heads,
                          Random& random);

// The numbers of a row's heads side by side, in blocks of so many rows.
RowNumbers BesideHeads(const Numbers& numbers, uint32_t block);

// Paged keys lie in blocks of block_size rows, one more than needed.
struct Keys {
  Rows rows;
  std::vector<int32_t> table;  // one per head in ragged variants
  uint32_t table_head_stride = 0;
  int64_t block_stride = 0;

  int32_t Block(uint32_t head, uint32_t i) const {
    return table[head * table_head_stride + i];
  }
};

Keys StoreKeys(const AttentionVariant& v, const AttentionLayer& layer,
               const AttentionLayout& layout, const KeyNumbers& numbers);

// Biases of a layer's slots, in the blocks of the keys, those of a slot's heads side
// by side; none if the layer has none.
std::vector<float> StoreBiases(const AttentionLayer& layer, const Keys& keys,
                               bool paged, const AttentionLayout& layout);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_WINDOW_ATTENTION_STORED_H_
