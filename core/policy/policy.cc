#include "core/policy/policy.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "core/evict/merge.h"
#include "core/number_text.h"
#include "core/policy/policy_text.h"
#include "core/view/chunks.h"

namespace kvevict {
namespace {

constexpr uint32_t kMaxTokens = INT32_MAX;
constexpr uint32_t kMaxBlock = 65536;

constexpr PolicyInfo kPolicies[] = {
#define KVEVICT_POLICY(KIND, text, signal, shaping, defaults, trigger, paper) \
  {KVEVICT_POLICY_##KIND, text, Signal::k##signal, shaping, defaults,         \
   Trigger::k##trigger,   paper},
#include "core/policy/policies.inc"
#undef KVEVICT_POLICY
};

constexpr Measure kMeasures[] = {
#define KVEVICT_LAYER_SPLIT(NAME, text, function, is_exact, measure) \
  Measure::k##measure,
#include "core/budgets/layer_splits.inc"
#undef KVEVICT_LAYER_SPLIT
};

template <typename Enum>
Status CheckEnum(const char* name, Enum value, int last) {
  const int number = static_cast<int>(value);
  if (number >= 0 && number <= last) return Status();
  return InvalidArgument("%s %d is not in [0, %d]", name, number, last);
}

Status CheckEnums(const kvevict_policy& p) {
  KV_RETURN_IF_ERROR(CheckEnum("pool", p.pool, KVEVICT_POOL_MAX));
  KV_RETURN_IF_ERROR(CheckEnum("edge", p.pool_edge, KVEVICT_POOL_EDGE_SHRINK));
  KV_RETURN_IF_ERROR(CheckEnum("rows", p.window_reduce, KVEVICT_REDUCE_SUM));
  KV_RETURN_IF_ERROR(CheckEnum("group", p.group_reduce, KVEVICT_REDUCE_SUM));
  KV_RETURN_IF_ERROR(
      CheckEnum("row_weight", p.row_weight, KVEVICT_ROW_WEIGHT_PAST));
  KV_RETURN_IF_ERROR(
      CheckEnum("softmax", p.softmax_keys, KVEVICT_SOFTMAX_PAST));
  KV_RETURN_IF_ERROR(
      CheckEnum("order", p.shaping_order, KVEVICT_SHAPING_WEIGH_THEN_POOL));
  KV_RETURN_IF_ERROR(CheckEnum("scope", p.scope, KVEVICT_SCOPE_MODEL));
  KV_RETURN_IF_ERROR(CheckEnum("over", p.scope_reduce, KVEVICT_REDUCE_SUM));
  KV_RETURN_IF_ERROR(CheckEnum("tie", p.tie, KVEVICT_TIE_HIGHER_POSITION));
  KV_RETURN_IF_ERROR(
      CheckEnum("heads", p.head_split, KVEVICT_HEAD_SPLIT_THRESHOLD));
  KV_RETURN_IF_ERROR(
      CheckEnum("weight", p.value_weight, KVEVICT_VALUE_WEIGHT_GIVEN));
  KV_RETURN_IF_ERROR(CheckEnum("prompt", p.prompt, KVEVICT_PROMPT_AT_END));
  KV_RETURN_IF_ERROR(CheckEnum("sums", p.sum_rows, KVEVICT_SUM_ROWS_LAYER));
  KV_RETURN_IF_ERROR(CheckEnum("anchor", p.anchor, KVEVICT_ANCHOR_RANDOM));
  return CheckEnum("split", p.layer_split,
                   static_cast<int>(std::size(kMeasures)) - 1);
}

Status CheckNumbers(const kvevict_policy& p) {
  // Written so that NaN fails.
  if (!(p.budget > 0.0 && std::isfinite(p.budget))) {
    return InvalidArgument("budget %s is not a finite number > 0",
                           NumberText(p.budget).c_str());
  }
  if (p.n_sink > kMaxTokens) {
    return InvalidArgument("sink %u > %u", p.n_sink, kMaxTokens);
  }
  if (p.n_recent > kMaxTokens) {
    return InvalidArgument("recent %u > %u", p.n_recent, kMaxTokens);
  }
  if (p.obs_window < 1 || p.obs_window > kMaxTokens) {
    return InvalidArgument("window %u is not in [1, %u]", p.obs_window,
                           kMaxTokens);
  }
  if (p.keep_window > 1) {
    return InvalidArgument("keep_window %u is not 0 or 1", p.keep_window);
  }
  if (p.pool_kernel % 2 == 0 || p.pool_kernel > kMaxPoolKernel) {
    return InvalidArgument("pool width %u is not an odd number in [1, %u]",
                           p.pool_kernel, kMaxPoolKernel);
  }
  if (p.sum_pool < 1 || p.sum_pool > kMaxPoolKernel) {
    return InvalidArgument("sum_pool %u is not in [1, %u]", p.sum_pool,
                           kMaxPoolKernel);
  }
  if (!(p.pyramid_alpha > 0.0 && p.pyramid_alpha <= 1.0)) {
    return InvalidArgument("alpha %s is not in (0, 1]",
                           NumberText(p.pyramid_alpha).c_str());
  }
  if (p.pyramid_beta < 1) {
    return InvalidArgument("beta %u < 1", p.pyramid_beta);
  }
  for (const auto& [name, tau] :
       {std::pair{"tau1", p.cake_tau1}, std::pair{"tau2", p.cake_tau2}}) {
    if (tau >= 0.01 && tau <= 100.0) continue;
    return InvalidArgument("%s %s is not in [0.01, 100]", name,
                           NumberText(tau).c_str());
  }
  if (!(p.lazy_threshold >= 0.0 && p.lazy_threshold <= 1.0)) {
    return InvalidArgument("lazy %s is not in [0, 1]",
                           NumberText(p.lazy_threshold).c_str());
  }
  if (!(p.row_spread >= 0.0 &&
        p.row_spread <= double{std::numeric_limits<float>::max()})) {
    return InvalidArgument("spread %s is not in [0, 3.4e38]",
                           NumberText(p.row_spread).c_str());
  }
  if (!(p.weight_epsilon >= 0.0 &&
        p.weight_epsilon <= double{std::numeric_limits<float>::max()})) {
    return InvalidArgument("epsilon %s is not in [0, 3.4e38]",
                           NumberText(p.weight_epsilon).c_str());
  }
  if (!(p.redundancy >= 0.0 && p.redundancy <= 1.0)) {
    return InvalidArgument("redundancy %s is not in [0, 1]",
                           NumberText(p.redundancy).c_str());
  }
  if (!(p.similarity >= 0.0 && p.similarity <= 1.0)) {
    return InvalidArgument("similarity %s is not in [0, 1]",
                           NumberText(p.similarity).c_str());
  }
  if (!(p.diverse_mass >= 0.0 && p.diverse_mass <= 1.0)) {
    return InvalidArgument("diverse_mass %s is not in [0, 1]",
                           NumberText(p.diverse_mass).c_str());
  }
  if (p.sum_last > kMaxSumLast) {
    return InvalidArgument("sum_last %u is not in [0, %u]", p.sum_last,
                           kMaxSumLast);
  }
  if (p.sum_raw_first > 1) {
    return InvalidArgument("raw_first %u is not 0 or 1", p.sum_raw_first);
  }
  if (!(p.secure >= 0.0 && p.secure <= 1.0)) {
    return InvalidArgument("secure %s is not in [0, 1]",
                           NumberText(p.secure).c_str());
  }
  if (p.lag_ranks > 1) {
    return InvalidArgument("ranks %u is not 0 or 1", p.lag_ranks);
  }
  if (p.budget_of_partition > 1) {
    return InvalidArgument("of %u is not 0 or 1", p.budget_of_partition);
  }
  if (!(p.head_floor >= 0.0 && p.head_floor <= 1.0)) {
    return InvalidArgument("floor %s is not in [0, 1]",
                           NumberText(p.head_floor).c_str());
  }
  if (!(std::abs(p.score_threshold) <=
        double{std::numeric_limits<float>::max()})) {
    return InvalidArgument("threshold %s is not in [-3.4e38, 3.4e38]",
                           NumberText(p.score_threshold).c_str());
  }
  if (p.select_block < 1 || p.select_block > SlotBlocks::kMostSize) {
    return InvalidArgument("select_block %u is not in [1, %u]", p.select_block,
                           SlotBlocks::kMostSize);
  }
  if (p.head_normalize > 1) {
    return InvalidArgument("normalize %u is not 0 or 1", p.head_normalize);
  }
  if (p.rotate > 1) {
    return InvalidArgument("rotate %u is not 0 or 1", p.rotate);
  }
  if (p.chunk == 1 || p.chunk > kMaxTokens) {
    return InvalidArgument("chunk %u is not 0 or in [2, %u]", p.chunk,
                           kMaxTokens);
  }
  const bool may_be_0 = (SignalOf(p).takes & kBlock) != 0;
  if ((p.block < 2 && !(p.block == 0 && may_be_0)) || p.block > kMaxBlock) {
    return InvalidArgument("block %u is not %sin [2, %u]", p.block,
                           may_be_0 ? "0 or " : "", kMaxBlock);
  }
  return Status();
}

// Shares of the budget.
Status CheckShares(const kvevict_policy& p) {
  struct Share {
    const char* key;
    double value;
    bool of_ratio;
  };
  const Share shares[] = {{"sink", p.sink_share, false},
                          {"recent", p.recent_share, true},
                          {"window", p.window_share, false}};
  const bool has_window = !SignalOf(p).Ranks() && p.n_recent > 0;
  if (TouchesNothing(p)) return Status();
  for (const Share& share : shares) {
    const auto refuse = [&](const char* why) {
      return InvalidArgument("%s %s%s", share.key,
                             NumberText(share.value).c_str(), why);
    };
    if (!(share.value >= 0.0 && share.value < 1.0)) {
      return refuse(" is not a share in [0, 1)");
    }
    if (share.value == 0.0) continue;
    if (!SignalOf(p).Ranks() && (has_window || share.of_ratio)) {
      return refuse(" with streaming-llm: its budget is made of recent");
    }
    if (CountsTokens(p)) continue;
    if (!share.of_ratio) {
      return refuse(
          " with a budget that is a ratio: only recent may be a share");
    }
    if (p.layer_split == KVEVICT_LAYER_SPLIT_LAZY) {
      return refuse(" of a ratio with split lazy");
    }
    if (HasChunks(p)) return refuse(" of a ratio with chunk");
    if (IsBudgetOfPartition(p)) return refuse(" with of partition");
  }
  return Status();
}

// Tokens are secured of each head's own, one by one, so many as it keeps.
Status CheckSecure(const kvevict_policy& p) {
  if (p.secure == 0.0 || !SignalOf(p).Ranks()) return Status();
  const char* with = nullptr;
  if (p.scope == KVEVICT_SCOPE_LAYER) with = "scope layer";
  if (p.scope == KVEVICT_SCOPE_MODEL) with = "scope model";
  if (p.head_split == KVEVICT_HEAD_SPLIT_THRESHOLD) with = "heads threshold";
  if (p.select_block > 1) with = "select_block above 1";
  if (with == nullptr) return Status();
  return InvalidArgument(
      "secure %s with %s: it is a share of the single tokens that a head keeps",
      NumberText(p.secure).c_str(), with);
}

// Blocks are held against each other by what their scores add up to, and stay by
// keys of one layer.
Status CheckVaries(const kvevict_policy& p) {
  if (!Varies(p)) return Status();
  const auto refuse = [&](const char* with, const char* why) {
    return InvalidArgument("diverse_mass %s with %s: %s",
                           NumberText(p.diverse_mass).c_str(), with, why);
  };
  const SignalInfo& signal = SignalOf(p);
  if (!signal.is_mass || p.redundancy > 0.0) {
    return refuse(signal.is_mass ? "redundancy" : signal.text,
                  "it is a share of a mass");
  }
  if (p.scope == KVEVICT_SCOPE_MODEL) {
    return refuse("scope model", "it compares the keys of one layer");
  }
  if (p.rescue > 0) return refuse("rescue", "one or the other");
  if (p.select_block == 1) {
    return refuse("select_block 1", "it is blocks that are compared");
  }
  return Status();
}

// What is done to a chunk must have a meaning there, and number its tokens.
Status CheckChunks(const kvevict_policy& p) {
  if (!HasChunks(p)) return Status();
  const SignalInfo& signal = SignalOf(p);
  if (signal.HasWindow() || signal.Needs(kSums)) {
    return InvalidArgument(
        "chunk %u: %s is of queries that see the whole context", p.chunk,
        signal.text);
  }
  const char* with = nullptr;
  if (CountsByScore(p)) with = "heads that are not equal";
  if (IsBudgetOfPartition(p)) with = "of partition";
  if (p.select_block > 1) with = "select_block above 1";
  if (CountsPrompt(p)) with = "a prompt that is pinned or beside";
  if (with == nullptr && CountsTokens(p) && p.n_sink >= p.chunk) {
    return InvalidArgument(
        "chunk %u <= sink %u, of each chunk: no context longer than budget %s "
        "loses a token",
        p.chunk, p.n_sink, NumberText(p.budget).c_str());
  }
  if (with == nullptr) return Status();
  return InvalidArgument(
      "chunk %u with %s: how many tokens a chunk keeps is known before",
      p.chunk, with);
}

// What only some signals' numbers can be reduced by.
Status CheckReductions(const kvevict_policy& p) {
  const SignalInfo& signal = SignalOf(p);
  if (signal.Needs(kSums) && p.window_reduce == KVEVICT_REDUCE_MAX) {
    return InvalidArgument("rows max is not mean or sum");
  }
  if (signal.Needs(kSums) && p.sum_rows == KVEVICT_SUM_ROWS_LAYER &&
      p.scope == KVEVICT_SCOPE_KV_HEAD) {
    return InvalidArgument(
        "sums layer with scope head: heads that keep different tokens have "
        "sums of their own");
  }
  if (signal.Needs(kSums) && p.sum_last > 0 &&
      (p.sum_rows != KVEVICT_SUM_ROWS_LAYER ||
       p.window_reduce != KVEVICT_REDUCE_SUM)) {
    return InvalidArgument(
        "sum_last %u needs sums layer and rows sum: calls of all heads are "
        "added "
        "up as they are",
        p.sum_last);
  }
  if (signal.Needs(kSums) && p.sum_raw_first != 0 && p.sum_last == 0) {
    return InvalidArgument(
        "raw_first yes needs sum_last above 0: sums of all calls are pooled "
        "call "
        "by call");
  }
  if (!signal.IsOfQueryHeads() ||
      p.shaping_order != KVEVICT_SHAPING_REDUCE_LOGITS) {
    return Status();
  }
  if (!signal.HasWindow()) {
    return InvalidArgument("order reduce-logits: %s has no logits to reduce",
                           signal.text);
  }
  if (p.group_reduce == KVEVICT_REDUCE_MAX) return Status();
  return InvalidArgument(
      "order reduce-logits with group %s: only max reduces "
      "logits",
      p.group_reduce == KVEVICT_REDUCE_SUM ? "sum" : "mean");
}

// What wants to know how the weights of a window's rows vary, or what they make of
// their layer, by the names of the text form.
Status CheckMeasured(const kvevict_policy& p, const char* key,
                     const char* value, uint32_t least_window) {
  const SignalInfo& signal = SignalOf(p);
  if (!signal.HasWindow()) {
    return InvalidArgument("%s %s: %s has no window's rows to measure", key,
                           value, signal.text);
  }
  if (p.obs_window < least_window || p.obs_window > kMaxMeasuredWindow) {
    return InvalidArgument("%s %s: window %u is not in [%u, %u]", key, value,
                           p.obs_window, least_window, kMaxMeasuredWindow);
  }
  if (p.window_reduce == KVEVICT_REDUCE_MEAN &&
      p.row_weight == KVEVICT_ROW_WEIGHT_NONE &&
      p.shaping_order != KVEVICT_SHAPING_REDUCE_LOGITS) {
    return Status();
  }
  return InvalidArgument(
      "%s %s: needs rows mean, row_weight none and an order other than "
      "reduce-logits",
      key, value);
}

Status CheckMeasures(const kvevict_policy& p) {
  if (SignalOf(p).HasWindow() && p.row_spread > 0.0) {
    KV_RETURN_IF_ERROR(
        CheckMeasured(p, "spread", NumberText(p.row_spread).c_str(), 2));
  }
  if (!SplitsByScore(p)) return Status();
  return CheckMeasured(p, "split", SplitText(p.layer_split),
                       MeasureOf(p) == Measure::kDynamics ? 2 : 1);
}

// Of a budget per partition: what the partitions lose that are compared with one
// behind them.
uint64_t PartitionLoss(const kvevict_policy& p, uint32_t n_context) {
  const uint32_t n = n_context - std::min(n_context, p.n_sink);
  if (n / p.block < 2) return 0;
  const double budget = p.budget <= 1.0 ? p.budget * p.block : p.budget;
  const auto keep = static_cast<uint32_t>(
      std::min(std::floor(budget), static_cast<double>(p.block)));
  return uint64_t{n / p.block - 1} * (p.block - keep);
}

// The fewest tokens of a budget that has room for what must stay.
uint64_t LeastRoom(const kvevict_policy& p) {
  if (TouchesNothing(p)) return 0;
  const SignalInfo& signal = SignalOf(p);
  const uint64_t sink = p.n_sink;
  if (!signal.Ranks()) return sink + 1;
  // The window chooses a token at least, but for a lazy layer.
  const bool selects =
      signal.HasWindow() && p.layer_split != KVEVICT_LAYER_SPLIT_LAZY;
  return sink + RecentTokens(p) + selects;
}

Status CheckForced(const kvevict_policy& p, uint64_t budget) {
  const uint64_t least = LeastRoom(p);
  if (least <= budget) return Status();
  const auto tokens = static_cast<unsigned long long>(budget);
  const SignalInfo& signal = SignalOf(p);
  if (!signal.Ranks()) {
    return InvalidArgument("sink %u >= budget %llu", p.n_sink, tokens);
  }
  const uint64_t recent = RecentTokens(p);
  const bool is_window =
      signal.HasWindow() && p.keep_window != 0 && p.obs_window >= p.n_recent;
  return InvalidArgument("sink %u + %s %llu %s budget %llu", p.n_sink,
                         is_window ? "window" : "recent",
                         static_cast<unsigned long long>(recent),
                         least > p.n_sink + recent ? ">=" : ">", tokens);
}

double TokenBudget(const kvevict_policy& p) {
  if (!SignalOf(p).Ranks() && p.n_recent > 0) {
    return double{1} * p.n_sink + p.n_recent;
  }
  return p.budget;
}

// The budget in whole blocks, whether or not what must stay has room in it.
uint32_t WholeBudget(const kvevict_policy& p, uint32_t n_context) {
  const SlotBlocks blocks = BlocksOf(p);
  const double exact = std::floor(ExactBudget(p, n_context));
  return blocks.TokensOf(
      static_cast<uint32_t>(
          std::clamp(exact, 1.0, static_cast<double>(blocks.Count(n_context)))),
      n_context);
}

// What chunks keep at least has to fit too.
Status CheckLeast(const kvevict_policy& p, uint32_t n_context,
                  uint32_t budget) {
  if (!HasChunks(p)) return Status();
  const Chunks chunks(p, n_context);
  if (budget == n_context || chunks.Least() <= budget) return Status();
  return InvalidArgument(
      "budget %u < %llu tokens that %u chunks of %u keep: sink %u of each, "
      "recent %u, or one",
      budget, static_cast<unsigned long long>(chunks.Least()), chunks.Count(),
      p.chunk, p.n_sink, p.n_recent);
}

// The blocks in which lies what must stay have to fit too, of caches of any length:
// the last ones may begin up to a slot less than a block early.
Status CheckBlocks(const kvevict_policy& p) {
  if (Rescues(p) && p.select_block == 1) {
    return InvalidArgument(
        "rescue %u with select_block 1: it is blocks that are rescued",
        p.rescue);
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
  const uint64_t sink = BlocksOf(p).RoundUp(p.n_sink);
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

const PolicyInfo* FindPolicy(kvevict_policy_kind kind) {
  for (const PolicyInfo& info : kPolicies) {
    if (info.kind == kind) return &info;
  }
  return nullptr;
}

Measure MeasureOf(const kvevict_policy& policy) {
  return kMeasures[policy.layer_split];
}

bool CountsByScore(const kvevict_policy& policy) {
  return SignalOf(policy).Ranks() &&
         policy.head_split != KVEVICT_HEAD_SPLIT_EQUAL;
}

bool HeadsCompete(const kvevict_policy& policy) {
  return CountsByScore(policy) &&
         policy.head_split != KVEVICT_HEAD_SPLIT_THRESHOLD;
}

bool Rescues(const kvevict_policy& policy) {
  return SignalOf(policy).Ranks() && policy.rescue > 0;
}

bool Varies(const kvevict_policy& policy) {
  return SignalOf(policy).Ranks() && policy.diverse_mass > 0.0;
}

bool ScoresAreMass(const kvevict_policy& policy) {
  const bool secures =
      policy.secure > 0.0 && policy.value_weight != KVEVICT_VALUE_WEIGHT_NONE;
  return SignalOf(policy).is_mass && policy.redundancy == 0.0 && !secures &&
         !Rescues(policy) && !Varies(policy);
}

uint64_t RescuedTokens(const kvevict_policy& policy) {
  return Rescues(policy) ? uint64_t{policy.rescue} * policy.select_block : 0;
}

bool TouchesNothing(const kvevict_policy& policy) {
  return !FindPolicy(policy.kind)->Evicts();
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

Status ValidatePolicy(const kvevict_policy& policy) {
  if (FindPolicy(policy.kind) == nullptr) {
    return InvalidArgument("kind %d is no policy",
                           static_cast<int>(policy.kind));
  }
  KV_RETURN_IF_ERROR(CheckEnums(policy));
  KV_RETURN_IF_ERROR(CheckNumbers(policy));
  KV_RETURN_IF_ERROR(CheckShares(policy));
  const kvevict_policy p = InTokens(policy, kMaxTokens);
  KV_RETURN_IF_ERROR(ValidateMerge(MergeOf(p)));
  KV_RETURN_IF_ERROR(CheckReductions(p));
  KV_RETURN_IF_ERROR(CheckMeasures(p));
  if (p.scope == KVEVICT_SCOPE_MODEL &&
      p.layer_split != KVEVICT_LAYER_SPLIT_UNIFORM) {
    return InvalidArgument(
        "split %s with scope model: one keep list needs the same budget in "
        "every layer",
        SplitText(p.layer_split));
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
        PromptText(p.prompt));
  }
  KV_RETURN_IF_ERROR(CheckSecure(p));
  KV_RETURN_IF_ERROR(CheckVaries(p));
  KV_RETURN_IF_ERROR(CheckChunks(p));
  // A ratio can be judged only against a context; a token count already here.
  const double budget = CountsTokens(p) ? TokenBudget(p) : kMaxTokens;
  KV_RETURN_IF_ERROR(CheckForced(
      p, static_cast<uint64_t>(std::min<double>(budget, kMaxTokens))));
  return CheckBlocks(p);
}

SlotBlocks BlocksOf(const kvevict_policy& p) {
  return {TouchesNothing(p) ? 1 : p.select_block};
}

bool HasChunks(const kvevict_policy& p) {
  return SignalOf(p).Ranks() && p.chunk > 0;
}

uint32_t ChunkTokens(const kvevict_policy& p, uint32_t n_tokens) {
  return HasChunks(p) ? std::min(p.chunk, n_tokens) : n_tokens;
}

const char* PromptText(kvevict_prompt prompt) {
  constexpr const char* kTexts[] = {"inside", "beside", "pinned",
                                    "pinned-beside", "at-end"};
  return kTexts[prompt];
}

bool IsPromptPinned(const kvevict_policy& p) {
  return p.prompt == KVEVICT_PROMPT_PINNED ||
         p.prompt == KVEVICT_PROMPT_PINNED_BESIDE;
}

bool IsPromptBeside(const kvevict_policy& p) {
  return p.prompt == KVEVICT_PROMPT_BESIDE ||
         p.prompt == KVEVICT_PROMPT_PINNED_BESIDE;
}

bool IsBudgetOfPartition(const kvevict_policy& p) {
  return SignalOf(p).Needs(kPartitions) && p.budget_of_partition != 0;
}

double ExactBudget(const kvevict_policy& p, uint32_t n_context) {
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

bool CountsTokens(const kvevict_policy& p) {
  if (IsBudgetOfPartition(p)) return false;
  return p.budget > 1.0 || (!SignalOf(p).Ranks() && p.n_recent > 0);
}

kvevict_policy InTokens(const kvevict_policy& policy, uint32_t n_context) {
  kvevict_policy p = policy;
  const bool has_shares =
      p.sink_share > 0.0 || p.recent_share > 0.0 || p.window_share > 0.0;
  if (!has_shares || TouchesNothing(p)) return p;
  const double budget = CountsTokens(p)
                            ? std::min(p.budget, double{kMaxTokens})
                            : WholeBudget(p, std::max(1u, n_context));
  const auto count = [&](double* share, uint32_t* n) {
    if (*share > 0.0) *n = static_cast<uint32_t>(std::floor(budget) * *share);
    *share = 0.0;
  };
  count(&p.sink_share, &p.n_sink);
  count(&p.recent_share, &p.n_recent);
  count(&p.window_share, &p.obs_window);
  p.obs_window = std::max(1u, p.obs_window);
  return p;
}

bool LacksRoom(const kvevict_policy& policy, uint32_t n_context) {
  if (TouchesNothing(policy)) return false;
  const kvevict_policy p = InTokens(policy, n_context);
  const uint32_t budget = WholeBudget(p, n_context);
  if (budget >= n_context) return false;
  if (LacksQueries(p, n_context)) return true;
  const ForcedSlots forced(BlocksOf(p), p.n_sink, ForcedRecentTokens(p),
                           n_context);
  return !CountsTokens(policy) &&
         std::max(LeastRoom(p), forced.ends()) > budget;
}

bool LacksQueries(const kvevict_policy& policy, uint32_t n_context) {
  return SignalOf(policy).HasWindow() &&
         n_context < InTokens(policy, n_context).obs_window;
}

uint32_t BudgetTokens(const kvevict_policy& p, uint32_t n_context) {
  return LacksRoom(p, n_context) ? n_context : WholeBudget(p, n_context);
}

uint32_t RecentTokens(const kvevict_policy& p) {
  const bool window = SignalOf(p).HasWindow() && p.keep_window != 0;
  return window ? std::max(p.n_recent, p.obs_window) : p.n_recent;
}

uint32_t ForcedRecentTokens(const kvevict_policy& p) {
  if (TouchesNothing(p)) return 0;
  return SignalOf(p).Ranks() ? RecentTokens(p) : 1;
}

kvevict_tie TieOf(const kvevict_policy& p) {
  return SignalOf(p).Ranks() ? p.tie : KVEVICT_TIE_HIGHER_POSITION;
}

Status ResolvePolicy(const kvevict_policy& policy, uint32_t n_context,
                     kvevict_resolved_policy* out) {
  const kvevict_policy p = InTokens(policy, n_context);
  const SignalInfo& signal = SignalOf(p);
  const uint32_t budget = BudgetTokens(p, n_context);
  KV_RETURN_IF_ERROR(CheckLeast(p, n_context, budget));
  out->budget = budget;
  out->n_sink = 0;
  out->n_recent = 0;
  if (!TouchesNothing(p)) {
    const uint64_t sink = HasChunks(p) ? Chunks(p, n_context).Sinks()
                                       : BlocksOf(p).RoundUp(p.n_sink);
    out->n_sink = static_cast<uint32_t>(std::min<uint64_t>(sink, budget));
    out->n_recent = budget - out->n_sink;
  }
  if (signal.Ranks()) {
    const uint32_t recent = BlocksOf(p).Recent(RecentTokens(p), n_context);
    out->n_recent = std::min(recent, out->n_recent);
  }
  out->n_selected = budget - out->n_sink - out->n_recent;
  out->obs_window = signal.HasWindow() ? p.obs_window : 0;
  out->scores_are_mass = ScoresAreMass(p);
  return Status();
}

}  // namespace kvevict
