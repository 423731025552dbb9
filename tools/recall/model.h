// The recall model's forward pass.
#ifndef KVEVICT_TOOLS_RECALL_MODEL_H_
#define KVEVICT_TOOLS_RECALL_MODEL_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tools/engine/attention.h"
#include "tools/engine/kv_cache.h"
#include "tools/engine/rope.h"
#include "tools/engine/thread_pool.h"
#include "tools/recall/weights.h"

namespace kvevict::tools {

class RecallModel {
 public:
  // Positions below n_positions. `pool` must outlive the model; simd_target as
  // for an Evictor.
  RecallModel(uint32_t n_positions, ThreadPool& pool,
              const char* simd_target = nullptr);

  // The cache for n_slots tokens.
  static KvShape CacheShape(kvevict_dtype dtype, uint32_t n_slots);

  static Rope RopeOfHeads();

  // Called with a layer's queries [n_rows, kQHeads, kHeadDim] after RoPE, and
  // the values [n_rows, kKvHeads, kHeadDim]. The cache holds their keys.
  using QueryObserver =
      std::function<void(uint32_t layer, const float* queries,
                         const float* values, uint32_t n_rows)>;

  // The L1 norms of V Wo of a layer's values [n_rows, kKvHeads, kHeadDim], the
  // mean over the query heads: [n_rows, kKvHeads].
  std::vector<float> ProjectedNorms(uint32_t layer, const float* values,
                                    uint32_t n_rows) const;

  // Runs tokens of positions first_position, .. with what the cache holds, and
  // appends their keys and values. Each token sees the slots before it and
  // itself. Returns the most likely next token after each.
  std::vector<int32_t> Forward(std::span<const int32_t> tokens,
                               uint32_t first_position, KvCache& cache,
                               const QueryObserver& observe = nullptr);

 private:
  // Rotates rows [n_rows, n_heads, kHeadDim] to their positions.
  void Rotate(std::vector<float>& rows, uint32_t n_heads,
              uint32_t first_position) const;
  std::vector<int32_t> Predict(const std::vector<float>& x, uint32_t n_rows);

  ThreadPool& pool_;
  Attention attention_;
  Weights weights_;
  std::vector<float> cos_;  // [n_positions, kRopePairs]
  std::vector<float> sin_;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_RECALL_MODEL_H_
