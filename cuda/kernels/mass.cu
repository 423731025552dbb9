// The mass of lists' scores, and of those that they keep, with the sums of
// core/kernels/mass.cc.
#include "device.cuh"
#include "mass.h"
#include "topk.cuh"

namespace kvevict::cuda {

namespace {

struct MassShared {
  float all[kSelectThreads];
  float kept[kSelectThreads];
  float largest[kSelectThreads];
};

// The mass of a score: 0 for NaN and infinities, NaN for a negative score.
KV_DEVICE float MassOf(float score) {
  constexpr float kMost = 3.402823466e38f;
  if (!(score >= -kMost && score <= kMost)) return 0.0f;
  return score >= 0.0f ? score : ToFloat<kF32>(kNaNBits);
}

// Whether a list of ascending slots contains `slot`.
KV_DEVICE bool Has(uint64_t keep, uint32_t n_keep, uint32_t slot) {
  uint32_t begin = 0;  // the first slot not below `slot` is in [begin, end]
  uint32_t end = n_keep;
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    const uint32_t at = LoadGlobal<uint32_t>(keep + uint64_t{middle} * 4);
    if (at == slot) return true;
    if (at < slot) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return false;
}

KV_DEVICE float Larger(float a, float b) { return b > a ? b : a; }

}  // namespace

// Grid (n_lists, n_layers). A block has one list, and a thread every 256th
// score. 3 KiB shared. Reads scores once, and a keep list about log2 of its
// length times.
KV_KERNEL(list_masses, MassParams, kSelectThreads, 4) {
  KV_SHARED(MassShared, shared, 1);
  const MassLayer& layer = p.layers[blockIdx.y];
  const uint32_t list = blockIdx.x;
  uint32_t n = TokensOf(p.lists, layer.select, list);
  const uint32_t n_keep = KeepOf(p.lists, layer.select, list, n);
  if (p.of_chunk != 0 && n_keep >= n) n = 0;
  const uint64_t keep = KeepList(p.lists, layer.select, list).keep;
  const uint64_t scores = layer.select.scores + uint64_t{list} *
                                                    layer.select.n_tokens *
                                                    sizeof(float);
  const uint32_t thread = threadIdx.x;
  float all = 0.0f;
  float kept = 0.0f;
  float largest = 0.0f;
  for (uint32_t i = thread; i < n; i += kSelectThreads) {
    const float mass = MassOf(LoadGlobal<float>(scores + uint64_t{i} * 4));
    all += mass;
    if (Has(keep, n_keep, p.lists.first_slot + i)) {
      kept += mass;
    } else {
      largest = Larger(largest, mass);
    }
  }
  shared->all[thread] = all;
  shared->kept[thread] = kept;
  shared->largest[thread] = largest;
  for (uint32_t half = kSelectThreads / 2; half > 0; half /= 2) {
    BlockSync();
    if (thread >= half) continue;
    shared->all[thread] += shared->all[thread + half];
    shared->kept[thread] += shared->kept[thread + half];
    shared->largest[thread] =
        Larger(shared->largest[thread], shared->largest[thread + half]);
  }
  if (thread != 0) return;
  const uint64_t out = layer.masses + uint64_t{list} * 12;
  all = shared->all[0];
  kept = shared->kept[0];
  largest = shared->largest[0];
  if (p.adds != 0) {
    all = LoadGlobal<float>(out) + all;
    kept = LoadGlobal<float>(out + 4) + kept;
    largest = Larger(LoadGlobal<float>(out + 8), largest);
  }
  StoreGlobal(out, all);
  StoreGlobal(out + 4, kept);
  StoreGlobal(out + 8, largest);
}

}  // namespace kvevict::cuda
