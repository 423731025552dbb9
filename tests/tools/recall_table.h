// Recall of several policies, averaged over seeds 1 .. 3, from one prefill each.
#ifndef KVEVICT_TESTS_TOOLS_RECALL_TABLE_H_
#define KVEVICT_TESTS_TOOLS_RECALL_TABLE_H_

#include <criterion/criterion.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "tools/engine/policies.h"
#include "tools/recall/experiment.h"
#include "tools/recall/workload.h"

namespace kvevict::tools {

struct RecallRow {
  std::string policy;
  // The prototype's table, rounded to two digits; empty: not in it.
  double asked;
  std::optional<double> unasked;
  double shrink;
};

inline constexpr uint32_t kSeeds = 3;

// Half a unit of the last digit, and a little for its own rounding.
inline constexpr double kPublished = 0.005 + 1e-9;

inline void ExpectRecall(uint32_t n_tokens, kvevict_dtype dtype,
                         const std::vector<RecallRow>& rows) {
  std::vector<Policy> policies;
  for (const RecallRow& row : rows) {
    policies.push_back(ParsePolicy(row.policy, 1.0));
  }
  ThreadPool pool(2);
  std::vector<RecallResult> sums(rows.size());
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    RecallExperiment experiment(MakeWorkload(n_tokens, seed), dtype, policies,
                                pool);
    experiment.Prefill();
    for (size_t i = 0; i < rows.size(); ++i) {
      const RecallResult result = experiment.Evaluate(i);
      sums[i].asked += result.asked;
      sums[i].unasked += result.unasked;
      const double shrink =
          static_cast<double>(result.evictions.of_prompt.bytes_before) /
          static_cast<double>(result.evictions.of_prompt.bytes_after);
      cr_expect(std::fabs(shrink - rows[i].shrink) < 1e-9, "%s shrinks by %g",
                rows[i].policy.c_str(), shrink);
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const double asked = sums[i].asked / kSeeds;
    const double unasked = sums[i].unasked / kSeeds;
    const double expected_unasked = rows[i].unasked.value_or(unasked);
    cr_expect(std::fabs(asked - rows[i].asked) <= kPublished &&
                  std::fabs(unasked - expected_unasked) <= kPublished,
              "%u tokens, %s: %.3f / %.3f instead of %.2f / %.2f", n_tokens,
              rows[i].policy.c_str(), asked, unasked, rows[i].asked,
              expected_unasked);
  }
}

}  // namespace kvevict::tools

#endif  // KVEVICT_TESTS_TOOLS_RECALL_TABLE_H_
