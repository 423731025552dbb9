// Scores to keep lists: an item is a layer and list.
#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/topk.h"

namespace kvevict::cpu {
namespace {

// Gives what must stay the key that no score has.
void ForceKeys(const Forced& forced, const SelectJob& job, uint32_t list,
               uint32_t* keys) {
  std::fill_n(keys, forced.n_sink, kForcedKey);
  std::fill_n(keys + job.n_tokens - forced.n_recent, forced.n_recent,
              kForcedKey);
  for (int32_t position : forced.protect) {
    const int64_t slot = job.slots.SlotOf(list, position, job.n_tokens);
    if (slot >= 0) keys[slot] = kForcedKey;
  }
}

}  // namespace

Status Run_select(const Context& context, Stream, const SelectArgs& args) {
  const Tie tie =
      args.tie == KVEVICT_TIE_LOWER_POSITION ? Tie::kLower : Tie::kHigher;
  const uint32_t n_items =
      static_cast<uint32_t>(args.jobs.size() * args.n_lists);
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t) {
    const SelectJob& job = args.jobs[item / args.n_lists];
    const uint32_t list = item % args.n_lists;
    const uint64_t row = uint64_t{list} * job.n_tokens;
    uint32_t* keys = job.keys + row;
    if (job.scores != nullptr) {
      ScoresToKeys(context.simd(), job.scores + row, job.n_tokens, keys);
    } else {
      std::fill_n(keys, job.n_tokens, kNanKey);
    }
    ForceKeys(args.forced, job, list, keys);
    SelectTopK(context.simd(), keys, job.n_tokens, job.keep.count, tie,
               job.keep.List(list));
  });
  for (const SelectJob& job : args.jobs) {
    for (uint32_t list = args.n_lists; list < job.keep.n_lists; ++list) {
      std::copy_n(job.keep.List(0), job.keep.count, job.keep.List(list));
    }
  }
  return Status();
}

}  // namespace kvevict::cpu
