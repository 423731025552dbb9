// Fits biases and values to queries, layer by layer. What queries read from all
// rows is attention; with biases, and for the rest, there are launches of its own.
#include <algorithm>

#include "core/dtype.h"
#include "core/kernels/fit_values.h"
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
      state, gram, masses, point, wanted, next_wanted, held, bias_ridges,
      attention;
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
    state = Add(heads, 1, sizeof(uint32_t));
    const uint64_t fitted = FitsBiases(policy) ? heads : 0;
    gram = Add(fitted * n_unknowns, n_unknowns + 1, kF64);
    masses = Add(fitted * n, 1, kF64);
    point = Add(fitted * n_unknowns, 1, kF64);
    wanted = Add(fitted * n_keep, 1, kF64);
    next_wanted = Add(fitted * n_keep, 1, kF64);
    held = Add(fitted * n_keep, 1, kF64);
    bias_ridges = Add(fitted, 1, kF64);
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
  if (const kvevict_plane* const biases = BiasesOf(*job.view)) {
    p.biases = LayoutOf(*job.view, *biases);
    p.bias_base = BaseOf(*biases);
  }
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
  p.state = scratch + parts.state;
  if (FitsBiases(args.policy)) {
    p.gram = scratch + parts.gram;
    p.masses = scratch + parts.masses;
    p.point = scratch + parts.point;
    p.wanted = scratch + parts.wanted;
    p.next_wanted = scratch + parts.next_wanted;
    p.held = scratch + parts.held;
    p.bias_ridges = scratch + parts.bias_ridges;
  }
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

// The launches of one layer.
class LayerFit {
 public:
  LayerFit(const Context& context, Stream stream, const FitParams& p,
           uint32_t n_kv_heads)
      : context_(context),
        stream_(stream),
        p_(p),
        heads_(n_kv_heads),
        n_(p.group * p.n_queries) {}

  // What the queries read, from all rows.
  Status BringQueries() { return OnQueries(KernelId::fit_queries); }
  Status ReadAll() { return OnQueries(KernelId::fit_read_all); }

  // Changes the biases. As many steps as the CPU takes at most are queued; those
  // of a head that is settled do nothing.
  Status FitBiases() {
    const FitParams values = p_;
    p_.v_dim = 1;
    p_.residuals = p_.masses;
    KV_RETURN_IF_ERROR(AddUp(p_.gram, std::max(n_, p_.n_keep)));
    KV_RETURN_IF_ERROR(OnHeads(KernelId::fit_ridge));
    p_.ridge = 0.0;  // fit_hold adds it
    p_.only_slots = 1;
    for (uint32_t step = 0; step <= kMostBiasSteps; ++step) {
      if (step > 0 && p_.n_keep > n_) {
        KV_RETURN_IF_ERROR(AddUp(p_.gram, p_.n_keep));
      }
      KV_RETURN_IF_ERROR(OnTiles(KernelId::fit_hold));
      KV_RETURN_IF_ERROR(Solve());
      KV_RETURN_IF_ERROR(
          ForKept(KernelId::fit_next, {kFitRows / kFitWarps, heads_, 1}));
      p_.first = step;
      KV_RETURN_IF_ERROR(OnHeads(KernelId::fit_step));
    }
    KV_RETURN_IF_ERROR(Launch(KernelId::fit_biases,
                              BlocksFor(p_.n_keep, kFitThreads), heads_, 1));
    p_ = values;
    return Status();
  }

  Status FitValues() {
    p_.held = 0;
    KV_RETURN_IF_ERROR(OnQueries(KernelId::fit_read));
    KV_RETURN_IF_ERROR(AddUp(p_.matrix, std::max(n_, p_.n_keep)));
    KV_RETURN_IF_ERROR(Solve());
    p_.only_slots = 1;
    return ForKept(KernelId::fit_change,
                   {BlocksFor(p_.v_dim, 32), kFitRows / kFitTile, heads_});
  }

