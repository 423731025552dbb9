// Scores keys by their leverage: three launches for layers with the same layout.
#include <algorithm>

#include "core/kernels/leverage.h"
#include "core/view/rope.h"
#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/kernels/leverage.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

static_assert(kMaxRopeFrequencies == LeverageParams::kMaxPairs);
static_assert(kMaxLeverageDim == kLeverageMostDim);

bool LeverageJobsGoTogether(const ScoreJob& a, const ScoreJob& b) {
  return ReadAlike(*a.view, a.view->k, *b.view, b.view->k) &&
         InOneTable(a.tokens, b.tokens) &&
         InOneTable(a.slots.n_kept, b.slots.n_kept) &&
         a.slots.n_lists == b.slots.n_lists && a.n_sink == b.n_sink &&
         a.n_recent == b.n_recent;
}

CheckedSize LayerBytes(const kvevict_layer_geometry& g) {
  return CheckedSize(g.n_kv_heads) *
         CheckedSize(LeverageDoubles(g.k_head_dim)) *
         CheckedSize(sizeof(double));
}

Status RunLeverageBatch(const Context& context, Stream stream,
                        const ScoreArgs& args, Jobs<ScoreJob> batch) {
  const ScoreJob& first = batch.front();
  const Counts tokens(first.tokens);
  const Counts kept(first.slots.n_kept);
  LeverageParams p{};
  p.keys = RowsOf(*first.view, first.view->k);
  p.tokens = tokens.table();
  p.matrices = AddressOf(args.scratch.data());
  p.n_kv_heads = args.layer.n_kv_heads;
  p.slot_lists = 1;
  p.n_sink = first.n_sink;
  p.n_recent = first.n_recent;
  p.n_pairs = args.rope.n_frequencies();
  p.is_interleaved = args.rope.is_interleaved() ? 1 : 0;
  std::ranges::copy(args.rope.turns(), p.turns);
  if (!args.policy.rotate) {
    p.kept = kept.table();
    p.slot_lists = first.slots.n_lists;
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    const ScoreJob& job = batch[i];
    // With rotate a key's position is its slot.
    SlotPositions slots{};
    slots.first_slot = job.slots.first;
    if (!args.policy.rotate) slots = ParamsOf(job.slots, kept);
    p.layers[i] = {BaseOf(job.view->k), AddressOf(job.view->block_table),
                   AddressOf(job.rows), slots,
                   job.tokens.most,     tokens.FirstOf(job.tokens)};
  }
  const ModuleKey reader =
      ReaderOf(context, ModuleId::leverage, KindsOf(p.keys));
  KV_RETURN_IF_ERROR(Launch(context, stream, reader, KernelId::leverage_gram,
                            {LeverageTiles(args.layer.k_head_dim), p.n_kv_heads,
                             Size(batch), kLeverageThreads},
                            p));
  KV_RETURN_IF_ERROR(Launch(context, stream, reader, KernelId::leverage_factor,
                            {p.n_kv_heads, Size(batch), 1, kLeverageThreads},
                            p));
  return Launch(context, stream, reader, KernelId::leverage_scores,
                {BlocksFor(LongestOf(batch), kLeverageTile), p.n_kv_heads,
                 Size(batch), kLeverageThreads},
                p);
}

ScratchNeeds LeverageScratch(const Context&, const LayerSize& size) {
  const CheckedSize bytes = LayerBytes(size.geometry);
  return {
      bytes,
      CheckedSize(std::min(size.n_layers, LeverageParams::kMaxLayers)) * bytes};
}

Status CheckLeverage(const Context& context, Stream stream,
                     const ScoreArgs& args) {
  return CheckReading(context, stream, args, {ModuleId::leverage});
}

Status RunLeverage(const Context& context, Stream stream,
                   const ScoreArgs& args) {
  const size_t most =
      std::min<size_t>(args.scratch.size() / LayerBytes(args.layer).value(),
                       LeverageParams::kMaxLayers);
  return ForEachBatch(args.jobs, most, LeverageJobsGoTogether,
                      [&](Jobs<ScoreJob> batch) {
                        return RunLeverageBatch(context, stream, args, batch);
                      });
}

}  // namespace

const ScoreOp kOp_score_leverage = {RunLeverage, LeverageScratch,
                                    CheckLeverage};

}  // namespace kvevict::cuda
