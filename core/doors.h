// The doors beside evict: scoring, selecting and moving alone. Each call checks
// everything and then runs one operation or two.
#ifndef KVEVICT_CORE_DOORS_H_
#define KVEVICT_CORE_DOORS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/plan.h"
#include "core/status.h"

namespace kvevict {

// One call's scratch, and where it queues work.
struct CallMemory {
  void* workspace;
  size_t workspace_bytes;
  Stream stream;
};

// See kvevict_score(). `view` and what the inputs point to have been copied in.
Status Score(const Plan& plan, const kvevict_score_inputs& inputs,
             const kvevict_view& view, std::span<float> scores,
             const CallMemory& memory);

// See kvevict_select().
Status Select(const Context& context, const kvevict_select_options& options,
              const kvevict_keep_lists& keep, const CallMemory& memory);
Status SelectWorkspaceBytes(const Context& context, uint32_t n_tokens,
                            uint32_t n_lists, size_t* out_bytes);
// See kvevict_plan_selection().
Status PlanSelection(const Plan& plan, uint32_t layer, uint32_t n_tokens,
                     kvevict_select_options* options, kvevict_keep_lists* keep);

// One layer's part of a call that moves rows; what the caller's struct points to has
// been copied in.
struct Move {
  kvevict_view view;
  kvevict_keep_lists keep;
  uint32_t n_tokens;
};

// The most layers that a call moves: their parts lie on the stack.
inline constexpr size_t kMaxMoves = 128;

// See kvevict_compact().
Status Compact(const Context& context, std::span<const Move> moves,
               const CallMemory& memory);
Status CompactWorkspaceBytes(const Context& context,
                             std::span<const Move> moves, size_t* out_bytes);

// See kvevict_reorder().
Status Reorder(const Context& context, std::span<const Move> moves,
               const CallMemory& memory);
Status ReorderWorkspaceBytes(const Context& context,
                             std::span<const Move> moves, size_t* out_bytes);

}  // namespace kvevict

#endif  // KVEVICT_CORE_DOORS_H_
