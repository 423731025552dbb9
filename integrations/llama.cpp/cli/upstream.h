// llama.cpp's objects as the program uses them.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_UPSTREAM_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_UPSTREAM_H_

#include <kvevict-llama.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvevict::llama_cli {

struct FreeUpstream {
  void operator()(llama_model* p) const { llama_model_free(p); }
  void operator()(llama_context* p) const { llama_free(p); }
  void operator()(kvevict_llama* p) const { kvevict_llama_destroy(p); }
};
using Model = std::unique_ptr<llama_model, FreeUpstream>;
using Adapter = std::unique_ptr<kvevict_llama, FreeUpstream>;

// Throws the adapter's sentence.
void Check(kvevict_status status);

struct ContextOptions {
  uint32_t n_ctx = 0;
  uint32_t n_threads = 1;
  uint32_t n_ubatch = 512;
  ggml_type type_k = GGML_TYPE_F16;
  ggml_type type_v = GGML_TYPE_F16;
  llama_flash_attn_type flash = LLAMA_FLASH_ATTN_TYPE_AUTO;
};

Model LoadModel(const std::string& path, const std::string& backends,
                bool verbose);

// Bytes that a process has in memory.
uint64_t ResidentBytes();

// One sequence in a context of its own, with an adapter if there is a policy.
class Chat {
 public:
  Chat(llama_model* model, const char* policy, const ContextOptions& options);

  // Feeds tokens in batches and keeps the logits of the last one.
  void Prefill(std::span<const llama_token> tokens,
               const std::function<void(size_t n_done)>& progress);
  // Feeds one token; its logits.
  std::span<const float> Step(llama_token token);
  std::span<const float> logits() const { return logits_; }

  // The whole sequence as it is now, to be returned to. llama.cpp's own state, so that
  // it serves models that cannot take tokens back.
  struct Snapshot {
    std::vector<uint8_t> state;
    std::vector<float> logits;
    llama_pos next;
  };
  Snapshot Take() const;
  void Return(const Snapshot& snapshot);

  // Begins where another one's prompt ended.
  void StartFrom(const Chat& other);
  kvevict_llama* kv() { return kv_.get(); }

 private:
  void KeepLogits();

  uint32_t n_vocab_, n_batch_;
  Adapter kv_;  // outlives its context
  std::unique_ptr<llama_context, FreeUpstream> ctx_;
  std::vector<float> logits_;
  llama_pos next_ = 0;
};

}  // namespace kvevict::llama_cli

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_UPSTREAM_H_
