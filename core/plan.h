// Geometry and policy, checked once, and the layout of the workspace they need.
#ifndef KVEVICT_CORE_PLAN_H_
#define KVEVICT_CORE_PLAN_H_

#include <atomic>
#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/context.h"
#include "core/status.h"

namespace kvevict {

// The parts of an eviction's workspace, as offsets. Once the keep lists are
// there nobody reads the rest, which then is compaction's scratch.
struct EvictWorkspace {
  size_t keep = 0;           // i32 keep lists of all layers, end to end
  size_t keep_capacity = 0;  // elements
  size_t scores =
      0;  // f32 [n_layers, n_kv_heads or 1, max_tokens], become keys
  size_t n_scores = 0;
  size_t score_scratch = 0;
  size_t score_scratch_bytes = 0;
  size_t select_scratch = 0;
  size_t select_scratch_bytes = 0;
  size_t bytes = 0;
};

// The parts of a selection's workspace.
struct SelectWorkspace {
  size_t keys = 0;  // u32 [n_lists, max_tokens]
  size_t scratch = 0;
  size_t scratch_bytes = 0;
  size_t bytes = 0;
};

class Plan {
 public:
  static Status Create(const Context& context, const kvevict_geometry& geometry,
                       const kvevict_policy& policy, Plan** out);

  Plan(const Context& context, const kvevict_geometry& geometry,
       const kvevict_policy& policy)
      : context_(context), geometry_(geometry), policy_(policy) {}

  void Ref() const { n_refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() const;

  const Context& context() const { return *context_; }
  const kvevict_geometry& geometry() const { return geometry_; }
  const kvevict_policy& policy() const { return policy_; }
  float softmax_scale() const;
  bool CapturesQueries() const;  // the policy scores by attention
  uint32_t n_lists() const { return ListsPerLayer(geometry_, policy_); }
  // Elements of the keep lists of all layers together.
  size_t keep_capacity() const { return evict_.keep_capacity; }

  const EvictWorkspace& evict_workspace() const { return evict_; }
  size_t score_workspace_bytes() const { return score_workspace_bytes_; }
  const SelectWorkspace& select_workspace() const { return select_; }

  kvevict_reason ScoreReason() const;
  kvevict_reason RotateReason() const { return KVEVICT_REASON_NO_ROTATION; }
  // UNSUPPORTED, with the reason, if keys cannot be scored.
  Status CheckCanScore() const;

 private:
  Status LayOutWorkspaces();

  const Retained<Context> context_;
  const kvevict_geometry geometry_;
  const kvevict_policy policy_;
  EvictWorkspace evict_;
  SelectWorkspace select_;
  size_t score_workspace_bytes_ = 0;
  mutable std::atomic<uint32_t> n_refs_{1};
};

const char* ReasonText(kvevict_reason reason);

// Checks that a workspace is there, large enough and aligned.
Status CheckWorkspace(const Context& context, const void* workspace,
                      size_t workspace_bytes, size_t needed_bytes);

}  // namespace kvevict

#endif  // KVEVICT_CORE_PLAN_H_
