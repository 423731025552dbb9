// The gate finds whatever is left out before a flag is raised.
#include "tests/cuda/gates/flags.h"

#include <criterion/criterion.h>

#include <string_view>

#include "tests/cuda/gates/census.h"

namespace kvevict::cuda {
namespace {

// A block reads and raises a flag: rightly, and each time with one thing left out.
constexpr SourceText kFlags = {"flags.cu", R"(
#define STORE(order) asm volatile("st." order ".global.u32 [%0], %1;" \
    ::"l"(flag), "r"(1) : "memory")
#define LOAD(v, order) asm volatile("ld." order ".global.u32 %0, [%1];" \
    : "=r"(v) : "l"(flag) : "memory")
#define FENCE(scope) asm volatile("fence.acq_rel." scope ";" ::: "memory")

struct Rows { unsigned a, b; };
__device__ Rows Read(const unsigned* in) {
  Rows r;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(r.a)
               : "l"(in + threadIdx.x) : "memory");
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(r.b)
               : "l"(in + threadIdx.x + 999) : "memory");
  return r;
}
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(64) \
    name(const unsigned* in, unsigned* out, unsigned* flag)

KERNEL(right) {
  const Rows r = Read(in);
  const bool any = __syncthreads_or((r.a | r.b) != 0);
  if (threadIdx.x == 0) STORE("release.gpu");
  out[threadIdx.x] = r.a + r.b + any;
}
KERNEL(right_in_a_loop) {
  for (int i = 0; i < 99; ++i) {
    const Rows r = Read(in + i * flag[1]);
    const bool any = __syncthreads_or((r.a | r.b) != 0);
    if (threadIdx.x == 0) STORE("release.gpu");
    out[threadIdx.x] = r.a + r.b + any;
  }
}
KERNEL(loads_on_their_way) {
  const Rows r = Read(in);
  __syncthreads();
  if (threadIdx.x == 0) STORE("release.gpu");
  out[threadIdx.x] = r.a + r.b;
}
KERNEL(one_load_on_its_way) {
  const Rows r = Read(in);
  out[threadIdx.x + 99] = r.a + r.b;
  const Rows late = Read(in + 99);
  const bool any = __syncthreads_or((r.a | r.b) != 0);
  if (threadIdx.x == 0) STORE("release.gpu");
  out[threadIdx.x] = late.a + late.b + any;
}
KERNEL(waits_one_way_only) {
  const Rows r = Read(in);
  if (flag[1] == 3) {
    for (unsigned i = 0; i < r.a; ++i) out[i] = r.b;
  }
  __syncthreads();
  if (threadIdx.x == 0) STORE("release.gpu");
  out[threadIdx.x] = r.a + r.b;
}
KERNEL(no_barrier) {
  const Rows r = Read(in);
  out[threadIdx.x] = r.a + r.b;
  STORE("release.gpu");
}
KERNEL(no_fence) {
  const Rows r = Read(in);
  const bool any = __syncthreads_or((r.a | r.b) != 0);
  if (threadIdx.x == 0) STORE("relaxed.gpu");
  out[threadIdx.x] = r.a + r.b + any;
}
KERNEL(fence_of_the_block) {
  const Rows r = Read(in);
  const bool any = __syncthreads_or((r.a | r.b) != 0);
  FENCE("cta");
  if (threadIdx.x == 0) STORE("relaxed.gpu");
  out[threadIdx.x] = r.a + r.b + any;
}
KERNEL(fence_before_the_barrier) {
  const Rows r = Read(in);
  FENCE("gpu");
  const bool any = __syncthreads_or((r.a | r.b) != 0);
  if (threadIdx.x == 0) STORE("relaxed.gpu");
  out[threadIdx.x] = r.a + r.b + any;
}
KERNEL(acquires) {
  unsigned v;
  do LOAD(v, "acquire.gpu"); while (v == 0);
  out[threadIdx.x] = v;
}
KERNEL(only_looks) {
  unsigned v;
  do LOAD(v, "relaxed.gpu"); while (v == 0);
  out[threadIdx.x] = v;
}
KERNEL(looks_in_the_block) {
  unsigned v;
  LOAD(v, "relaxed.cta");
  STORE("relaxed.cta");
  out[threadIdx.x] = v;
}
KERNEL(looks_in_the_system) {
  unsigned v;
  LOAD(v, "relaxed.sys");
  out[threadIdx.x] = v;
}
KERNEL(by_the_other_cache) { out[threadIdx.x] = __ldg(in + threadIdx.x); }
)"};

// Compiles for each generation of instructions.
std::vector<Census> FlagCensuses() {
  return TakeCensuses(kFlags, {70, 80, 90});
}

struct Expected {
  const char* kernel;
  size_t n_raised;
  size_t n_acquired;
  const char* fault;  // "": none
};
constexpr Expected kExpected[] = {
    {"right", 1, 0, ""},
    {"right_in_a_loop", 1, 0, ""},
    {"loads_on_their_way", 1, 0, "loads be on their way"},
    {"one_load_on_its_way", 1, 0, "loads be on their way"},
    {"waits_one_way_only", 1, 0, "loads be on their way"},
    {"no_barrier", 1, 0, "without a barrier"},
    {"no_fence", 1, 0, "without a fence"},
    {"fence_of_the_block", 1, 0, "without a fence"},
    {"fence_before_the_barrier", 1, 0, "without a fence"},
    {"acquires", 0, 1, ""},
    {"only_looks", 0, 1, "without CCTL"},
    {"looks_in_the_block", 0, 0, ""},
    {"looks_in_the_system", 0, 1, "without CCTL"},
    {"by_the_other_cache", 0, 0, ""},
};

TestSuite(flags);

Test(flags, finds_what_is_left_out) {
  for (const Census& census : FlagCensuses()) {
    for (const Expected& e : kExpected) {
      const Flags flags = CheckFlags(census.of(e.kernel), census.sm);
      // The code may contain a loop several times.
      cr_expect_eq(flags.n_raised > 0, e.n_raised > 0, "%s for sm_%d: %zu",
                   e.kernel, census.sm, flags.n_raised);
      cr_expect_eq(flags.n_acquired > 0, e.n_acquired > 0, "%s for sm_%d: %zu",
                   e.kernel, census.sm, flags.n_acquired);
      const std::string_view expected = e.fault;
      cr_expect_eq(flags.faults.empty(), expected.empty(), "%s for sm_%d: %s",
                   e.kernel, census.sm,
                   flags.faults.empty() ? "no fault" : flags.faults[0].c_str());
      for (const std::string& fault : flags.faults) {
        cr_expect(fault.find(expected) != std::string::npos, "%s for sm_%d: %s",
                  e.kernel, census.sm, fault.c_str());
      }
    }
  }
}

Test(flags, sees_loads_by_the_cache_that_is_not_coherent) {
  for (const Census& census : FlagCensuses()) {
    for (const CubinKernel& kernel : census.kernels) {
      const bool any = std::any_of(
          kernel.instructions.begin(), kernel.instructions.end(),
          [&](const SassInstruction& i) {
            return i.opcode() == Opcode::kLdg && i.IsConstant(census.sm);
          });
      cr_expect_eq(any, kernel.name == "by_the_other_cache", "%s for sm_%d",
                   kernel.name.c_str(), census.sm);
    }
  }
}

}  // namespace
}  // namespace kvevict::cuda
