// How much a model changes when its cache is evicted, measured on a text.
#ifndef KVEVICT_TOOLS_LLAMA_TEXT_EVALUATION_H_
#define KVEVICT_TOOLS_LLAMA_TEXT_EVALUATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvevict/kvevict.h"
#include "tools/engine/eviction_cells.h"
#include "tools/engine/evictor.h"
#include "tools/engine/kv_cache.h"
#include "tools/engine/query_statistics.h"
#include "tools/engine/thread_pool.h"
#include "tools/llama/model.h"

namespace kvevict::tools {

// A text cut in two: the prompt that is prefilled and evicted, and what
// follows.
struct TextTask {
  std::vector<int32_t> prompt;
  // Fed one by one after the eviction; each predicts the next, so n + 1 tokens
  // make n predictions. At least two.
  std::vector<int32_t> following;
  bool evicts_while_decoding = false;  // evicts after each of these tokens
  // Follows the prompt in a branch of its own: its last queries are the
  // reference queries of policies that have some.
  std::vector<int32_t> question = {};
};

struct TextResult {
  Evictions evictions;
  double kl = 0;         // mean KL(full || evicted) per prediction, in nats
  double agreement = 0;  // share of predictions with the full cache's argmax
  double nll = 0;        // mean -log p(following token), in nats
  double decode_tokens_per_s = 0;
  std::vector<int32_t> greedy;  // continuation of the prompt
};

// Prefills once, then tries each policy on a copy of that cache.
class TextEvaluation {
 public:
  using Progress = std::function<void(uint32_t n_done)>;

  // `model` and `pool` must outlive this. Throws KvevictError for a policy that
  // does not fit the model.
  TextEvaluation(LlamaModel& model, TextTask task, kvevict_dtype dtype,
                 const std::vector<Policy>& policies, uint32_t n_greedy,
                 ThreadPool& pool, const char* simd_target = nullptr,
                 const KvLayout& layout = {});

  // Feeds the prompt and predicts with the full cache; `progress` may be null.
  void Prefill(const Progress& progress);

  // Evicts by policies[index] and predicts again. Once per policy.
  TextResult Evaluate(size_t index);

 private:
  struct Predictions {
    std::vector<float> logits;  // [n, vocab_size]
    double seconds = 0;
  };

  uint32_t n_predictions() const {
    return static_cast<uint32_t>(task_.following.size()) - 1;
  }
  // Evicts after each token if there is an evictor.
  Predictions Predict(KvCache& cache, TextResult* result = nullptr,
                      std::optional<size_t> evictor = std::nullopt);
  std::vector<int32_t> ContinueGreedily(KvCache& cache);
  void AskQuestion();
  // The inputs of a policy that has reference queries.
  std::vector<kvevict_signal_inputs> WithReference(
      size_t policy, std::span<const kvevict_signal_inputs> inputs);
  void Compare(const std::vector<float>& logits, TextResult& result) const;

  LlamaModel& model_;
  TextTask task_;
  uint32_t n_greedy_;
  std::vector<std::unique_ptr<Evictor>> evictors_;
  std::vector<bool> add_sums_;         // per policy: adds sums while decoding
  std::vector<uint32_t> n_reference_;  // per policy: reference queries
  // Per layer: the question's queries [tokens, n_q_heads, head_dim].
  std::vector<std::vector<float>> question_queries_;
  std::vector<kvevict_plane> reference_planes_;  // of the policy in use
  KvCache full_cache_;                           // after the prompt
  KvCache evicted_cache_;                        // the copy under test
  QueryStatistics statistics_;
  std::span<const kvevict_signal_inputs> inputs_;       // of the whole prompt
  std::vector<kvevict_signal_inputs> decoding_inputs_;  // without its sums
  std::vector<float> prompt_logits_;
  Predictions full_;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_LLAMA_TEXT_EVALUATION_H_
