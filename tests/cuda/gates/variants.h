// The variants of the modules that the gates compile.
#ifndef KVEVICT_TESTS_CUDA_GATES_VARIANTS_H_
#define KVEVICT_TESTS_CUDA_GATES_VARIANTS_H_

#include <string>
#include <vector>

#include "cuda/kernel_text.h"

namespace kvevict::cuda {

struct Variant {
  ModuleId module;
  bool uses_mma;
  std::vector<std::string> options;  // -D

  std::string name() const;
};

// Of every module, for an architecture.
std::vector<Variant> VariantsFor(int sm);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_VARIANTS_H_
