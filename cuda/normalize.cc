// Scores by the share that the best of a list have of all: one launch.
#include "cuda/list_keys.h"
#include "cuda/ops.h"

namespace kvevict::cuda {

Status Run_normalize(const Context& context, Stream stream,
                     const BestArgs& args) {
  return ForBestOf(context, stream, args, KernelId::normalize_scores, false,
                   [](const BestArgs& of, const SelectJob& job) {
                     return HeadSplit::RoomOf(job.budget, of.select.forced);
                   });
}

}  // namespace kvevict::cuda
