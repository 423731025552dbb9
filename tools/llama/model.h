// The forward pass of a LLaMA-architecture model.
#ifndef KVEVICT_TOOLS_LLAMA_MODEL_H_
#define KVEVICT_TOOLS_LLAMA_MODEL_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kvevict/kvevict.h"
#include "tools/engine/attention.h"
#include "tools/engine/evictor.h"
#include "tools/engine/kv_cache.h"
#include "tools/engine/rope.h"
#include "tools/engine/thread_pool.h"
#include "tools/llama/weights.h"

namespace kvevict::tools {

// Called with every layer's query rows, [n_rows, n_q_heads, head_dim] after
// RoPE, for positions first_position, first_position + 1, ..., whose keys the
// cache holds. An eviction policy that reads attention needs them.
using QueryObserver =
    std::function<void(uint32_t layer, const float* queries, uint32_t n_rows,
                       uint32_t first_position)>;

class LlamaModel {
 public:
  // Long inputs pass through the layers in chunks of at most this many tokens.
  static constexpr uint32_t kMaxChunk = 256;

  // `pool` must outlive the model; simd_target as for an Evictor.
  LlamaModel(LlamaWeights weights, ThreadPool& pool,
             const char* simd_target = nullptr);

  const LlamaConfig& config() const { return weights_.config; }
  QueryShape HeadShape() const { return {.n_q_heads = config().n_q_heads}; }
  Rope RopeOfHeads() const { return {.inv_freq = config().inv_freq}; }

  // The L1 norms of V Wo of a layer's values [n_rows, n_kv_heads, head_dim],
  // the mean over the query heads of a KV head: [n_kv_heads, n_rows].
  std::vector<float> ProjectedNorms(uint32_t layer, const float* values,
                                    uint32_t n_rows) const;

  // A cache this model can use.
  KvShape CacheShape(kvevict_dtype dtype, uint32_t capacity) const;

  // Feeds at most kMaxChunk tokens. Token i is rotated for first_position + i,
  // and its keys and values go to the next free slot of every layer: after an
  // eviction the position counts the tokens seen, the slot those still held,
  // and layers may differ. Every token sees all slots before its own.
  //
  // `logits` is [vocab_size] for the last token's, [tokens, vocab_size] for
  // all, or empty. `observe` may be null. Token ids must be below vocab_size.
  void Forward(std::span<const int32_t> tokens, uint32_t first_position,
               KvCache& cache, std::span<float> logits,
               const QueryObserver& observe = nullptr);

 private:
  void ComputeAngles(uint32_t n_tokens, uint32_t first_position);
  void RotateHeads(float* rows, uint32_t n_tokens, uint32_t n_heads) const;
  void Attend(const LlamaLayer& layer, uint32_t index, uint32_t n_tokens,
              uint32_t first_position, KvCache& cache,
              const QueryObserver& observe);
  void FeedForward(const LlamaLayer& layer, uint32_t n_tokens);
  void Normalize(const float* rows, const std::vector<float>& weight,
                 uint32_t n_tokens, float* out);
  void Project(const Matrix& matrix, const float* in, uint32_t n_tokens,
               float* out, bool accumulate = false);

  LlamaWeights weights_;
  ThreadPool& pool_;
  Attention attention_;

  // One chunk's activations, each [kMaxChunk, width].
  std::vector<float> residual_, normed_, q_, k_, v_, attended_, gate_, up_;
  std::vector<float> cos_, sin_;  // [kMaxChunk, RoPE pairs]
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_LLAMA_MODEL_H_
