// One call of Evict().
#ifndef KVEVICT_CORE_EVICT_EVICTION_H_
#define KVEVICT_CORE_EVICT_EVICTION_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/budgets/budgets.h"
#include "core/evict/layer_eviction.h"
#include "core/policy/policy.h"
#include "core/sequence/sequence.h"
#include "core/signals/signal.h"
#include "core/status.h"
#include "core/view/chunks.h"

namespace kvevict {

// Checks each layer's view and finds what layers share, which is counted and
// compacted once.
Status FindCaches(const Sequence& sequence);

// Of a layer's lists, and of the layer where it is no other's.
void ReportLayer(Sequence* sequence, uint32_t layer, const ListCounts& before,
                 const ListCounts& after);

// The parts read each other's results in order: check.cc, work.cc, report.cc. Where
// the policy has chunks, chunks.cc serves the first two; undo.cc does where rows are to
// be saved, block_tables.cc where they stay in their blocks, and destinations.cc where
// they go to other caches.
class Eviction {
 public:
  // Not due: no layer loses tokens.
  Eviction(Sequence* sequence, const kvevict_evict_options& options,
           void* workspace, const EvictWorkspace& layout, uint32_t n_tokens,
           bool is_due = true)
      : sequence_(*sequence),
        slots_(sequence->slots()),
        plan_(sequence->plan()),
        context_(plan_.context()),
        policy_(plan_.policy()),
        signal_(plan_.signal()),
        views_(sequence->views()),
        options_(options),
        ranges_(sequence->ranges().all()),
        ranks_(ranges_),
        layout_(layout),
        n_tokens_(n_tokens),
        is_due_(is_due),
        workspace_(static_cast<uint8_t*>(workspace)) {}

  Status Check();
  bool HasWork() const { return LosesTokens() || HasDestinations(); }
  bool LosesTokens() const { return !active_.empty(); }
  bool IsDue() const { return is_due_; }
  Status Run();
  void FillReport() const;
  size_t workspace_bytes() const { return layout_.bytes; }
  bool IsByTable() const { return options_.by_table != 0; }
  bool HasDestinations() const { return options_.destinations != nullptr; }
  // Rows of survivors move within the views, or change where they are.
  bool WritesViews() const {
    if (HasDestinations()) return false;
    return !IsByTable() || plan_.merge().Merges() || policy_.rotate != 0;
  }
  // Whether rows that go are saved, as far as is known before scores are.
  bool Saves() const;
  // Apart from those that another eviction saves, or from another cache.
  Status CheckUndoApart(const Eviction& other) const;
  Status CheckUndoApart(const Sequence& other) const;
  // Rows that may go, and slots that may stay, as far as is known before scores are.
  Status FindUndoBytes(size_t* out);
  Status FindKept(std::span<uint32_t> out);

 private:
  ListCounts AfterOf(const LayerOutcome& layer) const;
  template <typename T>
  T* Part(size_t offset) const {
    return reinterpret_cast<T*>(workspace_ + offset);
  }

