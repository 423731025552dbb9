// Policies: the list, their defaults, their meaning in tokens.
#ifndef KVEVICT_CORE_POLICY_POLICY_H_
#define KVEVICT_CORE_POLICY_POLICY_H_

#include <cstdint>
#include <span>

#include "core/evict/slot_blocks.h"
#include "core/signals/signal.h"
#include "core/status.h"

namespace kvevict {

// When a policy can evict: decoding goes on with what it then still has.
enum class Trigger { kNever, kPrefillEnd, kAnyTime };

const char* TriggerText(Trigger trigger);

struct PolicyInfo {
  kvevict_policy_kind kind;
  const char* name;
  Signal signal;
  const char* shaping;
  const char* defaults;  // where they differ from KVEVICT_POLICY_INIT's
  Trigger trigger;
  const char* paper;

  bool Evicts() const { return trigger != Trigger::kNever; }
};

std::span<const PolicyInfo> Policies();

// nullptr if `kind` is no policy.
const PolicyInfo* FindPolicy(kvevict_policy_kind kind);

// Caches of a policy that touches nothing are only looked at.
bool TouchesNothing(const kvevict_policy& policy);

// What a split has to know of each layer's attention: see LayerMeasure.
enum class Measure { kNone, kDynamics, kEnds };
Measure MeasureOf(const kvevict_policy& policy);
// How many tokens a layer keeps is known when all have been scored.
inline bool SplitsByScore(const kvevict_policy& policy) {
  return MeasureOf(policy) != Measure::kNone;
}
// How many tokens a head keeps is known when they have been scored.
bool CountsByScore(const kvevict_policy& policy);
// And one may keep what others of its layer do not.
bool HeadsCompete(const kvevict_policy& policy);

// Of the blocks that would go some stay.
bool Rescues(const kvevict_policy& policy);
// Of the blocks that stay some do by how unlike their keys are.
bool Varies(const kvevict_policy& policy);
// What lists are chosen by adds up to a mass.
bool ScoresAreMass(const kvevict_policy& policy);
// Slots of a list that rescued blocks may have on top of its budget.
uint64_t RescuedTokens(const kvevict_policy& policy);

inline constexpr uint32_t kMaxPoolKernel = 1023;  // of every backend
inline constexpr uint32_t kMaxSumLast = 64;
// Of a window whose rows' variance, or whose layer, is measured; of every backend.
inline constexpr uint32_t kMaxMeasuredWindow = 64;

// Checks all that does not depend on a context length.
Status ValidatePolicy(const kvevict_policy& policy);

// What a valid policy keeps or evicts together.
SlotBlocks BlocksOf(const kvevict_policy& policy);

// Whether the budget is a number of tokens, whatever the context.
bool CountsTokens(const kvevict_policy& policy);

// A valid policy in which shares of the budget are counts, of a context.
kvevict_policy InTokens(const kvevict_policy& policy, uint32_t n_context);

// Whether a context that exceeds its budget stays as it is: a budget that grows with
// the context has no room yet for the ends that must stay, or the queries are missing.
bool LacksRoom(const kvevict_policy& policy, uint32_t n_context);

// Whether the context has fewer tokens than the window whose queries score.
bool LacksQueries(const kvevict_policy& policy, uint32_t n_context);

// Tokens a valid policy keeps of `n_context`, in whole blocks, at least one and at
// most all.
uint32_t BudgetTokens(const kvevict_policy& policy, uint32_t n_context);

// The budget in blocks, before rounding and clamping, whether or not it has room.
double ExactBudget(const kvevict_policy& policy, uint32_t n_context);

// Tokens are scored and chosen chunk by chunk.
bool HasChunks(const kvevict_policy& policy);

// Of n_tokens, the slots that are scored and chosen from at a time.
uint32_t ChunkTokens(const kvevict_policy& policy, uint32_t n_tokens);

const char* PromptText(kvevict_prompt prompt);
// The prompt stays, once it has ended; it is no part of the budget.
bool IsPromptPinned(const kvevict_policy& policy);
bool IsPromptBeside(const kvevict_policy& policy);
// Nothing goes before it has ended.
inline bool AwaitsPrompt(const kvevict_policy& policy) {
  return !TouchesNothing(policy) && policy.prompt != KVEVICT_PROMPT_INSIDE;
}
// How long it is in a layer matters.
inline bool CountsPrompt(const kvevict_policy& policy) {
  return IsPromptPinned(policy) || IsPromptBeside(policy);
}

// The budget is that of each partition which the signal compares with the next.
bool IsBudgetOfPartition(const kvevict_policy& policy);

// Last tokens a valid policy always keeps.
uint32_t RecentTokens(const kvevict_policy& policy);

// Last tokens that stay in each layer or head that loses some, however budgets are
// split and whatever is protected. Where place alone ranks tokens, the rest of the
// window is what the last ones win by rank.
uint32_t ForcedRecentTokens(const kvevict_policy& policy);

// The rule for equal ranks. Where nothing but place ranks, the last tokens win.
kvevict_tie TieOf(const kvevict_policy& policy);

// See kvevict_policy_resolve(). The policy is valid.
Status ResolvePolicy(const kvevict_policy& policy, uint32_t n_context,
                     kvevict_resolved_policy* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_POLICY_POLICY_H_
