// A caller's inputs of a signal in addition to the view: rows of floats, which
// are checked here.
#ifndef KVEVICT_CORE_SIGNALS_SIGNAL_INPUTS_H_
#define KVEVICT_CORE_SIGNALS_SIGNAL_INPUTS_H_

#include <cstdint>

#include "core/backend.h"
#include "core/plan/plan.h"
#include "core/status.h"

namespace kvevict {

// The inputs of one of the plan's layers; NULL for those that are not given.
struct LayerInputs {
  uint32_t layer = 0;
  uint32_t n_sum_heads = 0;   // 0: all query heads
  uint32_t n_query_rows = 0;  // 0: the window, or all tokens
  uint32_t n_reference_rows = 0;
  const kvevict_plane* queries = nullptr;
  const kvevict_plane* row_lse = nullptr;
  const kvevict_plane* scores = nullptr;
  const kvevict_plane* attention_sums = nullptr;
  const kvevict_plane* query_mean = nullptr;
  const kvevict_plane* query_covariance = nullptr;
  const kvevict_plane* key_filter = nullptr;
  const kvevict_plane* token_weights = nullptr;
  const kvevict_plane* query_centers = nullptr;
  const kvevict_plane* reference_queries = nullptr;
  const int32_t* reference_positions = nullptr;
};

// Checked rows of a plane.
QueryRows QueryRowsOf(const kvevict_plane& queries, uint32_t n_rows);

// Checks n_rows query rows: queries and row_lse.
Status CheckQueryRows(const kvevict_layer_geometry& layer, uint32_t n_rows,
                      const LayerInputs& inputs);

// Whether a layer is scored by queries, because the signal always needs them or
// because attention sums are not given.
bool IsScoredByQueries(const Plan& plan, const LayerInputs& inputs);

// Finds how many query rows score a layer of n_tokens slots.
Status FindQueryCount(const Plan& plan, uint32_t n_tokens,
                      const LayerInputs& inputs, uint32_t* out);

// Checks that n_rows query rows are given, and writes where they are.
Status FindQueries(const Plan& plan, const PlanLayer& layer, uint32_t n_rows,
                   const LayerInputs& inputs, ScoreJob* out);

// Checks the given attention of a chunk to n_slots of a layer, and writes where
// it is.
Status FindChunkSums(const Plan& plan, const PlanLayer& layer, uint32_t n_slots,
                     const LayerInputs& inputs, FloatRows* out,
                     uint32_t* out_n_heads);

// The same for the scores of a chunk's n_rows tokens.
Status FindChunkScores(const PlanLayer& layer, uint32_t n_rows,
                       const LayerInputs& inputs, FloatRows* out);

// Checks the other inputs that the plan's signal reads for a layer of n_tokens
// slots, and writes where they are.
Status FindInputs(const Plan& plan, const PlanLayer& layer, uint32_t n_tokens,
                  const LayerInputs& inputs, ScoreJob* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SIGNALS_SIGNAL_INPUTS_H_
