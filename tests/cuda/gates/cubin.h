// Reads a cubin without a disassembler: an ELF64 file with one section of
// 16-byte instructions per kernel.
#ifndef KVEVICT_TESTS_CUDA_GATES_CUBIN_H_
#define KVEVICT_TESTS_CUDA_GATES_CUBIN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cuda/gates/sass.h"

namespace kvevict::cuda {

struct CubinKernel {
  std::string name;
  uint32_t max_threads = 0;  // from the launch bounds
  std::vector<SassInstruction> instructions;

  size_t Count(Opcode opcode) const;
  // Counts memory instructions that move this many bits per thread, at least 32.
  size_t Count(Opcode opcode, int n_bits) const;
};

// Every kernel of the file. Throws std::runtime_error if it is no such file.
std::vector<CubinKernel> ReadCubin(const std::string& image);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_CUBIN_H_
