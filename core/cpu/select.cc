// Selects keep lists by scores. A work item is a layer and list.
#include "core/cpu/select.h"

#include <algorithm>

#include "core/cpu/cpu.h"
#include "core/cpu/rank_keys.h"
#include "core/kernels/block_means.h"
#include "core/kernels/head_split.h"

namespace kvevict::cpu {
namespace {

// Gives slots that must stay the highest key, above that of +infinity.
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

// Counts what each list of a layer keeps, once its keys are computed.
void CountKept(SimdTarget simd, const SelectArgs& args, const SelectJob& job) {
  const HeadSplit& heads = args.heads;
  const HeadContest contest{
      job.keys,         job.tokens,
      job.keep.n_lists, job.budget,
      job.together,     job.keep.count.most,
      job.counts,       reinterpret_cast<uint32_t*>(job.keep.slots),
      job.keep.stride};
  const uint32_t n_own = heads.OwnOf(job.budget, args.forced);
  switch (heads.kind) {
    case HeadRule::kEqual:
      return;
    case HeadRule::kAdaptive:
      return CountWinners(simd, contest, n_own);
    case HeadRule::kAdaptiveBlend:
      return BlendWinners(simd, contest, n_own, heads.won_part());
    case HeadRule::kThreshold:
      return CountPassing(simd, contest, static_cast<float>(heads.threshold));
  }
}

}  // namespace

void MakeKeys(const Context& context, const SelectArgs& args,
              const SelectJob& job, uint32_t list) {
  const SimdTarget simd = context.simd();
  const uint32_t n_tokens = job.tokens.Of(list);
  const uint64_t row = uint64_t{list} * job.tokens.most;
  uint32_t* keys = job.keys + row;
  if (job.scores != nullptr) {
    const float* scores = job.scores + row;
    if (args.blocks.size > 1) {
      float* const means = reinterpret_cast<float*>(keys);
      AverageBlocks(simd, scores, n_tokens, args.blocks.size, means);
      scores = means;
    }
    ScoresToKeys(simd, scores, n_tokens, keys);
  } else {
    std::fill_n(keys, n_tokens, kNanKey);
  }
  ForceKeys(args.forced, args.blocks, job.slots, list, n_tokens, keys);
}

void RankKeys(const Context& context, const SelectArgs& args,
              const SelectJob& job, uint32_t list, uint32_t n_best) {
  const uint32_t n_tokens = job.tokens.Of(list);
  if (args.ranges.empty() || n_best >= n_tokens) return;
  RankKeys(context.simd(),
           SlotRanks(args.ranges, args.blocks, job.slots, list, n_tokens),
           n_best, job.keys + uint64_t{list} * job.tokens.most);
}

void MakeKeysAndCount(const Context& context, const SelectArgs& args) {
  ForEachList(context, args, [&](uint32_t item, uint32_t list) {
    MakeKeys(context, args, args.jobs[item], list);
  });
  if (!args.heads.Counts()) return;
  context.ParallelFor(static_cast<uint32_t>(args.jobs.size()),
                      [&](uint32_t item, uint32_t) {
                        CountKept(context.simd(), args, args.jobs[item]);
                      });
}

namespace {

Status RunSelect(const Context& context, Stream, const SelectArgs& args) {
  const bool counts = args.heads.Counts();
  if (counts) MakeKeysAndCount(context, args);
  ForEachList(context, args, [&](uint32_t item, uint32_t list) {
    const SelectJob& job = args.jobs[item];
    if (!counts) MakeKeys(context, args, job, list);
    int32_t* const keep = job.keep.List(list);
    const uint32_t n_keep = job.keep.count.Of(list);
    RankKeys(context, args, job, list, n_keep);
    SelectTopK(context.simd(), job.keys + uint64_t{list} * job.tokens.most,
               job.tokens.Of(list), n_keep, TieOf(args), keep);
    if (job.slots.first == 0) return;
    for (uint32_t i = 0; i < n_keep; ++i) keep[i] += job.slots.first;
  });
  return Status();
}

// Shapes the scores first.
Status RunShapeAndSelect(const Context& context, Stream stream,
                         const ShapeAndSelectArgs& args) {
  if (!args.shape.shaping.IsIdentity()) {
    KV_RETURN_IF_ERROR(kOp_shape(context, stream, args.shape));
  }
  return RunSelect(context, stream, args.select);
}

}  // namespace

const Op<SelectArgs> kOp_select = {RunSelect};

const Op<ShapeAndSelectArgs> kOp_shape_and_select = {RunShapeAndSelect};

}  // namespace kvevict::cpu
