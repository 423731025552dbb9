// How a list is selected: its keys, the cut, the places. For topk.cu.
//
// The cut, the n_keep-th largest key, is found digit by digit: keys are counted
// per value of the digit, and the counts are added from above. Then the places
// of larger keys, and of as many equal ones as needed, are written in order:
// every warp counts what its part of the list will write, and writes after the
// parts before.
#ifndef KVEVICT_CUDA_KERNELS_TOPK_CUH_
#define KVEVICT_CUDA_KERNELS_TOPK_CUH_

#include "counts.cuh"
#include "device.cuh"
#include "quads.cuh"
#include "topk.h"

namespace kvevict::cuda {

// ---- Lists ----

KV_DEVICE uint32_t TokensOf(const SelectLists& lists, const SelectLayer& layer,
                            uint32_t list) {
  return CountOf(lists.tokens, layer.first_token_count, list, layer.n_tokens);
}

// The number that a list of n tokens keeps: all if more are requested.
KV_DEVICE uint32_t KeepOf(const SelectLists& lists, const SelectLayer& layer,
                          uint32_t list, uint32_t n) {
  const uint32_t n_keep =
      CountOf(lists.keep, layer.first_keep_count, list, layer.n_keep);
  return n_keep < n ? n_keep : n;
}

// The number of the best that a list keeps: a share, but at least n_least.
KV_DEVICE uint32_t BestOf(uint32_t n_keep, float share, uint32_t n_least) {
  const auto part =
      static_cast<uint32_t>(Multiply(static_cast<float>(n_keep), share));
  const uint32_t wanted = part > n_least ? part : n_least;
  return wanted < n_keep ? wanted : n_keep;
}

// The first of the last tokens that must stay; 0 for a shorter list.
KV_DEVICE uint32_t RecentBegin(const SelectLists& lists, uint32_t n) {
  return lists.n_recent < n ? n - lists.n_recent : 0;
}

// ---- Keys ----

constexpr uint32_t kNanKey = 0;
constexpr uint32_t kForcedKey = 0xffffffffu;  // above +infinity

// Order-preserving. -0 becomes +0, since their sum is +0. NaN is below all.
KV_DEVICE uint32_t KeyOfScore(uint32_t bits) {
  constexpr uint32_t kSign = 0x80000000u;
  float score = ToFloat<kF32>(bits);
  score += 0.0f;
  uint32_t key;
  memcpy(&key, &score, sizeof(key));
  key ^= static_cast<uint32_t>(static_cast<int32_t>(key) >> 31) | kSign;
  return score != score ? kNanKey : key;
}

// Four adjacent keys. Those outside the list are not valid.
struct KeyQuad {
  uint32_t key[4];
  bool valid[4];
};

// Keys are read in aligned quads, and made when they are read. Those of
// [fast_begin, fast_end) are fast: all four are in the list and made alike.
//   Size()       quads of the list
//   Place(quad)  index of its first key in the list; before it wraps around
//
// Keys of scores, or keys, in memory. At the ends words are forced or outside
// the list.
struct Keys {
  Quads words;
  uint32_t input;
  uint32_t n_sink;
  uint32_t recent_begin;
  uint32_t fast_begin;  // quads
  uint32_t fast_end;

  template <class Params>
  KV_DEVICE Keys(const Params& p, const SelectLayer& layer, uint32_t list)
      : words(layer.scores + uint64_t{list} * layer.n_tokens * sizeof(uint32_t),
              TokensOf(p.lists, layer, list)),
        input(p.input),
        n_sink(p.input == kSelectKeys ? 0 : p.lists.n_sink),
        recent_begin(p.input == kSelectKeys ? words.n
                                            : RecentBegin(p.lists, words.n)),
        fast_begin((words.lead + n_sink + 7) / 8 * 2),  // a sector's first
        fast_end(p.input == kSelectScores ? (words.lead + recent_begin) / 4
                                          : 0) {}

