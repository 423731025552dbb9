// The prefill by the engine of tools/llama, in f32, whose heads and layers may
// hold different numbers of tokens.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_OWN_PREFILL_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_OWN_PREFILL_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "candidates.h"
#include "shared_prefill.h"
#include "tools/engine/evictor.h"
#include "tools/engine/kv_cache.h"
#include "tools/engine/policy.h"
#include "tools/engine/thread_pool.h"
#include "tools/llama/model.h"

namespace kvevict::llama_cli::eval {

class OwnPrefill final : public SharedPrefill {
 public:
  // With room for n_behind tokens behind a prompt of n_prompt. The model and
  // the pool must outlive this.
  OwnPrefill(tools::LlamaModel& model, std::span<const Candidate> candidates,
             tools::ThreadPool& pool, uint32_t n_prompt, uint32_t n_behind,
             Progress progress);

  size_t n_candidates() const override { return policies_.size(); }
  uint32_t n_vocab() const override { return model_.config().vocab_size; }
  void Read(std::span<const llama_token> prompt) override;
  std::vector<float> ReadOn(std::span<const llama_token> tokens,
                            size_t first) override;
  void TakeBack(uint32_t length) override;
  kvevict_llama_report Evict(size_t candidate) override;
  const kvevict_sequence* Evicted() const override;
  std::vector<float> Continue(std::span<const llama_token> tokens,
                              size_t first) override;
  void TakeBackContinued() override;

 private:
  std::vector<float> Feed(tools::KvCache& cache,
                          std::span<const llama_token> tokens, uint32_t at,
                          size_t first, const tools::QueryObserver& observe);
  // Evicts the copy.
  kvevict_llama_report EvictBy(const tools::Policy& policy);

  tools::LlamaModel& model_;
  tools::ThreadPool& pool_;
  Progress progress_;
  std::vector<tools::Policy> policies_;
  tools::KvCache full_, evicted_;
  std::optional<tools::Evictor> evictor_;
  // [n_layers][length, n_q_heads, head_dim] of what has been read
  std::vector<std::vector<float>> queries_;
  uint32_t length_ = 0;      // tokens that have been read
  uint32_t evicted_at_ = 0;  // and at the last Evict()
  uint32_t evicted_length_ = 0;
  std::vector<uint32_t> slots_;  // the longest head's, per layer, at Evict()
};

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_OWN_PREFILL_H_
