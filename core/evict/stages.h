// The stages in which an eviction chooses slots: a list that is run in order,
// for one group of layers after the other. With chunks it is run for one chunk
// of the group after the other.
#ifndef KVEVICT_CORE_EVICT_STAGES_H_
#define KVEVICT_CORE_EVICT_STAGES_H_

#include <cstdint>
#include <span>

#include "core/evict/call.h"

namespace kvevict {

// Layers that share a budget by their scores all run the stages that change
// scores before any of them runs those that select.

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
  // True if no stage runs between shaping and selection. One operation then
  // does both.
  bool ShapesAndSelects() const;

  // chunks.cc
  size_t CountAsLong() const;
  void Enter(uint32_t next);
  KeepLists KeepOf(const LayerEviction& layer) const;
  // The slots of the current chunk that must stay.
  Forced MustStay() const;
  // Arguments of selections.
  HeadSplit Split() const;
  SelectArgs ArgsFor(Jobs<SelectJob> jobs, const HeadSplit& heads) const;
};

// A stage runs if takes_part(plan), and only for groups whose tokens are ranked
// unless `always`.
struct Stage {
  bool (*takes_part)(const Plan& plan);
  Status (*run)(Group& group);
  // The scratch for n_layers with up to n_tokens at a time. Null if it needs
  // none.
  ScratchNeeds (*scratch)(const Plan& plan, uint32_t n_layers,
                          uint32_t n_tokens) = nullptr;
  bool always = false;  // runs also if nothing is ranked
};

// The stages in the order in which they run. Each is defined in the file named
// here.
extern const Stage kScore;               // score_stages.cc
extern const Stage kPinBest;             // select_stages.cc
extern const Stage kApplyWeights;        // score_stages.cc
extern const Stage kSubtractRedundancy;  // score_stages.cc
extern const Stage kStandardize;         // score_stages.cc
extern const Stage kAddLeverage;         // score_stages.cc
extern const Stage kSecureMass;          // score_stages.cc
extern const Stage kScaleByBestShare;    // select_stages.cc
extern const Stage kSecureValues;        // select_stages.cc
extern const Stage kDraw;                // score_stages.cc
extern const Stage kReduce;              // score_stages.cc
extern const Stage kCountWinners;        // select_stages.cc
extern const Stage kRescueBlocks;        // select_stages.cc
extern const Stage kDiversifyBlocks;     // select_stages.cc
extern const Stage kSelect;              // select_stages.cc
extern const Stage kMeasureMass;         // select_stages.cc

// The most scratch that any stage which takes part needs, among those that work
// on scores or those of selection.
ScratchNeeds ScratchOfStages(const Plan& plan, uint32_t n_layers,
                             uint32_t n_tokens, bool scores, bool selects);

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_STAGES_H_