  KV_DEVICE uint32_t Size() const { return words.Size(); }
  KV_DEVICE uint32_t Place(uint32_t quad) const { return words.Place(quad); }

  KV_DEVICE uint32_t Key(uint32_t bits) const {
    return input == kSelectScores ? KeyOfScore(bits) : bits;
  }

  KV_DEVICE bool IsForced(uint32_t i) const {
    return i < n_sink || i >= recent_begin;
  }

  KV_DEVICE bool IsFast(uint32_t quad) const {
    return quad >= fast_begin && quad < fast_end;
  }

  KV_DEVICE Bytes16 LoadFast(uint32_t quad) const {
    return LoadGlobal<Bytes16>(words.row + uint64_t{words.Place(quad)} * 4);
  }
  KV_DEVICE Bytes16 Load(uint32_t quad) const {
    if (IsFast(quad)) return LoadFast(quad);
    return input == kSelectNothing ? Bytes16{} : words.Load(quad);
  }

  KV_DEVICE static KeyQuad MakeFast(const Bytes16& bits) {
    KeyQuad out;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      out.key[j] = KeyOfScore(bits.x[j]);
      out.valid[j] = true;
    }
    return out;
  }
  KV_DEVICE KeyQuad Make(uint32_t quad, const Bytes16& bits) const {
    if (IsFast(quad)) return MakeFast(bits);
    KeyQuad out;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t i = words.Place(quad) + j;
      out.key[j] = IsForced(i) ? kForcedKey : Key(bits.x[j]);
      out.valid[j] = i < words.n;
    }
    return out;
  }
};

// Keys in shared memory, n rounded up to quads.
struct SharedKeys {
  const uint32_t* keys;
  uint32_t n;
  uint32_t fast_begin;
  uint32_t fast_end;

  KV_DEVICE SharedKeys(const uint32_t* keys, uint32_t n)
      : keys(keys), n(n), fast_begin(0), fast_end(n / 4) {}

  KV_DEVICE uint32_t Size() const { return (n + 3) / 4; }
  KV_DEVICE uint32_t Place(uint32_t quad) const { return 4 * quad; }
  KV_DEVICE Bytes16 Load(uint32_t quad) const {
    return *reinterpret_cast<const Bytes16*>(&keys[Place(quad)]);
  }
  KV_DEVICE Bytes16 LoadFast(uint32_t quad) const { return Load(quad); }
  KV_DEVICE static KeyQuad MakeFast(const Bytes16& bits) {
    KeyQuad out;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      out.key[j] = bits.x[j];
      out.valid[j] = true;
    }
    return out;
  }
  KV_DEVICE KeyQuad Make(uint32_t quad, const Bytes16& bits) const {
    KeyQuad out = MakeFast(bits);
    if (quad < fast_end) return out;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) out.valid[j] = Place(quad) + j < n;
    return out;
  }
};

KV_DEVICE uint32_t Clamp(uint32_t v, uint32_t low, uint32_t high) {
  return v < low ? low : v > high ? high : v;
}

