#include "tests/gpu/matrix_rate.h"

#include <algorithm>

#include "tests/gpu/program.h"

namespace kvevict::gpu {
namespace {

// Eight independent products run again and again on numbers in (-2, -1] and [1,
// 2) with random digits: the machine is faster on zeros.
constexpr char kProgram[] = R"(
extern "C" __global__ void matrix_rate(unsigned n_rounds, float* out) {
  float c[8][4] = {};
  unsigned state = blockIdx.x * 256 + threadIdx.x + 1;
  unsigned words[6];
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    state = (state ^ state >> 15) * 0x2c1b3c6du;
    state = (state ^ state >> 12) * 0x297a2d39u;
    words[i] = (state & 0x807f807fu) | 0x3f803f80u;
  }
  unsigned a[4] = {words[0], words[1], words[2], words[3]};
  unsigned b[2] = {words[4], words[5]};
  for (unsigned round = 0; round < n_rounds; ++round) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
  if (sum == 12345.0f) *out = sum;
}
)";

constexpr unsigned kThreads = 256;
constexpr double kFlopsPerProduct = 2.0 * 16 * 8 * 16;

}  // namespace

double MatrixRate(const Gpu& gpu, bool full) {
  if (gpu.sm() < 80) return 0;
  const Program program(gpu, "matrix_rate.cu", kProgram);
  const Buffer out(gpu, sizeof(float));
  unsigned n_rounds = full ? 512 : 1;  // half a second in all
  const unsigned n_blocks = full ? 2048 : 1;
  cuda::CUdeviceptr out_address = out.address();
  void* arguments[] = {&n_rounds, &out_address};
  double least_ms = 1e9;
  for (int run = 0; run < (full ? 5 : 1); ++run) {
    least_ms = std::min(least_ms, gpu.Time([&] {
      program.Launch("matrix_rate", n_blocks, kThreads, arguments);
    }));
  }
  return n_blocks * (kThreads / 32) * 8.0 * n_rounds * kFlopsPerProduct /
         (least_ms * 1e-3);
}

}  // namespace kvevict::gpu
