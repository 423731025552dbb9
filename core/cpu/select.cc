// Scores to keep lists: an item is a layer and list.
#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/block_means.h"
#include "core/kernels/head_split.h"
#include "core/kernels/topk.h"

namespace kvevict::cpu {
namespace {

// Gives what must stay the key that no score has.
void ForceKeys(const Forced& forced, SlotBlocks blocks,
               const SlotPositions& slots, uint32_t list, uint32_t n_tokens,
               uint32_t* keys) {
  const uint64_t n_sink = blocks.RoundUp(forced.n_sink);
  const uint32_t n_recent =
      std::min(blocks.Recent(forced.n_recent, n_tokens), n_tokens);
  std::fill_n(keys, std::min<uint64_t>(n_sink, n_tokens), kForcedKey);
  std::fill_n(keys + n_tokens - n_recent, n_recent, kForcedKey);
  for (int32_t position : forced.protect) {
    const int64_t found = slots.SlotOf(list, position, n_tokens);
    if (found < 0) continue;
    const auto slot = static_cast<uint32_t>(found);
    std::fill(keys + blocks.BeginOf(slot), keys + blocks.EndOf(slot, n_tokens),
              kForcedKey);
  }
}

// Of a layer whose keys are there. The lists are not written yet, and serve as
// scratch.
void CountKept(SimdTarget simd, const SelectArgs& args, const SelectJob& job) {
  const HeadSplit& heads = args.heads;
  const HeadContest contest{job.keys,
                            job.tokens,
                            job.keep.n_lists,
                            job.budget,
                            job.keep.count.most,
                            job.counts,
                            reinterpret_cast<uint32_t*>(job.keep.slots),
                            job.keep.stride};
  const uint32_t n_own = heads.OwnOf(job.budget, args.forced);
  switch (heads.kind) {
    case KVEVICT_HEAD_SPLIT_EQUAL:
      return;
    case KVEVICT_HEAD_SPLIT_ADAPTIVE:
      return CountWinners(simd, contest, n_own);
    case KVEVICT_HEAD_SPLIT_ADAPTIVE_BLEND:
      return BlendWinners(simd, contest, n_own, heads.won_part());
    case KVEVICT_HEAD_SPLIT_THRESHOLD:
      return CountPassing(simd, contest, static_cast<float>(heads.threshold));
  }
}

}  // namespace

Status Run_select(const Context& context, Stream, const SelectArgs& args) {
  const Tie tie =
      args.tie == KVEVICT_TIE_LOWER_POSITION ? Tie::kLower : Tie::kHigher;
  const uint32_t n_lists = args.jobs.front().keep.n_lists;
  const uint32_t n_items = static_cast<uint32_t>(args.jobs.size() * n_lists);
  const auto make_keys = [&](const SelectJob& job, uint32_t list) {
    const uint32_t n_tokens = job.tokens.Of(list);
    const uint64_t row = uint64_t{list} * job.tokens.most;
    uint32_t* keys = job.keys + row;
    if (job.scores != nullptr) {
      const float* scores = job.scores + row;
      if (args.blocks.size > 1) {
        float* const means = reinterpret_cast<float*>(keys);
        AverageBlocks(context.simd(), scores, n_tokens, args.blocks.size,
                      means);
        scores = means;
      }
      ScoresToKeys(context.simd(), scores, n_tokens, keys);
    } else {
      std::fill_n(keys, n_tokens, kNanKey);
    }
    ForceKeys(args.forced, args.blocks, job.slots, list, n_tokens, keys);
  };
  if (args.heads.Counts()) {
    context.ParallelFor(n_items, [&](uint32_t item, uint32_t) {
      make_keys(args.jobs[item / n_lists], item % n_lists);
    });
    context.ParallelFor(static_cast<uint32_t>(args.jobs.size()),
                        [&](uint32_t item, uint32_t) {
                          CountKept(context.simd(), args, args.jobs[item]);
                        });
  }
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t) {
    const SelectJob& job = args.jobs[item / n_lists];
    const uint32_t list = item % n_lists;
    if (!args.heads.Counts()) make_keys(job, list);
    SelectTopK(context.simd(), job.keys + uint64_t{list} * job.tokens.most,
               job.tokens.Of(list), job.keep.count.Of(list), tie,
               job.keep.List(list));
  });
  return Status();
}

}  // namespace kvevict::cpu
