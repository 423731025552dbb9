// The stages in which an eviction chooses slots: a list that is run in order, for one
// group of layers after the other, and of policies with chunks for one chunk of these.
#ifndef KVEVICT_CORE_EVICT_STAGES_H_
#define KVEVICT_CORE_EVICT_STAGES_H_

#include <cstdint>
#include <span>

#include "core/evict/call.h"

namespace kvevict {

// Layers whose scores are there at once, and the chunk of each that they are of. They are
// alike, but for those that share a list.
struct Group {
  EvictCall& call;
  std::span<LayerEviction> layers;
  uint32_t chunk = 0;
  bool loses = true;         // of the chunk not all are kept
  bool is_measured = false;  // a chunk before

  // Tokens are ranked.
  bool Ranks() const { return call.signal.Ranks() && loses; }
  const PlanLayer& First() const {
    return call.plan.layer(layers.front().layer);
  }
  // Those with lists: layers may share the first one's.
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
  // Nothing stands between shaping and selection, which one operation does.
  bool ShapesAndSelects() const;

  // chunks.cc: what operations are told of a chunk, and what a layer keeps of it.
  size_t CountAsLong() const;
  void Enter(uint32_t next);
  KeepLists KeepOf(const LayerEviction& layer) const;
  // Which slots of it must stay.
  Forced MustStay() const;
  // What selections are told, of jobs of layers.
  HeadSplit Split() const;
  SelectArgs ArgsFor(Jobs<SelectJob> jobs, const HeadSplit& heads) const;
};

// Runs of policies that have it, where tokens are ranked.
struct Stage {
  bool (*takes_part)(const Plan& plan);
  Status (*run)(Group& group);
  // For n_layers, of up to n_tokens at a time; null for none.
  ScratchNeeds (*scratch)(const Plan& plan, uint32_t n_layers,
                          uint32_t n_tokens) = nullptr;
  bool always = false;  // where nothing is ranked, too
};

// In the order in which they run. Each is a small part of its file:
extern const Stage kScore;               // score_stages.cc
extern const Stage kPinBest;             // select_stages.cc
extern const Stage kApplyWeights;        // score_stages.cc
extern const Stage kSubtractRedundancy;  // score_stages.cc
extern const Stage kScaleByBestShare;    // select_stages.cc
extern const Stage kReduce;              // score_stages.cc
extern const Stage kRescueBlocks;        // select_stages.cc
extern const Stage kDiversifyBlocks;     // select_stages.cc
extern const Stage kSelect;              // select_stages.cc
extern const Stage kMeasureMass;         // select_stages.cc

// The most scratch of stages that take part: of those that work on scores, of selection.
ScratchNeeds ScratchOfStages(const Plan& plan, uint32_t n_layers,
                             uint32_t n_tokens, bool scores, bool selects);

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_STAGES_H_
