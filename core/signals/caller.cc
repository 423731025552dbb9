#include <cstring>

#include "core/signals/signals.h"

namespace kvevict {

void CopyCallerScores(const CallerScores& from, uint32_t n_kv_heads,
                      const LayerJob& job) {
  const float* layer = from.scores + job.layer * from.layer_stride;
  for (uint32_t h = 0; h < n_kv_heads; ++h) {
    std::memcpy(job.scores + uint64_t{h} * job.n_tokens,
                layer + h * from.head_stride, job.n_tokens * sizeof(float));
  }
}

}  // namespace kvevict
