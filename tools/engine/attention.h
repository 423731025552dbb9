// Attention over a layer of the cache, which the library computes.
#ifndef KVEVICT_TOOLS_ENGINE_ATTENTION_H_
#define KVEVICT_TOOLS_ENGINE_ATTENTION_H_

#include <cstdint>

#include "kvevict/kvevict.h"
#include "tools/engine/kv_cache.h"
#include "tools/engine/library_context.h"
#include "tools/engine/thread_pool.h"
#include "tools/engine/workspace.h"

namespace kvevict::tools {

class Attention {
 public:
  // `pool` must outlive this. simd_target names the SIMD target of the library;
  // nullptr: the best one.
  explicit Attention(ThreadPool& pool, const char* simd_target = nullptr);

  struct Args {
    const KvCache* cache = nullptr;
    uint32_t layer = 0;
    // [n_queries, n_q_heads, k_head_dim] after RoPE, for the last n_queries
    // tokens that the layer holds. Each sees itself and the tokens before it. q
    // head h reads KV head h / (n_q_heads / n_kv_heads).
    const float* queries = nullptr;
    uint32_t n_queries = 0;
    uint32_t n_q_heads = 0;
    float scale = 0.0f;    // of q.k; 0 means 1/sqrt(k_head_dim)
    float* out = nullptr;  // [n_queries, n_q_heads, v_head_dim]
  };

  // Equal bytes for every number of threads.
  void Attend(const Args& args);

 private:
  LibraryContext context_;
  Workspace workspace_;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_ATTENTION_H_
