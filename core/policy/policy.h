// Policies: the list, their defaults, their meaning in tokens.
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

// When a policy can evict: decoding goes on with what it then still has.
enum class Trigger { kNever, kPrefillEnd, kAnyTime };

const char* TriggerText(Trigger trigger);

struct PolicyInfo {
  const char* name;
  Signal signal;
  const char* shaping;
  const char* defaults;  // where they differ from those of params.inc
  Trigger trigger;
  const char* paper;

  bool Evicts() const { return trigger != Trigger::kNever; }
};

std::span<const PolicyInfo> Policies();

const PolicyInfo& InfoOf(PolicyKind kind);

// Caches of a policy that touches nothing are only looked at.
bool TouchesNothing(const Policy& policy);

// What a split has to know of each layer's attention: see LayerMeasure.
enum class Measure { kNone, kDynamics, kEnds };
Measure MeasureOf(const Policy& policy);
// How many tokens a layer keeps is known when all have been scored.
inline bool SplitsByScore(const Policy& policy) {
  return MeasureOf(policy) != Measure::kNone;
}
// How many tokens a head keeps is known when they have been scored.
bool CountsByScore(const Policy& policy);
// And one may keep what others of its layer do not.
bool HeadsCompete(const Policy& policy);

// Of the blocks that would go some stay.
bool RescuesBlocks(const Policy& policy);
// Of the blocks that stay some do by how unlike their keys are.
bool DiversifiesBlocks(const Policy& policy);
// What lists are chosen by adds up to a mass.
bool ScoresAreMass(const Policy& policy);
// Slots of a list that rescued blocks may have on top of its budget.
uint64_t RescuedTokens(const Policy& policy);

// Of a window whose rows' variance, or whose layer, is measured; of every backend.
inline constexpr uint32_t kMaxMeasuredWindow = 64;

// Checks what the values of a policy mean together, whatever the context length.
Status ValidatePolicy(const Policy& policy);

// What a valid policy keeps or evicts together.
SlotBlocks BlocksOf(const Policy& policy);

// Whether the budget is a number of tokens, whatever the context.
bool CountsTokens(const Policy& policy);

// A valid policy in which shares of the budget are counts, of a context.
Policy InTokens(const Policy& policy, uint32_t n_context);

// Whether a context that exceeds its budget stays as it is: a budget that grows with
// the context has no room yet for the ends that must stay, or the queries are missing.
bool LacksRoom(const Policy& policy, uint32_t n_context);

// Whether the context has fewer tokens than the window whose queries score.
bool LacksQueries(const Policy& policy, uint32_t n_context);

// Tokens a valid policy keeps of `n_context`, in whole blocks, at least one and at
// most all.
uint32_t BudgetTokens(const Policy& policy, uint32_t n_context);

// The budget in blocks, before rounding and clamping, whether or not it has room.
double ExactBudget(const Policy& policy, uint32_t n_context);

// Tokens are scored and chosen chunk by chunk.
bool HasChunks(const Policy& policy);

// Of n_tokens, the slots that are scored and chosen from at a time.
uint32_t ChunkTokens(const Policy& policy, uint32_t n_tokens);

// The prompt stays, once it has ended; it is no part of the budget.
bool IsPromptPinned(const Policy& policy);
bool IsPromptBeside(const Policy& policy);
// Nothing goes before it has ended.
inline bool AwaitsPrompt(const Policy& policy) {
  return !TouchesNothing(policy) && policy.prompt != PromptRule::kInside;
}
// How long it is in a layer matters.
inline bool CountsPrompt(const Policy& policy) {
  return IsPromptPinned(policy) || IsPromptBeside(policy);
}

// The budget is that of each partition which the signal compares with the next.
bool IsBudgetOfPartition(const Policy& policy);

// Last tokens a valid policy always keeps.
uint32_t RecentTokens(const Policy& policy);

// Last tokens that stay in each layer or head that loses some, however budgets are
// split and whatever is protected. Where place alone ranks tokens, the rest of the
// window is what the last ones win by rank.
uint32_t ForcedRecentTokens(const Policy& policy);

// The rule for equal ranks. Where nothing but place ranks, the last tokens win.
kvevict_tie TieOf(const Policy& policy);

// See kvevict_resolved_policy.n_query_rows. Shares of the budget are counts.
uint32_t QueryRowCount(const Policy& policy);

// See kvevict_policy_resolve(). The policy is valid.
Status ResolvePolicy(const Policy& policy, uint32_t n_context,
                     kvevict_resolved_policy* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_POLICY_POLICY_H_
