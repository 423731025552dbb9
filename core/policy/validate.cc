// Which parameters go together.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/evict/merge.h"
#include "core/number_text.h"
#include "core/parts.h"
#include "core/policy/policy.h"
#include "core/policy/policy_text.h"

namespace kvevict {
namespace {

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

// Single tokens are secured, as many of each head.
Status CheckSecureValues(const Policy& p) {
  if (!SecuresValues(p)) return Status();
  const char* with = nullptr;
  if (p.scope != KVEVICT_SCOPE_KV_HEAD) with = "scope other than head";
  if (p.heads != HeadRule::kEqual) with = "heads that are not equal";
  if (LayersCompete(p)) with = "split scores";
  if (p.select_block > 1) with = "select_block above 1";
  if (p.secure > 0.0) with = "secure";
  if (HasChunks(p)) with = "chunk";
  if (with == nullptr) return Status();
  const CountOrShare& n = p.secure_values;
  return InvalidArgument(
      "secure_values %s with %s: it counts single tokens of each head",
      NumberText(n.share > 0.0 ? n.share : n.count).c_str(), with);
}

// What makes scores something other than shares of attention; NULL: nothing.
const char* WhyNoMass(const Policy& p) {
  if (!SignalOf(p).is_mass) return SignalOf(p).text;
  if (p.redundancy > 0.0) return "redundancy";
  if (p.standardize) return "standardize yes";
  return AddsLeverage(p) ? "leverage" : nullptr;
}

// Tokens are drawn one by one, by scores that are not negative.
Status CheckDraw(const Policy& p) {
  if (!Draws(p)) return Status();
  if (const char* why = WhyNoMass(p); why != nullptr) {
    return InvalidArgument("draw yes with %s: its scores are no shares", why);
  }
  const char* with = nullptr;
  if (p.scope != KVEVICT_SCOPE_KV_HEAD) with = "scope other than head";
  if (p.heads == HeadRule::kThreshold) with = "heads threshold";
  if (p.select_block > 1) with = "select_block above 1";
  if (HasChunks(p)) with = "chunk";
  if (with == nullptr) return Status();
  return InvalidArgument(
      "draw yes with %s: single tokens of each head are drawn", with);
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
  if (const char* why = WhyNoMass(p); why != nullptr) {
    return refuse(why, "it is a share of a mass");
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

// Values are fitted in place, to queries and to keys that stay as they are.
Status CheckFit(const Policy& p) {
  if (!FitsValues(p)) return Status();
  if (!IsBuilt("fit_values")) {
    return Unsupported("fit values: this build leaves it out");
  }
  if (MergeOf(p).Merges()) {
    return InvalidArgument("fit values with merge: either changes values");
  }
  if (p.rotate) {
    return InvalidArgument(
        "fit values with rotate yes: values are fitted to keys that would "
        "change");
  }
  if (SignalOf(p).HasWindow() || p.reference > 0) return Status();
  return InvalidArgument(
      "fit values needs reference above 0: %s has no window whose queries "
      "values can be fitted to",
      InfoOf(p.kind).name);
}

// Rows of different weight have no variance, and a split measures the window.
Status CheckReference(const Policy& p) {
  if (p.reference > 0 && !TouchesNothing(p) && !TakesReference(p)) {
    return InvalidArgument(
        "reference %u without fit: %s scores by no queries of a window",
        p.reference, InfoOf(p.kind).name);
  }
  if (!HasReference(p)) return Status();
  if (p.spread > 0.0) {
    return InvalidArgument(
        "reference %u with spread %s: rows count alike in it", p.reference,
        NumberText(p.spread).c_str());
  }
  if (!MeasuresLayers(p)) return Status();
  return InvalidArgument(
      "reference %u with split %s: it measures the rows of a window",
      p.reference, WordOf(p.split));
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

// The blocks that contain what must stay have to fit too, for caches of any
// length. The last ones may begin up to one slot less than a block early.
Status CheckBlocks(const Policy& p) {
  if (RescuesBlocks(p) && p.select_block == 1) {
    return InvalidArgument(
        "rescue %u with select_block 1: only blocks are rescued", p.rescue);
  }
  if (RescuesBlocks(p) && SignalOf(p).Needs(kSums) &&
      p.rows == KVEVICT_REDUCE_MEAN && p.scope == KVEVICT_SCOPE_MODEL) {
    return InvalidArgument(
        "rescue %u with rows mean and scope model: blocks are marked by the "
        "sums of one layer",
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
  KV_RETURN_IF_ERROR(CheckReference(p));
  KV_RETURN_IF_ERROR(CheckFit(p));
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
  KV_RETURN_IF_ERROR(CheckSecureValues(p));
  KV_RETURN_IF_ERROR(CheckDraw(p));
  KV_RETURN_IF_ERROR(CheckVaries(p));
  KV_RETURN_IF_ERROR(CheckChunks(p));
  KV_RETURN_IF_ERROR(CheckForced(p));
  return CheckBlocks(p);
}

}  // namespace kvevict
