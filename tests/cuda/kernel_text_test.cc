// The list of kernels and their text agree: each entry point is in one place.
#include "cuda/kernel_text.h"

#include <criterion/criterion.h>

#include <set>
#include <string>
#include <string_view>

namespace kvevict::cuda {
namespace {

std::set<std::string> ListedEntries(ModuleId module) {
  std::set<std::string> names;
  for (const KernelInfo& kernel : kKernels) {
    if (kernel.module == module) names.insert(kernel.name);
  }
  return names;
}

// The names that follow KV_KERNEL( in a text.
std::set<std::string> WrittenEntries(std::string_view text) {
  constexpr std::string_view kHead = "\nKV_KERNEL(";
  std::set<std::string> names;
  size_t at = text.find(kHead);
  while (at != std::string_view::npos) {
    const size_t name = at + kHead.size();
    names.emplace(text.substr(name, text.find(',', name) - name));
    at = text.find(kHead, name);
  }
  return names;
}

TestSuite(kernel_text);

Test(kernel_text, every_entry_is_listed_and_written) {
  for (size_t i = 0; i < kNModules; ++i) {
    const auto module = static_cast<ModuleId>(i);
    const SourceText* program = ProgramText(module);
    cr_assert_not_null(program, "%s has no source", ModuleName(module));
    cr_expect(WrittenEntries(program->text) == ListedEntries(module), "%s",
              ModuleName(module));
    cr_expect_gt(ListedEntries(module).size(), 0, "%s", ModuleName(module));
  }
}

Test(kernel_text, includes_are_embedded) {
  std::set<std::string> names;
  for (const SourceText& include : IncludeTexts()) names.insert(include.name);
  cr_expect(names.contains("device.cuh"));
  cr_expect(names.contains("params.h"));
}

}  // namespace
}  // namespace kvevict::cuda
