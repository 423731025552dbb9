// The state of one eviction call: what the caller gives, the workspace, and
// what the checks find.
#ifndef KVEVICT_CORE_EVICT_CALL_H_
#define KVEVICT_CORE_EVICT_CALL_H_

#include <cstdint>
#include <span>

#include "core/budgets/budgets.h"
#include "core/evict/layer_eviction.h"
#include "core/policy/policy.h"
#include "core/sequence/sequence.h"
#include "core/signals/signal.h"
#include "core/status.h"
#include "core/view/chunks.h"
#include "core/view/overlap.h"

namespace kvevict {

// Host memory for a cache on the device whose slots are selected on the host.
struct HostCopy {
  float* scores;              // [plan.n_scores()]
  int32_t* keep;              // [plan.keep_capacity()]
  std::span<SelectJob> jobs;  // [n_layers]
};

class EvictCall {
 public:
  explicit EvictCall(Sequence& sequence);
  Status Allocate();

  // Views, destinations, inputs and ranges must have been stored before. `due`
  // is false when no layer loses tokens.
  void Begin(const kvevict_evict_options& with, void* memory,
             const EvictWorkspace& parts, uint32_t n_longest, bool due = true);
  void End() { is_begun = false; }

  Sequence& sequence;
  SlotTable& slots;
  const Plan& plan;
  const Context& context;
  const Policy& policy;
  const SignalInfo& signal;

  TokenRanges ranges;
  kvevict_evict_options options;
  EvictWorkspace layout;
  uint8_t* workspace = nullptr;
  uint32_t n_tokens = 0;  // of the longest layer
  bool is_due = false;
  bool is_begun = false;

  // The checks fill these.
  std::span<LayerOutcome> layers;
  // layers that lose tokens; a shared cache counts once
  std::span<LayerEviction> active;
  Forced forced;
  uint64_t n_winners = 0;  // slots of all layers that stay, if layers compete

  // Copies of what the caller passes, and records for each layer.
  std::span<kvevict_view> views() const {
    return {views_.data(), plan.n_layers()};
  }
  std::span<kvevict_view> destinations() const {  // [n_layers], or empty
    return {views_.data() + plan.n_layers(), views_.size() - plan.n_layers()};
  }
  std::span<LayerInputs> inputs() const { return All(inputs_); }
  std::span<LayerCache> caches() const {
    return both_caches().first(plan.n_layers());
  }
  // [n_layers] caches of the views, then those of the destinations.
  std::span<LayerCache> both_caches() const { return All(caches_); }
  std::span<LayerOutcome> outcomes() const { return All(outcomes_); }
  std::span<LayerEviction> evictions() const { return All(evictions_); }
  std::span<uint32_t> budgets() const { return All(budgets_); }
  // The number of tokens that a layer keeps up to the end of each chunk. Only
  // policies with chunks have these.
  std::span<uint32_t> chunk_ends(uint32_t layer) const {
    const size_t most = chunk_ends_.size() / plan.n_layers();
    return {chunk_ends_.data() + layer * most, most};
  }
  std::span<ChunkedLayer> chunked_layers() const {
    return All(chunked_layers_);
  }
  // The winners of the lists of all active layers, end to end. Only layers that
  // compete have these.
  std::span<ListWinners> winners() const { return All(winners_); }
  // Measures as read from the device, one per active layer. Only a split by
  // measures has these and measures().
  std::span<LayerMeasure> read_measures() const {
    return All(measures_).first(measures_.size() / 2);
  }
  std::span<LayerMeasure> measures() const {
    return All(measures_).subspan(measures_.size() / 2);
  }
  bool selects_on_host() const { return host_scores_.size() > 0; }
  HostCopy host_copy() const {
    return {host_scores_.data(), host_keep_.data(), All(host_jobs_)};
  }

  const Backend& backend() const { return context.backend(); }
  Stream stream() const { return sequence.stream(); }
  template <typename T>
  T* Part(size_t offset) const {
    return reinterpret_cast<T*>(workspace + offset);
  }
  // The scratch of operations: from `offset` to the end of the workspace.
  std::span<uint8_t> Scratch(size_t offset) const {
    return {workspace + offset, layout.bytes - offset};
  }
  const LayerCache& Cache(uint32_t layer) const { return caches()[layer]; }

  bool HasWork() const { return LosesTokens() || HasDestinations(); }
  bool LosesTokens() const { return !active.empty(); }
  bool IsByTable() const { return options.by_table != 0; }
  bool HasDestinations() const { return options.destinations != nullptr; }
  // True if evicted rows are saved. Scores may still decide that none is
  // evicted.
  bool Saves() const { return LosesTokens() && options.undo != nullptr; }
  // True if rows within the views are moved or rewritten.
  bool WritesViews() const {
    if (HasDestinations()) return false;
    return !IsByTable() || plan.RewritesRows() || policy.rotate != 0;
  }
  bool OneList() const { return plan.scope() == KVEVICT_SCOPE_MODEL; }
  // The most tokens of one layer that are scored at once.
  uint32_t n_at_once() const { return ChunkTokens(policy, n_tokens); }
  // Scores are means of attention sums. Blocks to rescue are then marked by the
  // sums.
  bool MarksBySums() const {
    return signal.Needs(kSums) && policy.rows == KVEVICT_REDUCE_MEAN;
  }
  // The number of first slots that a layer must keep.
  uint32_t SinkOf(uint32_t layer) const;
  // The share of a layer's context that its budget is.
  double ShareOf(const LayerOutcome& layer) const;
  // The view that holds the layer's rows after the eviction.
  const kvevict_view& TargetOf(const LayerOutcome& layer) const {
    return HasDestinations() ? destinations()[layer.layer]
                             : views()[layer.layer];
  }

