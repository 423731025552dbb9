#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"

namespace kvevict::cpu {
namespace {

// Works by columns, so that the order of additions does not depend on the
// workers.
Status RunReduce(const Context& context, Stream, const ReduceArgs& args) {
  constexpr uint32_t kColumns = 4096;
  for (const ReduceJob& job : args.jobs) {
    const uint32_t n = job.n_tokens;
    context.ParallelFor(
        (n + kColumns - 1) / kColumns, [&](uint32_t i, uint32_t) {
          const uint32_t begin = i * kColumns;
          ReduceRows(context.simd(), job.rows + begin, args.n_rows, n,
                     std::min(kColumns, n - begin), ToReduce(args.reduce),
                     job.out + begin);
        });
  }
  return Status();
}

}  // namespace

const Op<ReduceArgs> kOp_reduce = {RunReduce};

}  // namespace kvevict::cpu
