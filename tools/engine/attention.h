// Exact softmax attention over one layer of the cache.
#ifndef KVEVICT_TOOLS_ENGINE_ATTENTION_H_
#define KVEVICT_TOOLS_ENGINE_ATTENTION_H_

#include <cstdint>
#include <span>

#include "tools/engine/kv_cache.h"
#include "tools/engine/thread_pool.h"

namespace kvevict::tools {

struct AttentionArgs {
  const KvCache* cache = nullptr;
  uint32_t layer = 0;
  // [n_queries, n_q_heads, k_head_dim] after RoPE. q head h reads KV head
  // h / (n_q_heads / n_kv_heads).
  const float* queries = nullptr;
  uint32_t n_q_heads = 0;
  // [n_queries]: query i sees slots [0, n_visible[i]), at least one, of the longest
  // head; of others so many fewer as they are shorter. Given explicitly because slots
  // and positions differ after an eviction.
  std::span<const uint32_t> n_visible;
  float scale = 0.0f;  // of q.k; 0 means 1/sqrt(k_head_dim)
  // [n_queries, n_q_heads, v_head_dim]
  float* out = nullptr;
};

// One query is decoding: keys are read once, in spans that several threads share.
// More are prefill: blocks of queries against tiles of keys. Both accumulate in f32
// whatever the dtype, and give equal bytes for every number of threads.
void Attend(const AttentionArgs& args, ThreadPool& pool);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_ATTENTION_H_
