// Attention on the GPU.
#include "cuda/ops.h"

namespace kvevict::cuda {

ScratchNeeds AttendScratchBytes(const Context&, Jobs<AttendJob>) {
  return CheckedSize(0);
}

Status CheckAttending(const Context&, Stream, Jobs<AttendJob>) {
  return Unsupported("attention on CUDA");
}

Status Run_attend(const Context&, Stream, const AttendArgs&) {
  return Unsupported("attention on CUDA");
}

}  // namespace kvevict::cuda
