#include "upstream.h"

#include <dlfcn.h>
#include <ggml-backend.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <stdexcept>

namespace kvevict::llama_cli {
namespace {

void LogErrors(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

class Batch {
 public:
  explicit Batch(size_t n)
      : batch_(llama_batch_init(static_cast<int32_t>(n), 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void Add(llama_token token, llama_pos position, bool wants_logits) {
    const int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = position;
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = 0;
    batch_.logits[i] = wants_logits ? 1 : 0;
  }
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
};

// Backends mostly lie beside the library.
std::string LibraryFolder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&llama_decode), &info) == 0) return ".";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + ".";
}

void Decode(llama_context* ctx, const llama_batch& batch) {
  if (const int status = llama_decode(ctx, batch); status != 0) {
    throw std::runtime_error("llama_decode() failed: " +
                             std::to_string(status));
  }
}

}  // namespace

void Check(kvevict_status status) {
  if (status != KVEVICT_OK) {
    throw std::runtime_error(kvevict_llama_last_error_message());
  }
}

Model LoadModel(const std::string& path, const std::string& backends,
                bool verbose) {
  if (!verbose) llama_log_set(&LogErrors, nullptr);
  if (backends.empty()) ggml_backend_load_all();
  if (!backends.empty() || ggml_backend_reg_count() == 0) {
    ggml_backend_load_all_from_path(
        (backends.empty() ? LibraryFolder() : backends).c_str());
  }
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  Model model(llama_model_load_from_file(path.c_str(), params));
  if (model == nullptr) {
    throw std::runtime_error(path + ": llama.cpp does not load it");
  }
  return model;
}

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

Chat::Chat(llama_model* model, const char* policy,
           const ContextOptions& options)
    : n_vocab_(static_cast<uint32_t>(
          llama_vocab_n_tokens(llama_model_get_vocab(model)))),
      n_batch_(options.n_ubatch) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.n_ctx;
  params.n_batch = params.n_ubatch = options.n_ubatch;
  params.n_threads = params.n_threads_batch =
      static_cast<int32_t>(options.n_threads);
  params.type_k = options.type_k;
  params.type_v = options.type_v;
  params.flash_attn_type = options.flash;
  if (policy != nullptr) {
    kvevict_llama* kv = nullptr;
    Check(kvevict_llama_create(policy, nullptr, &kv));
    kv_.reset(kv);
    kvevict_llama_install(kv, &params);
  }
  ctx_.reset(llama_init_from_model(model, params));
  if (ctx_ == nullptr) {
    throw std::runtime_error("llama_init_from_model() failed; --verbose tells");
  }
  if (kv_ != nullptr) Check(kvevict_llama_attach(kv_.get(), ctx_.get()));
}

void Chat::KeepLogits() {
  const float* last = llama_get_logits_ith(ctx_.get(), -1);
  logits_.assign(last, last + n_vocab_);
}

void Chat::Prefill(std::span<const llama_token> tokens,
                   const std::function<void(size_t n_done)>& progress) {
  for (size_t done = 0; done < tokens.size();) {
    const size_t n = std::min<size_t>(n_batch_, tokens.size() - done);
    Batch batch(n);
    for (size_t i = 0; i < n; ++i) {
      batch.Add(tokens[done + i], next_++, done + i + 1 == tokens.size());
    }
    Decode(ctx_.get(), batch.get());
    done += n;
    if (progress) progress(done);
  }
  KeepLogits();
}

std::span<const float> Chat::Step(llama_token token) {
  Batch batch(1);
  batch.Add(token, next_++, true);
  Decode(ctx_.get(), batch.get());
  KeepLogits();
  return logits_;
}

Chat::Snapshot Chat::Take() const {
  Snapshot snapshot;
  snapshot.state.resize(llama_state_seq_get_size(ctx_.get(), 0));
  llama_state_seq_get_data(ctx_.get(), snapshot.state.data(),
                           snapshot.state.size(), 0);
  snapshot.logits = logits_;
  snapshot.next = next_;
  return snapshot;
}

void Chat::Return(const Snapshot& snapshot) {
  if (llama_state_seq_set_data(ctx_.get(), snapshot.state.data(),
                               snapshot.state.size(),
                               0) != snapshot.state.size()) {
    throw std::runtime_error("llama_state_seq_set_data() failed");
  }
  logits_ = snapshot.logits;
  next_ = snapshot.next;
}

void Chat::StartFrom(const Chat& other) {
  logits_ = other.logits_;
  next_ = other.next_;
}

}  // namespace kvevict::llama_cli