 private:
  template <typename T>
  static std::span<T> All(const Array<T>& array) {
    return {array.data(), array.size()};
  }

  Array<kvevict_view> views_;  // [n_layers], then the destinations if any
  Array<LayerInputs> inputs_;  // [n_layers]
  Array<LayerCache> caches_;
  Array<LayerOutcome> outcomes_;
  Array<LayerEviction> evictions_;
  Array<SelectJob> host_jobs_;
  Array<uint32_t> budgets_;
  Array<uint32_t> chunk_ends_;          // [n_layers, most chunks], or empty
  Array<ChunkedLayer> chunked_layers_;  // [n_layers], or empty
  Array<LayerMeasure> measures_;        // [2, n_layers], or empty
  Array<ListWinners> winners_;          // [n_lists], or empty
  Array<float> host_scores_;
  Array<int32_t> host_keep_;
};

// ---- Functions that the parts of an eviction call in each other ----

// counts.cc: checks each layer's view and finds layers that share a cache. A
// shared cache is counted and compacted once.
Status FindCaches(const EvictCall& call);
// FindWhole() fills the outcomes as if no layer lost tokens, FindBudgets() by
// the policy's budgets.
Status FindWhole(EvictCall& call);
Status FindBudgets(EvictCall& call);
// Sets how many slots the layer's lists keep, and whether that is fewer than
// they hold.
void FindCounts(const EvictCall& call, uint32_t budget, LayerOutcome* layer);
// The most slots that the layer's lists can keep, before scores are known.
ListCounts MostKept(const EvictCall& call, const LayerOutcome& layer);
// Both set what each layer's lists keep. ShareBudgets() is for policies that
// split by the measures of all layers, ReadCounts() for those that count by the
// scores of one layer.
Status ShareBudgets(EvictCall& call);
Status ReadCounts(EvictCall& call);
// Removes layers from `active` that lose nothing after all.
void LeaveOutWhole(EvictCall& call);
// The context from which a layer's budget is computed. It never exceeds
// max_tokens. Its last block is as full as that of the slots held, so that
// whole blocks are counted once.
uint32_t ContextOf(const EvictCall& call, const LayerOutcome& layer);

// contest.cc: layers that compete. FindContest() sets how many slots stay of
// all layers, and returns whether that is fewer than they hold. ShareWinners()
// sets what each layer's lists keep once their winners are counted.
bool FindContest(EvictCall& call);
// Limits what stays to what the layers that compete hold.
void LimitWinners(EvictCall& call);
Status ShareWinners(EvictCall& call);

// chunks.cc
Status ShareOverChunks(const EvictCall& call, const LayerOutcome& layer);
Status CheckChunkRows(const EvictCall& call, uint32_t layer);

// check.cc: checks everything that can fail before the first byte moves.
Status Check(EvictCall& call);
Status CheckMoveByRow(const EvictCall& call, const char* what);

// fit.cc: fits the values that stay to queries. CheckCanFit() checks that rows
// can be fitted, and CheckFit() checks the inputs that have been found since.
// CountWeakFits() counts the KV heads of a layer with fewer than twice as many
// queries as values.
Status CheckCanFit(const EvictCall& call);
Status CheckFit(const EvictCall& call);
Status FitKept(const EvictCall& call);
uint32_t CountWeakFits(const EvictCall& call, const LayerOutcome& layer,
                       const ListCounts& before, const ListCounts& after);

// run.cc: chooses slots and moves the rows that stay. MoveOf() is the job that
// moves a layer's rows.
Status Run(EvictCall& call);
MoveJob MoveOf(const EvictCall& call, const LayerOutcome& layer,
               const KeepLists& keep);

// destinations.cc: copies rows that stay into other caches.
Status CheckDestinations(EvictCall& call);

// evict.cc: reports what every list has kept.
void FillReport(const EvictCall& call);

// undo.cc: saves rows before they are evicted.
// The first refuses policies that change rows that stay.
Status CheckPolicyUndoes(const EvictCall& call);
Status CheckUndo(const EvictCall& call);
CheckedSize UndoBytes(const EvictCall& call);
Status SaveRows(const EvictCall& call);

// block_tables.cc: drops blocks from tables; rows stay in their blocks.
Status CheckTables(EvictCall& call);
Status DropBlocks(const EvictCall& call);

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_CALL_H_
