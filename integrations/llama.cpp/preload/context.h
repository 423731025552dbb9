// The context that is evicted, and what the program may do with its sequences.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_CONTEXT_H_
#define KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_CONTEXT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvevict-llama.h"

namespace kvevict::llama_preload {

struct Sequence {
  // Its length at the last eviction; 0 if it was not evicted. Heads have kept different
  // tokens of what lies before, so only tokens behind it can be taken back.
  uint32_t exact_from = 0;
  bool said = false;   // why it cannot be evicted
  bool waits = false;  // for queries that score, and that was logged
};

struct Context {
  kvevict_llama* kv = nullptr;
  llama_memory_t memory = nullptr;  // NULL if the adapter refused the context
  std::string refusal;              // why, then
  std::vector<Sequence> sequences;
  bool automatic = true;  // evicted after each decode
  uint32_t n_ctx_told =
      0;  // the length that the program is told, if it is more

  // The sequences that llama.cpp means by a number: all if it is negative.
  std::span<Sequence> Of(llama_seq_id seq);
  bool AnyEvicted(llama_seq_id seq);
  // Asks the adapter when the sequence was last evicted.
  void LearnExactFrom(llama_seq_id seq);
};

// The context that is evicted, if the program asks for it and not llama.cpp or the
// adapter; else NULL. The program uses a context in one thread at a time, and frees it
// when no other call is running, so the pointer stays good.
Context* Find(const llama_context* ctx);
// Also a context that the adapter refused.
Context* FindAny(const llama_context* ctx);
Context* FindByMemory(llama_memory_t memory);

bool HaveContext();
void Add(const llama_context* ctx, Context context);
// Destroys its adapter.
void Remove(const llama_context* ctx);

}  // namespace kvevict::llama_preload

#endif  // KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_CONTEXT_H_
