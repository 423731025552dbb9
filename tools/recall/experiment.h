// Prefill once; then, for each policy, evict a copy of the cache and ask for
// every needle.
#ifndef KVEVICT_TOOLS_RECALL_EXPERIMENT_H_
#define KVEVICT_TOOLS_RECALL_EXPERIMENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tools/engine/eviction_cells.h"
#include "tools/engine/evictor.h"
#include "tools/engine/kv_cache.h"
#include "tools/engine/query_statistics.h"
#include "tools/engine/thread_pool.h"
#include "tools/recall/model.h"
#include "tools/recall/workload.h"

namespace kvevict::tools {

struct RecallResult {
  Evictions evictions;
  double asked = 0;    // share of the needles the prompt asks for, found
  double unasked = 0;  // share of the others
  double decode_tokens_per_s = 0;
};

class RecallExperiment {
 public:
  // `pool` must outlive the experiment; simd_target as for an Evictor. The last
  // n_decoded tokens of the prompt, which must be fewer than it has, are read
  // one by one after the first eviction, each followed by another eviction.
  RecallExperiment(const Workload& workload, kvevict_dtype dtype,
                   std::span<const Policy> policies, ThreadPool& pool,
                   const char* simd_target = nullptr, uint32_t n_decoded = 0,
                   const KvLayout& layout = {});

  // Runs the prompt in chunks and shows every policy the queries. `progress`
  // gets the number of tokens done. Throws std::runtime_error if the model does
  // not answer the prompt's questions, because then later results would mean
  // nothing.
  void Prefill(const std::function<void(uint32_t)>& progress = nullptr);

  // Evicts by policy i, once, decodes, and asks.
  RecallResult Evaluate(size_t i);

  // See Evictor::BudgetForMass(): for the prompt and policy i, whose scores are
  // a mass.
  uint32_t BudgetForMass(size_t i, double mass);

 private:
  // Notes norms of V Wo for rows from `first` on.
  void ObserveValues(uint32_t layer, const float* values, uint32_t n_rows,
                     uint32_t first);
  void CheckAnswers(std::span<const int32_t> predictions) const;
  int32_t Ask(int32_t key);
  // Finds the queries of questions for needles that the prompt does not ask for.
  void AskAhead();
  // Gives policy i as many of them as it has reference queries.
  void GiveReference(size_t i, std::span<kvevict_signal_inputs> inputs);
  void Decode(size_t i, RecallResult* result);

  const Workload workload_;
  const uint32_t n_prompt_;  // its tokens that are not decoded
  const bool decodes_;
  const std::vector<Policy> policies_;
  RecallModel model_;
  KvCache full_;
  KvCache evicted_;
  std::vector<Evictor> evictors_;
  QueryStatistics statistics_;
  std::vector<kvevict_signal_inputs> inputs_;  // of the whole prompt
  // Per layer [kKvHeads, n_prompt_]: norms of V Wo, if a policy weighs tokens.
  std::vector<std::vector<float>> weights_;
  std::vector<kvevict_plane> weight_planes_;
  uint32_t window_ = 0;  // the longest of any policy
  // Per layer [window_, n_q_heads, head_dim]: the prompt's last ones.
  std::vector<std::vector<float>> last_queries_;
  // Per layer [kNeedles - kQuestions, n_q_heads, head_dim]: see AskAhead().
  std::vector<std::vector<float>> reference_;
  std::vector<kvevict_plane> reference_planes_;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_RECALL_EXPERIMENT_H_
