// Geometry and policy, checked once, and the layout of the workspace they need.
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

// Layers whose query heads' rows lie apart at a time.
inline constexpr uint32_t kMostApart = 16;

// Bytes of a workspace: calls run in any size from the least on, to the same
// results, and gain nothing from more than the best.
struct WorkspaceNeeds {
  CheckedSize least{0};
  CheckedSize best{0};

  bool ok() const { return least.ok() && best.ok(); }
  // To what serves both.
  void GrowTo(const WorkspaceNeeds& other) {
    if (other.least.value() > least.value()) least = other.least;
    if (other.best.value() > best.value()) best = other.best;
  }
};

// The parts of an eviction's workspace, as offsets. Operations run one after the
// other, so they share their scratch. Once the keep lists are there nobody reads
// the rest, which then is compaction's scratch.
struct EvictWorkspace {
  size_t keep = 0;  // i32 keep lists of all layers, end to end
  // Layers whose scores are there at once.
  uint32_t n_layers = 0;
  // f32 [n_layers, n_kv_heads or 1, ChunkTokens()], become keys
  size_t scores = 0;
  // f32 [kMostApart or fewer, n_q_heads, ChunkTokens()], where shaping wants them
  size_t rows = 0;
  size_t keys = 0;      // u32, as scores, where Plan::NeedsKeys()
  size_t measures = 0;  // LayerMeasure [n_layers], where a split wants them
  size_t scratch = 0;
  size_t bytes = 0;
};

// The parts of the scoring of layers.
struct ScoreWorkspace {
  uint32_t n_layers = 0;  // at once
  // f32 [n_layers, n_q_heads, n_tokens], where shaping wants them
  size_t rows = 0;
  size_t scratch = 0;
  size_t bytes = 0;
};

// A layer of a plan. Only those with a full cache are: wherever the core counts
// layers it counts these, and what is said to a caller has the model's numbers.
struct PlanLayer {
  kvevict_layer_geometry geometry;
  uint32_t number;      // in the model
  uint32_t n_lists;     // of slots to keep
  uint32_t first_list;  // where the lists of all layers lie end to end
  // What a position takes in the query rows of the layers before.
  uint64_t query_bytes_before;
  uint64_t q_heads_before;
  uint64_t sum_rows_before;  // in sums of attention

  float softmax_scale() const;
  // Rows of queries of one position.
  uint64_t query_bytes() const;
};

// Whether layers can be in one launch.
bool AreAlike(const PlanLayer& a, const PlanLayer& b);

