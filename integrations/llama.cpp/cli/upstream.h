// llama.cpp's objects, as the program and the tests use them.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_UPSTREAM_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_UPSTREAM_H_

#include <kvevict-llama.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace kvevict::llama_cli {

struct FreeUpstream {
  void operator()(llama_model* p) const { llama_model_free(p); }
  void operator()(llama_context* p) const { llama_free(p); }
  void operator()(kvevict_llama* p) const { kvevict_llama_destroy(p); }
};
using Model = std::unique_ptr<llama_model, FreeUpstream>;
using Adapter = std::unique_ptr<kvevict_llama, FreeUpstream>;

// Throws the adapter's sentence on failure.
void Check(kvevict_status status);

// Loads a model, and for the first model ggml's backends: those in `backends`,
// or with "" where llama.cpp searches and beside its library. `log` gets
// llama.cpp's messages. `adjust`, if any, is called last with the parameters.
Model LoadModel(
    const std::string& path, const std::string& backends, ggml_log_callback log,
    const std::function<void(llama_model_params&)>& adjust = nullptr);

struct ContextOptions {
  uint32_t n_ctx = 0;
  uint32_t n_batch = 512;
  uint32_t n_ubatch = 512;
  uint32_t n_seq = 1;
  bool unified = false;
  uint32_t n_threads = 1;
  ggml_type type_k = GGML_TYPE_F16;
  ggml_type type_v = GGML_TYPE_F16;
  llama_flash_attn_type flash = LLAMA_FLASH_ATTN_TYPE_AUTO;
  bool swa_full = false;
  uint32_t query_rows = 0;
  std::span<const char> calibration;  // as in kvevict_llama_options
  // callback of the application
  ggml_backend_sched_eval_callback callback = nullptr;
  void* callback_data = nullptr;
};

// Takes query_rows and calibration of the options.
Adapter MakeAdapter(const char* policy, const ContextOptions& options);

// A context with its adapter, which outlives the context.
struct Context {
  Adapter kv;  // none without a policy
  std::unique_ptr<llama_context, FreeUpstream> ctx;
};
// `adjust`, if any, is called last with the parameters.
Context OpenContext(
    llama_model* model, const char* policy, const ContextOptions& options,
    const std::function<void(llama_context_params&, kvevict_llama*)>& adjust =
        nullptr);

class Batch {
 public:
  explicit Batch(size_t n)
      : batch_(llama_batch_init(static_cast<int32_t>(n), 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void Add(llama_token token, llama_pos position, llama_seq_id seq,
           bool wants_logits);
  // Announces and decodes the batch. Throws on failure.
  void Decode(const Context& context) const;

 private:
  llama_batch batch_;
};

}  // namespace kvevict::llama_cli

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_UPSTREAM_H_
