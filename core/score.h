// Scoring: one signal's operation, then shaping.
#ifndef KVEVICT_CORE_SCORE_H_
#define KVEVICT_CORE_SCORE_H_

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/plan.h"
#include "core/status.h"

namespace kvevict {

// Scores jobs by a signal of the plan's policy, and shapes what comes out.
//
// n_tokens: the most of any job of the call, of these jobs or beside them. A shape
// job per score job takes its rows; none leaves shaping out. Where shaping wants the
// rows of query heads apart, at most kMostApart jobs in a row may have different
// rows.
Status ScoreAndShape(const Plan& plan, const SignalInfo& signal, Stream stream,
                     uint32_t n_tokens, Jobs<ScoreJob> scores,
                     Jobs<ShapeJob> shapes, std::span<uint8_t> scratch);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SCORE_H_