  Status FindBudgets();
  Status FindWhole();
  Status FindLayers();
  Status CheckSharing() const;
  Status CheckBudgets();
  Status FindBudgets(uint32_t n_context, std::span<uint32_t> budgets,
                     bool* has_room) const;
  Status FindBudgetsOf(uint32_t n_context, std::span<uint32_t> budgets) const;
  Status FindOwnBudgets(uint32_t n_context, std::span<uint32_t> budgets) const;
  bool LacksRoomIn(uint32_t n_context, const LayerOutcome& layer) const;
  bool IsWithinMargin(uint32_t n_context, const LayerOutcome& layer) const;
  Status FindRoom(LayerOutcome* layer) const;
  void LeaveAlone(LayerOutcome* layer) const;
  void FindCounts(uint32_t budget, LayerOutcome* layer) const;
  uint32_t RescuedOf(const LayerOutcome& layer) const;
  void FindForced();
  std::span<const int32_t> BetweenEnds(
      std::span<const int32_t> positions) const;
  Status CheckMoveByRow(const char* what) const;
  Status CheckNoneRecent() const;
  Status CheckForcedFit(const LayerOutcome& layer) const;
  Status ShareOverChunks(const LayerOutcome& layer) const;
  Status CountProtected(const LayerOutcome& layer,
                        std::span<uint32_t> counts) const;
  Status CheckChunkRows(uint32_t layer) const;
  Status CheckSignal();
  Status CheckMarks(const LayerEviction& layer) const;
  Status FindObservedSums(LayerEviction* layer, LayerInputs* inputs,
                          kvevict_plane* plane) const;
  Status CheckMerge();
  Status CheckRotate();
  Status CheckRegroup();
  Status CheckTables();
  Status CheckDestinations();
  Status CheckDestination(const LayerOutcome& layer);
  const kvevict_view& TargetOf(const LayerOutcome& layer) const;
  ListCounts MostKept(const LayerOutcome& layer) const;
  Status CheckUndo() const;
  Status CheckCanUndo() const;
  CheckedSize UndoBytes() const;
  // Of any list.
  uint32_t MostEvicted(const LayerOutcome& layer) const;
  Status FindQueryRows(LayerEviction* layer) const;
  Status ChooseSlots();
  Status MoveRows();
  MoveJob MoveOf(const LayerOutcome& layer, const KeepLists& keep) const;
  std::span<LayerEviction> Moving() const;
  size_t CountAsLong() const;
  void EnterChunk(uint32_t chunk);
  KeepLists KeepOfChunk(const LayerEviction& layer) const;
  void LayOutScores();
  size_t CountOfSameSink() const;
  int32_t* LayOutLists(int32_t* keep_slots);
  void LayOutSelection();
  Status Score() const;
  Status SumCalls() const;
  Status ShareBudgets();
  Status ReadCounts();
  Status RefineScores();
  Status Secure();
  Status Normalize() const;
  void LeaveOutWhole();
  Status Reduce() const;
  Status Rescue();
  Status Vary();
  HeadSplit Split() const;
  SelectArgs ArgsFor(Jobs<SelectJob> jobs, const HeadSplit& heads) const;
  BestArgs BestOfLists() const;
  Status Select();
  Status SelectAtOnce() const;
  Status SaveRows() const;
  bool IsDropped(uint32_t i_layer, uint32_t i_tables) const;
  Status DropBlocks();
  Jobs<SelectJob> SelectJobs() const;
  Status MeasureMass();
  Status ShareMasses() const;
  Status Rotate();
  Status SelectOnHost(Jobs<SelectJob> jobs, const HeadSplit& heads) const;

