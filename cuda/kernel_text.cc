#include "cuda/kernel_text.h"

#include <initializer_list>
#include <string_view>

namespace kvevict::cuda {
namespace {

constexpr std::initializer_list<SourceText> kIncludes = {
#include "kernel_includes.inc"
};

constexpr std::initializer_list<SourceText> kPrograms = {
#include "kernel_programs.inc"
};

}  // namespace

std::span<const SourceText> IncludeTexts() { return kIncludes; }

const SourceText* ProgramText(ModuleId module) {
  for (const SourceText& program : kPrograms) {
    std::string_view name = program.name;
    name.remove_suffix(std::string_view(".cu").size());
    if (name == ModuleName(module)) return &program;
  }
  return nullptr;
}

}  // namespace kvevict::cuda
