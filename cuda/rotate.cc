// Keys at other positions: one launch for layers that lie alike.
#include <algorithm>

#include "core/view/rope.h"
#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/kernels/rotate_rows.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

static_assert(RotateParams::kMaxPairs == kMaxRopeFrequencies);

bool RotateTogether(const RotateJob& a, const RotateJob& b) {
  return a.view->n_kv_heads == b.view->n_kv_heads &&
         a.view->k.dtype == b.view->k.dtype && a.n_lists == b.n_lists &&
         ReadAlike(*a.view, a.view->k, *b.view, b.view->k) &&
         InOneTable(a.tokens, b.tokens);
}

Status RunBatch(const Context& context, Stream stream, const RotateArgs& args,
                Jobs<RotateJob> batch) {
  const Rope& rope = args.rope;
  const RotateJob& first = batch.front();
  const kvevict_view& view = *first.view;
  const Counts tokens(first.tokens);
  RotateParams p{};
  p.keys = RowsOf(view, view.k);
  p.tokens = tokens.table();
  p.n_lists = first.n_lists;
  p.n_pairs = rope.n_frequencies();
  p.is_interleaved = rope.is_interleaved() ? 1 : 0;
  p.from_slots = args.from_slots ? 1 : 0;
  std::ranges::copy(rope.turns(), p.turns);
  for (size_t i = 0; i < batch.size(); ++i) {
    const RotateJob& job = batch[i];
    p.layers[i] = {BaseOf(job.view->k), AddressOf(job.view->block_table),
                   AddressOf(job.offsets), job.tokens.most,
                   tokens.FirstOf(job.tokens)};
  }
  return Launch(context, stream, KernelId::rotate_rows,
                {BlocksFor(LongestOf(batch), kRotateRows), view.n_kv_heads,
                 Size(batch), kRotateThreads},
                p);
}

Status CheckRotate(const Context& context, Stream stream,
                   const RotateArgs& args) {
  for (const RotateJob& job : args.jobs) {
    KV_RETURN_IF_ERROR(CheckRowsAligned("keys", *job.view, job.view->k));
  }
  return Require(context, stream, ModuleId::rotate_rows);
}

Status RunRotate(const Context& context, Stream stream,
                 const RotateArgs& args) {
  return ForEachBatch(args.jobs, RotateParams::kMaxLayers, RotateTogether,
                      [&](Jobs<RotateJob> batch) {
                        return RunBatch(context, stream, args, batch);
                      });
}

}  // namespace

const Op<RotateArgs> kOp_rotate = {RunRotate, Op<RotateArgs>::NoScratch,
                                   CheckRotate};

}  // namespace kvevict::cuda
