// What one call of an eviction carries: what the caller gives, the workspace, and what
// becomes of each layer. It is handed down to every part; memory of its own is there from
// the sequence's beginning on, since executing calls do not allocate.
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

// Where an eviction selects on the host while its cache is on the device.
struct HostCopy {
  float* scores;              // as many as the workspace holds
  int32_t* keep;              // keep_capacity()
  std::span<SelectJob> jobs;  // [n_layers]
};

class EvictCall {
 public:
  explicit EvictCall(Sequence& sequence);
  Status Allocate();

  // Once views, destinations, inputs and ranges are there. Not due: no layer loses
  // tokens.
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

  // What checks find.
  std::span<LayerOutcome> layers;
  std::span<LayerEviction> active;  // that lose tokens, shared ones once
  Forced forced;

  // Copies of what the caller gives, and memory for what becomes of the layers.
  std::span<kvevict_view> views() const {
    return {views_.data(), plan.n_layers()};
  }
  std::span<kvevict_view> destinations() const {  // the same, or none
    return {views_.data() + plan.n_layers(), views_.size() - plan.n_layers()};
  }
  std::span<LayerInputs> inputs() const { return All(inputs_); }
  std::span<LayerCache> caches() const {
    return both_caches().first(plan.n_layers());
  }
  // And behind destinations'.
  std::span<LayerCache> both_caches() const { return All(caches_); }
  std::span<LayerOutcome> outcomes() const { return All(outcomes_); }
  std::span<LayerEviction> evictions() const { return All(evictions_); }
  std::span<uint32_t> budgets() const { return All(budgets_); }
  // Where the policy has chunks: how many tokens a layer keeps up to the end of each.
  std::span<uint32_t> chunk_ends(uint32_t layer) const {
    const size_t most = chunk_ends_.size() / plan.n_layers();
    return {chunk_ends_.data() + layer * most, most};
  }
  std::span<ChunkedLayer> chunked_layers() const {
    return All(chunked_layers_);
  }
  // Where a split wants them: as the device has them, and of every layer.
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
  // Where the scratch of operations begins, up to the end.
  std::span<uint8_t> Scratch(size_t offset) const {
    return {workspace + offset, layout.bytes - offset};
  }
  const LayerCache& Cache(uint32_t layer) const { return caches()[layer]; }

  bool HasWork() const { return LosesTokens() || HasDestinations(); }
  bool LosesTokens() const { return !active.empty(); }
  bool IsByTable() const { return options.by_table != 0; }
  bool HasDestinations() const { return options.destinations != nullptr; }
  // Rows that go are saved, as far as is known before scores are.
  bool Saves() const { return LosesTokens() && options.undo != nullptr; }
  // Rows of survivors move within the views, or change where they are.
  bool WritesViews() const {
    if (HasDestinations()) return false;
    return !IsByTable() || plan.merge().Merges() || policy.rotate != 0;
  }
  bool OneList() const { return plan.scope() == KVEVICT_SCOPE_MODEL; }
  // The most tokens of a layer that are scored at a time.
  uint32_t n_at_once() const { return ChunkTokens(policy, n_tokens); }
  // Scores are means of sums, and slots are marked by these.
  bool MarksBySums() const {
    return signal.Needs(kSums) && policy.rows == KVEVICT_REDUCE_MEAN;
  }
  // First slots of a layer that must stay.
  uint32_t SinkOf(uint32_t layer) const;
  // Where the rows of a layer are afterwards.
  const kvevict_view& TargetOf(const LayerOutcome& layer) const {
    return HasDestinations() ? destinations()[layer.layer]
                             : views()[layer.layer];
  }

 private:
  template <typename T>
  static std::span<T> All(const Array<T>& array) {
    return {array.data(), array.size()};
  }

  Array<kvevict_view> views_;  // [n_layers], and behind destinations
  Array<LayerInputs> inputs_;  // [n_layers]
  Array<LayerCache> caches_;
  Array<LayerOutcome> outcomes_;
  Array<LayerEviction> evictions_;
  Array<SelectJob> host_jobs_;
  Array<uint32_t> budgets_;
  Array<uint32_t> chunk_ends_;          // [n_layers, most chunks], or none
  Array<ChunkedLayer> chunked_layers_;  // [n_layers], or none
  Array<LayerMeasure> measures_;        // [2, n_layers], or none
  Array<float> host_scores_;
  Array<int32_t> host_keep_;
};

// ---- What the parts of an eviction do for each other ----

// counts.cc: checks each layer's view and finds what layers share, which is counted and
// compacted once.
Status FindCaches(const EvictCall& call);
// The outcomes where no layer loses tokens, and where the policy's budgets decide.
Status FindWhole(EvictCall& call);
Status FindBudgets(EvictCall& call);
// How many slots the layer's lists keep, and whether that is less than they hold.
void FindCounts(const EvictCall& call, uint32_t budget, LayerOutcome* layer);
// What its lists keep, as far as is known before scores are.
ListCounts MostKept(const EvictCall& call, const LayerOutcome& layer);
// What each layer's lists keep, where measures of all layers decide, and where scores of
// a list did.
Status ShareBudgets(EvictCall& call);
Status ReadCounts(EvictCall& call);

// chunks.cc
Status ShareOverChunks(const EvictCall& call, const LayerOutcome& layer);
Status CheckChunkRows(const EvictCall& call, uint32_t layer);

// check.cc: all that can be wrong before the first byte moves.
Status Check(EvictCall& call);
Status CheckMoveByRow(const EvictCall& call, const char* what);

// stages.cc: chooses slots, and moves what stays.
Status Run(EvictCall& call);

// destinations.cc: rows that stay as rows of other caches.
Status CheckDestinations(EvictCall& call);
MoveJob MoveOf(const EvictCall& call, const LayerOutcome& layer,
               const KeepLists& keep);
// Layers with rows that move: those that lose tokens, and if there are destinations
// behind them all others.
std::span<LayerEviction> Moving(const EvictCall& call);

// undo.cc: rows that are saved before they go.
Status CheckUndo(const EvictCall& call);
CheckedSize UndoBytes(const EvictCall& call);
Status SaveRows(const EvictCall& call);

// block_tables.cc: rows that stay in their blocks.
Status CheckTables(EvictCall& call);
Status DropBlocks(const EvictCall& call);

// report.cc: of a layer's lists, and of the layer where it is no other's.
void ReportLayer(const EvictCall& call, uint32_t layer,
                 const ListCounts& before, const ListCounts& after);
void FillReport(const EvictCall& call);

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_CALL_H_
