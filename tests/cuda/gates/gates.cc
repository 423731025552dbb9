// gates SM: compiles every kernel for an architecture, with every libnvrtc that
// knows it, and holds the result to what the design promises. Prints a line per
// variant. Exits with 77 where no libnvrtc knows the architecture.
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>

#include "tests/cuda/gates/cubin.h"
#include "tests/cuda/gates/ptxas_log.h"
#include "tests/cuda/gates/variants.h"
#include "tests/cuda/nvrtcs.h"

namespace kvevict::cuda {
namespace {

constexpr size_t kMostCubinBytes = 200 * 1000;
// Two blocks of 256 threads share a multiprocessor's 65,536 registers.
constexpr uint32_t kFullBlock = 256;
constexpr int kMostRegisters = 128;
// 16 to 32 rows are in flight per thread, all loads before the first store.
constexpr size_t kFewestWideMoves = 16;

int n_failures = 0;

[[gnu::format(printf, 2, 3)]] void Expect(bool holds, const char* format, ...) {
  if (holds) return;
  ++n_failures;
  va_list args;
  va_start(args, format);
  std::printf("  FAILED: ");
  std::vprintf(format, args);
  std::printf("\n");
  va_end(args);
}

void CheckUse(const CubinKernel& kernel, const KernelUse& use, int sm) {
  const char* name = kernel.name.c_str();
  Expect(use.is_complete(), "%s: the log does not tell what it uses", name);
  Expect(kernel.max_threads > 0, "%s: no launch bounds", name);
  Expect(kernel.max_threads < kFullBlock || use.n_registers <= kMostRegisters,
         "%s: %d registers > %d for %u threads", name, use.n_registers,
         kMostRegisters, kernel.max_threads);
  if (sm < 80) return;
  Expect(use.stack_bytes == 0, "%s: %d bytes of stack", name, use.stack_bytes);
  Expect(use.spill_store_bytes == 0 && use.spill_load_bytes == 0,
         "%s: spills %d bytes, reads %d", name, use.spill_store_bytes,
         use.spill_load_bytes);
  const size_t n_local =
      kernel.Count(Opcode::kLdl) + kernel.Count(Opcode::kStl);
  Expect(n_local == 0, "%s: %zu accesses to local memory", name, n_local);
}

void CheckInstructions(const CubinKernel& kernel, const Variant& variant) {
  const char* name = kernel.name.c_str();
  const size_t n_mma = kernel.Count(Opcode::kHmma);
  const size_t n_async = kernel.Count(Opcode::kLdgsts);
  if (variant.uses_mma) {
    Expect(n_mma > 0, "%s: no HMMA", name);
    Expect(n_async > 0, "%s: no LDGSTS", name);
  } else {
    Expect(n_mma == 0, "%s: %zu HMMA", name, n_mma);
  }
  const bool moves_rows = variant.module == ModuleId::gather_rows ||
                          variant.module == ModuleId::reorder_rows;
  if (moves_rows && kernel.name.ends_with("_16")) {
    const size_t n_loads = kernel.Count(Opcode::kLdg, 128);
    const size_t n_stores = kernel.Count(Opcode::kStg, 128);
    Expect(n_loads >= kFewestWideMoves && n_stores >= kFewestWideMoves,
           "%s: %zu loads and %zu stores of 128 bits < %zu", name, n_loads,
           n_stores, kFewestWideMoves);
  }
}

void CheckKernels(const Variant& variant, const Compiled& compiled, int sm) {
  std::set<std::string> wanted;
  for (const KernelInfo& kernel : kKernels) {
    if (kernel.module == variant.module) wanted.insert(kernel.name);
  }
  std::map<std::string, KernelUse> uses = ReadPtxasLog(compiled.log);
  int most_registers = 0;
  for (const CubinKernel& kernel : ReadCubin(compiled.image)) {
    Expect(wanted.erase(kernel.name) == 1,
           "%s: code, but no kernel of the list", kernel.name.c_str());
    const KernelUse& use = uses[kernel.name];
    most_registers = std::max(most_registers, use.n_registers);
    CheckUse(kernel, use, sm);
    CheckInstructions(kernel, variant);
  }
  for (const std::string& name : wanted) {
    Expect(false, "%s: no code", name.c_str());
  }
  Expect(compiled.image.size() < kMostCubinBytes, "%zu bytes",
         compiled.image.size());
  std::printf(", at most %d registers, %zu bytes\n", most_registers,
              compiled.image.size());
}

// Returns the milliseconds that it took.
double CheckVariant(const Nvrtc& nvrtc, const Variant& variant, int sm) {
  std::vector<std::string> options = variant.options;
  options.emplace_back("--ptxas-options=-v");
  std::printf("%s for sm_%d by %s: ", variant.name().c_str(), sm,
              VersionOf(nvrtc).c_str());
  const auto start = std::chrono::steady_clock::now();
  Compiled compiled;
  const Status status =
      nvrtc.Compile(*ProgramText(variant.module), IncludeTexts(), options,
                    {.sm = sm}, &compiled);
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  std::printf("%.0f ms", elapsed.count());
  if (status.ok()) {
    CheckKernels(variant, compiled, sm);
  } else {
    Expect(false, "%s\n%s", LastErrorMessage(), compiled.log.c_str());
  }
  return elapsed.count();
}

bool Knows(const Nvrtc& nvrtc, int sm) {
  Target target;
  return nvrtc.FindTarget(sm, &target).ok() && !target.ptx;
}

int Run(int sm) {
  int n_nvrtcs = 0;
  for (const Nvrtc* nvrtc : FindNvrtcs()) {
    if (!Knows(*nvrtc, sm)) continue;
    ++n_nvrtcs;
    double sum = 0;
    for (const Variant& variant : VariantsFor(sm)) {
      sum += CheckVariant(*nvrtc, variant, sm);
    }
    std::printf("sm_%d by %s: %.1f s\n", sm, VersionOf(*nvrtc).c_str(),
                sum / 1000);
  }
  if (n_nvrtcs == 0) {
    std::printf("skipped: no libnvrtc here compiles for sm_%d\n", sm);
    return 77;
  }
  std::printf("%d failures\n", n_failures);
  return n_failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvevict::cuda

int main(int argc, char** argv) {
  const int sm = argc == 2 ? std::atoi(argv[1]) : 0;
  if (sm <= 0) {
    std::fprintf(stderr, "usage: gates SM, as in gates 80\n");
    return 2;
  }
  try {
    return kvevict::cuda::Run(sm);
  } catch (const std::runtime_error& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
