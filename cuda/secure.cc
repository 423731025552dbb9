// The best of each list get +infinity: one launch, and one that counts before it.
#include "cuda/list_keys.h"
#include "cuda/ops.h"

namespace kvevict::cuda {

Status Run_secure(const Context& context, Stream stream, const BestArgs& args) {
  return ForBestOf(context, stream, args, KernelId::secure_scores, true,
                   [](const BestArgs& of, const SelectJob& job) {
                     return of.LeastSecured(job);
                   });
}

}  // namespace kvevict::cuda
