// One reading of a prompt that serves all candidates. Each evicts into a second
// cache, which leaves the prompt's cache as it is.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_SHARED_PREFILL_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_SHARED_PREFILL_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "upstream.h"

namespace kvevict::llama_cli::eval {

class SharedPrefill {
 public:
  // Is told of all tokens that are read.
  using Progress = std::function<void(size_t n_tokens)>;

  virtual ~SharedPrefill() = default;

  virtual size_t n_candidates() const = 0;
  virtual uint32_t n_vocab() const = 0;

  // Reads a prompt instead of the last one.
  virtual void Read(std::span<const llama_token> prompt) = 0;
  // Reads more tokens behind it. The result is the logits of tokens[first] and
  // all after it.
  virtual std::vector<float> ReadOn(std::span<const llama_token> tokens,
                                    size_t first) = 0;
  // Takes back what ReadOn() has read behind `length` tokens.
  virtual void TakeBack(uint32_t length) = 0;

  // Evicts what has been read into the second cache. n_candidates() stands for
  // the cache as it is.
  virtual kvevict_llama_report Evict(size_t candidate) = 0;
  // What the eviction by a candidate left there, until the next Evict().
  virtual const kvevict_sequence* Evicted() const = 0;
  // Reads tokens behind what is in the second cache, as ReadOn() does.
  virtual std::vector<float> Continue(std::span<const llama_token> tokens,
                                      size_t first) = 0;
  // Takes back all that Continue() has read since Evict().
  virtual void TakeBackContinued() = 0;
};

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_SHARED_PREFILL_H_