// Calls visit(KeyQuad) for the quads [begin, end), which n_lanes threads share;
// this one is number `lane`. Lanes may make different numbers of calls, so
// `visit` may contain no collective.
template <class Keys, class Visit>
KV_DEVICE void ForEachQuad(const Keys& keys, uint32_t begin, uint32_t end,
                           uint32_t lane, uint32_t n_lanes,
                           const Visit& visit) {
  const uint32_t fast_begin = Clamp(keys.fast_begin, begin, end);
  const uint32_t fast_end = Clamp(keys.fast_end, fast_begin, end);
  constexpr uint32_t kLoads = 4;  // loaded at once
  for (uint32_t quad = fast_begin + lane; quad < fast_end;
       quad += kLoads * n_lanes) {
    Bytes16 bits[kLoads];
#pragma unroll
    for (uint32_t k = 0; k < kLoads; ++k) {
      if (quad + k * n_lanes < fast_end) {
        bits[k] = keys.LoadFast(quad + k * n_lanes);
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < kLoads; ++k) {
      if (quad + k * n_lanes < fast_end) visit(keys.MakeFast(bits[k]));
    }
  }
  const uint32_t n_slow = fast_begin - begin + (end - fast_end);
  for (uint32_t i = lane; i < n_slow; i += n_lanes) {
    const uint32_t quad =
        begin + i + (begin + i < fast_begin ? 0 : fast_end - fast_begin);
    visit(keys.Make(quad, keys.Load(quad)));
  }
}

// ---- The cut, digit by digit: 11 + 11 + 10 bits, highest first ----

KV_DEVICE uint32_t DigitShift(uint32_t round) {
  return round == 0 ? 21 : round == 1 ? 10 : 0;
}

// The span of keys that share the cut's digits before a round.
KV_DEVICE uint32_t SpanBefore(uint32_t round) {
  return round == 0   ? 0xffffffffu
         : round == 1 ? (1u << 21) - 1
                      : (1u << 10) - 1;
}

struct Cut {
  uint32_t low;      // the digits so far, then zeros; finally the cut
  uint32_t needed;   // places left for keys that share the digits
  uint32_t n_equal;  // keys that share the digits
};

// Counts of keys relative to the cut.
struct Tally {
  uint32_t greater;
  uint32_t equal;
};

constexpr uint32_t kWarps = kSelectThreads / 32;

struct SelectShared {
  uint32_t bins[kBins];
  uint32_t no_bin;  // for keys without a bin: cheaper than a branch
  uint32_t is_last;
  uint32_t totals[kWarps];
  Tally tallies[kWarps];
  alignas(16) Cut cut;  // aligned so that one load reads only this
};

constexpr uint32_t kBinsPerThread = kBins / kSelectThreads;
static_assert(kBinsPerThread % 4 == 0);

// A thread's bins are adjacent. Thread 0 has the highest ones.
KV_DEVICE uint32_t FirstBin() {
  return kBins - kBinsPerThread * (threadIdx.x + 1);
}

KV_DEVICE void ZeroBins(SelectShared& shared) {
  const uint32_t first = FirstBin();
  for (uint32_t j = 0; j < kBinsPerThread; j += 4) {
    *reinterpret_cast<Bytes16*>(&shared.bins[first + j]) = Bytes16{};
  }
}

// Equal digits of a warp are merged by the hardware: adding 1 to shared memory
// compiles to ATOMS.POPC.INC.
template <class Keys>
KV_DEVICE void CountDigits(const Keys& keys, uint32_t begin, uint32_t end,
                           uint32_t round, const Cut& cut,
                           SelectShared& shared) {
  const uint32_t shift = DigitShift(round);
  const uint32_t span = SpanBefore(round);
  ForEachQuad(
      keys, begin, end, threadIdx.x, kSelectThreads, [&](const KeyQuad& quad) {
        uint32_t above[4];
        bool counts[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          above[j] = quad.key[j] - cut.low;
          counts[j] = quad.valid[j] && above[j] <= span;
        }
        if (!(counts[0] || counts[1] || counts[2] || counts[3])) return;
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          AtomicAddShared(
              counts[j] ? &shared.bins[above[j] >> shift] : &shared.no_bin, 1);
        }
      });
}

// The sum of `v` over the lanes up to this one.
KV_DEVICE uint32_t WarpPrefix(uint32_t v) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t delta = 1; delta < 32; delta *= 2) {
    const uint32_t below = ShuffleUp(v, delta);
    if (lane >= delta) v += below;
  }
  return v;
}

KV_DEVICE uint32_t WarpSum(uint32_t v) {
#pragma unroll
  for (uint32_t mask = 16; mask > 0; mask /= 2) v += ShuffleXor(v, mask);
  return v;
}

// The number of keys in higher bins than this thread's, which have `own`.
KV_DEVICE uint32_t CountAbove(uint32_t own, SelectShared& shared) {
  const uint32_t prefix = WarpPrefix(own);
  const uint32_t warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 31) shared.totals[warp] = prefix;
  BlockSync();
  const uint32_t lane = threadIdx.x % 32;
  return WarpSum(lane < warp ? shared.totals[lane] : 0) + prefix - own;
}