 private:
  struct Grid {
    uint32_t x, y, z;
  };

  Status Launch(KernelId kernel, uint32_t x, uint32_t y, uint32_t z) const {
    return cuda::Launch(context_, stream_, kernel, {x, y, z, kFitThreads}, p_);
  }
  Status OnQueries(KernelId kernel) const {
    return Launch(kernel, BlocksFor(n_, kFitWarps), heads_, 1);
  }
  Status OnHeads(KernelId kernel) const { return Launch(kernel, heads_, 1, 1); }
  Status OnTiles(KernelId kernel) const {
    return Launch(kernel, FitTiles(p_.n_unknowns, p_.v_dim), heads_, 1);
  }
  Status FindWeights() const {
    return Launch(KernelId::fit_weights, BlocksFor(p_.n_unknowns, kFitTile),
                  kFitRows / kFitTile, heads_);
  }

  // Adds up the products of `n_rows` rows of weights in a matrix.
  Status AddUp(uint64_t matrix, uint32_t n_rows) {
    const uint64_t before = p_.matrix;
    p_.matrix = matrix;
    for (p_.first = 0; p_.first < n_rows; p_.first += kFitRows) {
      KV_RETURN_IF_ERROR(FindWeights());
      KV_RETURN_IF_ERROR(OnTiles(KernelId::fit_sums));
    }
    p_.matrix = before;
    return Status();
  }
  Status Solve() {
    for (p_.first = 0; p_.first < p_.n_unknowns; p_.first += kFitTile) {
      KV_RETURN_IF_ERROR(OnHeads(KernelId::fit_panel));
      if (p_.first + kFitTile >= p_.n_unknowns) break;
      KV_RETURN_IF_ERROR(OnTiles(KernelId::fit_update));
    }
    return Launch(KernelId::fit_solve, BlocksFor(p_.v_dim, 32), heads_, 1);
  }
  // Launches a kernel for the kept rows, kFitRows at a time, with their weights
  // if some unknowns are queries.
  Status ForKept(KernelId kernel, const Grid& grid) {
    for (p_.first = 0; p_.first < p_.n_keep; p_.first += kFitRows) {
      if (p_.n_keep > n_) KV_RETURN_IF_ERROR(FindWeights());
      KV_RETURN_IF_ERROR(Launch(kernel, grid.x, grid.y, grid.z));
    }
    return Status();
  }

  const Context& context_;
  const Stream stream_;
  FitParams p_;
  const uint32_t heads_;
  const uint32_t n_;  // queries of a KV head
};

Status RunLayer(const Context& context, Stream stream, const FitArgs& args,
                size_t i) {
  const MoveJob& job = args.rows[i];
  const uint32_t n_keep = job.keep.count.most;
  if (n_keep == 0) return Status();
  KV_RETURN_IF_ERROR(
      CheckKeepLists(context, stream, job, KeepOrder::kAscending, "keep"));
  const Parts parts(args.layer, args.policy, n_keep);
  const FitParams p = ParamsOf(args, i, parts);
  LayerFit fit(context, stream, p, args.layer.n_kv_heads);
  KV_RETURN_IF_ERROR(fit.BringQueries());
  if (p.bias_base != 0) {
    KV_RETURN_IF_ERROR(fit.ReadAll());
    if (FitsBiases(args.policy)) KV_RETURN_IF_ERROR(fit.FitBiases());
    return fit.FitValues();
  }
  const AttendJob reading = ReadingOf(
      args, *job.view, job.tokens, args.queries[i].sinks, p.queries, p.reads);
  KV_RETURN_IF_ERROR(kOp_attend(
      context, stream,
      {Jobs<AttendJob>(reading), args.scratch.subspan(parts.attention)}));
  return fit.FitValues();
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
    if (BiasesOf(*job.view) != nullptr) {
      KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::fit_biases));
      continue;
    }
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
