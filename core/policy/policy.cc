#include "core/policy/policy.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/view/chunks.h"
#include "kvevict/experimental.h"

namespace kvevict {
namespace {

constexpr PolicyInfo kPolicies[] = {
#define KVEVICT_POLICY(Kind, text, signal, summary, defaults, trigger, paper) \
  {text, Signal::k##signal, summary, defaults, Trigger::k##trigger, paper},
#include "core/policy/policies.inc"
#undef KVEVICT_POLICY
};

constexpr Measure kMeasures[] = {
#define KVEVICT_LAYER_SPLIT(Name, text, is_exact, measure) Measure::k##measure,
#include "core/budgets/layer_splits.inc"
#undef KVEVICT_LAYER_SPLIT
};

// For a budget per partition: the tokens lost by partitions that are compared
// with the next one.
uint64_t PartitionLoss(const Policy& p, uint32_t n_context) {
  const uint32_t n = n_context - std::min(n_context, p.sink.count);
  if (n / p.block < 2) return 0;
  const double budget = p.budget <= 1.0 ? p.budget * p.block : p.budget;
  const auto keep = static_cast<uint32_t>(
      std::min(std::floor(budget), static_cast<double>(p.block)));
  return uint64_t{n / p.block - 1} * (p.block - keep);
}

// The budget in whole blocks, even if it has no room for what must stay.
uint32_t WholeBudget(const Policy& p, uint32_t n_context) {
  const SlotBlocks blocks = BlocksOf(p);
  const double exact = std::floor(ExactBudget(p, n_context));
  return blocks.TokensOf(
      static_cast<uint32_t>(
          std::clamp(exact, 1.0, static_cast<double>(blocks.Count(n_context)))),
      n_context);
}

// The tokens that chunks keep at least have to fit too.
Status CheckLeast(const Policy& p, uint32_t n_context, uint32_t budget) {
  if (!HasChunks(p)) return Status();
  const Chunks chunks(p, n_context);
  if (budget == n_context || chunks.Least() <= budget) return Status();
  return InvalidArgument(
      "budget %u < %llu tokens, the least of %u chunks of %u: each keeps 1 or "
      "sink %u, and recent %u stay",
      budget, static_cast<unsigned long long>(chunks.Least()), chunks.Count(),
      p.chunk, p.sink.count, p.recent.count);
}

}  // namespace

std::span<const PolicyInfo> Policies() { return kPolicies; }

const PolicyInfo& InfoOf(PolicyKind kind) {
  return kPolicies[static_cast<int>(kind)];
}

Measure MeasureOf(const Policy& policy) {
  return kMeasures[static_cast<int>(policy.split)];
}

bool CountsByScore(const Policy& policy) {
  return SignalOf(policy).Ranks() && policy.heads != HeadRule::kEqual;
}

bool HeadsCompete(const Policy& policy) {
  return CountsByScore(policy) && policy.heads != HeadRule::kThreshold;
}

bool RescuesBlocks(const Policy& policy) {
  return SignalOf(policy).Ranks() && policy.rescue > 0;
}

bool DiversifiesBlocks(const Policy& policy) {
  return SignalOf(policy).Ranks() && policy.diverse_mass > 0.0;
}

bool SecuresMass(const Policy& policy) {
  return SignalOf(policy).HasWindow() && policy.first_stage_mass > 0.0;
}

bool SecuresValues(const Policy& policy) {
  return SignalOf(policy).Ranks() && !policy.secure_values.IsZero();
}

bool Draws(const Policy& policy) {
  return SignalOf(policy).Ranks() && policy.draw;
}

bool ScoresAreMass(const Policy& policy) {
  const bool secures =
      policy.secure > 0.0 && policy.weight != ValueWeight::kNone;
  return SignalOf(policy).is_mass && policy.prior == Prior::kNone &&
         policy.redundancy == 0.0 && !Standardizes(policy) && !secures &&
         !SecuresMass(policy) && !SecuresValues(policy) && !Draws(policy) &&
         !RescuesBlocks(policy) && !DiversifiesBlocks(policy);
}

uint64_t RescuedTokens(const Policy& policy) {
  return RescuesBlocks(policy) ? uint64_t{policy.rescue} * policy.select_block
                               : 0;
}

bool TouchesNothing(const Policy& policy) {
  return !InfoOf(policy.kind).Evicts();
}

const char* TriggerText(Trigger trigger) {
  switch (trigger) {
    case Trigger::kNever:
      return "never";
    case Trigger::kPrefillEnd:
      return "prefill end";
    case Trigger::kAnyTime:
      return "prefill, decode";
  }
  return "";
}

SlotBlocks BlocksOf(const Policy& p) {
  return {TouchesNothing(p) ? 1 : p.select_block};
}

bool HasChunks(const Policy& p) { return SignalOf(p).Ranks() && p.chunk > 0; }

uint32_t ChunkTokens(const Policy& p, uint32_t n_tokens) {
  return HasChunks(p) ? std::min(p.chunk, n_tokens) : n_tokens;
}

bool IsPromptPinned(const Policy& p) {
  return p.prompt == PromptRule::kPinned ||
         p.prompt == PromptRule::kPinnedBeside;
}

bool IsPromptBeside(const Policy& p) {
  return p.prompt == PromptRule::kBeside ||
         p.prompt == PromptRule::kPinnedBeside;
}

bool IsBudgetOfPartition(const Policy& p) {
  return p.of == BudgetBase::kPartition;
}

uint64_t LeastRoom(const Policy& p) {
  if (TouchesNothing(p)) return 0;
  const SignalInfo& signal = SignalOf(p);
  const uint64_t sink = p.sink.count;
  if (!signal.Ranks()) return sink + 1;
  // The window selects at least one token, except in a lazy layer.
  const bool selects = signal.HasWindow() && p.split != LayerSplit::kLazy;
  return sink + RecentTokens(p) + selects;
}

double TokenBudget(const Policy& p) {
  if (!SignalOf(p).Ranks() && p.recent.count > 0) {
    return double{1} * p.sink.count + p.recent.count;
  }
  return p.budget;
}

double ExactBudget(const Policy& p, uint32_t n_context) {
  const SlotBlocks blocks = BlocksOf(p);
  const uint32_t n_blocks = blocks.Count(n_context);
  if (TouchesNothing(p)) return n_blocks;
  if (IsBudgetOfPartition(p)) {
    return static_cast<double>(n_context - PartitionLoss(p, n_context));
  }
  if (HasChunks(p) && !CountsTokens(p)) {
    return static_cast<double>(Chunks(p, n_context).TokensAt(p.budget));
  }
  if (!CountsTokens(p)) return p.budget * n_blocks;
  const double free_slots = double{1} * n_blocks * blocks.size - n_context;
  return (TokenBudget(p) + free_slots) / blocks.size;
}

bool CountsTokens(const Policy& p) {
  if (IsBudgetOfPartition(p)) return false;
  return p.budget > 1.0 || (!SignalOf(p).Ranks() && p.recent.count > 0);
}

Policy InTokens(const Policy& policy, uint32_t n_context) {
  Policy p = policy;
  const bool has_shares =
      p.sink.share > 0.0 || p.recent.share > 0.0 || p.window.share > 0.0;
  if (!has_shares || TouchesNothing(p)) return p;
  const double budget = CountsTokens(p)
                            ? std::min(p.budget, double{kMaxTokens})
                            : WholeBudget(p, std::max(1u, n_context));
  const auto resolve = [&](CountOrShare* value) {
    if (value->share == 0.0) return;
    *value = {static_cast<uint32_t>(std::floor(budget) * value->share)};
  };
  resolve(&p.sink);
  resolve(&p.recent);
  resolve(&p.window);
  p.window.count = std::max(1u, p.window.count);
  return p;
}

bool LacksRoom(const Policy& policy, uint32_t n_context) {
  if (TouchesNothing(policy)) return false;
  const Policy p = InTokens(policy, n_context);
  const uint32_t budget = WholeBudget(p, n_context);
  if (budget >= n_context) return false;
  if (LacksQueries(p, n_context)) return true;
  const ForcedSlots forced(BlocksOf(p), p.sink.count, ForcedRecentTokens(p),
                           n_context);
  return !CountsTokens(policy) &&
         std::max(LeastRoom(p), forced.ends()) > budget;
}

bool LacksQueries(const Policy& policy, uint32_t n_context) {
  return SignalOf(policy).HasWindow() &&
         n_context < InTokens(policy, n_context).window.count;
}

uint32_t BudgetTokens(const Policy& p, uint32_t n_context) {
  return LacksRoom(p, n_context) ? n_context : WholeBudget(p, n_context);
}

uint64_t BudgetTogether(const Policy& p, uint32_t n_context, uint64_t n_lists) {
  const uint64_t n_even = n_lists * BudgetTokens(p, n_context);
  if (p.rounding == Rounding::kHead || CountsTokens(p) ||
      BlocksOf(p).size > 1) {
    return n_even;
  }
  const double exact = ExactBudget(p, n_context) * static_cast<double>(n_lists);
  return std::max(n_even, static_cast<uint64_t>(exact));
}

uint32_t RecentTokens(const Policy& p) {
  const bool window = SignalOf(p).HasWindow() && p.keep_window;
  return window ? std::max(p.recent.count, p.window.count) : p.recent.count;
}

uint32_t ForcedRecentTokens(const Policy& p) {
  if (TouchesNothing(p)) return 0;
  return SignalOf(p).Ranks() ? RecentTokens(p) : 1;
}

kvevict_tie TieOf(const Policy& p) {
  return SignalOf(p).Ranks() ? p.tie : KVEVICT_TIE_HIGHER_POSITION;
}

bool FitsValues(const Policy& p) {
  return !TouchesNothing(p) && p.fit != Fit::kNone;
}

bool FitsBiases(const Policy& p) {
  return FitsValues(p) && p.fit == Fit::kBiasValues;
}

uint32_t FitRows(const Policy& p) {
  return p.reference > 0 ? p.reference : p.window.count;
}

bool TakesReference(const Policy& p) {
  return HasReference(p) || (FitsValues(p) && p.reference > 0);
}

bool HasReference(const Policy& p) {
  return SignalOf(p).HasWindow() && p.reference > 0;
}

bool WindowScores(const Policy& p) {
  return SignalOf(p).HasWindow() &&
         (p.reference == 0 || p.reference_weight < 1.0);
}

uint32_t ScoringRows(const Policy& p) {
  const bool alone = p.reference > 0 && p.reference_weight == 1.0;
  return (alone ? 0 : p.window.count) + p.reference;
}

double RowFactor(const Policy& p, bool is_reference) {
  const double share =
      is_reference ? p.reference_weight : 1.0 - p.reference_weight;
  if (p.rows != KVEVICT_REDUCE_MEAN) return share;
  return share / (is_reference ? p.reference : p.window.count);
}

double SumOfFactors(const Policy& p) {
  const double of_window =
      WindowScores(p) ? p.window.count * RowFactor(p, false) : 0.0;
  return of_window + p.reference * RowFactor(p, true);
}

uint32_t QueryRowCount(const Policy& p) {
  const SignalInfo& signal = SignalOf(p);
  if (signal.HasWindow()) return WindowScores(p) ? p.window.count : 0;
  if (signal.Needs(kSums)) return KVEVICT_QUERY_ROWS_ANY;
  return signal.Needs(kAllQueries) ? KVEVICT_QUERY_ROWS_ALL : 0;
}

Status ResolvePolicy(const Policy& policy, uint32_t n_context,
                     kvevict_resolved_policy* out) {
  const Policy p = InTokens(policy, n_context);
  const SignalInfo& signal = SignalOf(p);
  const uint32_t budget = BudgetTokens(p, n_context);
  KV_RETURN_IF_ERROR(CheckLeast(p, n_context, budget));
  out->budget = budget;
  out->n_sink = 0;
  out->n_recent = 0;
  if (!TouchesNothing(p)) {
    const uint64_t sink = HasChunks(p) ? Chunks(p, n_context).Sinks()
                                       : BlocksOf(p).RoundUp(p.sink.count);
    out->n_sink = static_cast<uint32_t>(std::min<uint64_t>(sink, budget));
    out->n_recent = budget - out->n_sink;
  }
  if (signal.Ranks()) {
    const uint32_t recent = BlocksOf(p).Recent(RecentTokens(p), n_context);
    out->n_recent = std::min(recent, out->n_recent);
  }
  out->n_selected = budget - out->n_sink - out->n_recent;
  out->n_query_rows = QueryRowCount(p);
  out->scores_are_mass = ScoresAreMass(p);
  return Status();
}

}  // namespace kvevict
