// Scores to keep lists: an item is a layer and list.
#include "core/cpu/cpu.h"
#include "core/cpu/list_keys.h"

namespace kvevict::cpu {

Status Run_select(const Context& context, Stream, const SelectArgs& args) {
  const bool counts = args.heads.Counts();
  if (counts) MakeKeysAndCount(context, args);
  ForEachList(context, args, [&](uint32_t item, uint32_t list) {
    const SelectJob& job = args.jobs[item];
    if (!counts) MakeKeys(context, args, job, list);
    SelectTopK(context.simd(), job.keys + uint64_t{list} * job.tokens.most,
               job.tokens.Of(list), job.keep.count.Of(list), TieOf(args),
               job.keep.List(list));
  });
  return Status();
}

}  // namespace kvevict::cpu
