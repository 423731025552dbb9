// The machine's ceilings, each by a kernel that does nothing else.
#include "tests/gpu/program.h"
#include "tests/gpu/rows.h"

namespace kvevict::gpu::rows {
namespace {

// 16-byte loads and stores by blocks side by side, four at once of each thread;
// exponentials of independent numbers.
constexpr char kKernels[] = R"(
#define KV_ALL(i) \
  for (unsigned long long i = blockIdx.x * 1024ull + threadIdx.x; i < n; \
       i += gridDim.x * 1024ull)

extern "C" __global__ void read_rate(unsigned long long n, const uint4* from,
                                     unsigned* out) {
  unsigned sum = 0;
  KV_ALL(i) {
    uint4 q[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      q[j] = i + j * 256 < n ? from[i + j * 256] : uint4{};
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += q[j].x ^ q[j].y ^ q[j].z ^ q[j].w;
  }
  if (sum == 0x12345u) *out = sum;
}

extern "C" __global__ void copy_rate(unsigned long long n, const uint4* from,
                                     uint4* to) {
  KV_ALL(i) {
    uint4 q[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j * 256 < n) q[j] = from[i + j * 256];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j * 256 < n) to[i + j * 256] = q[j];
    }
  }
}

extern "C" __global__ void exp2_rate(unsigned n_rounds, float* out) {
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = -1e-3f * (threadIdx.x + i);
  for (unsigned round = 0; round < n_rounds; ++round) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[i]));
    }
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += x[i];
  if (sum == 12345.0f) *out = sum;
}
)";

constexpr unsigned kMachineThreads = 256;
constexpr uint64_t kExponentials = 8;

struct MachineState {
  Program program;
  Buffer from;
  Buffer to;
};

Work MakeMemory(const Bed& bed, bool copies, uint64_t n_bytes,
                unsigned n_blocks) {
  const std::shared_ptr<MachineState> state(
      new MachineState{{bed.gpu, "machine.cu", kKernels},
                       {bed.gpu, n_bytes},
                       {bed.gpu, copies ? n_bytes : sizeof(unsigned)}});
  Check(bed.gpu.driver(),
        bed.gpu.driver().cuMemsetD8Async(state->from.address(), 7, n_bytes,
                                         bed.gpu.stream()),
        "cuMemsetD8Async");
  Work work;
  work.run = [state, copies, n_blocks] {
    unsigned long long n = state->from.n_bytes() / 16;
    cuda::CUdeviceptr from = state->from.address();
    cuda::CUdeviceptr to = state->to.address();
    void* arguments[] = {&n, &from, &to};
    state->program.Launch(copies ? "copy_rate" : "read_rate", n_blocks,
                          kMachineThreads, arguments);
  };
  work.bytes = copies ? 2 * n_bytes : n_bytes;
  return work;
}

// "flops" are exponentials.
Work MakeExponentials(const Bed& bed, unsigned n_blocks, unsigned n_rounds) {
  const std::shared_ptr<MachineState> state(
      new MachineState{{bed.gpu, "machine.cu", kKernels},
                       {bed.gpu, 0},
                       {bed.gpu, sizeof(float)}});
  Work work;
  work.run = [state, n_blocks, n_rounds] {
    unsigned n = n_rounds;
    cuda::CUdeviceptr to = state->to.address();
    void* arguments[] = {&n, &to};
    state->program.Launch("exp2_rate", n_blocks, kMachineThreads, arguments);
  };
  work.flops = uint64_t{n_blocks} * kMachineThreads * n_rounds * kExponentials;
  return work;
}

}  // namespace

std::vector<Row> MachineRows(const Scale& scale) {
  std::vector<Row> rows;
  const uint64_t n_bytes = scale.full ? uint64_t{1} << 30 : 1 << 14;
  const unsigned n_blocks = scale.full ? 2112 : 2;
  for (const bool copies : {false, true}) {
    rows.push_back({"machine", copies ? "copy by a kernel" : "read by a kernel",
                    By::kGraph, 2 * n_bytes, [=](const Bed& bed) {
                      return MakeMemory(bed, copies, n_bytes, n_blocks);
                    }});
  }
  rows.push_back({"machine", "a graph that clears one word", By::kGraph, 0,
                  [](const Bed& bed) {
                    Work work;
                    work.run = [&gpu = bed.gpu,
                                word = std::make_shared<Buffer>(bed.gpu, 4)] {
                      Check(gpu.driver(),
                            gpu.driver().cuMemsetD8Async(word->address(), 0, 4,
                                                         gpu.stream()),
                            "cuMemsetD8Async");
                    };
                    return work;
                  }});
  rows.push_back({"machine", "exponentials (counted as FLOPs)", By::kGraph, 0,
                  [=, n_rounds = scale.full ? 4096u : 2u](const Bed& bed) {
                    return MakeExponentials(bed, n_blocks, n_rounds);
                  }});
  return rows;
}

}  // namespace kvevict::gpu::rows
