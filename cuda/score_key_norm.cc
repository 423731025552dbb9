// Norms of keys: one launch for layers that lie alike.
#include "core/dtype.h"
#include "core/view.h"
#include "cuda/alignment.h"
#include "cuda/kernels/key_norm.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

bool GoTogether(const ScoreJob& a, const ScoreJob& b) {
  return SameLayout(LayoutOf(*a.view, a.view->k),
                    LayoutOf(*b.view, b.view->k)) &&
         InOneTable(a.tokens, b.tokens) &&
         (a.view->k.data - b.view->k.data) % 16 == 0;
}

// Whether rows can be loaded 16 bytes at a time.
bool IsWide(const RowLayout& keys, uint64_t data, uint32_t row_bytes,
            uint32_t element_bytes) {
  const uint64_t all = data | row_bytes |
                       static_cast<uint64_t>(keys.row_stride) |
                       static_cast<uint64_t>(keys.head_stride) |
                       static_cast<uint64_t>(keys.block_stride);
  return keys.element_stride == int64_t{element_bytes} && all % 16 == 0;
}

Status RunBatch(const Context& context, Stream stream, const ScoreArgs& args,
                Jobs<ScoreJob> batch) {
  const kvevict_layer_geometry& g = args.layer;
  const kvevict_view& view = *batch.front().view;
  const uint32_t element_bytes = ElementBytes(static_cast<DType>(g.k_dtype));
  const uint32_t row_bytes = g.k_head_dim * element_bytes;
  const Counts tokens(batch.front().tokens);
  KeyNormParams p{};
  p.keys = LayoutOf(view, view.k);
  p.tokens = tokens.table();
  p.dtype = static_cast<uint32_t>(g.k_dtype);
  p.head_dim = g.k_head_dim;
  p.n_kv_heads = g.n_kv_heads;
  p.wide = IsWide(p.keys, view.k.data, row_bytes, element_bytes);
  p.lanes = KeyNormLanes(p.wide != 0 ? row_bytes / 16 : g.k_head_dim);
  for (size_t i = 0; i < batch.size(); ++i) {
    const ScoreJob& job = batch[i];
    p.layers[i] = {job.view->k.data, AddressOf(job.view->block_table),
                   AddressOf(job.rows), job.tokens.most,
                   tokens.FirstOf(job.tokens)};
  }
  return Launch(context, stream, KernelId::key_norms,
                {BlocksFor(LongestOf(batch), KeyNormBlockRows(p.lanes)),
                 g.n_kv_heads, Size(batch), kNormThreads},
                p);
}

Status Check(const Context& context, Stream stream, const ScoreArgs& args) {
  for (const ScoreJob& job : args.jobs) {
    KV_RETURN_IF_ERROR(CheckKeysAligned(job, args.layer));
  }
  KV_RETURN_IF_ERROR(RequireShaping(context, stream));
  return Require(context, stream, ModuleId::key_norm);
}

Status Run(const Context& context, Stream stream, const ScoreArgs& args) {
  return ForEachBatch(args.jobs, KeyNormParams::kMaxLayers, GoTogether,
                      [&](Jobs<ScoreJob> batch) {
                        return RunBatch(context, stream, args, batch);
                      });
}

}  // namespace

const ScoreOp kOp_score_key_norm = {Run, NoScratch, nullptr, Check};

}  // namespace kvevict::cuda
