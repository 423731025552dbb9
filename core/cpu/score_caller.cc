#include <cstring>

#include "core/cpu/cpu.h"

namespace kvevict::cpu {
namespace {

Status Run(const Context&, Stream, const ScoreArgs& args) {
  for (const ScoreJob& job : args.jobs) {
    for (uint32_t h = 0; h < args.layer.n_kv_heads; ++h) {
      std::memcpy(job.rows + uint64_t{h} * job.tokens.most,
                  job.caller.data + h * job.caller.head_stride,
                  job.tokens.Of(h) * sizeof(float));
    }
  }
  return Status();
}

}  // namespace

const ScoreOp kOp_score_caller = {Run};

}  // namespace kvevict::cpu
