// The launch of attention_mma.cu: constants that the kernel and the host share.
// It takes AttendParams, and leaves states for attend_finish.
#ifndef KVEVICT_CUDA_KERNELS_ATTENTION_MMA_H_
#define KVEVICT_CUDA_KERNELS_ATTENTION_MMA_H_

#include "attention.h"

namespace kvevict::cuda {

constexpr uint32_t kAttendMmaThreads = 128;
constexpr uint32_t kAttendMmaWarps = kAttendMmaThreads / 32;
constexpr uint32_t kAttendMmaDim = 256;  // the most elements of a row

// The 16-bit elements that tensor cores take of rows, and in how many parts:
// one if the rows have them already.
constexpr int AttendElement(int dtype) { return dtype == kF16 ? kF16 : kBF16; }
constexpr uint32_t AttendParts(int dtype, int element) {
  return dtype == element ? 1 : 2;
}

// Weights are taken in two parts too.
constexpr uint32_t kWeightParts = 2;

// Rows are padded to whole products.
constexpr uint32_t AttendPadded(uint32_t dim) { return (dim + 15) / 16 * 16; }
// Bytes of a row in shared memory: 16 more keep the 8 rows that ldmatrix reads at
// once in different banks.
constexpr uint32_t AttendPitch(uint32_t padded) { return 2 * padded + 16; }

// A row of KV_V_DIM sums in shared memory, so that rows of a warp are in
// different banks.
constexpr uint32_t AttendSumStride(uint32_t padded) { return padded + 8; }

struct AttendMmaShape {
  uint32_t row_warps;   // of 16 query rows each
  uint32_t key_groups;  // warps that share the slots of a tile
  uint32_t query_bytes;
  uint32_t key_bytes;  // of a tile, all parts
  uint32_t value_bytes;
  // Whether a tile of values is copied while keys are used, and the reverse. It
  // is if both are copied as they are.
  bool two_tiles;
  uint32_t shared_bytes;  // dynamic
};

// Dimensions are padded.
constexpr AttendMmaShape ShapeAttendMma(int q_dtype, int k_dtype, int v_dtype,
                                        uint32_t k_dim, uint32_t v_dim,
                                        uint32_t row_warps) {
  const int k_element = AttendElement(k_dtype);
  const uint32_t k_parts = AttendParts(k_dtype, k_element);
  const uint32_t v_parts = AttendParts(v_dtype, AttendElement(v_dtype));
  AttendMmaShape s = {};
  s.row_warps = row_warps;
  s.key_groups = kAttendMmaWarps / row_warps;
  s.query_bytes = AttendParts(q_dtype, k_element) * row_warps * kAttendRows *
                  AttendPitch(k_dim);
  s.key_bytes = k_parts * kAttendSlots * AttendPitch(k_dim);
  s.value_bytes = v_parts * kAttendSlots * AttendPitch(v_dim);
  s.two_tiles = k_parts == 1 && v_parts == 1;
  const uint32_t larger =
      s.key_bytes > s.value_bytes ? s.key_bytes : s.value_bytes;
  const uint32_t tiles = s.two_tiles ? s.key_bytes + s.value_bytes : larger;
  // At the end shared memory holds the sums of all warps.
  const uint32_t sums = kAttendMmaWarps * kAttendRows * AttendSumStride(v_dim) *
                        static_cast<uint32_t>(sizeof(float));
  const uint32_t loop = s.query_bytes + tiles;
  s.shared_bytes = loop > sums ? loop : sums;
  return s;
}

// The warps that have rows of their own: as many as n_rows need and shared memory
// has room for. A warp has registers for 16 sums of 256 elements and the logits of
// 32 slots.
constexpr uint32_t AttendRowWarps(int q_dtype, int k_dtype, int v_dtype,
                                  uint32_t k_dim, uint32_t v_dim,
                                  uint64_t n_rows) {
  constexpr uint32_t kMostShared = 97 << 10;  // of 99 KiB of sm_86 and 89
  uint32_t row_warps = v_dim > 128 ? 2 : 4;
  while (row_warps > 1 &&
         (n_rows <= uint64_t{row_warps} / 2 * kAttendRows ||
          ShapeAttendMma(q_dtype, k_dtype, v_dtype, k_dim, v_dim, row_warps)
                  .shared_bytes > kMostShared)) {
    row_warps /= 2;
  }
  return row_warps;
}

// Whether tensor cores take rows of such dtypes and sizes. Two parts of 16 bits
// are less than f32, which is why its rows are multiplied as they are.
constexpr bool CanAttendMma(int k_dtype, int v_dtype, uint32_t k_dim,
                            uint32_t v_dim, uint32_t sm) {
  return sm >= 80 && k_dtype != kF32 && v_dtype != kF32 && k_dim > 0 &&
         v_dim > 0 && k_dim <= kAttendMmaDim && v_dim <= kAttendMmaDim;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ATTENTION_MMA_H_
