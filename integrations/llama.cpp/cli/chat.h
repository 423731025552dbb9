// One sequence in a context of its own.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_CHAT_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_CHAT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "upstream.h"

namespace kvevict::llama_cli {

class Chat {
 public:
  Chat(llama_model* model, const char* policy, const ContextOptions& options);

  // Feeds tokens in batches and keeps the logits of the last one.
  void Prefill(std::span<const llama_token> tokens,
               const std::function<void(size_t n_done)>& progress);
  // Feeds one token.
  void Step(llama_token token);
  // The logits of the last token that was fed.
  std::span<const float> logits() const { return logits_; }

  // A snapshot of the whole sequence, to return to. It is llama.cpp's own
  // state, so it also works for models that cannot take tokens back.
  struct Snapshot {
    std::vector<uint8_t> state;
    std::vector<float> logits;
    llama_pos next;
  };
  Snapshot Take() const;
  void Return(const Snapshot& snapshot);

  // Starts where the prompt of another chat ended.
  void StartFrom(const Chat& other);
  kvevict_llama* kv() { return context_.kv.get(); }

  // The bytes of the context's whole cache as llama.cpp allocated it, including
  // windows and recurrent state. 0 before the first token.
  uint64_t AllocatedBytes() const;
  // The number of layers that have a part of it.
  uint32_t CachedLayers() const;

 private:
  static bool SeeCache(ggml_tensor* node, bool ask, void* chat);
  ContextOptions Watched(ContextOptions options);
  void KeepLogits();

  uint32_t n_vocab_, n_batch_;
  // Bytes of the cache's tensors by name, complete with the first graph.
  std::map<std::string, uint64_t> cache_;
  bool cache_is_known_ = false;
  Context context_;
  std::vector<float> logits_;
  llama_pos next_ = 0;
};

}  // namespace kvevict::llama_cli

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_CHAT_H_
