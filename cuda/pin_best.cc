// Gives the best scores of each list +infinity: one launch, after one that
// counts.
#include "cuda/list_keys.h"
#include "cuda/ops.h"

namespace kvevict::cuda {
namespace {

Status RunPinBest(const Context& context, Stream stream, const BestArgs& args) {
  return ForBestOf(context, stream, args, KernelId::pin_best, true,
                   [](const BestArgs& of, const SelectJob& job) {
                     return of.LeastPinned(job);
                   });
}

}  // namespace

const Op<BestArgs> kOp_pin_best = {RunPinBest};

}  // namespace kvevict::cuda
