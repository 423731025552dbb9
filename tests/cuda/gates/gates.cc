// gates SM: compiles every kernel for an architecture, with every libnvrtc that
// knows it, and holds the result to what the design promises. Prints figures of
// each. Exits with 77 where no libnvrtc knows the architecture.
#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>

#include "cuda/kernels/gather_rows.h"
#include "tests/cuda/gates/cubin.h"
#include "tests/cuda/gates/flags.h"
#include "tests/cuda/gates/ptxas_log.h"
#include "tests/cuda/gates/variants.h"
#include "tests/rig/nvrtcs.h"

namespace kvevict::cuda {
namespace {

constexpr size_t kMostCubinBytes = 200 * 1000;
// Two blocks of 256 threads share a multiprocessor's 65,536 registers.
constexpr uint32_t kFullBlock = 256;
constexpr int kMostRegisters = 128;

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

void CheckUse(const CubinKernel& kernel, const KernelUse& use) {
  const char* name = kernel.name.c_str();
  Expect(use.is_complete(), "%s: the log does not tell what it uses", name);
  Expect(kernel.max_threads > 0, "%s: no launch bounds", name);
  Expect(kernel.max_threads < kFullBlock || use.n_registers <= kMostRegisters,
         "%s: %d registers > %d for %u threads", name, use.n_registers,
         kMostRegisters, kernel.max_threads);
  Expect(use.stack_bytes == 0, "%s: %d bytes of stack", name, use.stack_bytes);
  Expect(use.spill_store_bytes == 0 && use.spill_load_bytes == 0,
         "%s: spills %d bytes, reads %d", name, use.spill_store_bytes,
         use.spill_load_bytes);
  const size_t n_local =
      kernel.Count(Opcode::kLdl) + kernel.Count(Opcode::kStl);
  Expect(n_local == 0, "%s: %zu accesses to local memory", name, n_local);
}

void CheckProducts(const CubinKernel& kernel, const Variant& variant) {
  const char* name = kernel.name.c_str();
  const size_t n_mma = kernel.Count(Opcode::kHmma);
  if (variant.n_products == 0) {
    Expect(n_mma == 0, "%s: %zu HMMA", name, n_mma);
    return;
  }
  // The loop over a tile's keys may stand in the code twice, with and without
  // mask, so matrices are counted and products compared with them.
  const size_t n_all = kernel.Count(Opcode::kLdsm);
  const size_t n_matrices = n_all - variant.n_query_matrices;
  Expect(
      n_all > variant.n_query_matrices && n_matrices % variant.n_matrices == 0,
      "%s: %zu LDSM, not %zu and a multiple of %zu", name, n_all,
      variant.n_query_matrices, variant.n_matrices);
  Expect(n_mma == n_matrices * variant.n_products,
         "%s: %zu HMMA, not %zu for each of %zu LDSM", name, n_mma,
         variant.n_products, n_matrices);
  const size_t n_async = kernel.Count(Opcode::kLdgsts);
  Expect(n_async >= variant.n_copies, "%s: %zu LDGSTS < %zu", name, n_async,
         variant.n_copies);
  const size_t n_wide = kernel.Count(Opcode::kLdgsts, 128);
  Expect(n_wide == n_async, "%s: %zu LDGSTS, but %zu of 128 bits", name,
         n_async, n_wide);
}

// Rows that a thread of compaction has on their way together, in the forms for
// contiguous and for paged caches.
size_t RowsOfBothForms(const std::string& kernel) {
  if (kernel == "gather_columns_16") {
    return ColumnRows(16, false) + ColumnRows(16, true);
  }
  const bool by_chunks = kernel == "gather_chunks_16" ||
                         kernel == "reorder_stage_16" ||
                         kernel == "reorder_place_16";
  return by_chunks ? 2 * kChunkLoads : 0;
}

void CheckMoves(const CubinKernel& kernel) {
  const size_t n_rows = RowsOfBothForms(kernel.name);
  const size_t n_loads = kernel.Count(Opcode::kLdg, 128);
  const size_t n_stores = kernel.Count(Opcode::kStg, 128);
  Expect(n_loads >= n_rows && n_stores >= n_rows,
         "%s: %zu loads and %zu stores of 128 bits < %zu", kernel.name.c_str(),
         n_loads, n_stores, n_rows);
}

// Kernels work in place, so nothing may come from a cache that does not see what
// is stored. Compaction by chunks tells by flags what has been read.
void CheckOrder(const CubinKernel& kernel, int sm) {
  const char* name = kernel.name.c_str();
  const auto n_constant =
      std::count_if(kernel.instructions.begin(), kernel.instructions.end(),
                    [&](const SassInstruction& i) {
                      return i.opcode() == Opcode::kLdg && i.IsConstant(sm);
                    });
  Expect(n_constant == 0, "%s: %td LDG.CONSTANT", name, n_constant);
  const Flags flags = CheckFlags(kernel, sm);
  for (const std::string& fault : flags.faults) {
    Expect(false, "%s", fault.c_str());
  }
  // In the forms for contiguous and for paged caches.
  const size_t n = kernel.name.starts_with("gather_chunks_") ? 2 : 0;
  Expect(flags.n_raised == n, "%s raises %zu flags, not %zu", name,
         flags.n_raised, n);
  Expect(flags.n_acquired >= n, "%s acquires %zu flags < %zu", name,
         flags.n_acquired, n);
}

// What the report sums up, for an architecture and libnvrtc.
struct Extremes {
  double sum_ms = 0;
  size_t most_bytes = 0;
  int most_registers = 0;  // in full blocks
};

void CheckKernels(const Variant& variant, const Compiled& compiled, int sm,
                  Extremes* extremes) {
  std::set<std::string> wanted;
  for (const KernelInfo& kernel : kKernels) {
    if (kernel.module == variant.module) wanted.insert(kernel.name);
  }
  std::map<std::string, KernelUse> uses = ReadPtxasLog(compiled.log);
  for (const CubinKernel& kernel : ReadCubin(compiled.image)) {
    Expect(wanted.erase(kernel.name) == 1,
           "%s: code, but no kernel of the list", kernel.name.c_str());
    const KernelUse& use = uses[kernel.name];
    std::printf("  %s: %d registers, %u threads\n", kernel.name.c_str(),
                use.n_registers, kernel.max_threads);
    if (kernel.max_threads >= kFullBlock) {
      extremes->most_registers =
          std::max(extremes->most_registers, use.n_registers);
    }
    CheckUse(kernel, use);
    CheckProducts(kernel, variant);
    CheckMoves(kernel);
    CheckOrder(kernel, sm);
  }
  for (const std::string& name : wanted) {
    Expect(false, "%s: no code", name.c_str());
  }
  Expect(compiled.image.size() < kMostCubinBytes, "%zu bytes",
         compiled.image.size());
  extremes->most_bytes = std::max(extremes->most_bytes, compiled.image.size());
}

void CheckVariant(const Nvrtc& nvrtc, const Variant& variant, int sm,
                  Extremes* extremes) {
  std::vector<std::string> options = variant.options;
  options.emplace_back("--ptxas-options=-v");
  const auto start = std::chrono::steady_clock::now();
  Compiled compiled;
  const Status status =
      nvrtc.Compile(*ProgramText(variant.module), IncludeTexts(), options,
                    {.sm = sm}, &compiled);
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  extremes->sum_ms += elapsed.count();
  std::printf("%s for sm_%d by %s: %.0f ms, %zu bytes\n",
              variant.name().c_str(), sm, VersionOf(nvrtc).c_str(),
              elapsed.count(), compiled.image.size());
  if (status.ok()) {
    CheckKernels(variant, compiled, sm, extremes);
  } else {
    Expect(false, "%s\n%s", LastErrorMessage(), compiled.log.c_str());
  }
}

int Run(int sm) {
  const std::vector<const Nvrtc*> nvrtcs = FindNvrtcsFor(sm);
  for (const Nvrtc* nvrtc : nvrtcs) {
    Extremes extremes;
    const std::vector<Variant> variants = VariantsFor(sm);
    for (const Variant& variant : variants) {
      CheckVariant(*nvrtc, variant, sm, &extremes);
    }
    std::printf(
        "sm_%d by %s: %zu modules in %.1f s, the largest of %zu bytes, at most "
        "%d registers in blocks of %u threads\n",
        sm, VersionOf(*nvrtc).c_str(), variants.size(), extremes.sum_ms / 1000,
        extremes.most_bytes, extremes.most_registers, kFullBlock);
  }
  if (nvrtcs.empty()) {
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
