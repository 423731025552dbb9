// Geometry and policy, checked once, and the layout of the workspace they need.
#ifndef KVEVICT_CORE_PLAN_H_
#define KVEVICT_CORE_PLAN_H_

#include <atomic>
#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/context.h"
#include "core/shaping.h"
#include "core/signal.h"
#include "core/status.h"

namespace kvevict {

// Layers whose query heads' rows lie apart at a time.
inline constexpr uint32_t kMostApart = 16;

// Bytes of a workspace: calls run in any size from the least on, to the same
// results, and gain nothing from more than the best.
struct WorkspaceNeeds {
  CheckedSize least{0};
  CheckedSize best{0};

  bool ok() const { return least.ok() && best.ok(); }
};

// The parts of an eviction's workspace, as offsets. Operations run one after the
// other, so they share their scratch. Once the keep lists are there nobody reads
// the rest, which then is compaction's scratch.
struct EvictWorkspace {
  size_t keep = 0;  // i32 keep lists of all layers, end to end
  // Layers whose scores are there at once.
  uint32_t n_layers = 0;
  size_t scores = 0;  // f32 [n_layers, n_kv_heads or 1, n_tokens], become keys
  // f32 [kMostApart or fewer, n_q_heads, n_tokens], where shaping wants them
  size_t rows = 0;
  size_t scratch = 0;
  size_t bytes = 0;
};

// The parts of one layer's scoring.
struct ScoreWorkspace {
  size_t rows = 0;  // f32 [n_q_heads, n_tokens], where shaping wants them
  size_t scratch = 0;
};

class Plan {
 public:
  static Status Create(const Context& context, const kvevict_geometry& geometry,
                       const kvevict_policy& policy,
                       const kvevict_plan_options& options, Plan** out);

  Plan(const Context& context, const kvevict_geometry& geometry,
       const kvevict_policy& policy)
      : context_(context),
        geometry_(geometry),
        policy_(policy),
        head_budgets_(context) {}

  void Ref() const { n_refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() const;

  const Context& context() const { return *context_; }
  const kvevict_geometry& geometry() const { return geometry_; }
  const kvevict_policy& policy() const { return policy_; }
  float softmax_scale() const;
  const SignalInfo& signal() const { return SignalOf(policy_); }
  const ScoreOp& score_op() const {
    return *(context().backend().*signal().op);
  }
  // The policy scores by queries.
  bool ObservesQueries() const { return signal().Needs(kQueries); }
  // Of the numbers of a signal, as the policy says.
  Shaping ShapingOf(const SignalInfo& signal) const;
  // What shares a keep list. Where nothing is ranked, and heads have no budgets of
  // their own, every head keeps the same.
  kvevict_scope scope() const;
  // Keep lists of a layer; under scope MODEL all layers share the one list.
  uint32_t n_lists() const {
    return scope() == KVEVICT_SCOPE_KV_HEAD ? geometry_.n_kv_heads : 1;
  }
  // Whether the lists of a layer may have different counts.
  bool IsRagged() const { return head_budgets_.size() > 0; }
  // Of a ragged plan, [n_kv_heads] of a layer.
  std::span<const uint32_t> HeadBudgets(uint32_t layer) const {
    return {head_budgets_.data() + size_t{layer} * geometry_.n_kv_heads,
            geometry_.n_kv_heads};
  }
  // Tokens each layer keeps of a context: of a ragged one, the most of any head.
  Status LayerBudgets(uint32_t n_context, std::span<uint32_t> budgets) const;
  // Whether the keep lists of all layers are alike, always.
  bool LayersKeepAlike() const;
  // Elements of the keep lists of all layers together.
  size_t keep_capacity() const { return keep_capacity_; }
  // Elements of the scores of all layers at max_tokens.
  size_t n_scores() const;

  // For layers of up to n_tokens, in 1 .. max_tokens.
  WorkspaceNeeds WorkspaceFor(kvevict_operation operation,
                              uint32_t n_tokens) const;
  // In so many bytes, which are enough.
  EvictWorkspace LayOutEvict(uint32_t n_tokens, size_t bytes) const;
  ScoreWorkspace LayOutScore(uint32_t n_tokens) const;

  kvevict_reason ScoreReason() const;
  bool CanScore() const;  // by the policy's own signal
  kvevict_reason RotateReason() const { return KVEVICT_REASON_NO_ROTATION; }
  // UNSUPPORTED, with the reason, if keys cannot be scored.
  Status CheckCanScore() const;

 private:
  Status CopyHeadBudgets(const kvevict_plan_options& options);
  // Elements of the keep lists of all layers.
  CheckedSize KeepCapacity() const;
  Status CheckSizes();
  CheckedSize ApartRows(const Shaping& shaping, uint32_t n_layers,
                        uint32_t n_tokens) const;
  ScratchNeeds NeedsOf(ScratchBytes bytes, uint32_t n_layers,
                       uint32_t n_tokens) const;
  // Up to the scratch, and what that needs.
  EvictWorkspace EvictParts(uint32_t n_layers, uint32_t n_tokens,
                            WorkspaceNeeds* needs) const;
  ScoreWorkspace ScoreParts(uint32_t n_tokens, WorkspaceNeeds* needs) const;
  uint32_t FewestLayersAtOnce() const;

  const Retained<Context> context_;
  const kvevict_geometry geometry_;
  const kvevict_policy policy_;
  Array<uint32_t> head_budgets_;  // [n_layers, n_kv_heads], or none
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

#endif  // KVEVICT_CORE_PLAN_H_
