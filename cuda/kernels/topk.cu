// Selection by radix: the n_keep largest keys of a list, in ascending order of
// index. Keys, cut and tie rule are those of core/kernels/topk.cc.
#include "topk.h"

#include "device.cuh"
#include "slots.cuh"
#include "topk.cuh"

namespace kvevict::cuda {

// Grid (n_lists, n_layers). A block selects one list. 8.4 KiB shared. Reads the
// scores five times, the first time from memory.
KV_KERNEL(select_topk, SelectParams, kSelectThreads, 4) {
  KV_SHARED(SelectShared, shared, 1);
  const SelectLayer& layer = p.layers[blockIdx.y];
  const uint32_t list = blockIdx.x;
  const Keys keys(p, layer, list);
  const uint32_t n_keep = KeepOf(p.lists, layer, list, keys.words.n);
  if (n_keep == 0) return;
  BlockSelect(keys, keys.words.n, n_keep, p.lists.higher_wins != 0,
              KeepList(p.lists, layer, list), *shared);
}

// ---- Long lists: a block has one chunk ----

namespace {

struct LongList {
  uint64_t bins;
  uint64_t done;
  uint64_t cut;
  uint64_t tallies;
  uint32_t n_chunks;
  uint32_t begin;  // quads of this block's chunk; none past the list's end
  uint32_t end;

  KV_DEVICE LongList(const SelectParams& p, const Keys& keys) {
    const uint64_t list = uint64_t{blockIdx.z} * p.lists.n_lists + blockIdx.y;
    bins = p.scratch + list * LongWords(p.n_chunks) * sizeof(uint32_t);
    done = bins + kBins * sizeof(uint32_t);
    cut = done + sizeof(uint32_t);
    tallies = cut + 3 * sizeof(uint32_t);
    const uint32_t n_quads = keys.Size();
    n_chunks = (n_quads + kLongQuads - 1) / kLongQuads;
    const uint32_t skip = blockIdx.x * kLongQuads;
    begin = skip < n_quads ? skip : n_quads;
    end = n_quads - begin < kLongQuads ? n_quads : begin + kLongQuads;
  }

