// Scoring: one signal's operation, then shaping; weights and redundancy.
#ifndef KVEVICT_CORE_SIGNALS_SCORE_H_
#define KVEVICT_CORE_SIGNALS_SCORE_H_

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/plan/plan.h"
#include "core/status.h"

namespace kvevict {

// How many of the first of some layers are alike, and so go in one call of an
// operation.
size_t CountAlike(const Plan& plan, Jobs<uint32_t> layers);

// Where the rows of query heads lie that shaping wants apart, layer after layer in the
// order in which ScoreAndShape() is given them.
class ApartRows {
 public:
  ApartRows(const Plan& plan, float* rows) : plan_(plan), first_(rows) {}
  // Of a layer of n_tokens; `scores` where it wants none apart.
  float* Next(const PlanLayer& layer, uint32_t n_tokens, float* scores);

 private:
  const Plan& plan_;
  float* const first_;
  float* next_ = nullptr;
  const PlanLayer* last_ = nullptr;
  size_t n_ = 0;  // layers since the first place
};

// Checks that jobs, of a layer each, can be scored and shaped, before the first of them
// is.
Status CheckScoring(const Plan& plan, Stream stream, uint32_t n_tokens,
                    Jobs<uint32_t> layers, Jobs<ScoreJob> scores,
                    Jobs<ShapeJob> shapes);

// Scores jobs that have been checked, of a layer each, by the signal of the plan's
// policy, and shapes what comes out.
//
// n_tokens: the most of any job of the call, of these jobs or beside them. A shape
// job per score job takes its rows; none leaves shaping out. Where shaping wants the rows of query heads apart, they are done
// kMostApart at a time from each layer on that is not like the one before: those must
// have different rows.
Status ScoreAndShape(const Plan& plan, Stream stream, uint32_t n_tokens,
                     Jobs<uint32_t> layers, Jobs<ScoreJob> scores,
                     Jobs<ShapeJob> shapes, std::span<uint8_t> scratch);

// Multiplies shaped scores by weights; takes redundancy off them; as the policy says.
Status ApplyWeights(const Plan& plan, Stream stream, Jobs<uint32_t> layers,
                    Jobs<ShapeJob> shapes);
Status SubtractRedundancy(const Plan& plan, Stream stream, uint32_t n_tokens,
                          Jobs<uint32_t> layers, Jobs<ShapeJob> shapes,
                          std::span<uint8_t> scratch);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SIGNALS_SCORE_H_