// Takes the counted bins, clears them, and returns the cut with one digit more.
// All threads call it after BlockSync.
KV_DEVICE Cut PickDigit(uint32_t round, const Cut& cut, SelectShared& shared) {
  const uint32_t first = FirstBin();
  uint32_t bins[kBinsPerThread];
  uint32_t own = 0;
#pragma unroll
  for (uint32_t j = 0; j < kBinsPerThread; ++j) {
    bins[j] = shared.bins[first + j];
    own += bins[j];
  }
  ZeroBins(shared);
  uint32_t above = CountAbove(own, shared);
#pragma unroll
  for (uint32_t j = kBinsPerThread; j-- > 0; above += bins[j]) {
    if (above < cut.needed && cut.needed - above <= bins[j]) {
      shared.cut = {cut.low + ((first + j) << DigitShift(round)),
                    cut.needed - above, bins[j]};
    }
  }
  BlockSync();
  return shared.cut;
}

// ---- Writing the places ----

// Among keys equal to the cut, those with rank in [first, last) are taken.
struct EqualsTaken {
  uint32_t first;
  uint32_t last;

  KV_DEVICE EqualsTaken(bool higher_wins, const Cut& cut)
      : first(higher_wins ? cut.n_equal - cut.needed : 0),
        last(first + cut.needed) {}

  // The number taken among the first n equal ones.
  KV_DEVICE uint32_t Among(uint32_t n) const {
    return n <= first ? 0 : (n < last ? n : last) - first;
  }
};

template <class Keys>
KV_DEVICE Tally WarpTally(const Keys& keys, uint32_t begin, uint32_t end,
                          uint32_t cut) {
  Tally tally = {0, 0};
  ForEachQuad(keys, begin, end, threadIdx.x % 32, 32, [&](const KeyQuad& quad) {
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      tally.greater += quad.valid[j] && quad.key[j] > cut;
      tally.equal += quad.valid[j] && quad.key[j] == cut;
    }
  });
  return {WarpSum(tally.greater), WarpSum(tally.equal)};
}

// Bits of a warp's 128 keys: word j has key 4 l + j at bit l.
struct WarpBits {
  uint32_t word[4];

  KV_DEVICE explicit WarpBits(const bool (&v)[4]) {
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) word[j] = Ballot(v[j]);
  }
  // The number of set bits of keys of lower lanes (of all lanes: mask ~0).
  KV_DEVICE uint32_t Count(uint32_t mask) const {
    uint32_t n = 0;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) n += PopCount(word[j] & mask);
    return n;
  }
};

// Writes places to a list, as slots counted from first_slot.
struct ToList {
  uint64_t keep;
  uint32_t first_slot;

  KV_DEVICE void operator()(uint32_t i, uint32_t place) const {
    StoreGlobal(keep + uint64_t{i} * sizeof(int32_t), first_slot + place);
  }
};

KV_DEVICE ToList KeepList(const SelectLists& lists, const SelectLayer& layer,
                          uint32_t list) {
  const uint32_t stride =
      lists.keep_stride == 0 ? layer.n_keep : lists.keep_stride;
  return {layer.keep + uint64_t{list} * stride * sizeof(int32_t),
          lists.first_slot};
}

