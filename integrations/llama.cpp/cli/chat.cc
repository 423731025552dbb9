#include "chat.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>

namespace kvevict::llama_cli {

Chat::Chat(llama_model* model, const char* policy,
           const ContextOptions& options)
    : n_vocab_(static_cast<uint32_t>(
          llama_vocab_n_tokens(llama_model_get_vocab(model)))),
      n_batch_(options.n_batch),
      context_(OpenContext(model, policy, Watched(options))) {}

ContextOptions Chat::Watched(ContextOptions options) {
  options.callback = &SeeCache;
  options.callback_data = this;
  return options;
}

bool Chat::SeeCache(ggml_tensor* node, bool ask, void* chat) {
  Chat& self = *static_cast<Chat*>(chat);
  if (!ask || self.cache_is_known_) return false;
  for (const ggml_tensor* t : node->src) {
    if (t == nullptr) continue;
    while (t->view_src != nullptr) t = t->view_src;
    if (t->op == GGML_OP_NONE && std::strncmp(t->name, "cache_", 6) == 0) {
      self.cache_[t->name] = ggml_nbytes(t);
    }
  }
  return false;
}

uint64_t Chat::AllocatedBytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, n] : cache_) bytes += n;
  return bytes;
}

// Names are cache_k_l<layer>, cache_v_l<layer> and the like.
uint32_t Chat::CachedLayers() const {
  std::set<std::string> layers;
  for (const auto& [name, n] : cache_) {
    layers.insert(name.substr(name.rfind('_') + 1));
  }
  return static_cast<uint32_t>(layers.size());
}

void Chat::KeepLogits() {
  cache_is_known_ = true;
  const float* last = llama_get_logits_ith(context_.ctx.get(), -1);
  logits_.assign(last, last + n_vocab_);
}

void Chat::Prefill(std::span<const llama_token> tokens,
                   const std::function<void(size_t n_done)>& progress) {
  for (size_t done = 0; done < tokens.size();) {
    const size_t n = std::min<size_t>(n_batch_, tokens.size() - done);
    Batch batch(n);
    for (size_t i = 0; i < n; ++i) {
      batch.Add(tokens[done + i], next_++, 0, done + i + 1 == tokens.size());
    }
    batch.Decode(context_);
    done += n;
    if (progress) progress(done);
  }
  KeepLogits();
}

void Chat::Step(llama_token token) {
  Batch batch(1);
  batch.Add(token, next_++, 0, true);
  batch.Decode(context_);
  KeepLogits();
}

Chat::Snapshot Chat::Take() const {
  Snapshot snapshot;
  snapshot.state.resize(llama_state_seq_get_size(context_.ctx.get(), 0));
  llama_state_seq_get_data(context_.ctx.get(), snapshot.state.data(),
                           snapshot.state.size(), 0);
  snapshot.logits = logits_;
  snapshot.next = next_;
  return snapshot;
}

void Chat::Return(const Snapshot& snapshot) {
  if (llama_state_seq_set_data(context_.ctx.get(), snapshot.state.data(),
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
