// Keeps further blocks by which of their slots are marked, with the choice of
// core/cpu/rescue_blocks.cc.
#include "rescue.h"

#include "device.cuh"
#include "random.cuh"
#include "topk.cuh"

namespace kvevict::cuda {

namespace {

constexpr uint32_t kKept = 0xffffffffu;  // stands for a distance

struct RescueShared {
  uint32_t anchor[kMostRescueBlock / 32];
  uint32_t counts[2][kRescueThreads / 32];
};

// Counts the i in [0, n) for which `holds`. All threads get the result. `turn`
// must differ in the next call.
template <class Holds>
KV_DEVICE uint32_t CountOver(RescueShared& shared, uint32_t turn, uint32_t n,
                             const Holds& holds) {
  uint32_t count = 0;
  for (uint32_t i = threadIdx.x; i < n; i += kRescueThreads) count += holds(i);
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    count += ShuffleXor(count, mask);
  }
  uint32_t* const counts = shared.counts[turn % 2];
  if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count;
  BlockSync();
  count = 0;
  for (uint32_t w = 0; w < kRescueThreads / 32; ++w) count += counts[w];
  return count;
}

// The slots between those that stay at both ends. Half of them are marked.
struct Marks {
  uint64_t row;
  uint32_t n;
  uint32_t cut;   // larger keys are marked,
  uint32_t last;  // and equal ones up to this slot

  KV_DEVICE uint32_t Key(uint32_t i) const {
    return KeyOfScore(LoadGlobal<uint32_t>(row + uint64_t{i} * sizeof(float)));
  }
  KV_DEVICE uint32_t operator[](uint32_t i) const {
    const uint32_t key = Key(i);
    return key > cut || (key == cut && i <= last);
  }
  // Finds the cut bit by bit, highest first.
  KV_DEVICE void Find(RescueShared& shared) {
    const uint32_t half = n / 2;
    cut = 0;
    for (uint32_t bit = 32; bit-- > 0;) {
      const uint32_t next = cut | 1u << bit;
      const uint32_t count =
          CountOver(shared, bit, n, [&](uint32_t i) { return Key(i) >= next; });
      if (count >= half) cut = next;
    }
    const uint32_t needed = half - CountOver(shared, 1, n, [&](uint32_t i) {
                              return Key(i) > cut;
                            });
    last = 0;
    for (uint32_t bit = 31; bit-- > 0;) {
      const uint32_t next = last | 1u << bit;
      const uint32_t count = CountOver(shared, bit, n, [&](uint32_t i) {
        return Key(i) == cut && i < next;
      });
      if (count < needed) last = next;
    }
  }
};

KV_DEVICE bool AnchorBit(const RescueParams& p, const RescueLayer& layer,
                         const Marks& marks, uint32_t n_blocks, uint32_t i) {
  switch (p.anchor) {
    case kAnchorMean: {
      uint32_t n = 0;
      for (uint32_t block = 0; block < n_blocks; ++block) {
        n += marks[block * p.block + i];
      }
      return 2 * n > n_blocks;
    }
    case kAnchorOnes:
      return true;
    case kAnchorAlternating:
      return i % 2 == 1;
    case kAnchorRandom:
      return RandomScore(p.seed, layer.layer, layer.n_seen, i) >= 0.5f;
    default:
      return false;
  }
}

// Whether an ascending list has a slot.
KV_DEVICE bool Has(uint64_t list, uint32_t n, uint32_t slot) {
  uint32_t begin = 0;
  uint32_t end = n;
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    if (LoadGlobal<uint32_t>(list + uint64_t{middle} * 4) < slot) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin < n && LoadGlobal<uint32_t>(list + uint64_t{begin} * 4) == slot;
}

// The block's rank by distance among those that would be evicted; the first of
// equals comes first.
KV_DEVICE uint32_t RankOf(uint64_t distances, uint32_t n_blocks, uint32_t block,
                          uint32_t own) {
  uint32_t rank = 0;
  for (uint32_t i = 0; i < n_blocks; ++i) {
    const uint32_t one = LoadGlobal<uint32_t>(distances + uint64_t{i} * 4);
    rank += i < block ? one <= own : one < own;
  }
  return rank;
}

}  // namespace

// Grid (n_lists, n_layers). A block has one list, and a thread every 256th of
// its slots and of its blocks. 8.1 KiB shared. Reads the marks 66 times, the
// first time from memory.
KV_KERNEL(rescue_blocks, RescueParams, kRescueThreads, 2) {
  KV_SHARED(RescueShared, shared, 1);
  const RescueLayer& layer = p.layers[blockIdx.y];
  const uint32_t list = blockIdx.x;
  const uint32_t n = layer.n_tokens;
  const uint32_t begin = (p.n_sink + p.block - 1) / p.block * p.block;
  const uint32_t recent = p.n_recent < n ? n - p.n_recent : 0;
  const uint32_t end = recent / p.block * p.block;
  if (layer.n_blocks == 0 || begin >= end) return;
  const uint32_t n_blocks = (end - begin) / p.block;
  Marks marks{layer.marks + (list * layer.marks_stride + begin) * sizeof(float),
              end - begin, 0, 0};
  marks.Find(*shared);
  for (uint32_t word = threadIdx.x; word * 32 < p.block;
       word += kRescueThreads) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < 32 && word * 32 + i < p.block; ++i) {
      const bool bit = AnchorBit(p, layer, marks, n_blocks, word * 32 + i);
      bits |= static_cast<uint32_t>(bit) << i;
    }
    shared->anchor[word] = bits;
  }
  BlockSync();
  const uint32_t stride = p.keep_stride == 0 ? layer.n_keep : p.keep_stride;
  const uint64_t keep = layer.keep + uint64_t{list} * stride * sizeof(int32_t);
  const uint64_t distances =
      layer.scratch + uint64_t{list} * n * sizeof(uint32_t);
  for (uint32_t block = threadIdx.x; block < n_blocks;
       block += kRescueThreads) {
    const uint32_t first = block * p.block;
    uint32_t distance = 0;
    for (uint32_t i = 0; i < p.block; ++i) {
      distance += marks[first + i] != (shared->anchor[i / 32] >> i % 32 & 1);
    }
    const bool stays = Has(keep, layer.n_keep, begin + first);
    StoreGlobal(distances + uint64_t{block} * 4, stays ? kKept : distance);
  }
  // A thread counts its own blocks; then all threads wait for all distances.
  const uint32_t n_go = CountOver(*shared, 0, n_blocks, [&](uint32_t block) {
    return LoadGlobal<uint32_t>(distances + uint64_t{block} * 4) != kKept;
  });
  const uint32_t step = n_go < layer.n_blocks ? 1 : n_go / layer.n_blocks;
  const uint64_t scores =
      layer.scores + (uint64_t{list} * n + begin) * sizeof(float);
  for (uint32_t block = threadIdx.x; block < n_blocks;
       block += kRescueThreads) {
    const uint32_t own = LoadGlobal<uint32_t>(distances + uint64_t{block} * 4);
    bool stays = own == kKept;
    if (!stays) {
      const uint32_t rank = RankOf(distances, n_blocks, block, own);
      stays = rank % step == 0 && rank / step < layer.n_blocks;
    }
    for (uint32_t i = 0; i < p.block; ++i) {
      const uint64_t slot = uint64_t{block} * p.block + i;
      StoreGlobal(scores + slot * sizeof(float),
                  stays ? kInfinityBits : kNaNBits);
    }
  }
}

}  // namespace kvevict::cuda
