// Fits values to queries, layer by layer: what queries read from all rows is
// attention, and the rest are launches of its own.
#include <algorithm>

#include "core/dtype.h"
#include "core/policy/policy.h"
#include "core/signals/signal_inputs.h"
#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/check_keep.h"
#include "cuda/kernels/fit_values.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr float kLog2E = 1.44269504088896340736f;

// Parts of the scratch of one layer, in which some heads keep n_keep rows.
struct Parts {
  uint64_t n;  // queries of a KV head
  uint64_t n_unknowns;
  size_t queries, reads, references, inverses, residuals, matrix, weights,
      failed, attention;
  CheckedSize end{0};

  Parts(const kvevict_layer_geometry& g, const Policy& policy,
        uint32_t n_keep) {
    const uint64_t heads = g.n_kv_heads;
    n = uint64_t{g.n_q_heads} / heads * FitRows(policy);
    n_unknowns = std::min<uint64_t>(n, n_keep);
    constexpr size_t kF32 = sizeof(float), kF64 = sizeof(double);
    queries = Add(heads * n, g.k_head_dim, kF32);
    reads = Add(heads * n, g.v_head_dim, kF32);
    references = Add(heads * n, 1, kF32);
    inverses = Add(heads * n, 1, kF32);
    residuals = Add(heads * n, g.v_head_dim, kF64);
    matrix = Add(heads * n_unknowns, n_unknowns + g.v_head_dim, kF64);
    weights = Add(heads * n_unknowns, kFitRows, kF32);
    failed = Add(heads, 1, sizeof(uint32_t));
    attention = end.value();
  }

 private:
  size_t Add(CheckedSize rows, CheckedSize n_columns, size_t bytes) {
    const size_t at = end.value();
    end = (end + rows * n_columns * CheckedSize(bytes)).AlignUp(kAlignment);
    return at;
  }
};

// Rows of f32 [n_q_heads, n_queries, dim].
kvevict_plane Packed(uint64_t data, uint32_t dim, uint32_t n_queries) {
  kvevict_plane plane{};
  plane.data = data;
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = dim;
  plane.element_stride_bytes = sizeof(float);
  plane.token_stride_bytes = int64_t{dim} * int64_t{sizeof(float)};
  plane.head_stride_bytes = plane.token_stride_bytes * n_queries;
  return plane;
}

// The attention of the queries to all rows.
AttendJob ReadingOf(const FitArgs& args, const kvevict_view& view,
                    ListCounts tokens, const float* sinks, uint64_t queries,
                    uint64_t reads) {
  const kvevict_layer_geometry& g = args.layer;
  const uint32_t n_queries = FitRows(args.policy);
  AttendJob job{};
  job.view = view;
  job.tokens = tokens;
  job.queries = Packed(queries, g.k_head_dim, n_queries);
  job.out = Packed(reads, g.v_head_dim, n_queries);
  job.sink_logits = sinks;
  job.n_q_heads = g.n_q_heads;
  job.n_queries = n_queries;
  job.v_head_dim = g.v_head_dim;
  job.non_causal = 1;
  job.softmax_scale = args.softmax_scale;
  job.logit_softcap = g.logit_softcap;
  return job;
}

FitParams ParamsOf(const FitArgs& args, size_t i, const Parts& parts) {
  const kvevict_layer_geometry& g = args.layer;
  const MoveJob& job = args.rows[i];
  const ScoreJob& score = args.queries[i];
  const QueryRows queries =
      args.policy.reference > 0
          ? QueryRowsOf(*score.reference, args.policy.reference)
          : score.queries;
  const uint64_t scratch = AddressOf(args.scratch.data());
  const bool caps = g.logit_softcap != 0.0f;
  FitParams p{};
  p.keys = RowsOf(*job.view, job.view->k);
  p.values = RowsOf(*job.view, job.view->v);
  p.key_base = BaseOf(job.view->k);
  p.value_base = BaseOf(job.view->v);
  p.block_table = AddressOf(job.view->block_table);
  p.keep = AddressOf(job.keep.slots);
  p.tokens = Counts(job.tokens).table();
  p.counts = Counts(job.keep.count).table();
  p.sinks = AddressOf(score.sinks);
  p.given = AddressOf(queries.rows.base);
  p.given_row_stride = queries.rows.row_stride;
  p.given_head_stride = queries.head_stride;
  p.given_element_stride = queries.rows.element_stride;
  p.given_dtype = static_cast<uint32_t>(queries.rows.dtype);
  p.first_row = queries.first_row;
  p.ring_rows = queries.ring_rows;
  p.k_dim = g.k_head_dim;
  p.queries = scratch + parts.queries;
  p.reads = scratch + parts.reads;
  p.references = scratch + parts.references;
  p.inverses = scratch + parts.inverses;
  p.residuals = scratch + parts.residuals;
  p.matrix = scratch + parts.matrix;
  p.weights = scratch + parts.weights;
  p.failed = scratch + parts.failed;
  p.ridge = args.policy.fit_ridge;
  p.n_tokens = job.tokens.most;
  p.n_keep = job.keep.count.most;
  p.n_lists = job.keep.n_lists;
  p.keep_stride = static_cast<uint32_t>(job.keep.stride);
  p.group = g.n_q_heads / g.n_kv_heads;
  p.n_queries = FitRows(args.policy);
  p.n_unknowns = static_cast<uint32_t>(parts.n_unknowns);
  p.v_dim = g.v_head_dim;
  p.query_scale =
      caps ? args.softmax_scale / g.logit_softcap : args.softmax_scale * kLog2E;
  p.cap = g.logit_softcap * kLog2E;
  return p;
}

