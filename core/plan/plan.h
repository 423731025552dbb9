// The checked geometry and policy, and the layout of the workspace that they
// need.
#ifndef KVEVICT_CORE_PLAN_PLAN_H_
#define KVEVICT_CORE_PLAN_PLAN_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/context.h"
#include "core/evict/merge.h"
#include "core/memory/device_array.h"
#include "core/policy/policy.h"
#include "core/policy/shaping.h"
#include "core/signals/signal.h"
#include "core/status.h"
#include "core/view/rope.h"
#include "kvevict/experimental.h"

namespace kvevict {

// The most layers whose rows per query head are in memory at once.
inline constexpr uint32_t kMostApart = 16;

// Sizes of a workspace. Calls run in any size from `least` on with the same
// results, and gain nothing from more than `best`.
struct WorkspaceNeeds {
  CheckedSize least{0};
  CheckedSize best{0};

  bool ok() const { return least.ok() && best.ok(); }
  // Grows to what serves both.
  void GrowTo(const WorkspaceNeeds& other) {
    if (other.least.value() > least.value()) least = other.least;
    if (other.best.value() > best.value()) best = other.best;
  }
};

// The parts of an eviction's workspace, as offsets. Operations run one after
// the other, so they share their scratch. Once the keep lists are written
// nobody reads the rest, which becomes compaction's scratch.
struct EvictWorkspace {
  size_t keep = 0;  // i32 keep lists of all layers, end to end
  // The number of layers whose scores are in memory at once.
  uint32_t n_layers = 0;
  // f32 [n_layers, n_kv_heads or 1, ChunkTokens()]; keys replace them
  size_t scores = 0;
  // f32 [kMostApart or fewer, n_q_heads, ChunkTokens()], if shaping needs them
  size_t rows = 0;
  size_t keys = 0;      // u32, shaped like scores, if Plan::NeedsKeys()
  size_t masses = 0;    // f32, shaped like scores, if a mass is secured
  size_t measures = 0;  // LayerMeasure [n_layers], if the split reads them
  size_t winners = 0;   // ListWinners [n_lists], if layers compete
  size_t scratch = 0;
  size_t bytes = 0;
};

// The parts of a workspace that scores layers.
struct ScoreWorkspace {
  uint32_t n_layers = 0;  // scored at once
  // f32 [n_layers, n_q_heads, n_tokens], if shaping needs them
  size_t rows = 0;
  size_t scratch = 0;
  size_t bytes = 0;
};

// A layer of a plan, which has a full cache. Wherever the core counts layers it
// counts these only. Messages and reports use the model's numbers.
struct PlanLayer {
  kvevict_layer_geometry geometry;
  uint32_t number;      // in the model
  uint32_t n_lists;     // lists of slots to keep
  uint32_t first_list;  // index of its first list in the lists of all layers
  // The bytes that one position takes in the query rows of all layers before.
  uint64_t query_bytes_before;
  uint64_t q_heads_before;
  uint64_t sum_rows_before;  // in sums

  float softmax_scale() const;
  // Bytes of one position's query rows.
  uint64_t query_bytes() const;
};

// Whether layers can share a launch.
bool AreAlike(const PlanLayer& a, const PlanLayer& b);

class Plan {
 public:
  // `layers` has one element for all layers or one for each.
  static Status Create(const Context& context, const kvevict_geometry& geometry,
                       std::span<const kvevict_layer_geometry> layers,
                       const Policy& policy,
                       const kvevict_plan_options& options, Plan** out);

  Plan(const Context& context, const kvevict_geometry& geometry,
       const Policy& policy)
      : context_(context),
        n_model_layers_(geometry.n_layers),
        max_tokens_(geometry.max_tokens),
        policy_(policy),
        layers_(context),
        places_(context),
        rope_(context),
        sinks_(context),
        head_budgets_(context),
        layer_budgets_(context) {}

