// The time that the kernels should take, from what the machine code needs and the
// data sheets promise. It is not measured.
#ifndef KVEVICT_TESTS_CUDA_GATES_PREDICTION_H_
#define KVEVICT_TESTS_CUDA_GATES_PREDICTION_H_

#include <cstdint>

#include "tests/cuda/gates/machines.h"
#include "tests/cuda/gates/slots.h"

namespace kvevict::cuda {

// The first user: an 8B model at the end of its prefill.
struct Flagship {
  uint32_t n_layers = 36;
  uint32_t n_kv_heads = 8;
  uint32_t group = 4;
  uint32_t head_dim = 128;
  uint32_t window = 64;
  uint32_t n_tokens = 16384;
  uint32_t n_keep = 2048;
  uint32_t element_bytes = 2;
};
inline constexpr Flagship kFlagship;

// The milliseconds for which a pass of the scorer keeps each part of the GPU busy,
// with the last blocks that do not fill it.
struct PassTime {
  double issue;
  double tensor;
  double exponentials;
  double memory;

  double Longest() const;  // if they all overlap
  double Sum() const;      // if nothing does
};
PassTime PredictPass(const Gpu& gpu, const ScorerSlots& slots,
                     uint32_t blocks_per_multiprocessor);

// The time to read and write what is kept.
double PredictCompaction(const Gpu& gpu);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_PREDICTION_H_
