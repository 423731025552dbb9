// The main job: scores, selects and compacts a whole model's cache in place.
#ifndef KVEVICT_CORE_EVICT_EVICT_H_
#define KVEVICT_CORE_EVICT_EVICT_H_

#include <cstddef>
#include <span>

#include "core/evict/call.h"
#include "core/status.h"

namespace kvevict {

// The workspace that kvevict_sequence_evict() needs for the slots in use now.
WorkspaceNeeds NeedsToEvict(const EvictCall& call);

// Checks all that can make kvevict_sequence_evict() fail, but not the device.
// Views, inputs and ranges are stored in the call. What `options` points to is
// read again until RunEvict() returns.
Status CheckEvict(EvictCall* call, const kvevict_evict_options& options,
                  void* workspace, size_t workspace_bytes);

// Checks now what CheckEvict() will check once n_new more tokens are stored, as
// far as that does not depend on the tokens. Positions of n_to_come tokens may
// be protected.
Status CheckEvictAhead(const EvictCall& call,
                       const kvevict_evict_options& options, void* workspace,
                       size_t workspace_bytes, uint32_t n_new,
                       uint32_t n_to_come);

// See kvevict_sequence_kept_slots(). `out` has an element for each layer of the
// plan.
Status KeptSlots(EvictCall* call, std::span<uint32_t> out);

// True if rows may move. Scores can still decide that none does.
bool IsToEvict(const EvictCall& call);

// Whether the eviction writes rows of its views, and whether it permutes block
// tables.
bool WritesViews(const EvictCall& call);
bool IsByTable(const EvictCall& call);

// Checks that neither call writes where the views or destinations of the other
// lie. It compares K and V of their first layers. Paged caches may overlap.
Status CheckCachesApart(const EvictCall& a, const EvictCall& b);

// WorkspaceBytes() is the part of the workspace that a checked eviction uses.
// CheckWorkspaceApart() checks that it overlaps no cache of the sequence and no
// destination.
size_t WorkspaceBytes(const EvictCall& call);
Status CheckWorkspaceApart(const EvictCall& call, const void* workspace,
                           size_t n_bytes);

// Checks that a's undo memory overlaps neither b's undo memory nor b's caches.
Status CheckUndoApart(const EvictCall& a, const EvictCall& b);

// Runs the eviction that CheckEvict() checked last and fills the sequence's
// report.
Status RunEvict(EvictCall* call);

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_EVICT_H_
