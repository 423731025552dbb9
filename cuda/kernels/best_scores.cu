// Changes scores depending on which are the best of a list, with the same bits
// as core/cpu/scale_by_best_share.cc and core/cpu/pin_best.cc.
#include "best_scores.h"
#include "device.cuh"
#include "topk.cuh"

namespace kvevict::cuda {

namespace {

struct NormalizeShared {
  SelectShared select;
  float all[kSelectThreads];
  float best[kSelectThreads];
};

// The address of a list in `rows`, which are scores or output.
KV_DEVICE uint64_t RowOf(uint64_t rows, const BestLayer& layer, uint32_t list) {
  return rows + uint64_t{list} * layer.select.n_tokens * sizeof(float);
}

// Thread t adds up every 256th score from t on, if it takes part.
KV_DEVICE void AddUp(const Keys& keys, uint64_t scores, uint32_t cut,
                     NormalizeShared& shared) {
  float all = 0.0f;
  float best = 0.0f;
  for (uint32_t i = threadIdx.x; i < keys.words.n; i += kSelectThreads) {
    const uint64_t offset = uint64_t{i} * sizeof(float);
    const uint32_t key =
        keys.IsForced(i)
            ? kForcedKey
            : keys.Key(LoadGlobal<uint32_t>(keys.words.row + offset));
    if (key == kForcedKey || key == kNanKey) continue;
    const float score = LoadGlobal<float>(scores + offset);
    all += score;
    if (key > cut) best += score;
  }
  shared.all[threadIdx.x] = all;
  shared.best[threadIdx.x] = best;
  for (uint32_t n = kSelectThreads / 2; n > 0; n /= 2) {
    BlockSync();
    if (threadIdx.x >= n) continue;
    shared.all[threadIdx.x] += shared.all[threadIdx.x + n];
    shared.best[threadIdx.x] += shared.best[threadIdx.x + n];
  }
  BlockSync();
}

KV_DEVICE float ScoreOfKey(uint32_t key) {
  return ToFloat<kF32>(key >> 31 != 0 ? key ^ 0x80000000u : ~key);
}

// The share of the n_best best in the sum of all, for every thread; 1 if it is
// not a finite number above 0. Every thread has read the keys when it returns.
KV_DEVICE float BestShare(const Keys& keys, uint64_t scores, uint32_t n_best,
                          NormalizeShared& shared) {
  const uint32_t n = keys.words.n;
  TallyWarps(keys, WarpPart(0, keys.Size()), kForcedKey, shared.select);
  const uint32_t n_forced = SumTallies(shared.select, kWarps).equal;
  if (n_best == 0 || n_forced == n) return 1.0f;
  const uint32_t rest = n - n_forced;
  const Cut cut = BlockCut(keys, n, n_forced + (n_best < rest ? n_best : rest),
                           shared.select);
  AddUp(keys, scores, cut.low, shared);
  float best = shared.best[0];
  if (cut.low != kNanKey) {
    best += Multiply(static_cast<float>(cut.needed), ScoreOfKey(cut.low));
  }
  const float share = best / shared.all[0];
  return share > 0.0f && share <= 3.402823466e38f ? share : 1.0f;
}

// Gives +infinity to the selected scores.
struct ToInfinity {
  uint64_t scores;

  KV_DEVICE void operator()(uint32_t, uint32_t place) const {
    StoreGlobal(scores + uint64_t{place} * sizeof(float), kInfinityBits);
  }
};

}  // namespace

// Grid (n_lists, n_layers); a block has one list. 10.4 KiB shared. Reads scores
// six times, the first time from memory, and writes them once.
KV_KERNEL(scale_by_best_share, BestParams, kSelectThreads, 3) {
  KV_SHARED(NormalizeShared, shared, 1);
  const BestLayer& layer = p.layers[blockIdx.y];
  const Keys keys(p, layer.select, blockIdx.x);
  const uint32_t n = keys.words.n;
  const uint64_t scores = RowOf(layer.scores, layer, blockIdx.x);
  const uint64_t out = RowOf(layer.out, layer, blockIdx.x);
  const float share = BestShare(keys, scores, layer.n_best, *shared);
  if (share == 1.0f && out == scores) return;
  for (uint32_t i = threadIdx.x; i < n; i += kSelectThreads) {
    const uint64_t offset = uint64_t{i} * sizeof(float);
    const float score = LoadGlobal<float>(scores + offset);
    // Unchanged if nothing is scaled, because a product would change the bits
    // of NaN.
    StoreGlobal(out + offset, share == 1.0f ? score : score * share);
  }
}

// Grid (n_lists, n_layers); a block has one list. 8.4 KiB shared. Reads scores
// five times, the first time from memory.
KV_KERNEL(pin_best, BestParams, kSelectThreads, 3) {
  KV_SHARED(SelectShared, shared, 1);
  const BestLayer& layer = p.layers[blockIdx.y];
  const Keys keys(p, layer.select, blockIdx.x);
  const uint32_t n = keys.words.n;
  const uint32_t n_keep = KeepOf(p.lists, layer.select, blockIdx.x, n);
  const uint32_t n_best = BestOf(n_keep, p.share, layer.n_best);
  if (n_best == 0) return;
  const Cut cut = BlockCut(keys, n, n_best, *shared);
  // A warp reads only what it writes itself.
  BlockEmit(keys, 0, keys.Size(), cut,
            EqualsTaken(p.lists.higher_wins != 0, cut), {0, 0},
            ToInfinity{RowOf(layer.out, layer, blockIdx.x)}, *shared);
}

}  // namespace kvevict::cuda
