// Arguments and launch shape of attention_sums.cu.
#ifndef KVEVICT_CUDA_KERNELS_ATTENTION_SUMS_H_
#define KVEVICT_CUDA_KERNELS_ATTENTION_SUMS_H_

#include "params.h"

namespace kvevict::cuda {

struct AddSumsLayer {
  uint64_t from;  // f32 of the chunk, a row per head
  uint64_t sums;  // f32 [rows of sums, AddSumsParams::stride]
  // If not 0, sums are a ring, and this is the address of a u32 that is read
  // when the kernel runs: modulo sums_ring it is the row to write.
  uint64_t turn;
  uint32_t n_before;    // slots before the chunk's, if there is no table
  int32_t first_count;  // index in AddSumsParams::tokens
  uint32_t begins;      // slots before the chunk's begin at 0 too
  uint32_t first_from;  // if `from` is a ring: the first of the terms
};
static_assert(sizeof(AddSumsLayer) == 40);

struct AddSumsParams {
  static constexpr uint32_t kMaxLayers = 99;
  uint64_t head_stride;  // of the chunk's rows; elements
  CountTable tokens;     // slots before the chunk's, per list
  uint32_t more;         // added to the table's
  uint32_t stride;       // elements; no list has more slots
  uint32_t n_lists;      // 1, or each list has rows_per_list rows
  uint32_t rows_per_list;
  uint32_t n_terms;    // rows of the chunk that a row of sums stands for
  uint32_t n_new;      // slots of the chunk, whose sums begin at 0
  uint32_t pool;       // slots whose maximum is added
  uint32_t is_max;     // reduces terms to their maximum
  float scale;         // else factor of their sum
  uint32_t clears;     // slots after the chunk's become 0
  uint32_t from_ring;  // rows of the ring `from`; 0: it is no ring
  uint32_t sums_ring;
  uint32_t only_new;  // `from` has the chunk's slots alone; others stay
  uint32_t reserved;
  AddSumsLayer layers[kMaxLayers];
};
static_assert(sizeof(AddSumsParams) <= 4096);

// Grid (any number of blocks, rows of sums, n_layers).
constexpr uint32_t kAddSumsThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ATTENTION_SUMS_H_
