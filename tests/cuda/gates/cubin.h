// What is in a cubin, without a disassembler: an ELF64 file with one section of
// 16-byte instructions per kernel.
#ifndef KVEVICT_TESTS_CUDA_GATES_CUBIN_H_
#define KVEVICT_TESTS_CUDA_GATES_CUBIN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvevict::cuda {

// The low nine bits of an instruction. Alike from sm_70 to sm_120.
enum class Opcode : uint32_t {
  kHmma = 0x03c,  // tensor core, 16-bit
  kLdsm = 0x03b,
  kLdg = 0x181,  // global memory
  kStg = 0x186,
  kLdl = 0x183,  // local memory: spills, arrays that are indexed
  kStl = 0x187,
  kLdgsts = 0x1ae,  // cp.async
};

struct CubinKernel {
  std::string name;
  uint32_t max_threads = 0;  // of the launch bounds
  std::vector<std::array<uint64_t, 2>> instructions;

  size_t Count(Opcode opcode) const;
  // Of memory instructions that move this many bits per thread, at least 32.
  size_t Count(Opcode opcode, int n_bits) const;
};

// Every kernel of the file. Throws std::runtime_error if it is no such file.
std::vector<CubinKernel> ReadCubin(const std::string& image);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_CUBIN_H_
