// The gates find what they look for in a kernel that has it, and not in one without.
#include <criterion/criterion.h>

#include <stdexcept>

#include "tests/cuda/gates/census.h"

namespace kvevict::cuda {
namespace {

constexpr SourceText kProgram = {"census.cu", R"(
extern "C" __global__ void __launch_bounds__(96) copy_16(uint4* to, uint4* from) {
  to[threadIdx.x] = from[threadIdx.x];
}
extern "C" __global__ void copy_4(unsigned* to, unsigned* from) {
  to[threadIdx.x] = from[threadIdx.x];
}
extern "C" __global__ void spill(volatile float* x, const unsigned* order) {
  float held[100];
  for (int i = 0; i < 100; ++i) held[order[i]] = x[i];
  for (int i = 0; i < 100; ++i) x[i] = held[i] * held[99 - i];
}
extern "C" __global__ void __launch_bounds__(1024, 2) crowd(volatile float* x) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) a[i] = x[i];
#pragma unroll
  for (int i = 0; i < 64; ++i) x[i] = a[63 - i];
}
extern "C" __global__ void product(const unsigned* a, float* c) {
  float d[4];
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]),
        "f"(0.0f));
  for (int i = 0; i < 4; ++i) c[i] = d[i];
}
extern "C" __global__ void async(const char* from, char* to) {
  __shared__ __align__(16) char held[16];
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
      (unsigned)__cvta_generic_to_shared(held)), "l"(from));
  asm volatile("cp.async.wait_all;" ::: "memory");
  to[0] = held[threadIdx.x];
}
)"};

TestSuite(census);

Test(census, counts_instructions) {
  for (const Census& census : TakeCensuses(kProgram, {80, 120})) {
    cr_assert_eq(census.kernels.size(), 6);
    const CubinKernel& wide = census.of("copy_16");
    cr_expect_eq(wide.Count(Opcode::kLdg, 128), 1);
    cr_expect_eq(wide.Count(Opcode::kStg, 128), 1);
    cr_expect_eq(wide.Count(Opcode::kLdg, 32), 0);
    cr_expect_eq(wide.max_threads, 96);
    const CubinKernel& narrow = census.of("copy_4");
    cr_expect_eq(narrow.Count(Opcode::kLdg), 1);
    cr_expect_eq(narrow.Count(Opcode::kLdg, 32), 1);
    cr_expect_eq(narrow.Count(Opcode::kStg, 128), 0);
    cr_expect_eq(narrow.Count(Opcode::kHmma), 0);
    cr_expect_eq(narrow.max_threads, 0);
    cr_expect_eq(census.of("product").Count(Opcode::kHmma), 1);
    cr_expect_eq(census.of("async").Count(Opcode::kLdgsts), 1);
  }
}

Test(census, sees_local_memory_and_spills) {
  for (const Census& census : TakeCensuses(kProgram, {80, 120})) {
    cr_expect_geq(census.uses.at("spill").stack_bytes, 400);
    cr_expect_gt(census.of("spill").Count(Opcode::kStl), 0);
    cr_expect_gt(census.of("spill").Count(Opcode::kLdl), 0);
    cr_expect_gt(census.uses.at("crowd").spill_store_bytes, 0);
    cr_expect_gt(census.uses.at("crowd").spill_load_bytes, 0);
    cr_expect_leq(census.uses.at("crowd").n_registers, 32);
    const KernelUse& clean = census.uses.at("copy_16");
    cr_expect(clean.is_complete());
    cr_expect_eq(clean.stack_bytes + clean.spill_store_bytes, 0);
    cr_expect_eq(census.of("copy_16").Count(Opcode::kLdl), 0);
  }
}

Test(census, refuses_what_is_no_cubin) {
  for (const char* text : {"",
                           "\x7f"
                           "ELF",
                           "ptx"}) {
    bool refused = false;
    try {
      (void)ReadCubin(std::string(text) + std::string(100, '\0'));
    } catch (const std::runtime_error&) {
      refused = true;
    }
    cr_expect(refused);
  }
}

// The words around the numbers differ between two compilers.
Test(census, reads_the_logs_of_old_and_new_assemblers) {
  const auto uses = ReadPtxasLog(
      "ptxas info    : 185 bytes gmem\n"
      "ptxas info    : Compiling entry function 'a' for 'sm_80'\n"
      "ptxas info    : Function properties for a\n"
      "ptxas         .     8 bytes stack frame, 12 bytes spill stores, "
      "16 bytes spill loads\n"
      "ptxas info    : Used 128 registers, 3072 bytes smem, 8 bytes cmem[2]\n"
      "ptxas info    : Compiling entry function 'b' for 'sm_100'\n"
      "ptxas info    : Function properties for b\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 10 registers, used 0 barriers\n"
      "ptxas info    : Compiling entry function 'c' for 'sm_100'\n");
  cr_assert_eq(uses.size(), 3);
  const KernelUse& a = uses.at("a");
  cr_expect(a.n_registers == 128 && a.stack_bytes == 8 &&
            a.spill_store_bytes == 12 && a.spill_load_bytes == 16 &&
            a.shared_bytes == 3072);
  const KernelUse& b = uses.at("b");
  cr_expect(b.n_registers == 10 && b.stack_bytes == 0 &&
            b.spill_store_bytes == 0 && b.spill_load_bytes == 0 &&
            b.shared_bytes == 0);
  cr_expect_not(uses.at("c").is_complete());
}

}  // namespace
}  // namespace kvevict::cuda
