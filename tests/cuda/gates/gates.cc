// gates SM...: compiles every kernel for these architectures with every libnvrtc
// that knows them, and checks the promises of the design. Prints figures of each,
// and in the end the tables of docs/cuda.md. Exits with 77 if no libnvrtc knows any
// of the architectures.
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>

#include "cuda/kernels/attention_mma.h"
#include "cuda/kernels/gather_rows.h"
#include "cuda/kernels/window_attention.h"
#include "tests/cuda/gates/cubin.h"
#include "tests/cuda/gates/flags.h"
#include "tests/cuda/gates/machines.h"
#include "tests/cuda/gates/occupancy.h"
#include "tests/cuda/gates/ptxas_log.h"
#include "tests/cuda/gates/slots.h"
#include "tests/cuda/gates/summary.h"
#include "tests/cuda/gates/variants.h"
#include "tests/rig/nvrtcs.h"

namespace kvevict::cuda {
namespace {

constexpr size_t kMostCubinBytes = 400 << 10;
constexpr uint32_t kFullBlock = 256;

// The slots of a warp for 16 keys in the flagship's scorer must be fewer than the
// 128 clocks that its 16 exponentials take a quarter of a multiprocessor.
constexpr size_t kMostChunkSlots = 125;

// A multiprocessor must have this at work to hide latencies: threads; or tiles
// under way for a scorer with tensor cores, whose tiles fill shared memory, as many
// bytes as come in the latency of busy memory.
constexpr uint32_t kLeastThreads = 448;
constexpr double kMemoryNs = 800;
double LeastTileBytes(int sm) {
  double least = 0;
  for (const Gpu& gpu : kGpus) {
    const double per_ns = gpu.bytes_per_ns / gpu.n_multiprocessors;
    if (gpu.sm == std::min(sm, 90)) least = std::max(least, kMemoryNs * per_ns);
  }
  return least;
}

// The least time for which a scorer's block multiplies a tile: from 4 latencies of memory
// on little is lost even where nobody hides them.
constexpr double kLongProductsNs = 4 * kMemoryNs;
// A V100 and a T4 multiply without tensor cores at this rate, each multiprocessor.
constexpr double kOldFmaPerNs = 1.59 * 64;
double TileProductsNs(const Variant& variant, int sm) {
  if (sm < 80) {
    return variant.uses_mma ? 0 : variant.n_tile_products / kOldFmaPerNs;
  }
  double least = 0;
  for (const Gpu& gpu : kGpus) {
    if (gpu.sm != std::min(sm, 90)) continue;
    const double of_gpu =
        variant.uses_mma ? gpu.tensor_tflops * 1000 * gpu.mma_sync_share / 2
                         : gpu.n_multiprocessors * gpu.ghz * gpu.fma_per_clock;
    const double ns = variant.n_tile_products * gpu.n_multiprocessors / of_gpu;
    least = least == 0 ? ns : std::min(least, ns);
  }
  return least;
}

// A block alone has this, or threads with 32 loads of 16 bytes under way each.
constexpr uint32_t kFewThreads = 256;

// A multiprocessor has two blocks of attention by tensor cores, or one if a block
// takes more than half of the least shared memory.
uint32_t LeastAttendThreads(const KernelFigures& figures) {
  const bool is_alone = figures.shared_bytes > (99 << 10) / 2;
  return is_alone ? kAttendMmaThreads : 2 * kAttendMmaThreads;
}

uint32_t LeastThreads(const KernelFigures& figures) {
  if (figures.kernel == "attend_mma") return LeastAttendThreads(figures);
  // A T4 has shared memory for only one block of these.
  const bool is_alone =
      figures.sm == 75 && (figures.kernel == "window_scores" ||
                           figures.kernel == "leverage_scores");
  return is_alone || figures.kernel == "gather_columns_16" ? kFewThreads
                                                           : kLeastThreads;
}

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

void CheckUse(const CubinKernel& kernel, const KernelUse& use,
              int most_registers) {
  const char* name = kernel.name.c_str();
  Expect(use.is_complete(), "%s: the log does not tell what it uses", name);
  Expect(kernel.max_threads > 0, "%s: no launch bounds", name);
  Expect(kernel.max_threads < kFullBlock || use.n_registers <= most_registers,
         "%s: %d registers > %d for %u threads", name, use.n_registers,
         most_registers, kernel.max_threads);
  Expect(use.stack_bytes == 0, "%s: %d bytes of stack", name, use.stack_bytes);
  Expect(use.spill_store_bytes == 0 && use.spill_load_bytes == 0,
         "%s: spills %d bytes, reads %d", name, use.spill_store_bytes,
         use.spill_load_bytes);
  const size_t n_local =
      kernel.Count(Opcode::kLdl) + kernel.Count(Opcode::kStl);
  Expect(n_local == 0, "%s: %zu accesses to local memory", name, n_local);
}

void CheckOccupancy(const KernelFigures& figures, const Variant& variant) {
  const uint32_t least = LeastThreads(figures);
  const double tile_bytes =
      variant.is_flagship
          ? 0.0
          : static_cast<double>(variant.n_tile_bytes) * figures.n_blocks;
  const double least_bytes = LeastTileBytes(figures.sm);
  Expect(
      figures.threads_at_work() >= least ||
          (tile_bytes > 0 && tile_bytes >= least_bytes) ||
          (!variant.is_flagship &&
           TileProductsNs(variant, figures.sm) >= kLongProductsNs),
      "%s: %u blocks of %u threads at work, %u threads < %u, with %.0f bytes "
      "of tiles < %.0f",
      figures.kernel.c_str(), figures.n_blocks, figures.n_threads,
      figures.threads_at_work(), least, tile_bytes, least_bytes);
}

// Attention has all products of values, and those of some steps of keys.
void CheckAttendProducts(const CubinKernel& kernel, const Variant& variant) {
  const size_t n_mma = kernel.Count(Opcode::kHmma);
  const size_t n_all = kernel.Count(Opcode::kLdsm);
  const size_t n_of_keys = n_all - variant.n_value_matrices;
  const size_t n_steps = n_of_keys / variant.n_step_matrices;
  Expect(
      n_all > variant.n_value_matrices &&
          n_steps * variant.n_step_matrices == n_of_keys &&
          n_mma == variant.n_value_products + n_steps * variant.n_step_products,
      "%s: %zu HMMA and %zu LDSM, not %zu and %zu and some times %zu and %zu",
      kernel.name.c_str(), n_mma, n_all, variant.n_value_products,
      variant.n_value_matrices, variant.n_step_products,
      variant.n_step_matrices);
}

void CheckCopies(const CubinKernel& kernel, const Variant& variant) {
  const char* name = kernel.name.c_str();
  const size_t n_async = kernel.Count(Opcode::kLdgsts);
  Expect(n_async >= variant.n_copies, "%s: %zu LDGSTS < %zu", name, n_async,
         variant.n_copies);
  const size_t n_wide = kernel.Count(Opcode::kLdgsts, 128);
  Expect(n_wide == n_async, "%s: %zu LDGSTS, but %zu of 128 bits", name,
         n_async, n_wide);
}

// near_cosines.cuh: 16 elements of 16 rows by 32 columns at a time.
bool FiltersCosines(const CubinKernel& kernel) {
  return kernel.name == "redundancy_search" || kernel.name == "merge_search";
}

void CheckProducts(const CubinKernel& kernel, const Variant& variant, int sm) {
  if (variant.n_step_products > 0) {
    CheckAttendProducts(kernel, variant);
    CheckCopies(kernel, variant);
    return;
  }
  const char* name = kernel.name.c_str();
  const size_t n_mma = kernel.Count(Opcode::kHmma);
  if (FiltersCosines(kernel) && sm >= 80) {
    const size_t n_loads = kernel.Count(Opcode::kLdsm);
    Expect(n_mma > 0 && 3 * n_mma == 4 * n_loads,
           "%s: %zu HMMA and %zu LDSM, not four for three", name, n_mma,
           n_loads);
    return;
  }
  if (variant.n_products == 0) {
    Expect(n_mma == 0, "%s: %zu HMMA", name, n_mma);
    return;
  }
  // The code may contain the loop over a tile's keys twice, with and without
  // mask. So matrices are counted, and products compared with them.
  const size_t n_all = kernel.Count(Opcode::kLdsm);
  const size_t n_matrices = n_all - variant.n_query_matrices;
  Expect(
      n_all > variant.n_query_matrices && n_matrices % variant.n_matrices == 0,
      "%s: %zu LDSM, not %zu and a multiple of %zu", name, n_all,
      variant.n_query_matrices, variant.n_matrices);
  Expect(n_mma == n_matrices * variant.n_products,
         "%s: %zu HMMA, not %zu for each of %zu LDSM", name, n_mma,
         variant.n_products, n_matrices);
  CheckCopies(kernel, variant);
}

// Rows that a compaction thread has under way together, in the forms for contiguous,
// paged and far rows. Copies may go from either of the first two to either.
size_t RowsOfAllForms(const std::string& kernel) {
  if (kernel == "copy_rows_16") return 5 * kChunkLoads;
  if (kernel == "restore_columns_16") return 3 * ColumnRows(16, true);
  if (kernel == "gather_columns_16") {
    return ColumnRows(16, false) + 2 * ColumnRows(16, true);
  }
  const bool by_chunks = kernel == "gather_chunks_16" ||
                         kernel == "reorder_stage_16" ||
                         kernel == "reorder_place_16";
  return by_chunks ? 3 * kChunkLoads : 0;
}

void CheckMoves(const CubinKernel& kernel) {
  const size_t n_rows = RowsOfAllForms(kernel.name);
  const size_t n_loads = kernel.Count(Opcode::kLdg, 128);
  const size_t n_stores = kernel.Count(Opcode::kStg, 128);
  Expect(n_loads >= n_rows && n_stores >= n_rows,
         "%s: %zu loads and %zu stores of 128 bits < %zu", kernel.name.c_str(),
         n_loads, n_stores, n_rows);
}

// Kernels work in place, so nothing may come from a cache that does not see
// stores. Compaction by chunks tells by flags what has been read.
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
  // There are forms for contiguous, paged and far rows.
  const size_t n = kernel.name.starts_with("gather_chunks_") ? 3 : 0;
  Expect(flags.n_raised == n, "%s raises %zu flags, not %zu", name,
         flags.n_raised, n);
  Expect(flags.n_acquired >= n, "%s acquires %zu flags < %zu", name,
         flags.n_acquired, n);
}

ScorerSlots CheckSlots(const CubinKernel& kernel, const Variant& variant,
                       int sm) {
  const ScorerSlots slots =
      CountScorerSlots(kernel, sm, variant.n_matrices * variant.n_products);
  std::printf(
      "  %s: %zu issue slots for 16 keys, %zu of them exponentials, %zu of "
      "these between products, and %zu for a tile\n",
      kernel.name.c_str(), slots.of_chunk, slots.exponentials_of_chunk,
      slots.exponentials_between_products, slots.of_tile);
  Expect(slots.of_chunk <= kMostChunkSlots, "%s: %zu issue slots > %zu",
         kernel.name.c_str(), slots.of_chunk, kMostChunkSlots);
  // With large tiles the second pass multiplies keys while it weighs others.
  const bool overlaps =
      kernel.name == "window_scores" &&
      TileKeys(true, 128, static_cast<uint32_t>(sm)) == kMostTileKeys;
  Expect(!overlaps || 2 * slots.exponentials_between_products >=
                          slots.exponentials_of_chunk,
         "%s: %zu of %zu exponentials between products", kernel.name.c_str(),
         slots.exponentials_between_products, slots.exponentials_of_chunk);
  return slots;
}

void CheckKernels(const Variant& variant, const Compiled& compiled,
                  const std::string& nvrtc, int sm, Summary* summary) {
  std::set<std::string> wanted;
  for (const KernelInfo& kernel : kKernels) {
    if (kernel.module == variant.module) wanted.insert(kernel.name);
  }
  std::map<std::string, KernelUse> uses = ReadPtxasLog(compiled.log);
  for (const CubinKernel& kernel : ReadCubin(compiled.image)) {
    Expect(wanted.erase(kernel.name) == 1,
           "%s: code, but no kernel of the list", kernel.name.c_str());
    const KernelUse& use = uses[kernel.name];
    const bool has_dynamic =
        variant.dynamic_kernel.empty() || variant.dynamic_kernel == kernel.name;
    KernelFigures figures = {
        .form = variant.form(),
        .kernel = kernel.name,
        .nvrtc = nvrtc,
        .sm = sm,
        .n_threads = std::max(kernel.max_threads, 1u),
        .n_registers = static_cast<uint32_t>(std::max(use.n_registers, 0)),
        .shared_bytes = static_cast<uint32_t>(use.shared_bytes) +
                        (has_dynamic ? variant.dynamic_shared_bytes : 0),
        .module_bytes = compiled.image.size(),
        .n_blocks = 0,
        .slots = {}};
    figures.n_blocks = BlocksPerMultiprocessor(
        {figures.n_threads, figures.n_registers, figures.shared_bytes}, sm);
    std::printf(
        "  %s: %u registers, %u threads, %u bytes shared, %u blocks at work\n",
        kernel.name.c_str(), figures.n_registers, figures.n_threads,
        figures.shared_bytes, figures.n_blocks);
    CheckUse(kernel, use, static_cast<int>(variant.n_most_registers));
    CheckOccupancy(figures, variant);
    if (variant.is_flagship) figures.slots = CheckSlots(kernel, variant, sm);
    summary->Add(figures);
    CheckProducts(kernel, variant, sm);
    CheckMoves(kernel);
    CheckOrder(kernel, sm);
  }
  for (const std::string& name : wanted) {
    Expect(false, "%s: no code", name.c_str());
  }
  Expect(compiled.image.size() < kMostCubinBytes, "%zu bytes",
         compiled.image.size());
}

void CheckVariant(const Nvrtc& nvrtc, const Variant& variant, int sm,
                  Summary* summary) {
  std::vector<std::string> options = variant.options;
  options.emplace_back("--ptxas-options=-v");
  const auto start = std::chrono::steady_clock::now();
  Compiled compiled;
  const Status status =
      nvrtc.Compile(*ProgramText(variant.module), IncludeTexts(), options,
                    {.sm = sm}, &compiled);
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  std::printf("%s for sm_%d by %s: %.0f ms, %zu bytes\n",
              variant.name().c_str(), sm, VersionOf(nvrtc).c_str(),
              elapsed.count(), compiled.image.size());
  if (status.ok()) {
    CheckKernels(variant, compiled, VersionOf(nvrtc), sm, summary);
  } else {
    Expect(false, "%s\n%s", LastErrorMessage(), compiled.log.c_str());
  }
}

int Run(const std::vector<int>& architectures, const std::string& names) {
  Summary summary;
  for (const int sm : architectures) {
    const std::vector<const Nvrtc*> nvrtcs = FindNvrtcsFor(sm);
    if (nvrtcs.empty()) {
      std::printf("skipped: no libnvrtc here compiles for sm_%d\n", sm);
    }
    for (const Nvrtc* nvrtc : nvrtcs) {
      for (const Variant& variant : VariantsFor(sm)) {
        if (!variant.name().starts_with(names)) continue;
        CheckVariant(*nvrtc, variant, sm, &summary);
        std::fflush(stdout);
      }
    }
  }
  if (summary.is_empty()) return 77;
  summary.Print();
  std::printf("\n%d failures\n", n_failures);
  return n_failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvevict::cuda

int main(int argc, char** argv) {
  std::vector<int> architectures;
  std::string names;  // what those of the variants to compile begin with
  for (int i = 1; i < argc; ++i) {
    if (std::isdigit(static_cast<unsigned char>(argv[i][0])) != 0) {
      architectures.push_back(std::atoi(argv[i]));
    } else {
      names = argv[i];
    }
  }
  if (architectures.empty() ||
      *std::min_element(architectures.begin(), architectures.end()) <= 0) {
    std::fprintf(stderr,
                 "usage: gates SM... [NAME], as in gates 80 90 "
                 "window_attention\n");
    return 2;
  }
  try {
    return kvevict::cuda::Run(architectures, names);
  } catch (const std::runtime_error& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
