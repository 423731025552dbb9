// Scores by shares of squared norms: for layers with the same layout, two
// launches of row_norm.cu and two of cur.cu.
#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/kernels/cur.h"
#include "cuda/kernels/row_norm.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

bool CurJobsGoTogether(const ScoreJob& a, const ScoreJob& b) {
  return ReadAlike(*a.view, a.view->k, *b.view, b.view->k) &&
         ReadAlike(*a.view, a.view->v, *b.view, b.view->v) &&
         InOneTable(a.tokens, b.tokens);
}

// Floats of a layer: norms of its values, then sums.
uint64_t LayerFloats(uint32_t n_kv_heads, uint32_t window, uint32_t n_tokens) {
  return n_kv_heads * (uint64_t{n_tokens} + CurBlocks(n_tokens, window));
}

class CurScorer {
 public:
  CurScorer(const Context& context, Stream stream, const ScoreArgs& args,
            Jobs<ScoreJob> batch)
      : context_(context),
        stream_(stream),
        args_(args),
        batch_(batch),
        tokens_(batch.front().tokens) {}

  Status Run() const {
    const CurParams p = Params();
    const uint32_t n_kv_heads = args_.layer.n_kv_heads;
    const uint32_t longest = LongestOf(batch_);
    KV_RETURN_IF_ERROR(
        LaunchNorms(p, &kvevict_view::k, &CurLayer::scores, longest));
    KV_RETURN_IF_ERROR(
        LaunchNorms(p, &kvevict_view::v, &CurLayer::value_norms, longest));
    KV_RETURN_IF_ERROR(Launch(
        context_, stream_, KernelId::cur_shares,
        {CurBlocks(longest, p.window), n_kv_heads, Size(batch_), kCurThreads},
        p));
    return Launch(context_, stream_, KernelId::cur_scale,
                  {BlocksFor(longest, kCurScaleTokens), n_kv_heads,
                   Size(batch_), kCurScaleThreads},
                  p);
  }

 private:
  CurParams Params() const {
    CurParams p{};
    p.tokens = tokens_.table();
    p.window = args_.policy.block;
    p.n_sink = args_.policy.sink.count;
    uint64_t scratch = AddressOf(args_.scratch.data());
    for (size_t i = 0; i < batch_.size(); ++i) {
      const ScoreJob& job = batch_[i];
      const uint32_t n = job.tokens.most;
      const uint32_t n_kv_heads = args_.layer.n_kv_heads;
      p.layers[i] = {AddressOf(job.rows), scratch,
                     scratch + uint64_t{n_kv_heads} * n * sizeof(float), n,
                     tokens_.FirstOf(job.tokens)};
      scratch += LayerFloats(n_kv_heads, p.window, n) * sizeof(float);
    }
    return p;
  }

  // Computes norms of one plane of all layers and writes them where `out` says.
  Status LaunchNorms(const CurParams& where, kvevict_plane kvevict_view::*plane,
                     uint64_t CurLayer::*out, uint32_t longest) const {
    const kvevict_view& view = *batch_.front().view;
    RowNormParams p{};
    p.rows = RowsOf(view, view.*plane);
    p.tokens = where.tokens;
    p.n_kv_heads = args_.layer.n_kv_heads;
    for (size_t i = 0; i < batch_.size(); ++i) {
      const kvevict_view& rows = *batch_[i].view;
      p.layers[i] = {BaseOf(rows.*plane), AddressOf(rows.block_table),
                     where.layers[i].*out, where.layers[i].n_tokens,
                     where.layers[i].first_count};
    }
    return Launch(context_, stream_,
                  ReaderOf(context_, ModuleId::row_norm, KindsOf(p.rows)),
                  KernelId::row_norms,
                  {BlocksFor(longest, NormBlockRows(p.rows.lanes)),
                   p.n_kv_heads, Size(batch_), kNormThreads},
                  p);
  }

  const Context& context_;
  const Stream stream_;
  const ScoreArgs& args_;
  const Jobs<ScoreJob> batch_;
  const Counts tokens_;
};

ScratchNeeds CurScratch(const Context&, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  const CheckedSize per_head =
      CheckedSize(size.n_tokens) +
      CheckedSize(CurBlocks(size.n_tokens, size.policy.block));
  return CheckedSize(std::min(size.n_layers, CurParams::kMaxLayers)) *
         CheckedSize(g.n_kv_heads) * per_head * CheckedSize(sizeof(float));
}

Status CheckCur(const Context& context, Stream stream, const ScoreArgs& args) {
  KV_RETURN_IF_ERROR(CheckReading(context, stream, args, {}));
  for (const auto plane : {&kvevict_view::k, &kvevict_view::v}) {
    KV_RETURN_IF_ERROR(
        RequireReader(context, stream, args.jobs, ModuleId::row_norm, {plane}));
  }
  return Require(context, stream, ModuleId::cur);
}

Status RunCur(const Context& context, Stream stream, const ScoreArgs& args) {
  return ForEachBatch(args.jobs, CurParams::kMaxLayers, CurJobsGoTogether,
                      [&](Jobs<ScoreJob> batch) {
                        return CurScorer(context, stream, args, batch).Run();
                      });
}

}  // namespace

const ScoreOp kOp_score_cur = {RunCur, CurScratch, CheckCur};

}  // namespace kvevict::cuda
