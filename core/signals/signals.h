// What ranks a token. Each signal fills f32 scores [n_kv_heads, n_tokens] of
// its jobs; higher keeps. Window attention runs on the device
// (Backend::score_window).
#ifndef KVEVICT_CORE_SIGNALS_SIGNALS_H_
#define KVEVICT_CORE_SIGNALS_SIGNALS_H_

#include <cstdint>

#include "core/backend.h"

namespace kvevict {

// Numbers in [0, 1) that depend on seed, layer, head and position alone, so
// that a token draws the same number at every eviction.
float RandomScore(uint64_t seed, uint32_t layer, uint32_t head,
                  uint32_t position);

// The caller's scores, [n_layers, n_kv_heads, stored] with strides in elements.
struct CallerScores {
  const float* scores;
  uint64_t layer_stride;
  uint64_t head_stride;
};

void CopyCallerScores(const CallerScores& from, uint32_t n_kv_heads,
                      const LayerJob& job);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SIGNALS_SIGNALS_H_
