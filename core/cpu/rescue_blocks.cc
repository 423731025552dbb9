// Keeps further blocks by which of their slots are marked. A work item is a
// layer and list.
#include <algorithm>
#include <limits>

#include "core/cpu/cpu.h"
#include "core/cpu/select.h"
#include "core/signals/signals.h"

namespace kvevict::cpu {
namespace {

constexpr uint32_t kKept = UINT32_MAX;  // stands for a distance

// A bit for each slot of a block.
class AnchorBits {
 public:
  // Computes the anchor of n_blocks whose marked slots have 1 and the others 0.
  AnchorBits(const RescueBlocksArgs& args, const RescueJob& job,
             const uint32_t* marks, uint32_t n_blocks) {
    const uint32_t size = args.select.blocks.size;
    for (uint32_t i = 0; i < size; ++i) {
      bits_[i / 64] |= uint64_t{Has(args, job, marks, n_blocks, i)} << i % 64;
    }
  }
  uint32_t operator[](uint32_t i) const { return bits_[i / 64] >> i % 64 & 1; }

 private:
  static bool Has(const RescueBlocksArgs& args, const RescueJob& job,
                  const uint32_t* marks, uint32_t n_blocks, uint32_t i) {
    switch (args.anchor) {
      case Anchor::kMean: {
        uint64_t n = 0;
        for (uint32_t block = 0; block < n_blocks; ++block) {
          n += marks[uint64_t{block} * args.select.blocks.size + i];
        }
        return 2 * n > n_blocks;
      }
      case Anchor::kZeros:
        return false;
      case Anchor::kOnes:
        return true;
      case Anchor::kAlternating:
        return i % 2 == 1;
      case Anchor::kRandom:
        return RandomScore(args.seed, job.layer, job.n_seen, i) >= 0.5f;
    }
    return false;
  }

  uint64_t bits_[SlotBlocks::kMostSize / 64] = {};
};

// Replaces the largest half of the keys by 1, the first of equals first, and
// the others by 0.
void Mark(SimdTarget simd, uint32_t n, uint32_t* keys) {
  KeyCut cut = FindKeyCut(simd, keys, n, n / 2);
  for (uint32_t i = 0; i < n; ++i) {
    const bool equals = keys[i] == cut.key && cut.n_needed > 0;
    cut.n_needed -= equals;
    keys[i] = keys[i] > cut.key || equals;
  }
}

// The block's rank by distance among those that would be evicted; the first of
// equals comes first.
uint32_t RankOf(const uint32_t* distances, uint32_t n_blocks, uint32_t block) {
  const uint32_t own = distances[block];
  uint32_t rank = 0;
  for (uint32_t i = 0; i < n_blocks; ++i) {
    rank += i < block ? distances[i] <= own : distances[i] < own;
  }
  return rank;
}

void RescueOf(SimdTarget simd, const RescueBlocksArgs& args,
              const SelectJob& select, const RescueJob& job, uint32_t list) {
  const SlotBlocks blocks = args.select.blocks;
  const Forced& forced = args.select.forced;
  const uint32_t n_tokens = select.tokens.Of(list);
  const auto begin = static_cast<uint32_t>(
      std::min<uint64_t>(blocks.RoundUp(forced.n_sink), n_tokens));
  const uint32_t end =
      n_tokens - std::min(blocks.Recent(forced.n_recent, n_tokens), n_tokens);
  if (end <= begin) return;
  const uint32_t n_blocks = (end - begin) / blocks.size;
  uint32_t* const keys = select.keys + uint64_t{list} * select.tokens.most;
  ScoresToKeys(simd, job.marks.data + list * job.marks.head_stride + begin,
               end - begin, keys);
  Mark(simd, end - begin, keys);
  const AnchorBits anchor(args, job, keys, n_blocks);
  // Distances overwrite marks that have been read.
  const int32_t* kept = select.keep.List(list);
  const int32_t* const kept_end = kept + select.keep.count.Of(list);
  uint32_t n_go = 0;
  for (uint32_t block = 0; block < n_blocks; ++block) {
    const uint32_t first = block * blocks.size;
    uint32_t distance = 0;
    for (uint32_t i = 0; i < blocks.size; ++i) {
      distance += keys[first + i] != anchor[i];
    }
    kept =
        std::lower_bound(kept, kept_end, static_cast<int32_t>(begin + first));
    const bool stays =
        kept != kept_end && *kept == static_cast<int32_t>(begin + first);
    keys[block] = stays ? kKept : distance;
    n_go += !stays;
  }
  const uint32_t step = std::max(1u, n_go / job.n_blocks);
  float* const scores = job.scores + uint64_t{list} * select.tokens.most;
  for (uint32_t block = 0; block < n_blocks; ++block) {
    bool stays = keys[block] == kKept;
    if (!stays) {
      const uint32_t rank = RankOf(keys, n_blocks, block);
      stays = rank % step == 0 && rank / step < job.n_blocks;
    }
    std::fill_n(scores + begin + uint64_t{block} * blocks.size, blocks.size,
                stays ? std::numeric_limits<float>::infinity()
                      : std::numeric_limits<float>::quiet_NaN());
  }
}

Status RunRescueBlocks(const Context& context, Stream stream,
                       const RescueBlocksArgs& args) {
  KV_RETURN_IF_ERROR(kOp_select(context, stream, args.select));
  ForEachList(context, args.select, [&](uint32_t item, uint32_t list) {
    const RescueJob& job = args.jobs[item];
    if (job.n_blocks == 0) return;
    RescueOf(context.simd(), args, args.select.jobs[item], job, list);
  });
  return Status();
}

}  // namespace

const Op<RescueBlocksArgs> kOp_rescue_blocks = {RunRescueBlocks};

}  // namespace kvevict::cpu
