// Rows that change on their way to another cache: not yet on devices.
#include "cuda/ops.h"

namespace kvevict::cuda {

Status CheckRequantizing(const Context&, Stream, Jobs<MoveJob> jobs) {
  for (const MoveJob& job : jobs) {
    if (!job.change.any()) continue;
    return Unsupported("destination: rows of other dtypes, on a device");
  }
  return Status();
}

Status Run_requantize(const Context& context, Stream stream,
                      const RequantizeArgs& args) {
  return CheckRequantizing(context, stream, args.jobs);
}

}  // namespace kvevict::cuda