// Calls write(i, place) for the places of this warp's quads, where i is the
// index in the list. `before` is the tally of the keys before them.
template <class Keys, class Write>
KV_DEVICE void WarpEmit(const Keys& keys, uint32_t begin, uint32_t end,
                        uint32_t cut, const EqualsTaken& taken, Tally before,
                        const Write& write) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t lower_lanes = (1u << lane) - 1;
  uint32_t n_out = before.greater + taken.Among(before.equal);
  Bytes16 next = {};
  if (begin + lane < end) next = keys.Load(begin + lane);
  for (uint32_t first = begin; first < end; first += 32) {
    const KeyQuad quad = keys.Make(first + lane, next);
    const bool mine = first + lane < end;
    if (first + 32 + lane < end) next = keys.Load(first + 32 + lane);
    bool take[4], equal[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      take[j] = mine && quad.valid[j] && quad.key[j] > cut;
      equal[j] = mine && quad.valid[j] && quad.key[j] == cut;
    }
    if (Ballot(equal[0] || equal[1] || equal[2] || equal[3]) != 0) {
      const WarpBits equals(equal);
      uint32_t rank = before.equal + equals.Count(lower_lanes);
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        take[j] |= equal[j] && rank >= taken.first && rank < taken.last;
        rank += equal[j];
      }
      before.equal += equals.Count(~0u);
    }
    uint32_t out = n_out + WarpBits(take).Count(lower_lanes);
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      if (!take[j]) continue;
      write(out++, keys.Place(first + lane) + j);
    }
    n_out = Shuffle(out, 31);
  }
}

// A warp's part of the quads [begin, end): whole groups of 128 keys, in order
// of warps.
struct WarpPart {
  uint32_t begin;
  uint32_t end;

  KV_DEVICE WarpPart(uint32_t block_begin, uint32_t block_end) {
    const uint32_t n = block_end - block_begin;
    const uint32_t part = (n + kSelectThreads - 1) / kSelectThreads * 32;
    const uint32_t skip = threadIdx.x / 32 * part;
    begin = skip < n ? block_begin + skip : block_end;
    end = block_end - begin < part ? block_end : begin + part;
  }
};

// Sums the tallies of the first n_warps warps: of all, or of those before this
// one.
KV_DEVICE Tally SumTallies(const SelectShared& shared, uint32_t n_warps) {
  const uint32_t lane = threadIdx.x % 32;
  Tally tally = {0, 0};
  if (lane < n_warps) tally = shared.tallies[lane];
  return {WarpSum(tally.greater), WarpSum(tally.equal)};
}

template <class Keys>
KV_DEVICE void TallyWarps(const Keys& keys, const WarpPart& part, uint32_t cut,
                          SelectShared& shared) {
  const Tally tally = WarpTally(keys, part.begin, part.end, cut);
  if (threadIdx.x % 32 == 0) shared.tallies[threadIdx.x / 32] = tally;
  BlockSync();
}

// `before` is the tally of the keys before `begin`.
template <class Keys, class Write>
KV_DEVICE void BlockEmit(const Keys& keys, uint32_t begin, uint32_t end,
                         const Cut& cut, const EqualsTaken& taken, Tally before,
                         const Write& write, SelectShared& shared) {
  const WarpPart part(begin, end);
  TallyWarps(keys, part, cut.low, shared);
  const Tally warps = SumTallies(shared, threadIdx.x / 32);
  before.greater += warps.greater;
  before.equal += warps.equal;
  WarpEmit(keys, part.begin, part.end, cut.low, taken, before, write);
}

// The cut of the n_keep largest of a list's n keys.
template <class Keys>
KV_DEVICE Cut BlockCut(const Keys& keys, uint32_t n, uint32_t n_keep,
                       SelectShared& shared) {
  Cut cut = {0, n_keep, n};
  ZeroBins(shared);
  BlockSync();
#pragma unroll
  for (uint32_t round = 0; round < 3; ++round) {
    CountDigits(keys, 0, keys.Size(), round, cut, shared);
    BlockSync();
    cut = PickDigit(round, cut, shared);
  }
  return cut;
}

// Writes the n_keep largest of a list's n keys.
template <class Keys>
KV_DEVICE void BlockSelect(const Keys& keys, uint32_t n, uint32_t n_keep,
                           bool higher_wins, const ToList& write,
                           SelectShared& shared) {
  const Cut cut = BlockCut(keys, n, n_keep, shared);
  BlockEmit(keys, 0, keys.Size(), cut, EqualsTaken(higher_wins, cut), {0, 0},
            write, shared);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_TOPK_CUH_
