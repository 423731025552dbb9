// What a caller gives for a signal beside a view: rows of floats, checked and found.
#ifndef KVEVICT_CORE_SIGNAL_INPUTS_H_
#define KVEVICT_CORE_SIGNAL_INPUTS_H_

#include <cstdint>

#include "core/backend.h"
#include "core/plan.h"
#include "core/status.h"

namespace kvevict {

// What is given of one of the plan's layers; NULL for what is not.
struct LayerInputs {
  uint32_t layer = 0;
  uint32_t n_sum_heads = 0;  // 0: all query heads
  const kvevict_plane* queries = nullptr;
  const kvevict_plane* row_lse = nullptr;
  const kvevict_plane* scores = nullptr;
  const kvevict_plane* attention_sums = nullptr;
  const kvevict_plane* query_mean = nullptr;
  const kvevict_plane* query_covariance = nullptr;
  const kvevict_plane* key_filter = nullptr;
  const kvevict_plane* token_weights = nullptr;
};

// Checks what is given of n_rows query rows: queries and row_lse.
Status CheckQueryRows(const kvevict_layer_geometry& layer, uint32_t n_rows,
                      const LayerInputs& inputs);

// Checks that the queries of a window are given, and writes where they lie.
Status FindQueries(const Plan& plan, const PlanLayer& layer,
                   const LayerInputs& inputs, ScoreJob* out);

// Checks that all else that the plan's signal reads of a layer of n_tokens slots is
// given, and writes where it lies.
Status FindInputs(const Plan& plan, const PlanLayer& layer, uint32_t n_tokens,
                  const LayerInputs& inputs, ScoreJob* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SIGNAL_INPUTS_H_
