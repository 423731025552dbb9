// The list of kernels, and the texts that the library carries.
#include "cuda/kernel_text.h"

#include <criterion/criterion.h>

#include <set>
#include <string>

namespace kvevict::cuda {
namespace {

TestSuite(kernel_text);

// A kernel of each kind of file: one entry, several, several by one template.
Test(kernel_text, entries_are_found_in_their_files) {
  std::multiset<std::string> found;
  for (const KernelInfo& kernel : kKernels) {
    found.insert(std::string(ModuleName(kernel.module)) + " " + kernel.name);
  }
  for (const char* name :
       {"key_filter filter_keys", "topk select_topk", "topk pin_positions",
        "window_attention window_lse", "gather_rows gather_chunks_16"}) {
    cr_expect(found.count(name) == 1, "%s", name);
  }
  for (size_t i = 0; i < kNModules; ++i) {
    const SourceText* program = ProgramText(static_cast<ModuleId>(i));
    cr_expect(program != nullptr && program->text[0] != 0);
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
