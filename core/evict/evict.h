// The main job: a whole model's cache scored, selected and compacted in place.
#ifndef KVEVICT_CORE_EVICT_EVICT_H_
#define KVEVICT_CORE_EVICT_EVICT_H_

#include <cstddef>
#include <span>

#include "core/evict/call.h"
#include "core/status.h"

namespace kvevict {

// What kvevict_sequence_evict() needs at least for the slots that are in use now.
WorkspaceNeeds NeedsToEvict(const EvictCall& call);

// See kvevict_sequence_evict(). Views, inputs and ranges are the call's. All that can
// fail but for the device; what `options` points to is read again until the eviction has
// run.
Status CheckEvict(EvictCall* call, const kvevict_evict_options& options,
                  void* workspace, size_t workspace_bytes);

// What CheckEvict() will ask when n_new tokens more are stored, as far as that does not
// depend on them; positions of n_to_come tokens may be protected.
Status CheckEvictAhead(const EvictCall& call,
                       const kvevict_evict_options& options, void* workspace,
                       size_t workspace_bytes, uint32_t n_new,
                       uint32_t n_to_come);

// See kvevict_sequence_kept_slots(): of each layer of the plan.
Status KeptSlots(EvictCall* call, std::span<uint32_t> out);

// Whether rows are to move, as far as is known before scores decide.
bool IsToEvict(const EvictCall& call);

// Whether it writes to rows of its views, and whether it permutes tables of blocks.
bool WritesViews(const EvictCall& call);
bool IsByTable(const EvictCall& call);

// That none writes where the other one's views or destinations lie, by K and V of their
// first layers. Paged ones may.
Status CheckCachesApart(const EvictCall& a, const EvictCall& b);

// Bytes of its workspace that an eviction which was checked uses; and that so many lie
// apart from the sequence's caches, those of its destinations included.
size_t WorkspaceBytes(const EvictCall& call);
Status CheckWorkspaceApart(const EvictCall& call, const void* workspace,
                           size_t n_bytes);

// That what is saved for an undo is apart from what the other one saves, and from its
// cache.
Status CheckUndoApart(const EvictCall& a, const EvictCall& b);

// What was checked last; fills the sequence's report.
Status RunEvict(EvictCall* call);

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_EVICT_H_
