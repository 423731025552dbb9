// Keys at other positions: an item is some tokens of a KV head.
#include "core/cpu/row_runs.h"
#include "core/kernels/rotate_rows.h"
#include "core/rope.h"

namespace kvevict::cpu {

static_assert(kMaxPairs == kMaxRopeFrequencies);

Status Run_rotate(const Context& context, Stream, const RotateArgs& args) {
  for (const RotateJob& job : args.jobs) {
    const kvevict_view& view = *job.view;
    ForEachRowRun(context, Jobs<RotateJob>(job), view.n_kv_heads,
                  &kvevict_view::k,
                  [&](const RotateJob&, const RowRun& run, uint32_t) {
                    const uint64_t list = job.n_lists == 1 ? 0 : run.head;
                    RotateRowsInPlace(
                        context.simd(),
                        {run.rows, run.first, run.n,
                         job.offsets + list * job.tokens.most + run.first,
                         args.rope.turns().data(), args.rope.n_frequencies(),
                         args.rope.is_interleaved()});
                  });
  }
  return Status();
}

}  // namespace kvevict::cpu
