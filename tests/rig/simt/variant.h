// Arguments of variant.cu.
#ifndef KVEVICT_TESTS_RIG_SIMT_VARIANT_H_
#define KVEVICT_TESTS_RIG_SIMT_VARIANT_H_

#include "cuda/kernels/params.h"

namespace kvevict::cuda {

struct VariantParams {
  uint64_t out;  // u32 [32]
  uint32_t n_steps;
};

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_RIG_SIMT_VARIANT_H_
