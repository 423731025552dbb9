// One reading of a prompt that serves all candidates: every one has an adapter
// on the same context, and evicts into a second context, which leaves the
// prompt's cache as it is.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_SHARED_PREFILL_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_SHARED_PREFILL_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "candidates.h"
#include "upstream.h"

namespace kvevict::llama_cli::eval {

class SharedPrefill {
 public:
  using Progress = std::function<void(size_t n_tokens)>;

  // With room for n_behind tokens behind a prompt of n_prompt. `progress` is
  // told of all tokens that are read.
  SharedPrefill(llama_model* model, std::span<const Candidate> candidates,
                ContextOptions options, uint32_t n_prompt, uint32_t n_behind,
                Progress progress);

  size_t n_candidates() const { return adapters_.size() - 1; }
  uint32_t n_vocab() const { return n_vocab_; }

  // Reads a prompt instead of the last one.
  void Read(std::span<const llama_token> prompt);
  // Reads more tokens behind it. The result is the logits of tokens[first] and
  // all after it.
  std::vector<float> ReadOn(std::span<const llama_token> tokens, size_t first);
  // Takes back what ReadOn() has read behind `length` tokens.
  void TakeBack(uint32_t length);

  // Evicts what has been read into the second context. n_candidates() stands
  // for the cache as it is.
  kvevict_llama_report Evict(size_t candidate);
  // Of the second context: what Evict() left there.
  kvevict_llama* evicted() const { return target_.kv.get(); }
  // Reads tokens behind what is in the second context, as ReadOn() does.
  std::vector<float> Continue(std::span<const llama_token> tokens,
                              size_t first);
  // Takes back all that Continue() has read since Evict().
  void TakeBackContinued();

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

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_SHARED_PREFILL_H_
