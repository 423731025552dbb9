// The stages in which an eviction chooses slots. They run in order for one
// group of layers after the other, and with chunks for one chunk of the group
// after the other.
#ifndef KVEVICT_CORE_EVICT_STAGES_H_
#define KVEVICT_CORE_EVICT_STAGES_H_

#include <cstdint>
#include <span>

#include "core/evict/call.h"

namespace kvevict {

// Layers whose scores are in the workspace at once, and the current chunk of
// each. The layers are alike unless they share a list.
struct Group {
  EvictCall& call;
  std::span<LayerEviction> layers;
  uint32_t chunk = 0;
  bool loses = true;         // the chunk loses tokens
  bool is_measured = false;  // an earlier chunk was measured

  bool Ranks() const { return call.signal.Ranks() && loses; }
  const PlanLayer& First() const {
    return call.plan.layer(layers.front().layer);
  }
  // The layers that own keep lists. If all layers share one list, it is the
  // first layer's.
  std::span<LayerEviction> Listed() const {
    return call.OneList() ? layers.first(1) : layers;
  }
  template <typename Job>
  Jobs<Job> All(Job LayerEviction::*job) const {
    return Jobs<Job>(layers, job);
  }
  Jobs<uint32_t> numbers() const { return {layers, &LayerOutcome::layer}; }
  Jobs<SelectJob> selects() const {
    return Jobs<SelectJob>(Listed(), &LayerEviction::select);
  }
  std::span<uint8_t> scratch() const {
    return call.Scratch(call.layout.scratch);
  }
  // True if nothing runs between shaping and selection. One operation then does
  // both.
  bool ShapesAndSelects() const;

  // Arguments of selections.
  HeadSplit Split() const;
  SelectArgs ArgsFor(Jobs<SelectJob> jobs, const HeadSplit& heads) const;
  // The slots of the current chunk that must stay, and what it keeps.
  Forced MustStay() const;
  KeepLists KeepOf(const LayerEviction& layer) const;

  // chunks.cc: if the policy has chunks.
  size_t CountAsLong() const;  // layers at the front that are equally long
  uint32_t CountChunks() const;
  void EnterChunk(uint32_t next);
  Forced MustStayInChunk() const;
  KeepLists KeepOfChunk(const LayerEviction& layer) const;
};

// The lists of stages. If layers share a budget by measures of their scores,
// all layers run kScore before the first goes on. If layers compete, all run
// kScore and kAdjust, and then kContest runs once.
enum class StageList {
  kScore,    // computes scores by the policy's signal
  kAdjust,   // changes scores
  kContest,  // counts what each list wins, for all layers at once
  kSelect    // chooses slots
};

// Runs, in order, the stages of a list that take part.
Status RunStages(StageList list, Group& group);

// The most scratch that any stage which takes part needs, among those that work
// on scores or those of selection.
ScratchNeeds ScratchOfStages(const Plan& plan, uint32_t n_layers,
                             uint32_t n_tokens, bool scores, bool selects);

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_STAGES_H_
