// Compiles a program, for the tests of what reads the machine code.
#ifndef KVEVICT_TESTS_CUDA_GATES_CENSUS_H_
#define KVEVICT_TESTS_CUDA_GATES_CENSUS_H_

#include <criterion/criterion.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/cuda/gates/cubin.h"
#include "tests/cuda/gates/ptxas_log.h"
#include "tests/rig/nvrtcs.h"

namespace kvevict::cuda {

struct Census {
  int sm;
  std::vector<CubinKernel> kernels;
  std::map<std::string, KernelUse> uses;

  const CubinKernel& of(const std::string& name) const {
    const auto found =
        std::find_if(kernels.begin(), kernels.end(),
                     [&](const CubinKernel& k) { return k.name == name; });
    cr_assert(found != kernels.end(), "%s", name.c_str());
    return *found;
  }
};

// Compiles by every libnvrtc, for each of these architectures or the newest
// before it that the library knows.
inline std::vector<Census> TakeCensuses(const SourceText& program,
                                        const std::vector<int>& wanted) {
  std::vector<Census> all;
  for (const Nvrtc* nvrtc : FindNvrtcs()) {
    std::set<int> architectures;
    for (const int sm : wanted) {
      Target target;
      if (nvrtc->FindTarget(sm, &target).ok()) architectures.insert(target.sm);
    }
    for (const int sm : architectures) {
      Compiled compiled;
      const std::string verbose = "--ptxas-options=-v";
      cr_assert(
          nvrtc->Compile(program, {}, {&verbose, 1}, {.sm = sm}, &compiled)
              .ok(),
          "%s", LastErrorMessage());
      all.push_back(
          {sm, ReadCubin(compiled.image), ReadPtxasLog(compiled.log)});
    }
  }
  if (all.empty()) {
    fprintf(stderr, "skipped: no libnvrtc here; pkg/fetch_nvrtc.sh gets one\n");
    cr_skip_test("no libnvrtc");
  }
  return all;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_CENSUS_H_
