// The operation that fits values to queries.
#ifndef KVEVICT_CORE_OPS_FIT_H_
#define KVEVICT_CORE_OPS_FIT_H_

#include <cstdint>
#include <span>

#include "core/jobs.h"
#include "core/ops/move.h"
#include "core/ops/op.h"
#include "core/ops/score.h"

namespace kvevict {

// Fits the kept values of each layer to its queries, in place: see Policy.fit.
// All rows must be readable.
struct FitArgs {
  using Size = LayerSize;

  const kvevict_layer_geometry& layer;  // of all jobs
  const Policy& policy;
  float softmax_scale;
  Jobs<MoveJob> rows;      // the view, its slots, and which of them stay
  Jobs<ScoreJob> queries;  // the queries and sinks of the same layers
  std::span<uint8_t> scratch;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_OPS_FIT_H_
