// Adds the attention of a chunk to sums. A work item is a layer and a row of
// sums. The rows are reduced in pieces that stay in the L1 cache.
#include <algorithm>
#include <limits>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/attention_sums.h"
#include "core/policy/policy.h"

namespace kvevict::cpu {
namespace {

constexpr uint32_t kColumns = 2048;

void AddRow(SimdTarget simd, const AddSumsArgs& args, const AddSumsJob& job,
            uint32_t row) {
  const uint32_t n_terms = job.n_from / job.n_rows;
  const uint32_t n_in_row = std::min(
      n_terms, args.from_ring == 0 ? n_terms : args.from_ring - job.first_from);
  const float* const terms =
      job.from.data +
      (uint64_t{row} * n_terms + job.first_from) * job.from.head_stride;
  const uint32_t list = job.n_lists == 1 ? 0 : row / (job.n_rows / job.n_lists);
  const uint32_t n_before = job.tokens.Of(list);
  const uint32_t n = n_before + args.n_new;
  const uint32_t n_old = job.begins ? 0 : n_before;
  const uint32_t first = args.only_new ? n_before : 0;
  const uint32_t more = args.pool - 1;
  float* const sums = job.sums + row * args.stride;
  float reduced[kColumns + kMaxPoolWidth];
  for (uint32_t begin = first; begin < n; begin += kColumns) {
    const uint32_t n_here = std::min(kColumns, n - begin);
    const uint32_t n_read = std::min(n_here + more, n - begin);
    ReduceRows(simd, terms + (begin - first), n_in_row, job.from.head_stride,
               n_read, ToReduce(args.reduce), reduced);
    for (uint32_t r = n_in_row; r < n_terms; ++r) {
      const float* const term =
          job.from.data + (r - n_in_row) * job.from.head_stride;
      AddForwardMax(simd, term + begin, n_read, 1, n_read, reduced);
    }
    std::fill(reduced + n_read, reduced + n_here + more,
              -std::numeric_limits<float>::infinity());
    AddForwardMax(simd, reduced, n_here, args.pool,
                  std::clamp(n_old, begin, begin + n_here) - begin,
                  sums + begin);
  }
  if (args.clears) std::fill(sums + n, sums + args.stride, 0.0f);
}

Status RunAddSums(const Context& context, Stream, const AddSumsArgs& args) {
  uint32_t n_rows = 0;
  for (const AddSumsJob& job : args.jobs) n_rows = std::max(n_rows, job.n_rows);
  const auto n_items = static_cast<uint32_t>(args.jobs.size() * n_rows);
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t) {
    const AddSumsJob& job = args.jobs[item / n_rows];
    if (item % n_rows < job.n_rows) {
      AddRow(context.simd(), args, job, item % n_rows);
    }
  });
  return Status();
}

}  // namespace

const Op<AddSumsArgs> kOp_add_sums = {RunAddSums};

}  // namespace kvevict::cpu
