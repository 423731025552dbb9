// The variants of the modules that the gates compile.
#ifndef KVEVICT_TESTS_CUDA_GATES_VARIANTS_H_
#define KVEVICT_TESTS_CUDA_GATES_VARIANTS_H_

#include <string>
#include <string_view>
#include <vector>

#include "cuda/kernel_text.h"

namespace kvevict::cuda {

struct Variant {
  ModuleId module;
  std::vector<std::string> options;  // -D
  // These are 0 without tensor cores: the matrices of 16 query rows that a warp
  // keeps, those of 16 keys that it loads to multiply with all its query rows, the
  // products with each, and a thread's copies of 16 bytes for its part of a tile.
  size_t n_query_matrices = 0;
  size_t n_matrices = 0;
  size_t n_products = 0;
  // Attention by tensor cores loads these matrices, and multiplies them, for all
  // values of a warp's part of a tile, and for 16 elements of its keys, which a loop
  // repeats.
  size_t n_value_matrices = 0;
  size_t n_value_products = 0;
  size_t n_step_matrices = 0;
  size_t n_step_products = 0;
  size_t n_copies = 0;
  uint32_t n_most_registers = 128;    // of a thread, of blocks of 256
  size_t n_tile_bytes = 0;            // on their way while one is multiplied
  double n_tile_products = 0;         // of a scorer's block
  bool uses_mma = false;              // for these
  bool has_codes = false;             // as keys
  uint32_t dynamic_shared_bytes = 0;  // the most
  std::string_view dynamic_kernel{};  // whose these are; empty: all kernels
  bool is_flagship = false;           // the scorer of prediction.h

  std::string name() const;
  // The name of all variants of a form: "window_attention, tensor cores".
  std::string form() const;
};

// The variants of every module for an architecture.
std::vector<Variant> VariantsFor(int sm);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_VARIANTS_H_
