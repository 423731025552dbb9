// Scoring: one signal's operation, then shaping; then weights and redundancy.
#ifndef KVEVICT_CORE_SIGNALS_SCORE_H_
#define KVEVICT_CORE_SIGNALS_SCORE_H_

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/plan/plan.h"
#include "core/status.h"

namespace kvevict {

// How many of the first layers are alike, so that one call of an operation
// takes them.
size_t CountAlike(const Plan& plan, Jobs<uint32_t> layers);

// Places the rows of query heads that shaping needs apart, layer after layer in
// the order of ScoreAndShape().
class ApartRows {
 public:
  ApartRows(const Plan& plan, float* rows) : plan_(plan), first_(rows) {}
  // The rows of a layer of n_tokens, or `scores` if it needs none apart.
  float* Next(const PlanLayer& layer, uint32_t n_tokens, float* scores);

 private:
  const Plan& plan_;
  float* const first_;
  float* next_ = nullptr;
  const PlanLayer* last_ = nullptr;
  size_t n_ = 0;  // layers placed since the first place
};

// Checks that jobs, one per layer, can be scored and shaped, before the first
// of them is.
Status CheckScoring(const Plan& plan, Stream stream, uint32_t n_tokens,
                    Jobs<uint32_t> layers, Jobs<ScoreJob> scores,
                    Jobs<ShapeJob> shapes);

// Scores checked jobs, one per layer, by the signal of the plan's policy, and
// shapes the scores.
//
// n_tokens is the longest job of the call, which may be in another group. Each
// score job has a shape job that reads its rows; without shape jobs shaping is
// left out. If shaping needs the rows of query heads apart, layers are
// processed kMostApart at a time, counted from each layer that is not like the
// one before. Layers of one such group must have different rows.
Status ScoreAndShape(const Plan& plan, Stream stream, uint32_t n_tokens,
                     Jobs<uint32_t> layers, Jobs<ScoreJob> scores,
                     Jobs<ShapeJob> shapes, std::span<uint8_t> scratch);

// Both change shaped scores as the policy says: multiply them by weights, or
// subtract redundancy.
Status ApplyWeights(const Plan& plan, Stream stream, Jobs<uint32_t> layers,
                    Jobs<ShapeJob> shapes);
Status SubtractRedundancy(const Plan& plan, Stream stream, uint32_t n_tokens,
                          Jobs<uint32_t> layers, Jobs<ShapeJob> shapes,
                          std::span<uint8_t> scratch);

// The factor of leverage, if the budget is this share of the context.
float BlendOf(const Policy& policy, double budget);

// The rows for leverage at the start of the scratch, layer after layer, and the
// scratch that is left.
class LeverageRows {
 public:
  explicit LeverageRows(std::span<uint8_t> scratch) : rest_(scratch) {}
  float* Next(const PlanLayer& layer, uint32_t n_tokens);
  std::span<uint8_t> rest() const { return rest_; }

  static ScratchNeeds Scratch(const Plan& plan, uint32_t n_layers,
                              uint32_t n_tokens);

 private:
  std::span<uint8_t> rest_;
};

// Standardises final scores. AddLeverage() computes leverage to the rows of
// score jobs, which shape jobs read, and adds it.
Status Standardize(const Plan& plan, Stream stream, Jobs<uint32_t> layers,
                   Jobs<ShapeJob> shapes);
Status AddLeverage(const Plan& plan, Stream stream, uint32_t n_tokens,
                   Jobs<uint32_t> layers, Jobs<ScoreJob> scores,
                   Jobs<ShapeJob> shapes, std::span<uint8_t> scratch);

// Divides final scores by drawn numbers.
Status Draw(const Plan& plan, Stream stream, Jobs<uint32_t> layers,
            Jobs<ShapeJob> shapes);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SIGNALS_SCORE_H_
