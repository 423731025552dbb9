#include "tests/cuda/gates/ptxas_log.h"

#include <cstdlib>
#include <cstring>
#include <sstream>

namespace kvevict::cuda {

std::map<std::string, KernelUse> ReadPtxasLog(const std::string& log) {
  std::map<std::string, KernelUse> uses;
  KernelUse* use = nullptr;  // the kernel that the lines are about
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    char name[256];
    const char* text = line.c_str();
    if (const char* entry = std::strstr(text, "Compiling entry function '");
        entry != nullptr &&
        std::sscanf(entry, "Compiling entry function '%255[^']'", name) == 1) {
      use = &uses[name];
    }
    if (use == nullptr) continue;
    if (const char* used = std::strstr(text, "Used "); used != nullptr) {
      (void)std::sscanf(used, "Used %d registers", &use->n_registers);
      // "Used 8 registers, 96 bytes smem, ...": the number before the words.
      if (const char* end = std::strstr(used, " bytes smem"); end != nullptr) {
        const char* number = end;
        while (number[-1] >= '0' && number[-1] <= '9') --number;
        use->shared_bytes = std::atoi(number);
      }
    }
    // Blanks come before it, and in some versions "ptxas .".
    if (std::strstr(text, " bytes stack frame") != nullptr) {
      const char* number = std::strpbrk(text, "0123456789");
      (void)std::sscanf(number,
                        "%d bytes stack frame, %d bytes spill stores, %d bytes "
                        "spill loads",
                        &use->stack_bytes, &use->spill_store_bytes,
                        &use->spill_load_bytes);
    }
  }
  return uses;
}

}  // namespace kvevict::cuda
