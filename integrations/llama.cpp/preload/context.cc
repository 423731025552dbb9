#include "context.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "hook.h"

namespace kvevict::llama_preload {
namespace {

std::mutex mutex;
std::map<const llama_context*, Context> contexts;

}  // namespace

std::span<Sequence> Context::Of(llama_seq_id seq) {
  if (seq < 0) return sequences;
  if (static_cast<size_t>(seq) >= sequences.size()) return {};
  return {&sequences[static_cast<size_t>(seq)], 1};
}

bool Context::AnyEvicted(llama_seq_id seq) {
  const auto of = Of(seq);
  return std::any_of(of.begin(), of.end(),
                     [](const Sequence& s) { return s.exact_from > 0; });
}

void Context::LearnExactFrom(llama_seq_id seq) {
  for (Sequence& s : Of(seq)) {
    if (kvevict_llama_evicted_at(kv, seq, &s.exact_from) != KVEVICT_OK) {
      s.exact_from = 0;
    }
  }
}

Context* Find(const llama_context* ctx) {
  Context* const context = inside ? nullptr : FindAny(ctx);
  return context == nullptr || context->memory == nullptr ? nullptr : context;
}

Context* FindAny(const llama_context* ctx) {
  const std::lock_guard lock(mutex);
  const auto it = contexts.find(ctx);
  return it == contexts.end() ? nullptr : &it->second;
}

Context* FindByMemory(llama_memory_t memory) {
  if (inside || memory == nullptr) return nullptr;
  const std::lock_guard lock(mutex);
  for (auto& [_, context] : contexts) {
    if (context.memory == memory) return &context;
  }
  return nullptr;
}

bool HaveContext() {
  const std::lock_guard lock(mutex);
  return !contexts.empty();
}

void Add(const llama_context* ctx, Context context) {
  const std::lock_guard lock(mutex);
  contexts[ctx] = std::move(context);
}

void Remove(const llama_context* ctx) {
  const std::lock_guard lock(mutex);
  const auto it = contexts.find(ctx);
  if (it == contexts.end()) return;
  kvevict_llama_destroy(it->second.kv);
  contexts.erase(it);
}

}  // namespace kvevict::llama_preload
