// How many keys each list of a layer keeps, if scores decide. The counts are
// those of core/kernels/head_split.cc, found the same way.
#include "device.cuh"
#include "head_split.h"
#include "topk.cuh"

namespace kvevict::cuda {

namespace {

struct ContestShared {
  SelectShared select;
  uint32_t n_above;  // keys above those that have bins
  uint64_t n_left;   // keys to keep that are not counted yet
};

KV_DEVICE uint32_t Least(uint32_t a, uint32_t b) { return a < b ? a : b; }

KV_DEVICE uint64_t CountPlace(const HeadSplitParams& p,
                              const HeadSplitLayer& layer, uint32_t list) {
  const int64_t place =
      layer.select.first_keep_count + int64_t{list} * p.lists.keep.step;
  return p.lists.keep.base + static_cast<uint64_t>(place * 4);
}

// Until a list is written its first element holds its ties: the number of keys
// equal to the cut that are not counted yet.
KV_DEVICE uint64_t TiesPlace(const HeadSplitParams& p,
                             const HeadSplitLayer& layer, uint32_t list) {
  return KeepList(p.lists, layer.select, list).keep;
}

struct ContestList {
  Keys keys;
  uint64_t count;
  uint32_t n_safe;
  uint32_t most;

  KV_DEVICE ContestList(const HeadSplitParams& p, const HeadSplitLayer& layer,
                        uint32_t list, uint32_t n_safe)
      : keys(p, layer.select, list),
        count(CountPlace(p, layer, list)),
        n_safe(Least(n_safe, keys.words.n)),
        most(Least(layer.select.n_keep, keys.words.n)) {}

