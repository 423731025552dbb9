// The doors for one layer: checks, then one call into the backend table.
#ifndef KVEVICT_CORE_DOORS_H_
#define KVEVICT_CORE_DOORS_H_

#include <cstdint>
#include <span>

#include "core/plan.h"
#include "core/status.h"

namespace kvevict {

// See kvevict_score_window().
Status ScoreWindow(const Plan& plan, const kvevict_plane& queries,
                   const kvevict_plane* row_lse, const kvevict_view& view,
                   uint32_t n_tokens, std::span<float> scores, void* workspace,
                   size_t workspace_bytes, Stream stream);

// See kvevict_select().
Status Select(const Plan& plan, uint32_t layer, std::span<const float> scores,
              uint32_t n_tokens, std::span<const int32_t> protected_slots,
              std::span<int32_t> keep, void* workspace, size_t workspace_bytes,
              uint32_t* out_n_keep, Stream stream);

// See kvevict_compact().
Status Compact(const Context& context, const kvevict_view& view,
               uint32_t n_tokens, std::span<const int32_t> keep,
               uint32_t n_keep_lists, void* workspace, size_t workspace_bytes,
               Stream stream);
Status CompactWorkspaceBytes(const Context& context, const kvevict_view& view,
                             uint32_t n_keep, size_t* out_bytes);

// See kvevict_reorder().
Status Reorder(const Context& context, const kvevict_view& view,
               uint32_t n_tokens, std::span<const int32_t> slots,
               uint32_t n_slot_lists, void* workspace, size_t workspace_bytes,
               Stream stream);
Status ReorderWorkspaceBytes(const Context& context, const kvevict_view& view,
                             uint32_t n_slots, uint32_t n_slot_lists,
                             size_t* out_bytes);

}  // namespace kvevict

#endif  // KVEVICT_CORE_DOORS_H_
