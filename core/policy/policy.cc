#include "core/policy/policy.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "core/evict/merge.h"
#include "core/number_text.h"
#include "core/policy/policy_text.h"
#include "core/view/chunks.h"
#include "kvevict/experimental.h"

namespace kvevict {
namespace {

constexpr PolicyInfo kPolicies[] = {
#define KVEVICT_POLICY(Kind, text, signal, shaping, defaults, trigger, paper) \
  {text, Signal::k##signal, shaping, defaults, Trigger::k##trigger, paper},
#include "core/policy/policies.inc"
#undef KVEVICT_POLICY
};

constexpr Measure kMeasures[] = {
#define KVEVICT_LAYER_SPLIT(Name, text, is_exact, measure) Measure::k##measure,
#include "core/budgets/layer_splits.inc"
#undef KVEVICT_LAYER_SPLIT
};

// Checks shares of the budget.
Status CheckShares(const Policy& p) {
  struct Share {
    const char* key;
    double value;
    bool of_ratio;
  };
  const Share shares[] = {{"sink", p.sink.share, false},
                          {"recent", p.recent.share, true},
                          {"window", p.window.share, false}};
  const bool has_window = !SignalOf(p).Ranks() && p.recent.count > 0;
  if (TouchesNothing(p)) return Status();
  for (const Share& share : shares) {
    const auto refuse = [&](const char* why) {
      return InvalidArgument("%s %s%s", share.key,
                             NumberText(share.value).c_str(), why);
    };
    if (share.value == 0.0) continue;
    if (!SignalOf(p).Ranks() && (has_window || share.of_ratio)) {
      return refuse(" with streaming-llm: recent gives its budget");
    }
    if (IsBudgetOfPartition(p)) return refuse(" with of partition");
    if (CountsTokens(p)) continue;
    if (!share.of_ratio) {
      return refuse(
          " with a budget that is a ratio: only recent may be a share");
    }
    if (p.split == LayerSplit::kLazy) {
      return refuse(" of a ratio with split lazy");
    }
    if (HasChunks(p)) return refuse(" of a ratio with chunk");
  }
  return Status();
}

// Tokens are secured per head and one by one, out of as many as it keeps.
Status CheckSecure(const Policy& p) {
  if (p.secure == 0.0 || !SignalOf(p).Ranks()) return Status();
  const char* with = nullptr;
  if (p.scope == KVEVICT_SCOPE_LAYER) with = "scope layer";
  if (p.scope == KVEVICT_SCOPE_MODEL) with = "scope model";
  if (p.heads == HeadRule::kThreshold) with = "heads threshold";
  if (p.select_block > 1) with = "select_block above 1";
  if (with == nullptr) return Status();
  return InvalidArgument(
      "secure %s with %s: it is a share of the single tokens that a head keeps",
      NumberText(p.secure).c_str(), with);
}

// The first stage reads the window's rows, and secures single tokens.
Status CheckFirstStage(const Policy& p) {
  if (!SecuresMass(p)) return Status();
  const char* needs = nullptr;
  if (p.order != ShapingOrder::kPoolRows) needs = "order pool-rows";
  if (!p.keep_window) needs = "keep_window yes";
  if (p.select_block > 1) needs = "select_block 1";
  if (p.scope != KVEVICT_SCOPE_KV_HEAD) needs = "scope head";
  if (p.heads == HeadRule::kThreshold) needs = "heads other than threshold";
  if (needs == nullptr) return Status();
  return InvalidArgument("first_stage_mass %s needs %s",
                         NumberText(p.first_stage_mass).c_str(), needs);
}

Status CheckShareOfHeads(const Policy& p) {
  if (!SignalOf(p).Ranks() || p.share == WeightShare::kNone ||
      p.weight == ValueWeight::kGiven) {
    return Status();
  }
  return InvalidArgument(
      "share heads with weight %s: only weights that are given are divided by "
      "their sum over the heads",
      p.weight == ValueWeight::kNorm ? "norm" : "none");
}

// Blocks are compared by the sums of their scores, and stay by the keys of one
// layer.
Status CheckVaries(const Policy& p) {
  if (!DiversifiesBlocks(p)) return Status();
  const auto refuse = [&](const char* with, const char* why) {
    return InvalidArgument("diverse_mass %s with %s: %s",
                           NumberText(p.diverse_mass).c_str(), with, why);
  };
  const SignalInfo& signal = SignalOf(p);
  if (!signal.is_mass || p.redundancy > 0.0) {
    return refuse(signal.is_mass ? "redundancy" : signal.text,
                  "it is a share of a mass");
  }
  if (p.prior != Prior::kNone) {
    return refuse("prior mean", "it is a share of a mass");
  }
  if (p.scope == KVEVICT_SCOPE_MODEL) {
    return refuse("scope model", "it compares the keys of one layer");
  }
  if (p.rescue > 0) return refuse("rescue", "they exclude each other");
  if (p.select_block == 1) {
    return refuse("select_block 1", "it compares blocks");
  }
  return Status();
}

// Checks that all the policy does has a meaning within a chunk.
Status CheckChunks(const Policy& p) {
  if (!HasChunks(p)) return Status();
  const SignalInfo& signal = SignalOf(p);
  if (signal.HasWindow() || signal.Needs(kSums)) {
    return InvalidArgument(
        "chunk %u: %s reads queries that see the whole context", p.chunk,
        signal.text);
  }
  const char* with = nullptr;
  if (CountsByScore(p)) with = "heads that are not equal";
  if (IsBudgetOfPartition(p)) with = "of partition";
  if (p.select_block > 1) with = "select_block above 1";
  if (CountsPrompt(p)) with = "a prompt that is pinned or beside";
  if (with == nullptr && CountsTokens(p) && p.sink.count >= p.chunk) {
    return InvalidArgument(
        "chunk %u <= sink %u, which each chunk keeps: no context longer than "
        "budget %s loses a token",
        p.chunk, p.sink.count, NumberText(p.budget).c_str());
  }
  if (with == nullptr) return Status();
  return InvalidArgument(
      "chunk %u with %s: a chunk's number of tokens must be known before",
      p.chunk, with);
}

Status CheckBlock(const Policy& p) {
  const SignalInfo& signal = SignalOf(p);
  if (p.block > 0 || !signal.Needs(kBlock)) return Status();
  return InvalidArgument("block 0 < 2: only keydiff takes 0");
}

// Checks reductions that only some signals allow.
Status CheckReductions(const Policy& p) {
  const SignalInfo& signal = SignalOf(p);
  if (signal.Needs(kSums) && p.rows == KVEVICT_REDUCE_MAX) {
    return InvalidArgument("rows max is not mean or sum");
  }
  if (signal.Needs(kSums) && p.sums == SumRows::kLayer &&
      p.scope == KVEVICT_SCOPE_KV_HEAD) {
    return InvalidArgument(
        "sums layer with scope head: heads that keep different tokens have "
        "sums of their own");
  }
  if (signal.Needs(kSums) && p.sum_last > 0 &&
      (p.sums != SumRows::kLayer || p.rows != KVEVICT_REDUCE_SUM)) {
    return InvalidArgument(
        "sum_last %u needs sums layer and rows sum: calls of all heads are "
        "added "
        "up as they are",
        p.sum_last);
  }
  if (signal.Needs(kSums) && p.raw_first && p.sum_last == 0) {
    return InvalidArgument(
        "raw_first yes needs sum_last above 0: sums of all calls are pooled "
        "call "
        "by call");
  }
  if (signal.IsOfQueryHeads() && p.order == ShapingOrder::kPoolRows &&
      !signal.HasWindow()) {
    return InvalidArgument("order pool-rows: %s has no window's rows to pool",
                           signal.text);
  }
  if (signal.Ranks() && p.edge == PoolEdge::kMass &&
      (p.order != ShapingOrder::kPoolRows || p.pool.kind == PoolKind::kMax)) {
    return InvalidArgument(
        "edge mass needs order pool-rows and a pool that is no maximum: a row "
        "is scaled to its sum");
  }
  if (!signal.IsOfQueryHeads() || p.order != ShapingOrder::kReduceLogits) {
    return Status();
  }
  if (!signal.HasWindow()) {
    return InvalidArgument("order reduce-logits: %s has no logits to reduce",
                           signal.text);
  }
  if (p.group == KVEVICT_REDUCE_MAX) return Status();
  return InvalidArgument(
      "order reduce-logits with group %s: only max reduces "
      "logits",
      p.group == KVEVICT_REDUCE_SUM ? "sum" : "mean");
}

// Checks options that measure the weights of a window's rows. Key and value are
// named as in the text form.
Status CheckMeasured(const Policy& p, const char* key, const char* value,
                     uint32_t least_window) {
  const SignalInfo& signal = SignalOf(p);
  if (!signal.HasWindow()) {
    return InvalidArgument("%s %s: %s has no window's rows to measure", key,
                           value, signal.text);
  }
  if (p.window.count < least_window || p.window.count > kMaxMeasuredWindow) {
    return InvalidArgument("%s %s: window %u is not in [%u, %u]", key, value,
                           p.window.count, least_window, kMaxMeasuredWindow);
  }
  if (p.rows == KVEVICT_REDUCE_MEAN && p.row_weight == RowWeight::kNone &&
      p.order != ShapingOrder::kReduceLogits &&
      p.order != ShapingOrder::kPoolRows) {
    return Status();
  }
  return InvalidArgument(
      "%s %s: needs rows mean, row_weight none and an order other than "
      "reduce-logits and pool-rows",
      key, value);
}

Status CheckMeasures(const Policy& p) {
  if (SignalOf(p).HasWindow() && p.spread > 0.0) {
    KV_RETURN_IF_ERROR(
        CheckMeasured(p, "spread", NumberText(p.spread).c_str(), 2));
  }
  if (!MeasuresLayers(p)) return Status();
  return CheckMeasured(p, "split", WordOf(p.split),
                       MeasureOf(p) == Measure::kDynamics ? 2 : 1);
}

// Checks that scores alone decide what a layer keeps, once all are there.
Status CheckCompeting(const Policy& p) {
  if (TouchesNothing(p) || !LayersCompete(p)) return Status();
  const SignalInfo& signal = SignalOf(p);
  if (!signal.Ranks()) {
    return InvalidArgument("split scores: %s has no scores to compare",
                           signal.text);
  }
  const char* with = nullptr;
  if (p.heads == HeadRule::kAdaptiveBlend) with = "heads adaptive-blend";
  if (p.heads == HeadRule::kThreshold) with = "heads threshold";
  if (p.normalize) with = "normalize yes";
  if (p.secure > 0.0) with = "secure";
  if (p.chunk > 0) with = "chunk";
  if (p.rescue > 0) with = "rescue";
  if (p.diverse_mass > 0.0) with = "diverse_mass";
  if (CountsPrompt(p)) with = "a prompt that is pinned or beside";
  if (IsBudgetOfPartition(p)) with = "of partition";
  if ((signal.takes & kBlock) != 0 && p.block > 0) with = "block above 0";
  if (with == nullptr) return Status();
  return InvalidArgument(
      "split scores with %s: it depends on what a layer keeps, which no score "
      "may depend on",
      with);
}

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

// The smallest budget that has room for what must stay.
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

// Checks that a budget in tokens, or the longest context of a ratio, has room for
// what must stay.
Status CheckForced(const Policy& p) {
  const uint64_t least = LeastRoom(p);
  const bool is_count = CountsTokens(p) && TokenBudget(p) <= kMaxTokens;
  const double most =
      is_count ? std::floor(TokenBudget(p)) : double{kMaxTokens};
  if (static_cast<double>(least) <= most) return Status();
  const char* of = is_count ? "budget " : "";
  const NumberText room(most);
  const char* unit = is_count ? "" : " tokens, the longest context";
  const SignalInfo& signal = SignalOf(p);
  if (!signal.Ranks()) {
    return InvalidArgument("sink %u >= %s%s%s", p.sink.count, of, room.c_str(),
                           unit);
  }
  const uint64_t recent = RecentTokens(p);
  const bool is_window =
      signal.HasWindow() && p.keep_window && p.window.count >= p.recent.count;
  return InvalidArgument(
      "sink %u + %s %llu %s %s%s%s", p.sink.count,
      is_window ? "window" : "recent", static_cast<unsigned long long>(recent),
      least > p.sink.count + recent ? ">=" : ">", of, room.c_str(), unit);
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

// The blocks that contain what must stay have to fit too, for caches of any
// length. The last ones may begin up to one slot less than a block early.
Status CheckBlocks(const Policy& p) {
  if (RescuesBlocks(p) && p.select_block == 1) {
    return InvalidArgument(
        "rescue %u with select_block 1: only blocks are rescued", p.rescue);
  }
  if (p.select_block == 1 || TouchesNothing(p)) return Status();
  if (CountsByScore(p) || IsBudgetOfPartition(p)) {
    return InvalidArgument(
        "select_block %u with %s: these count single tokens", p.select_block,
        CountsByScore(p) ? "heads that are not equal" : "of partition");
  }
  if (!CountsTokens(p)) return Status();
  const auto budget = static_cast<uint64_t>(std::min(TokenBudget(p), 1e18));
  const auto tokens = static_cast<unsigned long long>(budget);
  if (budget < p.select_block) {
    return InvalidArgument("select_block %u > budget %llu", p.select_block,
                           tokens);
  }
  const uint64_t sink = BlocksOf(p).RoundUp(p.sink.count);
  const uint64_t recent = ForcedRecentTokens(p);
  if (sink + recent + p.select_block - 1 <= budget) return Status();
  return InvalidArgument(
      "sink %llu in whole blocks + recent %llu + select_block %u - 1 > budget "
      "%llu",
      static_cast<unsigned long long>(sink),
      static_cast<unsigned long long>(recent), p.select_block, tokens);
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

bool ScoresAreMass(const Policy& policy) {
  const bool secures =
      policy.secure > 0.0 && policy.weight != ValueWeight::kNone;
  return SignalOf(policy).is_mass && policy.prior == Prior::kNone &&
         policy.redundancy == 0.0 && !secures && !SecuresMass(policy) &&
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

Status ValidatePolicy(const Policy& policy) {
  if (!SignalOf(policy).is_built) {
    return Unsupported("policy %s: this build leaves out its signal, %s",
                       InfoOf(policy.kind).name, SignalOf(policy).text);
  }
  KV_RETURN_IF_ERROR(CheckShares(policy));
  const Policy p = InTokens(policy, kMaxTokens);
  KV_RETURN_IF_ERROR(CheckBlock(p));
  KV_RETURN_IF_ERROR(CheckReductions(p));
  KV_RETURN_IF_ERROR(CheckMeasures(p));
  KV_RETURN_IF_ERROR(CheckCompeting(p));
  if (p.scope == KVEVICT_SCOPE_MODEL && p.split != LayerSplit::kUniform) {
    return InvalidArgument(
        "split %s with scope model: one keep list needs the same budget in "
        "every layer",
        WordOf(p.split));
  }
  if (CountsByScore(p) && p.scope != KVEVICT_SCOPE_KV_HEAD) {
    return InvalidArgument(
        "heads that are not equal with scope %s: heads that share a keep list "
        "keep the same",
        p.scope == KVEVICT_SCOPE_LAYER ? "layer" : "model");
  }
  if (CountsByScore(p) && CountsPrompt(p)) {
    return InvalidArgument(
        "prompt %s with heads that are not equal: it has one length per layer",
        WordOf(p.prompt));
  }
  KV_RETURN_IF_ERROR(CheckSecure(p));
  KV_RETURN_IF_ERROR(CheckShareOfHeads(p));
  KV_RETURN_IF_ERROR(CheckFirstStage(p));
  KV_RETURN_IF_ERROR(CheckVaries(p));
  KV_RETURN_IF_ERROR(CheckChunks(p));
  KV_RETURN_IF_ERROR(CheckForced(p));
  return CheckBlocks(p);
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

uint32_t QueryRowCount(const Policy& p) {
  const SignalInfo& signal = SignalOf(p);
  if (signal.HasWindow()) return p.window.count;
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
