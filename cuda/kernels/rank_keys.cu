// Orders the keys of lists by rank and then by score, with the same keys as
// core/cpu/rank_keys.cc.
#include "device.cuh"
#include "rank_keys.h"
#include "slots.cuh"
#include "topk.cuh"

namespace kvevict::cuda {

namespace {

constexpr uint32_t kMostRanges = RankParams::kMaxRanges;

struct RankShared {
  uint32_t begin[kMostRanges];  // first slots
  uint32_t end[kMostRanges];
  int32_t rank[kMostRanges + 1];    // the last one is for slots in no range
  uint32_t count[kMostRanges + 1];  // number of keys that are not forced
  uint32_t n_forced;
  uint32_t has_cut;
  int32_t cut;  // the rank in which places run out
};

struct RankedList {
  const RankParams& p;
  const RankLayer& layer;
  uint32_t list;
  uint32_t n;

  KV_DEVICE uint64_t Place(uint32_t slot) const {
    return layer.select.scores +
           (uint64_t{list} * layer.select.n_tokens + slot) * sizeof(uint32_t);
  }

  KV_DEVICE void FindRanges(RankShared& shared) const {
    for (uint32_t i = threadIdx.x; i <= p.n_ranges; i += kSelectThreads) {
      shared.count[i] = 0;
      shared.rank[i] = 0;
      if (i == p.n_ranges) break;
      const RankRange& range = p.ranges[i];
      shared.begin[i] = FirstFrom(layer.slots, p.kept, list, n, range.first);
      shared.end[i] = FirstFrom(layer.slots, p.kept, list, n, range.end);
      shared.rank[i] = range.rank;
    }
    if (threadIdx.x == 0) shared.n_forced = shared.has_cut = 0;
  }

  // The range with the highest rank in a slot's block; n_ranges if there is
  // none.
  KV_DEVICE uint32_t RangeOf(uint32_t slot, const RankShared& shared) const {
    const uint32_t begin = slot - slot % p.lists.block;
    const uint32_t end = n - begin < p.lists.block ? n : begin + p.lists.block;
    uint32_t best = p.n_ranges;
    uint32_t n_covered = 0;
    for (uint32_t i = 0; i < p.n_ranges; ++i) {
      const uint32_t low = shared.begin[i] > begin ? shared.begin[i] : begin;
      const uint32_t high = shared.end[i] < end ? shared.end[i] : end;
      if (low >= high) continue;
      n_covered += high - low;
      if (best == p.n_ranges || shared.rank[i] > shared.rank[best]) best = i;
    }
    const bool has_rest = n_covered < end - begin;
    return has_rest && shared.rank[best] < 0 ? p.n_ranges : best;
  }

  KV_DEVICE void Count(RankShared& shared) const {
    uint32_t n_forced = 0;
    // The current range, and this thread's count in it.
    uint32_t of = 0;
    uint32_t n_of = 0;
    for (uint32_t i = threadIdx.x; i < n; i += kSelectThreads) {
      if (LoadGlobal<uint32_t>(Place(i)) == kForcedKey) {
        ++n_forced;
        continue;
      }
      const uint32_t range = RangeOf(i, shared);
      if (range != of && n_of > 0) {
        AtomicAddShared(&shared.count[of], n_of);
        n_of = 0;
      }
      of = range;
      ++n_of;
    }
    if (n_of > 0) AtomicAddShared(&shared.count[of], n_of);
    if (n_forced > 0) AtomicAddShared(&shared.n_forced, n_forced);
  }

  // Among the ranges with the rank of the cut the first one writes it.
  KV_DEVICE void FindCut(uint32_t n_best, RankShared& shared) const {
    const uint32_t range = threadIdx.x;
    if (range > p.n_ranges) return;
    const int32_t rank = shared.rank[range];
    uint32_t n_above = shared.n_forced;
    uint32_t n_equal = 0;
    for (uint32_t i = 0; i <= p.n_ranges; ++i) {
      if (shared.rank[i] > rank) n_above += shared.count[i];
      if (shared.rank[i] != rank) continue;
      if (i < range) return;
      n_equal += shared.count[i];
    }
    if (n_best <= n_above || n_best - n_above > n_equal) return;
    shared.cut = rank;
    shared.has_cut = 1;
  }

  KV_DEVICE void Change(const RankShared& shared) const {
    for (uint32_t i = threadIdx.x; i < n; i += kSelectThreads) {
      uint32_t key = LoadGlobal<uint32_t>(Place(i));
      if (key == kForcedKey) continue;
      const int32_t rank = shared.rank[RangeOf(i, shared)];
      if (rank != shared.cut) {
        key = rank > shared.cut ? kForcedKey : kNanKey;
      } else if (key == kNanKey) {
        key = kNanKey + 1;
      } else {
        continue;
      }
      StoreGlobal(Place(i), key);
    }
  }
};

}  // namespace

// Grid (n_lists, n_layers). A block has one list, and a thread every 256th key.
// 1.3 KiB shared. Reads the keys twice and writes them once.
KV_KERNEL(rank_keys, RankParams, kSelectThreads, 4) {
  KV_SHARED(RankShared, shared, 1);
  const RankLayer& layer = p.layers[blockIdx.y];
  const uint32_t n = TokensOf(p.lists, layer.select, blockIdx.x);
  const uint32_t n_keep = KeepOf(p.lists, layer.select, blockIdx.x, n);
  const uint32_t n_best =
      p.share < 0.0f ? n_keep : BestOf(n_keep, p.share, layer.n_least);
  if (n_best == 0 || n_best == n) return;
  const RankedList list{p, layer, blockIdx.x, n};
  list.FindRanges(*shared);
  BlockSync();
  list.Count(*shared);
  BlockSync();
  list.FindCut(n_best, *shared);
  BlockSync();
  if (shared->has_cut != 0) list.Change(*shared);
}

}  // namespace kvevict::cuda
