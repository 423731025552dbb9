// A context, a plan and what the doors need, on the CPU or on the GPU.
#ifndef KVEVICT_TESTS_GPU_MODEL_H_
#define KVEVICT_TESTS_GPU_MODEL_H_

#include <string>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/gpu/report.h"
#include "tests/gpu/twin.h"

namespace kvevict::gpu {

// One side: `gpu`, or the CPU if it is null.
class Side {
 public:
  Side(const Gpu* gpu, Twin* twin, const std::string& policy,
       const kvevict_context_options* options = nullptr);

  const kvevict_context* context() const { return context_.get(); }
  const kvevict_plan* plan() const { return plan_.get(); }
  kvevict_sequence* sequence() const { return sequence_.get(); }
  uint32_t obs_window() const { return policy_.window; }
  kvevict_stream stream() const { return stream_; }
  // The sequence's calls use it from now on.
  void UseStream(kvevict_stream stream) { stream_ = stream; }
  // The sequence's calls use another cache of the same shape from now on.
  void UseCache(Twin* twin) { twin_ = twin; }
  const oracle_policy& policy() const { return policy_; }

  // ---- The doors, of one layer at n_tokens ----

  // Scores by the window's queries, or by all.
  std::vector<float> Score(uint32_t layer, uint32_t n_tokens,
                           const kvevict_plane* row_lse = nullptr);
  // Returns keep lists [n_lists, n_keep] of given scores.
  std::vector<int32_t> Select(uint32_t layer, const std::vector<float>& scores,
                              uint32_t n_tokens,
                              const std::vector<int32_t>& protect);
  void Compact(uint32_t layer, uint32_t n_tokens,
               const std::vector<int32_t>& keep, uint32_t n_lists,
               bool with_workspace);
  void Reorder(uint32_t layer, uint32_t n_tokens,
               const std::vector<int32_t>& slots, uint32_t n_lists);

  // ---- A sequence ----

  // Observes and appends the tokens of [first, first + n), chunk by chunk.
  void Prefill(uint32_t first, uint32_t n, uint32_t chunk);
  kvevict_evict_report Evict(const kvevict_evict_options* options = nullptr);
  std::vector<int32_t> Positions(uint32_t layer, uint32_t kv_head) const;
  uint32_t Stored(uint32_t layer) const;
  uint32_t Logical() const;

 private:
  // Memory of the side that can be written and read back.
  class Memory;

  const kvevict_view& View(uint32_t layer) const;
  // Observes the queries of [first, first + rows) at positions from `position`
  // on, and appends as many tokens.
  void Observe(uint32_t first, uint32_t rows, uint32_t position);

  const Gpu* gpu_;
  Twin* twin_;
  oracle_policy policy_;
  ContextHandle context_;
  PlanHandle plan_;
  SequenceHandle sequence_;
  kvevict_stream stream_;
  uint32_t n_evictions_ = 0;
};

// Fails unless every layer and head has the same survivors.
void ExpectSamePositions(const Side& a, const Side& b, const Twin& twin,
                         Report* report);
// Fails unless every slot of every layer and head holds its position's rows.
void ExpectRowsOfPositions(const Side& side, Twin* twin, Report* report);
// Fails unless the device's lengths are what the host counted.
void ExpectLengths(const Gpu& gpu, const Side& side, const Twin& twin,
                   Report* report);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_MODEL_H_
