// The list of policies, their defaults, and their meaning in tokens.
#ifndef KVEVICT_CORE_POLICY_POLICY_H_
#define KVEVICT_CORE_POLICY_POLICY_H_

#include <cstdint>
#include <span>

#include "core/evict/slot_blocks.h"
#include "core/policy/params.h"
#include "core/signals/signal.h"
#include "core/status.h"
#include "kvevict/experimental.h"

namespace kvevict {

// When a policy can evict. Decoding continues with the tokens that are left.
enum class Trigger { kNever, kPrefillEnd, kAnyTime };

const char* TriggerText(Trigger trigger);

struct PolicyInfo {
  const char* name;
  Signal signal;
  const char* summary;   // what it keeps, in words
  const char* defaults;  // those that differ from params.inc
  Trigger trigger;
  const char* paper;

  bool Evicts() const { return trigger != Trigger::kNever; }
};

std::span<const PolicyInfo> Policies();

const PolicyInfo& InfoOf(PolicyKind kind);

// True if the policy never writes to caches.
bool TouchesNothing(const Policy& policy);

// What a split reads of each layer's attention: see LayerMeasure.
enum class Measure { kNone, kDynamics, kEnds };
Measure MeasureOf(const Policy& policy);
inline bool MeasuresLayers(const Policy& policy) {
  return MeasureOf(policy) != Measure::kNone;
}
// True if the tokens of all layers compete for the budget of all.
inline bool LayersCompete(const Policy& policy) {
  return policy.split == LayerSplit::kScores;
}
// True if scores of all layers decide how many tokens a layer keeps.
inline bool SplitsByScore(const Policy& policy) {
  return MeasuresLayers(policy) || LayersCompete(policy);
}
// True if scores decide how many tokens a head keeps.
bool CountsByScore(const Policy& policy);
// True if a head may keep tokens that other heads of its layer give up.
bool HeadsCompete(const Policy& policy);

// True if some blocks beyond the budget stay.
bool RescuesBlocks(const Policy& policy);
// True if some blocks stay because their keys are unlike the others.
bool DiversifiesBlocks(const Policy& policy);
// True if the values that stay are fitted to queries.
bool FitsValues(const Policy& policy);
// True if biases of slots are fitted before them.
bool FitsBiases(const Policy& policy);
// The queries of a query head that they are fitted to.
uint32_t FitRows(const Policy& policy);
// True if the policy reads reference queries, to score or to fit.
bool TakesReference(const Policy& policy);
// True if reference queries score, alone or with the window's.
bool HasReference(const Policy& policy);
// True if the window's own queries score.
bool WindowScores(const Policy& policy);
// The query rows that score by window attention: those of the window, then the
// reference queries.
uint32_t ScoringRows(const Policy& policy);
// The factor of the weights of one row of the window, or of a reference query,
// if there are reference queries.
double RowFactor(const Policy& policy, bool is_reference);
// The sum of these factors over all rows.
double SumOfFactors(const Policy& policy);
// True if tokens are secured by the attention mass that they have.
bool SecuresMass(const Policy& policy);
// True if tokens are secured by their values.
bool SecuresValues(const Policy& policy);
// True if tokens are drawn by their scores.
bool Draws(const Policy& policy);
// True if the leverage of keys is added to scores.
inline bool AddsLeverage(const Policy& policy) { return policy.leverage > 0.0; }
// True if scores are standardised, or standardised leverage is added to them.
inline bool Standardizes(const Policy& policy) {
  return policy.standardize || AddsLeverage(policy);
}
// True if scores are not negative and their sum is a mass.
bool ScoresAreMass(const Policy& policy);
// The slots of a list that rescued blocks may take beyond its budget.
uint64_t RescuedTokens(const Policy& policy);

// The largest window that can be measured, on every backend.
inline constexpr uint32_t kMaxMeasuredWindow = 64;

// Checks that the values of a policy go together at any context length.
Status ValidatePolicy(const Policy& policy);

// The blocks in which a valid policy keeps or evicts slots.
SlotBlocks BlocksOf(const Policy& policy);

// True if the budget is a number of tokens, not a ratio of the context.
bool CountsTokens(const Policy& policy);

// A valid policy with shares of the budget turned into counts for a context.
Policy InTokens(const Policy& policy, uint32_t n_context);

// True if a context that exceeds its budget stays as it is. Either a budget
// that grows with the context has no room yet for the ends that must stay, or
// queries are missing.
bool LacksRoom(const Policy& policy, uint32_t n_context);

// True if the context has fewer tokens than the window whose queries score.
bool LacksQueries(const Policy& policy, uint32_t n_context);

// The tokens that a valid policy keeps of `n_context`, in whole blocks: at
// least one and at most all.
uint32_t BudgetTokens(const Policy& policy, uint32_t n_context);

// The tokens that n_lists lists of a context keep together, if they compete for
// them: n_lists budgets, or with rounding=together their exact sum, rounded
// down. At least the budgets.
uint64_t BudgetTogether(const Policy& policy, uint32_t n_context,
                        uint64_t n_lists);

// A budget in tokens: the policy's, or if only position ranks tokens the number
// of those at both ends.
double TokenBudget(const Policy& policy);

// The smallest budget that has room for what must stay.
uint64_t LeastRoom(const Policy& policy);

// The budget in blocks, before rounding and clamping, whether or not it has
// room.
double ExactBudget(const Policy& policy, uint32_t n_context);

// True if tokens are scored and selected chunk by chunk.
bool HasChunks(const Policy& policy);

// The slots, out of n_tokens, that are scored and selected at a time.
uint32_t ChunkTokens(const Policy& policy, uint32_t n_tokens);

// IsPromptPinned(): the prompt stays once it has ended. IsPromptBeside(): the
// budget does not count it.
bool IsPromptPinned(const Policy& policy);
bool IsPromptBeside(const Policy& policy);
// True if nothing is evicted before the prompt has ended.
inline bool AwaitsPrompt(const Policy& policy) {
  return !TouchesNothing(policy) && policy.prompt != PromptRule::kInside;
}
// True if the prompt's length in a layer matters.
inline bool CountsPrompt(const Policy& policy) {
  return IsPromptPinned(policy) || IsPromptBeside(policy);
}

// True if the budget is per partition that the signal compares with the next.
bool IsBudgetOfPartition(const Policy& policy);

// The number of last tokens that a valid policy always keeps.
uint32_t RecentTokens(const Policy& policy);

// The number of last tokens that stay in each layer or head that loses some,
// however budgets are split and whatever is protected. If only position ranks
// tokens, the last ones win the rest of the window by rank.
uint32_t ForcedRecentTokens(const Policy& policy);

// The rule for equal ranks. If only position ranks tokens, the last ones win.
kvevict_tie TieOf(const Policy& policy);

// See kvevict_resolved_policy.n_query_rows. Shares of the budget must be
// counts.
uint32_t QueryRowCount(const Policy& policy);

// See kvevict_policy_resolve(). The policy is valid.
Status ResolvePolicy(const Policy& policy, uint32_t n_context,
                     kvevict_resolved_policy* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_POLICY_POLICY_H_
