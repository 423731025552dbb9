// Scoring: one signal's operation, then shaping.
#ifndef KVEVICT_CORE_SCORE_H_
#define KVEVICT_CORE_SCORE_H_

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/plan.h"
#include "core/status.h"

namespace kvevict {

// Scores jobs, of up to n_tokens like all of the call, by a signal of the plan's policy and shapes what comes out; a shape
// job per score job, whose rows it takes, or none to leave shaping out. Where shaping wants the rows of query
// heads apart, at most kMostApart jobs in a row may have different rows.
Status ScoreAndShape(const Plan& plan, const SignalInfo& signal, Stream stream,
                     uint32_t n_tokens, Jobs<ScoreJob> scores,
                     Jobs<ShapeJob> shapes, std::span<uint8_t> scratch);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SCORE_H_
