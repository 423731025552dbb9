// The kernels: their names (kernels.inc, which embed.cmake makes of their text)
// and their source text, which is part of the library.
#ifndef KVEVICT_CUDA_KERNEL_TEXT_H_
#define KVEVICT_CUDA_KERNEL_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/jit.h"

namespace kvevict::cuda {

// A module is a file kernels/<name>.cu.
enum class ModuleId : uint8_t {
#define KVEVICT_MODULE(module) module,
#define KVEVICT_KERNEL(module, entry)
#include "cuda/kernels.inc"
};

// An entry point.
enum class KernelId : uint8_t {
#define KVEVICT_MODULE(module)
#define KVEVICT_KERNEL(module, entry) entry,
#include "cuda/kernels.inc"
};

inline constexpr const char* kModuleNames[] = {
#define KVEVICT_MODULE(module) #module,
#define KVEVICT_KERNEL(module, entry)
#include "cuda/kernels.inc"
};

struct KernelInfo {
  ModuleId module;
  const char* name;
};

inline constexpr KernelInfo kKernels[] = {
#define KVEVICT_MODULE(module)
#define KVEVICT_KERNEL(module, entry) {ModuleId::module, #entry},
#include "cuda/kernels.inc"
};

inline constexpr size_t kNModules = std::size(kModuleNames);
inline constexpr size_t kNKernels = std::size(kKernels);

constexpr const char* ModuleName(ModuleId module) {
  return kModuleNames[static_cast<size_t>(module)];
}

// Whether a module is only compiled with constants.
constexpr bool NeedsConstants(ModuleId module) {
  return module == ModuleId::window_attention ||
         module == ModuleId::window_attention_few ||
         module == ModuleId::attention_mma;
}

constexpr const KernelInfo& InfoOf(KernelId kernel) {
  return kKernels[static_cast<size_t>(kernel)];
}

// The files that kernels may include: every .cuh and .h of kernels/.
std::span<const SourceText> IncludeTexts();

// The text of a module's .cu file, or null.
const SourceText* ProgramText(ModuleId module);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNEL_TEXT_H_
