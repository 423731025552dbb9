// Adds the attention of a chunk to sums that move with the slots, with the same
// bits as the CPU.
#include "attention_sums.h"

#include "counts.cuh"
#include "device.cuh"

namespace kvevict::cuda {

namespace {

// NaN if either is NaN; the second if both are equal.
KV_DEVICE float Larger(float a, float b) {
  if (a != a) return a;
  return a > b ? a : b;
}

// Reduces the rows that a row of sums stands for, from `row` on, in the CPU's
// order.
KV_DEVICE float ReduceAt(const AddSumsParams& p, uint64_t rows, uint32_t row,
                         uint32_t slot) {
  const uint64_t at = rows + uint64_t{slot} * sizeof(float);
  float all = LoadGlobal<float>(at + row * p.head_stride * sizeof(float));
#pragma unroll 4
  for (uint32_t r = 1; r < p.n_terms; ++r) {
    if (++row == p.from_ring) row = 0;
    const float one =
        LoadGlobal<float>(at + row * p.head_stride * sizeof(float));
    all = p.is_max != 0 ? Larger(all, one) : all + one;
  }
  return p.is_max != 0 ? all : all * p.scale;
}

}  // namespace

// Grid (any, rows of sums, n_layers). A thread owns slots a grid apart, so that
// a graph can continue with more of them.
KV_KERNEL(add_sums, AddSumsParams, kAddSumsThreads, 1) {
  const AddSumsLayer& layer = p.layers[blockIdx.z];
  const uint32_t row = blockIdx.y;
  const uint32_t list = p.n_lists == 1 ? 0 : row / p.rows_per_list;
  const uint32_t n_before =
      p.tokens.base == 0
          ? layer.n_before
          : CountOf(p.tokens, layer.first_count, list, 0) + p.more;
  uint32_t n = n_before + p.n_new;
  if (n > p.stride) n = p.stride;
  const uint32_t first = p.only_new != 0 ? n_before : 0;
  const uint64_t from =
      layer.from + uint64_t{row} * p.n_terms * p.head_stride * sizeof(float);
  const uint32_t sums_row =
      layer.turn == 0 ? row : LoadGlobal<uint32_t>(layer.turn) % p.sums_ring;
  const uint64_t sums =
      layer.sums + uint64_t{sums_row} * p.stride * sizeof(float);
  const uint32_t n_written = p.clears != 0 ? p.stride : n;
  for (uint32_t slot = first + blockIdx.x * kAddSumsThreads + threadIdx.x;
       slot < n_written; slot += gridDim.x * kAddSumsThreads) {
    if (slot >= n) {
      StoreGlobal(sums + uint64_t{slot} * sizeof(float), 0.0f);
      continue;
    }
    float most = ReduceAt(p, from, layer.first_from, slot - first);
    for (uint32_t i = 1; i < p.pool && i < n - slot; ++i) {
      most =
          Larger(most, ReduceAt(p, from, layer.first_from, slot - first + i));
    }
    const uint64_t at = sums + uint64_t{slot} * sizeof(float);
    const bool is_old = layer.begins == 0 && slot < n_before;
    StoreGlobal(at, is_old ? LoadGlobal<float>(at) + most : most);
  }
}

}  // namespace kvevict::cuda
