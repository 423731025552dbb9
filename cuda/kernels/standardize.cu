// Standardises scores over the heads of a layer, with the bits of
// core/cpu/standardize.cc.
#include "standardize.h"

#include "counts.cuh"
#include "device.cuh"

namespace kvevict::cuda {

namespace {

KV_DEVICE bool IsFinite(float v) {
  return v >= -3.402823466e38f && v <= 3.402823466e38f;
}

// The slots of a head between both ends.
struct Slots {
  uint32_t first;
  uint32_t end;
};

KV_DEVICE Slots SlotsOf(const StandardizeParams& p,
                        const StandardizeLayer& layer, uint32_t head) {
  const uint32_t n = CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t first = layer.n_sink < n ? layer.n_sink : n;
  return {first, layer.n_recent < n - first ? n - layer.n_recent : first};
}

// The sum of f(score) over finite scores between both ends, for all threads.
template <class F>
KV_DEVICE double Sum(const StandardizeParams& p, const StandardizeLayer& layer,
                     uint64_t from, double* sums, const F& f) {
  const uint32_t thread = threadIdx.x;
  double sum = 0.0;
  for (uint32_t head = 0; head < p.n_kv_heads; ++head) {
    const Slots slots = SlotsOf(p, layer, head);
    const uint64_t row = from + uint64_t{head} * layer.n_tokens * sizeof(float);
    for (uint32_t i = slots.first + thread; i < slots.end;
         i += kStandardizeThreads) {
      const float v = LoadGlobal<float>(row + uint64_t{i} * sizeof(float));
      if (IsFinite(v)) sum += f(v);
    }
  }
  BlockSync();  // all have read the sum before
  sums[thread] = sum;
  for (uint32_t half = kStandardizeThreads / 2; half > 0; half /= 2) {
    BlockSync();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  BlockSync();
  return sums[0];
}

}  // namespace

// Grid (n_layers). A block has a layer, and a thread every 256th score of each
// head. 2 KiB shared. Reads the scores five times and writes them once.
KV_KERNEL(standardize, StandardizeParams, kStandardizeThreads, 4) {
  KV_SHARED(double, sums, kStandardizeThreads);
  const StandardizeLayer& layer = p.layers[blockIdx.x];
  const uint64_t from = layer.leverage != 0 ? layer.leverage : layer.scores;
  const double n = Sum(p, layer, from, sums, [](float) { return 1.0; });
  if (n == 0.0) return;
  const float near = static_cast<float>(
      Sum(p, layer, from, sums, [](float v) { return double{v}; }) / n);
  const float more = static_cast<float>(
      Sum(p, layer, from, sums, [&](float v) { return double{v - near}; }) / n);
  const double squares = Sum(p, layer, from, sums, [&](float v) {
    const double distance = double{v - near};
    return distance * distance;
  });
  const double spread = Fma(-static_cast<double>(more) * more, n, squares);
  const double variance = n > 1.0 && spread > 0.0 ? spread / (n - 1.0) : 0.0;
  const double deviation = SquareRoot(variance);
  const float scale =
      static_cast<float>(1.0 / (deviation > 1e-6 ? deviation : 1e-6));
  for (uint32_t head = 0; head < p.n_kv_heads; ++head) {
    const uint64_t row = uint64_t{head} * layer.n_tokens;
    const auto at = [&](uint64_t rows, uint32_t i) {
      return rows + (row + i) * sizeof(float);
    };
    const Slots slots = SlotsOf(p, layer, head);
    if (layer.leverage != 0) {
      for (uint32_t i = slots.first + threadIdx.x; i < slots.end;
           i += kStandardizeThreads) {
        const float z = (LoadGlobal<float>(at(from, i)) - near - more) * scale;
        const double score = LoadGlobal<float>(at(layer.scores, i));
        StoreGlobal(
            at(layer.scores, i),
            static_cast<float>(Fma(double{z}, double{layer.blend}, score)));
      }
      continue;
    }
    const uint32_t n_tokens =
        CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
    for (uint32_t i = threadIdx.x; i < n_tokens; i += kStandardizeThreads) {
      const float v = LoadGlobal<float>(at(from, i));
      if (IsFinite(v)) StoreGlobal(at(from, i), (v - near - more) * scale);
    }
  }
}

}  // namespace kvevict::cuda