class Plan {
 public:
  // `layers`: one that all have, or one for each.
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
  // A layer of the model, by its number there; negative: its cache is not full.
  int32_t Find(uint32_t number) const { return places_[number]; }
  kvevict_layer_cache CacheKindOf(uint32_t number) const {
    return static_cast<kvevict_layer_cache>(std::max(0, -places_[number]));
  }
  const Policy& policy() const { return policy_; }
  // As if a layer were alone: with its own budget, where layers have such.
  Policy PolicyOf(uint32_t layer) const;
  const Rope& rope() const { return rope_; }
  // Logits of a layer's query heads in device memory, natural; NULL: it has none.
  const float* SinksOf(const PlanLayer& layer) const {
    return has_sinks_ ? sinks_.data() + layer.q_heads_before : nullptr;
  }
  const SignalInfo& signal() const { return SignalOf(policy_); }
  const ScoreOp& score_op() const {
    return *(context().backend().*signal().op);
  }
  // To score.
  bool Needs(kvevict_input input) const {
    return ScoringNeedOf(policy_, input) == KVEVICT_NEED_REQUIRED;
  }
  // What scoring reads of the caches' rows.
  bool ReadsKeys() const { return Needs(KVEVICT_INPUT_KEYS); }
  bool ReadsValues() const { return Needs(KVEVICT_INPUT_VALUES); }
  bool ReadsRows() const { return ReadsKeys() || ReadsValues(); }
  // A layer's queries, and its keys, may be read where the signal can do without.
  bool MayReadQueries() const { return signal().Needs(kSums); }
  // Shaped scores are multiplied by weights.
  bool AppliesWeights() const {
    return signal().Ranks() && policy_.weight != ValueWeight::kNone;
  }
  // The most that an operation on scores needs of n_layers alike.
  ScratchNeeds NeedsOf(decltype(Op<ScoreArgs>::scratch) scratch,
                       uint32_t n_layers, uint32_t n_tokens) const;
  // Redundancy is taken off weighed scores.
  bool SubtractsRedundancy() const {
    return signal().Ranks() && policy_.redundancy > 0.0;
  }
  // It is scores that are not yet shaped.
  bool WeighsRows() const {
    return AppliesWeights() && signal().IsOfQueryHeads() &&
           policy_.order == ShapingOrder::kWeighPool;
  }
  // Something is done to shaped scores.
  bool Refines() const { return AppliesWeights() || SubtractsRedundancy(); }
  // Keys come block after block, and what does not fit the budget leaves.
  bool KeepsByBlocks() const {
    return (signal().takes & kBlock) != 0 && policy_.block > 0;
  }
  // What goes is merged into what stays.
  Merge merge() const {
    return TouchesNothing(policy_) ? Merge() : MergeOf(policy_);
  }
  // Some tokens are chosen by shaped scores, before those are refined.
  bool PinsBest() const { return Refines() && policy_.secure > 0.0; }
  // Scores of heads are brought to one scale before they compete.
  bool ScalesByBestShare() const {
    return HeadsCompete(policy_) && policy_.normalize != 0;
  }
  bool NeedsBest() const {
    return PinsBest() || ScalesByBestShare() || RescuesBlocks(policy_) ||
           DiversifiesBlocks(policy_);
  }
  // Evictions measure what mass they keep, of scores that are one.
  bool ReportsMass() const { return reports_mass_ && ScoresAreMass(policy_); }
  // Keys lie beside scores, not in their place.
  bool NeedsKeys() const { return NeedsBest() || ReportsMass(); }
  // Sequences have room for the destinations of an eviction.
  bool HasDestinations() const { return has_destinations_; }
  // The policy scores by the window's queries.
  bool ObservesQueries() const { return signal().HasWindow(); }
  // The rows of it that a sequence keeps: a trim by draft_tokens leaves a window.
  uint32_t QueryRingRows() const {
    return policy_.window.count + draft_tokens_;
  }
  // It scores by attention that a sequence may add up.
  bool ObservesSums() const { return signal().Needs(kSums); }
  // Rows that each row of sums has in memory: with single calls their sum comes first.
  uint32_t RowsPerSum() const {
    return policy_.sum_last == 0 ? 1 : policy_.sum_last + 1;
  }
  // Of a layer, where it does.
  uint32_t SumRowsOf(const PlanLayer& layer) const;
  // Of the signal's numbers of a layer, as the policy says.
  Shaping ShapingOf(const PlanLayer& layer) const;
  // What shares a keep list. Where nothing is ranked, and heads have no budgets of
  // their own, every head keeps the same.
  kvevict_scope scope() const;
  // Of all layers; under scope MODEL each has one, and all are alike.
  uint32_t n_lists() const {
    const PlanLayer& last = layers_[n_layers() - 1];
    return last.first_list + last.n_lists;
  }
  // Whether the lists of a layer may have different counts.
  bool IsRagged() const { return HasHeadBudgets() || CountsByScore(policy_); }
  bool HasHeadBudgets() const { return head_budgets_.size() > 0; }
  bool HasLayerBudgets() const { return layer_budgets_.size() > 0; }
  // The most that a list of a layer keeps which has `budget`.
  uint32_t MostOfList(const PlanLayer& layer, uint32_t budget,
                      uint32_t n_tokens) const;
  // Where heads have budgets of their own, a list's each.
  std::span<const uint32_t> HeadBudgets(uint32_t layer) const {
    return {head_budgets_.data() + layers_[layer].first_list,
            layers_[layer].n_lists};
  }
  // What budgets are reckoned by where a list holds n_tokens of n_seen: at most what
  // the plan is for, with as full a last block as the list's.
  uint32_t ContextOf(uint32_t n_seen, uint32_t n_tokens) const;
  // Tokens each layer keeps of a context, per head: where heads have budgets of their
  // own, the most of any.
  Status LayerBudgets(uint32_t n_context, std::span<uint32_t> budgets) const;
  // The same of one layer, where they have budgets of their own.
  Status LayerBudget(uint32_t layer, uint32_t n_context, uint32_t* out) const;
  // Whether the keep lists of all layers are alike, always.
  bool LayersKeepAlike() const;
  // Elements of the keep lists of all layers together.
  size_t keep_capacity() const { return keep_capacity_; }
  // Elements of the scores of all layers at max_tokens, or of a chunk of each.
  size_t n_scores() const;

