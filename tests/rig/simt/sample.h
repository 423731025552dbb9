#ifndef KVEVICT_TESTS_RIG_SIMT_SAMPLE_H_
#define KVEVICT_TESTS_RIG_SIMT_SAMPLE_H_

#include "cuda/kernels/params.h"

namespace kvevict::cuda {

struct SampleParams {
  uint64_t rows;    // 16 bytes [64 n_blocks]
  uint64_t flags;   // u32 [n_blocks], zero
  uint64_t totals;  // u32 [n_blocks]
  uint64_t parts;   // u32 [n_blocks]
  uint64_t ticket;  // u32, zero
  uint64_t result;  // u32
};

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_RIG_SIMT_SAMPLE_H_
