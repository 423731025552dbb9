// Gives the best scores of each list +infinity. A work item is a layer and
// list.
#include <algorithm>
#include <limits>

#include "core/cpu/cpu.h"
#include "core/cpu/select.h"

namespace kvevict::cpu {
namespace {

Status RunPinBest(const Context& context, Stream, const BestArgs& args) {
  const SelectArgs& select = args.select;
  const auto share = static_cast<float>(args.share);
  MakeKeysAndCount(context, select);
  ForEachList(context, select, [&](uint32_t item, uint32_t list) {
    const SelectJob& job = select.jobs[item];
    const uint64_t row = uint64_t{list} * job.tokens.most;
    const uint32_t n_keep =
        std::min(job.keep.count.Of(list), job.tokens.Of(list));
    const float part = static_cast<float>(n_keep) * share;
    const uint32_t n_best = std::min(
        std::max(static_cast<uint32_t>(part), args.LeastPinned(job)), n_keep);
    int32_t* const best = job.keep.List(list);
    RankKeys(context, select, job, list, n_best);
    SelectTopK(context.simd(), job.keys + row, job.tokens.Of(list), n_best,
               TieOf(select), best);
    float* const scores = args.shapes[item].scores + row;
    for (uint32_t i = 0; i < n_best; ++i) {
      scores[best[i]] = std::numeric_limits<float>::infinity();
    }
  });
  return Status();
}

}  // namespace

const Op<BestArgs> kOp_pin_best = {RunPinBest};

}  // namespace kvevict::cpu