  // Only a device reads log-sum-exps.
  bool ReadsLse() const { return !context().backend().on_host; }
  // Bytes in which the query rows of all layers are kept, then log-sum-exps.
  CheckedSize QueryMemory(CheckedSize* out_lse_offset) const;
  // The same of sums of attention.
  CheckedSize SumMemory() const;
  // For layers of up to n_tokens, in 1 .. max_tokens.
  WorkspaceNeeds WorkspaceFor(kvevict_operation operation,
                              uint32_t n_tokens) const;
  // In so many bytes, which are enough.
  EvictWorkspace LayOutEvict(uint32_t n_tokens, size_t bytes) const;
  ScoreWorkspace LayOutScore(uint32_t n_layers, uint32_t n_tokens,
                             size_t bytes) const;

  // Compiles what scoring launches.
  Status PrepareScoring() const;

  kvevict_reason ScoreReason(const PlanLayer& layer,
                             bool by_queries = false) const;
  // UNSUPPORTED, with the reason, if a layer cannot be scored; by_queries: or its keys
  // and queries not be read, whatever the signal needs.
  Status CheckCanScore(const PlanLayer& layer, bool by_queries = false) const;
  // The same of merging.
  kvevict_reason MergeReasonOf(const PlanLayer& layer) const;
  Status CheckCanMerge(const PlanLayer& layer) const;

  kvevict_reason RotateReason(const PlanLayer& layer) const;
  // UNSUPPORTED, with the reason, if a layer's keys cannot be turned.
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
  void CountLists();
  // Elements of the keep lists of all layers.
  CheckedSize KeepCapacity() const;
  CheckedSize KeepCapacityOfHeads() const;
  CheckedSize KeepCapacityOfLayers() const;
  Status CheckSizes();
  // By the policy's own signal.
  bool CanScore(const PlanLayer& layer) const;
  // Of scores or keys of one layer, the most of any.
  uint32_t MostRows() const;
  CheckedSize ApartRows(uint32_t n_layers, uint32_t n_tokens) const;
  // Up to the scratch, and what that needs.
  EvictWorkspace EvictParts(uint32_t n_layers, uint32_t n_tokens,
                            WorkspaceNeeds* needs) const;
  ScoreWorkspace ScoreParts(uint32_t n_layers, uint32_t n_tokens,
                            WorkspaceNeeds* needs) const;
  // Of a layer whose rows are merged, the most of any.
  CheckedSize MergeBytes(uint32_t n_tokens) const;
  uint32_t FewestLayersAtOnce() const;

  const Retained<Context> context_;
  const uint32_t n_model_layers_;
  const uint32_t max_tokens_;
  const Policy policy_;
  Array<PlanLayer> layers_;
  // [n_model_layers]: see Find(); negative: minus what kind of cache it is
  Array<int32_t> places_;
  Rope rope_;
  DeviceArray<float> sinks_;  // of the query heads of all layers, or none
  bool has_sinks_ = false;
  Array<uint32_t> head_budgets_;  // [n_lists], or none
  Array<double> layer_budgets_;   // [n_layers], or none
  bool reports_mass_ = false;
  bool has_destinations_ = false;
  uint32_t draft_tokens_ = 0;
  size_t keep_capacity_ = 0;
  mutable std::atomic<uint32_t> n_refs_{1};
};

const char* ReasonText(kvevict_reason reason);

// Checks that memory for the device, called `name`, is there, large enough and
// aligned.
Status CheckMemory(const char* name, const Context& context, const void* memory,
                   size_t memory_bytes, size_t needed_bytes);

// The same of a workspace, of at least the least.
Status CheckWorkspace(const Context& context, const void* workspace,
                      size_t workspace_bytes, const WorkspaceNeeds& needs);

}  // namespace kvevict

#endif  // KVEVICT_CORE_PLAN_PLAN_H_