  void Ref() const { n_refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() const;

  const Context& context() const { return *context_; }
  uint32_t n_model_layers() const { return n_model_layers_; }
  uint32_t max_tokens() const { return max_tokens_; }
  uint32_t n_layers() const { return static_cast<uint32_t>(layers_.size()); }
  const PlanLayer& layer(uint32_t l) const { return layers_[l]; }
  std::span<const PlanLayer> layers() const {
    return {layers_.data(), layers_.size()};
  }
  // The plan's index of a layer by its number in the model. Negative if its
  // cache is not full.
  int32_t Find(uint32_t number) const { return places_[number]; }
  kvevict_layer_cache CacheKindOf(uint32_t number) const {
    return static_cast<kvevict_layer_cache>(std::max(0, -places_[number]));
  }
  const Policy& policy() const { return policy_; }
  // The policy with the layer's own budget, if layers have one each.
  Policy PolicyOf(uint32_t layer) const;
  const Rope& rope() const { return rope_; }
  // The natural sink logits of a layer's query heads, in device memory; NULL if
  // it has none.
  const float* SinksOf(const PlanLayer& layer) const {
    return has_sinks_ ? sinks_.data() + layer.q_heads_before : nullptr;
  }
  const SignalInfo& signal() const { return SignalOf(policy_); }
  const ScoreOp& score_op() const {
    return *(context().backend().*signal().op);
  }
  // Whether scoring needs the input.
  bool Needs(kvevict_input input) const {
    return ScoringNeedOf(policy_, input) == KVEVICT_NEED_REQUIRED;
  }
  // The rows of the caches that scoring reads.
  bool ReadsKeys() const { return Needs(KVEVICT_INPUT_KEYS); }
  bool ReadsValues() const { return Needs(KVEVICT_INPUT_VALUES); }
  bool ReadsRows() const { return ReadsKeys() || ReadsValues(); }
  // True if scoring may read queries and keys that the signal can do without.
  bool MayReadQueries() const { return signal().Needs(kSums); }
  // True if shaped scores are multiplied by weights.
  bool AppliesWeights() const {
    return signal().Ranks() && policy_.weight != ValueWeight::kNone;
  }
  // The most scratch that an operation on scores needs for n_layers like
  // layers.
  ScratchNeeds NeedsOf(decltype(Op<ScoreArgs>::scratch) scratch,
                       uint32_t n_layers, uint32_t n_tokens) const;
  // True if redundancy is subtracted from weighted scores.
  bool SubtractsRedundancy() const {
    return signal().Ranks() && policy_.redundancy > 0.0;
  }
  // True if weights are applied before shaping.
  bool WeighsRows() const {
    return AppliesWeights() && signal().IsOfQueryHeads() &&
           policy_.order == ShapingOrder::kWeighPool;
  }
  // True if shaped scores are raised to the mean of their head.
  bool RaisesToMean() const {
    return signal().Ranks() && policy_.prior == Prior::kMean;
  }
  // True if final scores are standardised.
  bool Standardizes() const { return signal().Ranks() && policy_.standardize; }
  // True if standardised leverage is added to them.
  bool AddsLeverage() const {
    return signal().Ranks() && kvevict::AddsLeverage(policy_);
  }
  // True if shaped scores are changed further.
  bool Refines() const { return AppliesWeights() || SubtractsRedundancy(); }
  // True if keys are processed block by block and only the budget's tokens stay
  // after each.
  bool KeepsByBlocks() const {
    return (signal().takes & kBlock) != 0 && policy_.block > 0;
  }
  // How evicted rows are merged into rows that stay.
  Merge merge() const {
    return TouchesNothing(policy_) ? Merge() : MergeOf(policy_);
  }
  // True if an eviction changes rows that stay, apart from rotating keys.
  bool RewritesRows() const { return merge().Merges() || FitsValues(policy_); }
  // True if some tokens are chosen by shaped scores before those are refined.
  bool PinsBest() const { return Refines() && policy_.secure > 0.0; }
  // True if scores of heads are brought to one scale before they compete.
  bool ScalesByBestShare() const {
    return HeadsCompete(policy_) && policy_.normalize != 0;
  }
  bool NeedsBest() const {
    return PinsBest() || ScalesByBestShare() || RescuesBlocks(policy_) ||
           DiversifiesBlocks(policy_) || SecuresValues(policy_);
  }
  // True if evictions measure the kept mass and the policy's scores are a mass.
  bool ReportsMass() const { return reports_mass_ && ScoresAreMass(policy_); }
  // True if keys have memory of their own and do not replace scores.
  bool NeedsKeys() const {
    return NeedsBest() || ReportsMass() || LayersCompete(policy_);
  }
  // True if sequences have room for the destinations of an eviction.
  bool HasDestinations() const { return has_destinations_; }
  // True if the policy scores by the window's queries.
  bool ObservesQueries() const { return WindowScores(policy_); }
  // The query rows that a sequence keeps. A trim by draft_tokens still leaves a
  // window.
  uint32_t QueryRingRows() const {
    return policy_.window.count + draft_tokens_;
  }
  // True if the policy scores by attention that a sequence may add up, or by
  // the caller's scores, which it may keep with the slots as if they were sums
  // of one call each.
  bool ObservesSums() const {
    return signal().Needs(kSums) || ObservesScores();
  }
  bool ObservesScores() const { return signal().Needs(kScores); }
  // The rows in memory for each row of sums. With single calls the first is
  // their sum.
  uint32_t RowsPerSum() const {
    return policy_.sum_last == 0 ? 1 : policy_.sum_last + 1;
  }
  // The rows of sums of a layer, if ObservesSums().
  uint32_t SumRowsOf(const PlanLayer& layer) const;
  // How a layer's scores are shaped.
  Shaping ShapingOf(const PlanLayer& layer) const;
  // What shares a keep list. If nothing is ranked and heads have no budgets of
  // their own, all heads keep the same.
  kvevict_scope scope() const;
  // The lists of all layers. Under scope MODEL each layer has one and all are
  // equal.
  uint32_t n_lists() const {
    const PlanLayer& last = layers_[n_layers() - 1];
    return last.first_list + last.n_lists;
  }
  // True if the lists of a layer may have different lengths.
  bool IsRagged() const { return HasHeadBudgets() || CountsByScore(policy_); }
  bool HasHeadBudgets() const { return head_budgets_.size() > 0; }
  bool HasLayerBudgets() const { return layer_budgets_.size() > 0; }
  // The most that a list keeps in a layer that has `budget`.
  uint32_t MostOfList(const PlanLayer& layer, uint32_t budget,
                      uint32_t n_tokens) const;
  // The budget of each list of a layer. Only if heads have budgets of their
  // own.
  std::span<const uint32_t> HeadBudgets(uint32_t layer) const {
    return {head_budgets_.data() + layers_[layer].first_list,
            layers_[layer].n_lists};
  }
  // The context from which budgets are computed when a list holds n_tokens of
  // n_seen. It is at most max_tokens, and its last block is as full as the
  // list's.
  uint32_t ContextOf(uint32_t n_seen, uint32_t n_tokens) const;
  // The tokens that each layer keeps of a context, per head. If heads have
  // budgets of their own it is the largest.
  Status LayerBudgets(uint32_t n_context, std::span<uint32_t> budgets) const;
  // The same for one layer. Only if layers have budgets of their own.
  Status LayerBudget(uint32_t layer, uint32_t n_context, uint32_t* out) const;
  // True if the keep lists of all layers are always equal.
  bool LayersKeepAlike() const;
  // Elements of the keep lists of all layers together.
  size_t keep_capacity() const { return keep_capacity_; }
  // Elements of the scores of all layers at max_tokens, or of one chunk of each
  // layer.
  size_t n_scores() const;

  // Only a device that is not the host reads log-sum-exps.
  bool ReadsLse() const { return !context().backend().on_host; }
  // Bytes of the query rows of all layers, followed by log-sum-exps.
  CheckedSize QueryMemory(CheckedSize* out_lse_offset) const;
  // Bytes of the sums of all layers.
  CheckedSize SumMemory() const;
  // n_tokens is the longest layer's, in 1 .. max_tokens.
  WorkspaceNeeds WorkspaceFor(kvevict_operation operation,
                              uint32_t n_tokens) const;
  // `bytes` is at least the least.
  EvictWorkspace LayOutEvict(uint32_t n_tokens, size_t bytes) const;
  ScoreWorkspace LayOutScore(uint32_t n_layers, uint32_t n_tokens,
                             size_t bytes) const;

  // Compiles what scoring launches.
  Status PrepareScoring() const;

  kvevict_reason ScoreReason(const PlanLayer& layer,
                             bool by_queries = false) const;
  // UNSUPPORTED, with the reason, if a layer cannot be scored. With by_queries
  // also if its keys and queries cannot be read, whatever the signal needs.
  Status CheckCanScore(const PlanLayer& layer, bool by_queries = false) const;
  // The same for merging and fitting.
  kvevict_reason RewriteReason(const PlanLayer& layer) const;
  Status CheckCanRewrite(const PlanLayer& layer) const;

  kvevict_reason RotateReason(const PlanLayer& layer) const;
  // UNSUPPORTED, with the reason, if a layer's keys cannot be rotated.
  Status CheckCanRotate(const PlanLayer& layer) const;

 private:
  Status CopyLayers(std::span<const kvevict_layer_geometry> layers);
  Status CopyRope(const kvevict_geometry& geometry);
  Status CopySinks(const kvevict_geometry& geometry);
  Status CopyBudgets(const kvevict_plan_options& options);
  Status CopyHeadBudgets(const kvevict_plan_options& options);
  Status CheckHeadBudgets() const;
  Status CopyLayerBudgets(const kvevict_plan_options& options);
  bool LayerBudgetsAreEqual() const;
  Status CopyFlags(const kvevict_plan_options& options);
  Status CheckFitRows() const;
  void CountLists();
  // Elements of the keep lists of all layers.
  CheckedSize KeepCapacity() const;
  CheckedSize KeepCapacityOfHeads() const;
  CheckedSize KeepCapacityOfLayers() const;
  Status CheckSizes();
  // Whether the policy's own signal can score a layer.
  bool CanScore(const PlanLayer& layer) const;
  // The most rows of scores or keys in any layer.
  uint32_t MostRows() const;
  CheckedSize ApartRows(uint32_t n_layers, uint32_t n_tokens) const;
  // The parts up to the scratch; sets what the scratch needs.
  EvictWorkspace EvictParts(uint32_t n_layers, uint32_t n_tokens,
                            WorkspaceNeeds* needs) const;
  ScoreWorkspace ScoreParts(uint32_t n_layers, uint32_t n_tokens,
                            WorkspaceNeeds* needs) const;
  // The most bytes that merging the rows of any layer, or fitting them, needs.
  CheckedSize RewriteBytes(uint32_t n_tokens) const;
  uint32_t FewestLayersAtOnce() const;

  const Retained<Context> context_;
  const uint32_t n_model_layers_;
  const uint32_t max_tokens_;
  const Policy policy_;
  Array<PlanLayer> layers_;
  // [n_model_layers], see Find(). A negative element is minus the kind of
  // cache.
  Array<int32_t> places_;
  Rope rope_;
  DeviceArray<float> sinks_;  // of the query heads of all layers, or empty
  bool has_sinks_ = false;
  Array<uint32_t> head_budgets_;  // [n_lists], or empty
  Array<double> layer_budgets_;   // [n_layers], or empty
  bool reports_mass_ = false;
  bool has_destinations_ = false;
  uint32_t draft_tokens_ = 0;
  size_t keep_capacity_ = 0;
  mutable std::atomic<uint32_t> n_refs_{1};
};

const char* ReasonText(kvevict_reason reason);

// Checks that device memory, called `name` in messages, is not NULL, is large
// enough and is aligned.
Status CheckMemory(const char* name, const Context& context, const void* memory,
                   size_t memory_bytes, size_t needed_bytes);

// The same for a workspace, which needs at least `needs.least`.
Status CheckWorkspace(const Context& context, const void* workspace,
                      size_t workspace_bytes, const WorkspaceNeeds& needs);

}  // namespace kvevict

#endif  // KVEVICT_CORE_PLAN_PLAN_H_
