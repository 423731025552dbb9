// The operations of core/ops.inc on the CPU, and what they share.
#ifndef KVEVICT_CORE_CPU_CPU_H_
#define KVEVICT_CORE_CPU_CPU_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/checked_math.h"
#include "core/context.h"
#include "core/kernels/pool1d.h"
#include "core/status.h"

namespace kvevict::cpu {

#define KVEVICT_OP(name, Args) extern const Op<Args> kOp_##name;
#define KVEVICT_SCORE_OP(name) extern const ScoreOp kOp_##name;
#include "core/ops.inc"

// Parts of a workspace begin at cache lines of their own.
inline constexpr size_t kCacheLine = 64;

// The kernels' enumerator.
Reduce ToReduce(kvevict_reduce reduce);

inline uint32_t GroupSize(const kvevict_layer_geometry& g) {
  return g.n_q_heads / g.n_kv_heads;
}

// The scratch of operations whose workers need this many bytes each.
CheckedSize SharesOf(const Context& context, CheckedSize bytes);

// A worker's share of an operation's scratch. All shares are equally large and
// begin at a cache line.
std::span<uint8_t> ShareOf(const Context& context, std::span<uint8_t> scratch,
                           uint32_t worker);

// f32 [group, n_tokens]: the scores of a KV head's query heads before they are
// reduced.
CheckedSize GroupRowsBytes(const kvevict_layer_geometry& geometry,
                           uint32_t n_tokens);

// The query rows of the first head. If they wrap around they are addressed like
// a paged cache with one row per block, by a table of QueryTableBytes().
CheckedSize QueryTableBytes(uint32_t n_rows);
RowSource SourceOf(const QueryRows& queries, int32_t* table);

// Calls body(job, head, worker) for every KV head of the jobs, on the workers.
template <typename Args, typename Body>
void ForEachHead(const Context& context, const Args& args, const Body& body) {
  const uint32_t n_heads = args.layer.n_kv_heads;
  context.ParallelFor(static_cast<uint32_t>(args.jobs.size() * n_heads),
                      [&](uint32_t item, uint32_t worker) {
                        body(args.jobs[item / n_heads], item % n_heads, worker);
                      });
}

}  // namespace kvevict::cpu

#endif  // KVEVICT_CORE_CPU_CPU_H_