  KV_DEVICE Cut LoadCut() const {
    return {LoadGlobal<uint32_t>(cut), LoadGlobal<uint32_t>(cut + 4),
            LoadGlobal<uint32_t>(cut + 8)};
  }
  KV_DEVICE void StoreCut(const Cut& c) const {
    StoreGlobal(cut, c.low);
    StoreGlobal(cut + 4, c.needed);
    StoreGlobal(cut + 8, c.n_equal);
  }
};

// Adds the block's bins to the list's. Returns true for all threads of the
// block that comes last; it sees what all have added.
KV_DEVICE bool MergeBins(const LongList& list, SelectShared& shared) {
  for (uint32_t b = threadIdx.x; b < kBins; b += kSelectThreads) {
    if (shared.bins[b] == 0) continue;
    AtomicAddGlobal(list.bins + uint64_t{b} * 4, shared.bins[b]);
  }
  BlockSync();
  if (threadIdx.x == 0) {
    shared.is_last = AtomicTicket(list.done) + 1 == list.n_chunks;
  }
  BlockSync();
  return shared.is_last != 0;
}

}  // namespace

// Counts one digit. The list's last block picks it and clears the bins for the
// next round. All threads have read the block's own bins before MergeBins()
// returned.
KV_KERNEL(select_long_digit, SelectParams, kSelectThreads, 4) {
  KV_SHARED(SelectShared, shared, 1);
  const SelectLayer& layer = p.layers[blockIdx.z];
  const Keys keys(p, layer, blockIdx.y);
  const LongList list(p, keys);
  const uint32_t n_keep = KeepOf(p.lists, layer, blockIdx.y, keys.words.n);
  if (n_keep == 0 || list.begin == list.end) return;
  const Cut cut = p.round == 0 ? Cut{0, n_keep, keys.words.n} : list.LoadCut();
  ZeroBins(*shared);
  BlockSync();
  CountDigits(keys, list.begin, list.end, p.round, cut, *shared);
  BlockSync();
  if (!MergeBins(list, *shared)) return;
  for (uint32_t b = threadIdx.x; b < kBins; b += kSelectThreads) {
    shared->bins[b] = LoadGlobal<uint32_t>(list.bins + uint64_t{b} * 4);
    StoreGlobal(list.bins + uint64_t{b} * 4, 0u);
  }
  BlockSync();
  const Cut next = PickDigit(p.round, cut, *shared);
  if (threadIdx.x == 0) {
    list.StoreCut(next);
    StoreGlobal(list.done, 0u);
  }
}

// Writes the tally of each chunk relative to the cut.
KV_KERNEL(select_long_count, SelectParams, kSelectThreads, 4) {
  KV_SHARED(SelectShared, shared, 1);
  const SelectLayer& layer = p.layers[blockIdx.z];
  const Keys keys(p, layer, blockIdx.y);
  const LongList list(p, keys);
  if (KeepOf(p.lists, layer, blockIdx.y, keys.words.n) == 0 ||
      list.begin == list.end) {
    return;
  }
  TallyWarps(keys, WarpPart(list.begin, list.end), list.LoadCut().low, *shared);
  if (threadIdx.x >= 32) return;
  const Tally tally = SumTallies(*shared, kWarps);
  if (threadIdx.x == 0) {
    const uint64_t place = list.tallies + uint64_t{blockIdx.x} * 8;
    StoreGlobal(place, tally.greater);
    StoreGlobal(place + 4, tally.equal);
  }
}

// Writes each chunk's places, after those of the chunks before.
KV_KERNEL(select_long_emit, SelectParams, kSelectThreads, 4) {
  KV_SHARED(SelectShared, shared, 1);
  const SelectLayer& layer = p.layers[blockIdx.z];
  const Keys keys(p, layer, blockIdx.y);
  const LongList list(p, keys);
  if (KeepOf(p.lists, layer, blockIdx.y, keys.words.n) == 0 ||
      list.begin == list.end) {
    return;
  }
  Tally before = {0, 0};  // each warp sums by itself, so no barrier is needed
  for (uint32_t c = threadIdx.x % 32; c < blockIdx.x; c += 32) {
    before.greater += LoadGlobal<uint32_t>(list.tallies + uint64_t{c} * 8);
    before.equal += LoadGlobal<uint32_t>(list.tallies + uint64_t{c} * 8 + 4);
  }
  before = {WarpSum(before.greater), WarpSum(before.equal)};
  const Cut cut = list.LoadCut();
  BlockEmit(keys, list.begin, list.end, cut,
            EqualsTaken(p.lists.higher_wins != 0, cut), before,
            KeepList(p.lists, layer, blockIdx.y), *shared);
}

// ---- Keys in memory, if more than the ends of a list must stay, or slots stay
// or go in blocks ----

namespace {

// The bits of the mean of n scores, summed one after the other as the CPU does.
KV_DEVICE uint32_t MeanOf(uint64_t scores, uint32_t n) {
  if (n == 1) return LoadGlobal<uint32_t>(scores);
  float sum = LoadGlobal<float>(scores);
#pragma unroll 4
  for (uint32_t i = 1; i < n; ++i) sum += LoadGlobal<float>(scores + i * 4);
  const float mean = sum / static_cast<float>(n);
  uint32_t bits;
  memcpy(&bits, &mean, sizeof(bits));
  return bits;
}

}  // namespace

// Turns scores, or nothing, into keys [n_lists, n_tokens] at `keep`, which may
// be the scores' memory. Slots of a block get the key of its mean. They get the
// forced key if an end begins or stops in the block, or if it is not full. Grid
// (blocks / 256 of the longest layer, n_lists, n_layers). A thread makes the
// keys of one block of p.lists.block slots.
KV_KERNEL(make_keys, SelectParams, kKeysThreads, 1) {
  const SelectLayer& layer = p.layers[blockIdx.z];
  const uint32_t block = p.lists.block;
  const uint64_t first =
      (uint64_t{blockIdx.x} * kKeysThreads + threadIdx.x) * block;
  const Keys keys(p, layer, blockIdx.y);
  if (first >= keys.words.n) return;
  const uint32_t begin = static_cast<uint32_t>(first);
  const uint32_t left = keys.words.n - begin;
  const uint32_t n = left < block ? left : block;
  const uint64_t place = (uint64_t{blockIdx.y} * layer.n_tokens + begin) * 4;
  uint32_t key = kForcedKey;
  if (begin >= keys.n_sink && begin + n <= keys.recent_begin && n == block) {
    key = p.input == kSelectNothing ? kNanKey
                                    : keys.Key(MeanOf(layer.scores + place, n));
  }
  for (uint32_t i = 0; i < n; ++i) {
    StoreGlobal(layer.keep + place + i * 4, key);
  }
}

// Grid (n_positions / 256, n_lists, n_layers). A thread pins the block of one
// position in one list. Positions ascend.
KV_KERNEL(pin_positions, PinParams, kKeysThreads, 1) {
  const PinLayer& layer = p.layers[blockIdx.z];
  const uint32_t i = blockIdx.x * kKeysThreads + threadIdx.x;
  if (i >= p.n_positions) return;
  const uint32_t list = blockIdx.y;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_token_count, list, layer.n_tokens);
  const uint32_t slot =
      SlotOf(layer.slots, p.kept, list, n_tokens, p.positions[i]);
  if (slot == n_tokens) return;
  const uint32_t begin = slot - slot % p.block;
  // Only the first of a block's positions pins it.
  for (uint32_t before = i; p.block > 1 && before-- > 0;) {
    const uint32_t other =
        SlotOf(layer.slots, p.kept, list, n_tokens, p.positions[before]);
    if (other == n_tokens) continue;
    if (other >= begin) return;
    break;
  }
  const uint32_t end = n_tokens - begin < p.block ? n_tokens : begin + p.block;
  const uint64_t keys =
      layer.keys + uint64_t{list} * layer.n_tokens * sizeof(uint32_t);
  for (uint32_t i = begin; i < end; ++i) {
    StoreGlobal(keys + uint64_t{i} * sizeof(uint32_t), kForcedKey);
  }
}

}  // namespace kvevict::cuda
