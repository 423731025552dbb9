// Selects keep lists by scores. A work item is a layer and list.
#include "core/cpu/cpu.h"
#include "core/cpu/list_keys.h"

namespace kvevict::cpu {
namespace {

Status RunSelect(const Context& context, Stream, const SelectArgs& args) {
  const bool counts = args.heads.Counts();
  if (counts) MakeKeysAndCount(context, args);
  ForEachList(context, args, [&](uint32_t item, uint32_t list) {
    const SelectJob& job = args.jobs[item];
    if (!counts) MakeKeys(context, args, job, list);
    int32_t* const keep = job.keep.List(list);
    const uint32_t n_keep = job.keep.count.Of(list);
    RankKeys(context, args, job, list, n_keep);
    SelectTopK(context.simd(), job.keys + uint64_t{list} * job.tokens.most,
               job.tokens.Of(list), n_keep, TieOf(args), keep);
    if (job.slots.first == 0) return;
    for (uint32_t i = 0; i < n_keep; ++i) keep[i] += job.slots.first;
  });
  return Status();
}

}  // namespace

const Op<SelectArgs> kOp_select = {RunSelect};

}  // namespace kvevict::cpu
