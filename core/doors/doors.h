// Calls without a sequence: scoring, selecting, moving. Each checks everything
// and then runs one operation or two.
#ifndef KVEVICT_CORE_DOORS_DOORS_H_
#define KVEVICT_CORE_DOORS_DOORS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/plan/plan.h"
#include "core/sequence/query_ring.h"
#include "core/status.h"
#include "kvevict/edit.h"
#include "kvevict/experimental.h"

namespace kvevict {

// The workspace of a call and the stream on which it queues work.
struct CallMemory {
  void* workspace;
  size_t workspace_bytes;
  Stream stream;
};

// The most jobs or moves of a call, since their records are on the stack.
inline constexpr size_t kMaxJobs = KVEVICT_MAX_JOBS;

// One layer's part of kvevict_score(), copied from the caller's struct.
struct ScoreRequest {
  LayerInputs inputs;
  kvevict_view view;  // if keys are read
  uint32_t n_tokens;
  uint32_t n_seen;
  const uint32_t* token_counts;
  std::span<float> scores;
};

// See kvevict_score().
Status Score(const Plan& plan, std::span<const ScoreRequest> requests,
             const CallMemory& memory);

// See kvevict_select(); `ranges` are the options'.
Status Select(const Context& context, const kvevict_select_options& options,
              const TokenRanges& ranges, const kvevict_keep_lists& keep,
              const CallMemory& memory);
Status SelectWorkspace(const Context& context, uint32_t n_tokens,
                       uint32_t n_lists, WorkspaceNeeds* out);
// See kvevict_plan_selection().
Status PlanSelection(const Plan& plan, uint32_t layer, uint32_t n_tokens,
                     uint32_t n_seen, kvevict_select_options* options,
                     kvevict_keep_lists* keep);

// One layer's scores, in host memory.
struct LayerScores {
  uint32_t n_rows;
  uint32_t n_tokens;
  std::span<const float> scores;
};

// See kvevict_budget_for_mass().
Status BudgetForMass(const Context& context,
                     std::span<const LayerScores> layers,
                     const kvevict_mass_options& options,
                     std::span<uint32_t> budgets);

// One layer's part of a call that moves rows. What the caller's struct points
// to has been copied.
struct Move {
  kvevict_view view;
  kvevict_keep_lists keep;
  bool keeps_all;  // keeps slots 0, 1, ...: there are no lists
  uint32_t n_tokens;
  const uint32_t* token_counts;
  Merge merge;
  uint32_t first_slot;
  bool has_destination;
  kvevict_view destination;

  // The view to which rows go.
  const kvevict_view& target() const {
    return has_destination ? destination : view;
  }
};

// See kvevict_compact().
Status Compact(const Context& context, std::span<const Move> moves,
               const CallMemory& memory);
Status CompactWorkspace(const Context& context, std::span<const Move> moves,
                        WorkspaceNeeds* out);

// See kvevict_reorder().
Status Reorder(const Context& context, std::span<const Move> moves,
               const CallMemory& memory);
Status ReorderWorkspace(const Context& context, std::span<const Move> moves,
                        WorkspaceNeeds* out);

// One layer's part of kvevict_rotate(), copied from the caller's struct.
struct RotateRequest {
  uint32_t layer;  // index in the plan
  kvevict_view view;
  uint32_t n_tokens;
  const uint32_t* token_counts;
  uint32_t n_lists;
  std::span<const int32_t> offsets;
};

// See kvevict_rotate().
Status Rotate(const Plan& plan, std::span<const RotateRequest> requests,
              Stream stream);

// See kvevict_attend(). Jobs are as the caller filled them. Zeros that stand
// for another value are replaced.
Status Attend(const Context& context, std::span<AttendJob> jobs,
              const CallMemory& memory);
Status AttendWorkspace(const Context& context, std::span<AttendJob> jobs,
                       WorkspaceNeeds* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_DOORS_DOORS_H_
