// How similar blocks of one KV head's keys are to each other.
#ifndef KVEVICT_CORE_KERNELS_SIMILARITY_H_
#define KVEVICT_CORE_KERNELS_SIMILARITY_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

// Keys [first, first + n_tokens) are whole blocks. u = k / sqrt(|k|^2 + 2^-23);
// a key without a finite norm is 0. C[i][j] = u_i u_j, and 0 if i = j. Entries
// below the mean of C[i][.] over all n_tokens are left out.
struct Similarity {
  RowSource keys;
  uint32_t first = 0;
  uint32_t n_tokens = 0;
  uint32_t head_dim = 0;
  uint32_t block = 1;                // tokens of a block
  const uint32_t* others = nullptr;  // ascending blocks
  uint32_t n_others = 0;
  // Out: [n_others], sums over the rows of each block and the columns of all of
  // them, in units of 2^-24.
  int64_t* sums = nullptr;
  uint8_t* scratch = nullptr;  // SimilarityScratchBytes(), 64-byte aligned
};

// Every entry is truncated to 2^-24. All targets with a fused multiply-add give
// the same bits, as does a GPU.
void SumSimilarity(SimdTarget simd, const Similarity& args);

size_t SimilarityScratchBytes(uint32_t n_tokens, uint32_t head_dim);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_SIMILARITY_H_
