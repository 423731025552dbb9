// Fitting values is left to the CPU.
#include "cuda/ops.h"

namespace kvevict::cuda {
namespace {

Status Refuse(const Context&, Stream, const FitArgs&) {
  return Unsupported("fit values: it runs on the CPU alone");
}

}  // namespace

const Op<FitArgs> kOp_fit_values = {
    .run = Refuse, .scratch = Op<FitArgs>::NoScratch, .check = Refuse};

}  // namespace kvevict::cuda
