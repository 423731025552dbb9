// An eviction of a dumped cache, and what its queries lose by it.
#ifndef KVEVICT_TOOLS_REPLAY_REPLAY_H_
#define KVEVICT_TOOLS_REPLAY_REPLAY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvevict/attention.h"
#include "tools/engine/library_context.h"
#include "tools/engine/policy.h"
#include "tools/engine/thread_pool.h"
#include "tools/engine/workspace.h"
#include "tools/replay/dump.h"
#include "tools/replay/inputs.h"

namespace kvevict::tools {

struct ReplayOptions {
  // The last queries, for whose attention the loss is measured.
  uint32_t n_measured = 0;
  // Their tokens come after the eviction, and the policy does not see them.
  bool unseen = false;
  float softmax_scale = 0;  // 0: 1/sqrt(dim)
  float logit_softcap = 0;  // 0: none
  bool rope_interleaved = false;
};

// One KV head of a layer.
struct ReplayHead {
  std::vector<int32_t> positions;  // of the rows that stayed, ascending
  double mass = 0;   // the share of the measured queries' attention that stayed
  double error = 0;  // of these queries' outputs: |kept - all| / |all|
  double policy_mass = 0;  // the share of the policy's own scores; NaN: no mass
};

struct ReplayLayer {
  std::vector<ReplayHead> heads;
  double error = 0;  // of all heads together
  // Copies of the dump's K and V. The first rows of a head are those that
  // stayed.
  std::vector<uint8_t> k, v;
};

struct Replayed {
  std::vector<ReplayLayer> layers;
  kvevict_evict_report report = {};
  double milliseconds = 0;  // of the eviction, with the scores
  double mass = 0;          // means over layers and heads
  double policy_mass = 0;
  double error = 0;  // mean over layers
};

class Replay {
 public:
  // All must outlive it. Computes what the measured queries see in the whole
  // cache.
  Replay(const Dump& dump, const DumpInputs& inputs,
         const ReplayOptions& options, ThreadPool& pool);

  // Evicts a copy of the cache. Throws KvevictError if the policy needs what
  // the dump lacks.
  Replayed Evict(const Policy& policy);

  // Tokens that are held at the eviction.
  uint32_t n_held() const { return n_held_; }

 private:
  struct Attention {
    std::vector<float> out;   // [n_measured, n_q_heads, v_dim]
    std::vector<float> sums;  // [n_kv_heads, n_tokens]; by all queries
  };
  struct DestroyPlan {
    void operator()(kvevict_plan* plan) const { kvevict_plan_destroy(plan); }
  };
  using Plan = std::unique_ptr<kvevict_plan, DestroyPlan>;
  Plan MakePlan(const Policy& policy) const;
  std::vector<kvevict_signal_inputs> InputsFor(const Policy& policy);
  void RunJobs(std::span<const kvevict_attention_job> jobs);
  Attention AttendAll(uint32_t layer);
  std::vector<float> AttendKept(uint32_t layer, const ReplayLayer& kept);
  void Measure(uint32_t layer, ReplayLayer* kept);

  const Dump& dump_;
  const DumpInputs& inputs_;
  ReplayOptions options_;
  LibraryContext context_;
  Workspace workspace_;
  uint32_t n_held_ = 0;
  std::vector<Attention> all_;
  std::vector<kvevict_plane> queries_;  // those that the policy reads, by layer
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_REPLAY_REPLAY_H_