Status RunLayer(const Context& context, Stream stream, const FitArgs& args,
                size_t i) {
  const MoveJob& job = args.rows[i];
  const uint32_t n_keep = job.keep.count.most;
  if (n_keep == 0) return Status();
  KV_RETURN_IF_ERROR(
      CheckKeepLists(context, stream, job, KeepOrder::kAscending, "keep"));
  const Parts parts(args.layer, args.policy, n_keep);
  const uint32_t heads = args.layer.n_kv_heads;
  const auto n = static_cast<uint32_t>(parts.n);
  FitParams p = ParamsOf(args, i, parts);
  const auto launch = [&](KernelId kernel, uint32_t x, uint32_t y, uint32_t z) {
    return Launch(context, stream, kernel, {x, y, z, kFitThreads}, p);
  };
  KV_RETURN_IF_ERROR(
      launch(KernelId::fit_queries, BlocksFor(n, kFitWarps), heads, 1));
  const AttendJob reading = ReadingOf(
      args, *job.view, job.tokens, args.queries[i].sinks, p.queries, p.reads);
  KV_RETURN_IF_ERROR(kOp_attend(
      context, stream,
      {Jobs<AttendJob>(reading), args.scratch.subspan(parts.attention)}));
  KV_RETURN_IF_ERROR(
      launch(KernelId::fit_read, BlocksFor(n, kFitWarps), heads, 1));
  const uint32_t across = BlocksFor(p.n_unknowns, kFitTile);
  const uint32_t tiles = FitTiles(p.n_unknowns, p.v_dim);
  for (p.first = 0; p.first < std::max(n, n_keep); p.first += kFitRows) {
    KV_RETURN_IF_ERROR(
        launch(KernelId::fit_weights, across, kFitRows / kFitTile, heads));
    KV_RETURN_IF_ERROR(launch(KernelId::fit_sums, tiles, heads, 1));
  }
  for (p.first = 0; p.first < p.n_unknowns; p.first += kFitTile) {
    KV_RETURN_IF_ERROR(launch(KernelId::fit_panel, heads, 1, 1));
    if (p.first + kFitTile >= p.n_unknowns) break;
    KV_RETURN_IF_ERROR(launch(KernelId::fit_update, tiles, heads, 1));
  }
  const uint32_t columns = BlocksFor(p.v_dim, 32);
  KV_RETURN_IF_ERROR(launch(KernelId::fit_solve, columns, heads, 1));
  p.only_slots = 1;
  for (p.first = 0; p.first < n_keep; p.first += kFitRows) {
    if (n_keep > n) {
      KV_RETURN_IF_ERROR(
          launch(KernelId::fit_weights, across, kFitRows / kFitTile, heads));
    }
    KV_RETURN_IF_ERROR(
        launch(KernelId::fit_change, columns, kFitRows / kFitTile, heads));
  }
  return Status();
}

Status Run(const Context& context, Stream stream, const FitArgs& args) {
  for (size_t i = 0; i < args.rows.size(); ++i) {
    KV_RETURN_IF_ERROR(RunLayer(context, stream, args, i));
  }
  return Status();
}

// Before there are keep lists and scratch.
Status Check(const Context& context, Stream stream, const FitArgs& args) {
  for (const ScoreJob& job : args.queries) {
    const AttendJob reading = ReadingOf(args, *job.view, job.tokens, job.sinks,
                                        kAlignment, kAlignment);
    KV_RETURN_IF_ERROR(
        kOp_attend.check(context, stream, {Jobs<AttendJob>(reading), {}}));
  }
  return Require(context, stream, ModuleId::fit_values);
}

ScratchNeeds ScratchBytes(const Context& context, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  const Parts parts(g, size.policy, size.n_tokens);
  if (!parts.end.ok()) return parts.end;
  kvevict_view view{};
  view.n_kv_heads = g.n_kv_heads;
  view.k = Packed(kAlignment, g.k_head_dim, 1);
  view.k.dtype = g.k_dtype;
  view.v = Packed(kAlignment, g.v_head_dim, 1);
  view.v.dtype = g.v_dtype;
  const AttendJob reading =
      ReadingOf({g, size.policy, 1.0f, {}, {}, {}}, view, size.n_tokens,
                nullptr, kAlignment, kAlignment);
  return parts.end +
         kOp_attend.scratch(context, Jobs<AttendJob>(reading)).least;
}

}  // namespace

const Op<FitArgs> kOp_fit_values = {Run, ScratchBytes, Check};

}  // namespace kvevict::cuda
