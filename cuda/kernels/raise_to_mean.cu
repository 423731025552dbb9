// Raises scores to the mean of their row, with the bits of
// core/kernels/raise_to_mean.cc.
#include "raise_to_mean.h"

#include "counts.cuh"
#include "device.cuh"

namespace kvevict::cuda {

// Grid (n_rows, n_layers). A block has one row, and a thread every 256th score.
// 1 KiB shared. Reads scores twice and writes those that are raised.
KV_KERNEL(raise_to_mean, RaiseParams, kRaiseThreads, 4) {
  KV_SHARED(float, sums, kRaiseThreads);
  const RaiseLayer& layer = p.layers[blockIdx.y];
  const uint32_t thread = threadIdx.x;
  const uint32_t n =
      CountOf(p.tokens, layer.first_count, blockIdx.x, layer.n_tokens) -
      p.n_unpooled;
  const uint64_t row =
      layer.scores + uint64_t{blockIdx.x} * layer.n_tokens * sizeof(float);
  float sum = 0.0f;
  for (uint32_t i = thread; i < n; i += kRaiseThreads) {
    sum += LoadGlobal<float>(row + uint64_t{i} * sizeof(float));
  }
  sums[thread] = sum;
  for (uint32_t half = kRaiseThreads / 2; half > 0; half /= 2) {
    BlockSync();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  BlockSync();
  const float mean = sums[0] / static_cast<float>(n);
  // False of NaN too, which is also the mean of nothing.
  const bool is_finite = mean >= -3.402823466e38f && mean <= 3.402823466e38f;
  if (!is_finite) return;
  for (uint32_t i = thread; i < n; i += kRaiseThreads) {
    const uint64_t address = row + uint64_t{i} * sizeof(float);
    if (LoadGlobal<float>(address) < mean) StoreGlobal(address, mean);
  }
}

}  // namespace kvevict::cuda
