// The prefill by llama.cpp: every candidate has an adapter on the same context,
// and evicts into a second context.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_LLAMA_PREFILL_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_LLAMA_PREFILL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "candidates.h"
#include "shared_prefill.h"
#include "upstream.h"

namespace kvevict::llama_cli::eval {

class LlamaPrefill final : public SharedPrefill {
 public:
  // With room for n_behind tokens behind a prompt of n_prompt.
  LlamaPrefill(llama_model* model, std::span<const Candidate> candidates,
               ContextOptions options, uint32_t n_prompt, uint32_t n_behind,
               Progress progress);

  size_t n_candidates() const override { return adapters_.size() - 1; }
  uint32_t n_vocab() const override { return n_vocab_; }
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
  std::vector<float> Feed(const Context& context,
                          std::span<const llama_token> tokens, uint32_t at,
                          size_t first);

  uint32_t n_vocab_, n_batch_;
  Progress progress_;
  std::vector<Adapter> adapters_;  // they outlive the context
  Context source_, target_;
  uint32_t length_ = 0;      // tokens in the source
  uint32_t evicted_at_ = 0;  // and at the last Evict()
  uint32_t target_length_ = 0;
};

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_LLAMA_PREFILL_H_
