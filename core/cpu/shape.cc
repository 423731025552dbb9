// Pools scores and reduces groups. A work item is a layer and KV head.
#include <algorithm>
#include <limits>

#include "core/context.h"
#include "core/cpu/cpu.h"

namespace kvevict::cpu {
namespace {

void PoolRow(SimdTarget simd, const Shaping& shaping, const float* row,
             uint32_t n, float* out) {
  Pool1d(simd, row, n, shaping.pool.width, shaping.pool.kind, shaping.edge,
         out);
}

// Bytes of f32 [n_tokens]: a row before pooling.
ScratchNeeds ShapeScratchBytes(const Context& context, const LayerSize& size) {
  return SharesOf(context,
                  CheckedSize(size.n_tokens) * CheckedSize(sizeof(float)));
}

Status RunShape(const Context& context, Stream, const ShapeArgs& args) {
  const Shaping& shaping = args.shaping;
  const uint32_t n_items =
      static_cast<uint32_t>(args.jobs.size() * args.n_kv_heads);
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t worker) {
    const ShapeJob& job = args.jobs[item / args.n_kv_heads];
    const uint64_t head = item % args.n_kv_heads;
    const uint32_t n_tokens =
        job.scored->tokens.Of(static_cast<uint32_t>(head));
    const uint32_t n = n_tokens - shaping.n_unpooled;
    const uint64_t stride = job.scored->tokens.most;
    float* rows = job.rows + head * shaping.n_terms * stride;
    float* out = job.scores + head * stride;
    if (shaping.Pools()) {
      float* spare = reinterpret_cast<float*>(
          ShareOf(context, args.scratch, worker).data());
      for (uint32_t t = 0; t < shaping.n_terms; ++t) {
        float* row = rows + t * stride;
        std::copy_n(row, n, spare);
        PoolRow(context.simd(), shaping, spare, n, row);
      }
    }
    if (shaping.n_terms > 1) {
      ReduceRows(context.simd(), rows, shaping.n_terms, stride, n,
                 ToReduce(shaping.group_reduce), out);
    }
    std::fill(out + n, out + n_tokens, std::numeric_limits<float>::infinity());
  });
  return Status();
}

}  // namespace

const Op<ShapeArgs> kOp_shape = {RunShape, ShapeScratchBytes};

}  // namespace kvevict::cpu
