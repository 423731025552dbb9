// Pooling, in place, and group reduction: one launch each.
#include "core/policy/policy.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/pool1d.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/reduce_rows.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

static_assert(kMaxPoolWidth <= kMaxPoolKernel);

bool ShapedTogether(const ShapeJob& a, const ShapeJob& b) {
  return InOneTable(a.scored->tokens, b.scored->tokens);
}

// Pools rows of the jobs, n_rows each. If they are not reduced afterwards,
// tokens that are not pooled become +infinity.
Status PoolRows(const Context& context, Stream stream, const Shaping& shaping,
                Jobs<ShapeJob> jobs, uint32_t n_rows) {
  const auto run = [&](Jobs<ShapeJob> batch) {
    const Counts tokens(batch.front().scored->tokens);
    PoolParams p{};
    p.n_rows = n_rows;
    p.n_unpooled = shaping.n_unpooled;
    p.n_terms = shaping.n_terms;
    p.tokens = tokens.table();
    p.kernel = shaping.Pools() ? shaping.pool.width : 1;
    p.is_max = shaping.pool.kind == PoolKind::kMax;
    p.edge_shrinks = shaping.edge == PoolEdge::kShrink;
    for (size_t i = 0; i < batch.size(); ++i) {
      const ShapeJob& job = batch[i];
      p.layers[i] = {AddressOf(job.rows), job.scored->tokens.most,
                     tokens.FirstOf(job.scored->tokens)};
    }
    return Launch(context, stream, KernelId::pool_rows,
                  {n_rows, Size(batch), 1, kPoolThreads}, p);
  };
  return ForEachBatch(jobs, PoolParams::kMaxLayers, ShapedTogether, run);
}

Status RunShape(const Context& context, Stream stream, const ShapeArgs& args) {
  const Shaping& shaping = args.shaping;
  KV_RETURN_IF_ERROR(RequireShaping(context, stream));
  KV_RETURN_IF_ERROR(PoolRows(context, stream, shaping, args.jobs,
                              args.n_kv_heads * shaping.n_terms));
  if (shaping.n_terms == 1) return Status();
  return ForEachBatch(
      args.jobs, ReduceParams::kMaxLayers, ShapedTogether,
      [&](Jobs<ShapeJob> batch) {
        const Counts tokens(batch.front().scored->tokens);
        ReduceParams p = ReductionOf(shaping.group_reduce, shaping.n_terms);
        p.n_out_rows = args.n_kv_heads;
        p.n_unpooled = shaping.n_unpooled;
        p.tokens = tokens.table();
        for (size_t i = 0; i < batch.size(); ++i) {
          const ShapeJob& job = batch[i];
          p.layers[i] = {AddressOf(job.rows), AddressOf(job.scores),
                         job.scored->tokens.most,
                         tokens.FirstOf(job.scored->tokens)};
        }
        return LaunchReduction(context, stream, p, LongestOf(batch),
                               Size(batch));
      });
}

}  // namespace

Status RequireShaping(const Context& context, Stream stream) {
  return Require(context, stream, ModuleId::pool1d);
}

const Op<ShapeArgs> kOp_shape = {RunShape};

}  // namespace kvevict::cuda
