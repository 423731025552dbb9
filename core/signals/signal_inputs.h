// What a caller gives for a signal beside a view: rows of floats, checked and found.
#ifndef KVEVICT_CORE_SIGNALS_SIGNAL_INPUTS_H_
#define KVEVICT_CORE_SIGNALS_SIGNAL_INPUTS_H_

#include <cstdint>

#include "core/backend.h"
#include "core/plan/plan.h"
#include "core/status.h"

namespace kvevict {

// What is given of one of the plan's layers; NULL for what is not.
struct LayerInputs {
  uint32_t layer = 0;
  uint32_t n_sum_heads = 0;   // 0: all query heads
  uint32_t n_query_rows = 0;  // 0: the window's, or of all tokens
  const kvevict_plane* queries = nullptr;
  const kvevict_plane* row_lse = nullptr;
  const kvevict_plane* scores = nullptr;
  const kvevict_plane* attention_sums = nullptr;
  const kvevict_plane* query_mean = nullptr;
  const kvevict_plane* query_covariance = nullptr;
  const kvevict_plane* key_filter = nullptr;
  const kvevict_plane* token_weights = nullptr;
  const kvevict_plane* query_centers = nullptr;
};

// Checks what is given of n_rows query rows: queries and row_lse.
Status CheckQueryRows(const kvevict_layer_geometry& layer, uint32_t n_rows,
                      const LayerInputs& inputs);

// Whether a layer is scored by queries: what the signal always needs, or what sums of
// attention that are not given are made of.
bool IsScoredByQueries(const Plan& plan, const LayerInputs& inputs);

// How many rows of queries a layer of n_tokens slots is scored by.
Status FindQueryCount(const Plan& plan, uint32_t n_tokens,
                      const LayerInputs& inputs, uint32_t* out);

// Checks that so many rows of queries are given, and writes where they lie.
Status FindQueries(const Plan& plan, const PlanLayer& layer, uint32_t n_rows,
                   const LayerInputs& inputs, ScoreJob* out);

// Checks that what n_slots of a layer got of a chunk's attention is given, and writes
// where it lies.
Status FindChunkSums(const Plan& plan, const PlanLayer& layer, uint32_t n_slots,
                     const LayerInputs& inputs, FloatRows* out,
                     uint32_t* out_n_heads);

// Checks that all else that the plan's signal reads of a layer of n_tokens slots is
// given, and writes where it lies.
Status FindInputs(const Plan& plan, const PlanLayer& layer, uint32_t n_tokens,
                  const LayerInputs& inputs, ScoreJob* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SIGNALS_SIGNAL_INPUTS_H_
