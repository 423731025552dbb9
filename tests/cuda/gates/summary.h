// Makes the tables of docs/cuda.md of the gates' figures.
#ifndef KVEVICT_TESTS_CUDA_GATES_SUMMARY_H_
#define KVEVICT_TESTS_CUDA_GATES_SUMMARY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/cuda/gates/slots.h"

namespace kvevict::cuda {

// The figures of a kernel in one variant, by one libnvrtc for one architecture.
struct KernelFigures {
  std::string form;  // the module's
  std::string kernel;
  std::string nvrtc;
  int sm = 0;
  uint32_t n_threads = 0;
  uint32_t n_registers = 0;
  uint32_t shared_bytes = 0;  // static, and the most dynamic
  size_t module_bytes = 0;
  uint32_t n_blocks = 0;  // at work on a multiprocessor
  std::optional<ScorerSlots> slots;

  uint32_t threads_at_work() const { return n_blocks * n_threads; }
};

class Summary {
 public:
  void Add(const KernelFigures& figures) { all_.push_back(figures); }
  bool is_empty() const { return all_.empty(); }

  void Print() const;

 private:
  void PrintKernels() const;
  void PrintPredictions() const;

  std::vector<KernelFigures> all_;
};

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_SUMMARY_H_