  // Where the scratch of operations begins, up to the end.
  std::span<uint8_t> Scratch(size_t offset) const {
    return {workspace_ + offset, layout_.bytes - offset};
  }
  const LayerCache& Cache(uint32_t layer) const {
    return sequence_.caches()[layer];
  }
  bool OneList() const { return plan_.scope() == KVEVICT_SCOPE_MODEL; }
  // Tokens are ranked: of the chunk not all are kept.
  bool Ranks() const { return signal_.Ranks() && chunk_loses_; }
  // The most tokens of a layer that are scored at a time.
  uint32_t n_at_once() const { return ChunkTokens(policy_, n_tokens_); }
  // Positions that every layer of a split by preference has room for.
  uint32_t n_protected() const {
    return MeasureOf(policy_) == Measure::kDynamics
               ? static_cast<uint32_t>(forced_.protect.size())
               : 0;
  }
  // Ends of the context that are measured lie side by side.
  bool CanBeMeasured(const LayerOutcome& layer) const {
    return MeasureOf(policy_) != Measure::kEnds ||
           uint64_t{policy_.sink.count} + policy_.recent.count +
                   2 * uint64_t{policy_.window.count} <=
               layer.n_tokens;
  }
  // A layer's budget is a ratio.
  bool GrowsWithContext(uint32_t layer) const {
    return !plan_.HasHeadBudgets() && !CountsTokens(plan_.PolicyOf(layer));
  }
  // What the budget of a layer is reckoned by: a ratio is one of the context, which
  // never exceeds what the plan is for, and whose last block is as full as that of the
  // slots held, so that whole blocks are counted once.
  uint32_t ContextOf(const LayerOutcome& layer) const {
    uint32_t n_seen = sequence_.logical_length();
    uint32_t n_held = layer.n_tokens;
    if (IsPromptBeside(policy_)) {
      n_seen = sequence_.prompt().Behind(n_seen);
      n_held -= std::min(n_held, sequence_.prompt().SlotsOf(layer.layer));
    }
    const uint32_t n = plan_.ContextOf(n_seen, n_held);
    return plan_.HasLayerBudgets() ? n : OfChunks(policy_, n, n_tokens_);
  }
  // A budget of tokens is one of the slots held where their chunks have to share it; a
  // ratio is one of each chunk, so of the context.
  static uint32_t OfChunks(const Policy& policy, uint32_t n_context,
                           uint32_t n_held) {
    const bool counts = HasChunks(policy) && policy.budget > 1.0;
    return counts ? std::min(n_context, n_held) : n_context;
  }
  // First slots of a layer that must stay.
  uint32_t SinkOf(uint32_t layer) const {
    if (!IsPromptPinned(policy_)) return policy_.sink.count;
    return std::max(policy_.sink.count, sequence_.prompt().SlotsOf(layer));
  }
  // Of the layers at once.
  Forced ForcedAtOnce() const {
    Forced forced = forced_;
    forced.n_sink = SinkOf(at_once_.front().layer);
    if (!HasChunks(policy_)) return forced;
    const Chunks chunks(policy_, at_once_.front().n_tokens);
    forced.n_sink = chunks.SinkOf(chunk_);
    forced.n_recent = chunks.RecentOf(chunk_);
    return forced;
  }
  // Scores are means of sums, and slots are marked by these.
  bool MarksBySums() const {
    return signal_.Needs(kSums) && policy_.rows == KVEVICT_REDUCE_MEAN;
  }
  const PlanLayer& LayerAtOnce() const {
    return plan_.layer(at_once_.front().layer);
  }
  // Nothing stands between shaping and selection.
  bool ShapesAndSelects() const {
    return !sequence_.selects_on_host() && Ranks() &&
           policy_.scope == KVEVICT_SCOPE_KV_HEAD && !CountsByScore(policy_) &&
           !RescuesBlocks(policy_) && !DiversifiesBlocks(policy_) &&
           !SplitsByScore(policy_) && !plan_.Refines() &&
           !plan_.ReportsMass() && plan_.ShapingOf(LayerAtOnce()).n_terms == 1;
  }

  Sequence& sequence_;
  SlotTable& slots_;
  const Plan& plan_;
  const Context& context_;
  const Policy& policy_;
  const SignalInfo& signal_;
  const std::span<const kvevict_view> views_;
  const kvevict_evict_options options_;
  const std::span<const TokenRange> ranges_;
  std::span<const TokenRange> ranks_;  // of the layers at once
  const EvictWorkspace layout_;
  const uint32_t n_tokens_;  // of the longest layer
  const bool is_due_;
  uint8_t* const workspace_;

  std::span<LayerOutcome> layers_;
  std::span<LayerEviction> active_;  // that lose tokens, shared ones once
  // Of them, whose scores are there; alike, but for layers that share a list.
  std::span<LayerEviction> at_once_;
  uint32_t chunk_ = 0;  // of each of them
  bool chunk_loses_ = true;
  bool is_measured_ = false;  // a chunk before
  Forced forced_;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_EVICTION_H_
