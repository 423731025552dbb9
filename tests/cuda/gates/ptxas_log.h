// The assembler's report on each kernel under --ptxas-options=-v.
#ifndef KVEVICT_TESTS_CUDA_GATES_PTXAS_LOG_H_
#define KVEVICT_TESTS_CUDA_GATES_PTXAS_LOG_H_

#include <map>
#include <string>

namespace kvevict::cuda {

struct KernelUse {
  int n_registers = -1;  // -1: the log does not say
  int stack_bytes = -1;
  int spill_store_bytes = -1;
  int spill_load_bytes = -1;
  int shared_bytes = 0;  // static; the log leaves out 0

  bool is_complete() const {
    return n_registers >= 0 && stack_bytes >= 0 && spill_store_bytes >= 0 &&
           spill_load_bytes >= 0;
  }
};

// Maps a kernel's name to its figures.
std::map<std::string, KernelUse> ReadPtxasLog(const std::string& log);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_PTXAS_LOG_H_
