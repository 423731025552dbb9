// Attention sums: an item is a layer and a row of scores. A row's sums are reduced and
// divided in pieces that stay in the L1 cache, so that they are read once.
#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/attention_sums.h"

namespace kvevict::cpu {
namespace {

constexpr uint32_t kColumns = 4096;

void ScoreRow(SimdTarget simd, const ScoreArgs& args, const ScoreJob& job,
              uint32_t row) {
  const kvevict_policy& policy = args.policy;
  const uint32_t n_rows = args.n_rows();
  const uint32_t head = row / (n_rows / args.layer.n_kv_heads);
  const uint32_t list = job.slots.n_lists == 1 ? 0 : head;
  const uint32_t n_terms = std::max(1u, job.n_sum_heads / n_rows);
  const uint64_t first = uint64_t{row} * job.n_sum_heads / n_rows;
  const float* const sums = job.sums.data + first * job.sums.head_stride;
  float* const scores = job.rows + uint64_t{row} * job.tokens.most;
  const uint32_t n_tokens = job.tokens.Of(head);
  for (uint32_t begin = 0; begin < n_tokens; begin += kColumns) {
    const uint32_t n = std::min(kColumns, n_tokens - begin);
    ReduceRows(simd, sums + begin, n_terms, job.sums.head_stride, n,
               ToReduce(policy.group_reduce), scores + begin);
    if (policy.window_reduce == KVEVICT_REDUCE_MEAN) {
      DivideByQueries(simd, job.slots, list, begin, n, job.n_seen,
                      scores + begin);
    }
  }
}

Status Run(const Context& context, Stream, const ScoreArgs& args) {
  const uint32_t n_rows = args.n_rows();
  context.ParallelFor(static_cast<uint32_t>(args.jobs.size() * n_rows),
                      [&](uint32_t item, uint32_t) {
                        ScoreRow(context.simd(), args, args.jobs[item / n_rows],
                                 item % n_rows);
                      });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_sums = {Run, NoScratch, nullptr};

}  // namespace kvevict::cpu