  KV_DEVICE void Store(uint32_t n) const {
    StoreGlobal(count, Least(n > 1 ? n : 1, most));
  }
};

// Counts keys of a list from `low` on: those within the span by their bits from
// `shift` on, and those above it. Called between BlockSync()s with bins and
// n_above zero.
KV_DEVICE void CountFrom(const Keys& keys, uint32_t low, uint32_t span,
                         uint32_t shift, ContestShared& shared) {
  SelectShared& select = shared.select;
  ForEachQuad(keys, 0, keys.Size(), threadIdx.x, kSelectThreads,
              [&](const KeyQuad& quad) {
#pragma unroll
                for (uint32_t j = 0; j < 4; ++j) {
                  const uint32_t key = quad.key[j];
                  const uint32_t above = key - low;
                  const bool counts = quad.valid[j] && key >= low;
                  AtomicAddShared(!counts         ? &select.no_bin
                                  : above <= span ? &select.bins[above >> shift]
                                                  : &shared.n_above,
                                  1);
                }
              });
}

// Adds the keys of a list that stay if those of a bin and above stay: kept[j]
// is for bin FirstBin() + j. Bins and n_above are zero afterwards.
KV_DEVICE void AddKept(uint32_t n_safe, uint64_t (&kept)[kBinsPerThread + 1],
                       ContestShared& shared) {
  BlockSync();
  const uint32_t first = FirstBin();
  uint32_t bins[kBinsPerThread];
  uint32_t own = 0;
#pragma unroll
  for (uint32_t j = 0; j < kBinsPerThread; ++j) {
    bins[j] = shared.select.bins[first + j];
    own += bins[j];
  }
  ZeroBins(shared.select);
  uint32_t n = shared.n_above;
  n += CountAbove(own, shared.select);
  if (threadIdx.x == 0) shared.n_above = 0;
#pragma unroll
  for (uint32_t j = kBinsPerThread; j-- > 0;) {
    kept[j + 1] += n > n_safe ? n : n_safe;
    n += bins[j];
  }
  kept[0] += n > n_safe ? n : n_safe;
  BlockSync();
}

// Finds the smallest key that stays because of its rank, digit by digit: the
// largest one for which enough stay.
KV_DEVICE uint32_t FindCut(const HeadSplitParams& p,
                           const HeadSplitLayer& layer, uint32_t n_safe,
                           uint64_t n_kept, ContestShared& shared) {
  uint32_t low = 0;
  for (uint32_t round = 0; round < 3; ++round) {
    uint64_t kept[kBinsPerThread + 1] = {};
    for (uint32_t i = 0; i < p.lists.n_lists; ++i) {
      const ContestList list(p, layer, i, n_safe);
      CountFrom(list.keys, low, SpanBefore(round), DigitShift(round), shared);
      AddKept(list.n_safe, kept, shared);
    }
#pragma unroll
    for (uint32_t j = 0; j < kBinsPerThread; ++j) {
      if (kept[j] >= n_kept && kept[j + 1] < n_kept) {
        shared.select.cut.low = low + ((FirstBin() + j) << DigitShift(round));
      }
    }
    BlockSync();
    low = shared.select.cut.low;
  }
  return low;
}

// Counts the keys of a list above and equal to `key`, for thread 0.
KV_DEVICE Tally CountAgainst(const Keys& keys, uint32_t key,
                             ContestShared& shared) {
  CountFrom(keys, key, 0, 0, shared);
  BlockSync();
  Tally tally = {0, 0};
  if (threadIdx.x == 0) {
    tally = {shared.n_above, shared.select.bins[0]};
    shared.n_above = shared.select.bins[0] = 0;
  }
  BlockSync();
  return tally;
}

// Deals keys equal to the cut in turn: every list gets as many as the level, if
// it has them, and lower lists get one of those that are left then. By one
// warp.
KV_DEVICE void DealTies(const HeadSplitParams& p, const HeadSplitLayer& layer,
                        uint64_t n_left) {
  const uint32_t lane = threadIdx.x;
  const auto sum_up_to = [&](uint32_t level) {
    uint64_t n = 0;
    for (uint32_t i = lane; i < p.lists.n_lists; i += 32) {
      n += Least(LoadGlobal<uint32_t>(TiesPlace(p, layer, i)), level);
    }
    const uint32_t low = WarpSum(static_cast<uint32_t>(n & 0xffffu));
    return (static_cast<uint64_t>(WarpSum(static_cast<uint32_t>(n >> 16)))
            << 16) +
           low;
  };
  uint32_t level = 0;
  for (uint32_t bit = 1u << 31; bit > 0; bit /= 2) {
    if (sum_up_to(level + bit) <= n_left) level += bit;
  }
  n_left -= sum_up_to(level);
  for (uint32_t first = 0; first < p.lists.n_lists; first += 32) {
    const bool has = first + lane < p.lists.n_lists;
    const uint32_t list = has ? first + lane : first;
    const uint32_t ties = LoadGlobal<uint32_t>(TiesPlace(p, layer, list));
    const uint32_t wanting = Ballot(has && ties > level);
    const uint32_t before = PopCount(wanting & ((1u << lane) - 1));
    const uint32_t dealt =
        ties <= level ? ties : level + (before < n_left ? 1 : 0);
    if (has) {
      const uint64_t count = CountPlace(p, layer, list);
      StoreGlobal(count, LoadGlobal<uint32_t>(count) + dealt);
    }
    const uint32_t n_wanting = PopCount(wanting);
    n_left -= n_wanting < n_left ? n_wanting : n_left;
  }
}

KV_DEVICE void CountWinners(const HeadSplitParams& p,
                            const HeadSplitLayer& layer, uint32_t n_safe,
                            ContestShared& shared) {
  const uint32_t n_lists = p.lists.n_lists;
  uint64_t n_tokens = 0;
  uint64_t all_safe = 0;
  for (uint32_t i = 0; i < n_lists; ++i) {
    const ContestList list(p, layer, i, n_safe);
    n_tokens += list.keys.words.n;
    all_safe += list.n_safe;
  }
  uint64_t n_left = layer.together;
  if (n_tokens < n_left) n_left = n_tokens;
  const uint32_t cut = all_safe < n_left
                           ? FindCut(p, layer, n_safe, n_left, shared)
                           : kForcedKey;
  for (uint32_t i = 0; i < n_lists; ++i) {
    const ContestList list(p, layer, i, n_safe);
    const Tally tally = CountAgainst(list.keys, cut, shared);
    if (threadIdx.x != 0) continue;
    const uint32_t count =
        tally.greater > list.n_safe ? tally.greater : list.n_safe;
    const uint32_t from = tally.greater + tally.equal;
    StoreGlobal(list.count, count);
    StoreGlobal(TiesPlace(p, layer, i), from > count ? from - count : 0);
    n_left -= count;
  }
  if (threadIdx.x == 0) shared.n_left = n_left;
  BlockSync();
  if (threadIdx.x < 32) DealTies(p, layer, shared.n_left);
}

// Rounds half to even.
KV_DEVICE uint32_t RoundToWhole(float v) {
  constexpr float kWhole = 8388608.0f;  // 2^23: numbers from here on are whole
  return static_cast<uint32_t>(v < kWhole ? (v + kWhole) - kWhole : v);
}

// In addition to its forced keys a list keeps a part of those that it won, and
// n_own more.
KV_DEVICE void BlendWinners(const HeadSplitParams& p,
                            const HeadSplitLayer& layer,
                            ContestShared& shared) {
  CountWinners(p, layer, 0, shared);
  for (uint32_t i = 0; i < p.lists.n_lists; ++i) {
    const ContestList list(p, layer, i, 0);
    const uint32_t n_forced = CountAgainst(list.keys, kForcedKey, shared).equal;
    if (threadIdx.x != 0) continue;
    const uint32_t n_won = LoadGlobal<uint32_t>(list.count) - n_forced;
    const float won = Multiply(static_cast<float>(n_won), p.won_part);
    list.Store(n_forced + RoundToWhole(won + static_cast<float>(layer.n_own)));
  }
}

KV_DEVICE void CountPassing(const HeadSplitParams& p,
                            const HeadSplitLayer& layer,
                            ContestShared& shared) {
  uint32_t bits;
  memcpy(&bits, &p.threshold, sizeof(bits));
  const uint32_t least = KeyOfScore(bits);
  for (uint32_t i = 0; i < p.lists.n_lists; ++i) {
    const ContestList list(p, layer, i, 0);
    const Tally tally = CountAgainst(list.keys, least, shared);
    if (threadIdx.x != 0) continue;
    list.Store(Least(tally.greater + tally.equal, layer.budget));
  }
}

}  // namespace

// Grid (n_layers). A block has all lists of a layer. Reads the scores once for
// a threshold, four times for a contest, five times for a blend.
KV_KERNEL(count_kept, HeadSplitParams, kSelectThreads, 3) {
  KV_SHARED(ContestShared, shared, 1);
  const HeadSplitLayer& layer = p.layers[blockIdx.x];
  ZeroBins(shared->select);
  if (threadIdx.x == 0) shared->n_above = 0;
  BlockSync();
  if (p.kind == kHeadsAdaptive) {
    CountWinners(p, layer, layer.n_own, *shared);
  } else if (p.kind == kHeadsBlend) {
    BlendWinners(p, layer, *shared);
  } else {
    CountPassing(p, layer, *shared);
  }
}

}  // namespace kvevict::cuda
