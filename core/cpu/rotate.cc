// Rotates keys to other positions. A work item is some tokens of KV heads that
// rotate alike.
#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/rotate_rows.h"
#include "core/view/rope.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

static_assert(kMaxPairs == kMaxRopeFrequencies);

constexpr uint32_t kMostHeads = 8;  // per work item
constexpr uint32_t kRunTokens = 128;

// Heads that share a list and a length compute cosines once.
uint32_t HeadsAtOnce(const RotateJob& job) {
  const bool alike = job.n_lists == 1 && job.tokens.each == nullptr;
  return alike ? std::min(kMostHeads, job.view->n_kv_heads) : 1;
}

void Rotate(const Context& context, const RotateArgs& args,
            const RotateJob& job, uint32_t first_head, uint32_t n_heads,
            uint32_t first) {
  const uint32_t n_tokens = job.tokens.Of(first_head);
  if (first >= n_tokens) return;
  RowSource heads[kMostHeads];
  for (uint32_t h = 0; h < n_heads; ++h) {
    heads[h] = HeadRows(*job.view, job.view->k, first_head + h);
  }
  const uint64_t list = job.n_lists == 1 ? 0 : first_head;
  RotateRowsInPlace(
      context.simd(),
      {heads, n_heads, first, std::min(kRunTokens, n_tokens - first),
       job.offsets + list * job.tokens.most + first, args.rope.turns().data(),
       args.rope.n_frequencies(), args.rope.is_interleaved(), args.from_slots});
}

Status RunRotate(const Context& context, Stream, const RotateArgs& args) {
  for (const RotateJob& job : args.jobs) {
    const uint32_t n_all = job.view->n_kv_heads;
    const uint32_t n_heads = HeadsAtOnce(job);
    const uint32_t n_groups = (n_all + n_heads - 1) / n_heads;
    const uint32_t n_runs = (job.tokens.most + kRunTokens - 1) / kRunTokens;
    context.ParallelFor(n_groups * n_runs, [&](uint32_t item, uint32_t) {
      const uint32_t first_head = item % n_groups * n_heads;
      Rotate(context, args, job, first_head,
             std::min(n_heads, n_all - first_head),
             item / n_groups * kRunTokens);
    });
  }
  return Status();
}

}  // namespace

const Op<RotateArgs> kOp_rotate = {RunRotate};

}  // namespace kvevict::cpu
