// Statistics of a model's queries that policies need.
#ifndef KVEVICT_TOOLS_ENGINE_QUERY_STATISTICS_H_
#define KVEVICT_TOOLS_ENGINE_QUERY_STATISTICS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvevict/calibration.h"
#include "tools/engine/evictor.h"
#include "tools/engine/kv_cache.h"
#include "tools/engine/library_context.h"
#include "tools/engine/policy.h"
#include "tools/engine/rope.h"
#include "tools/engine/thread_pool.h"

namespace kvevict::tools {

// Means and products of all queries of a prompt, and the inputs of signals that
// are computed from them. Only what a policy reads is added up.
class QueryStatistics {
 public:
  // `pool` must outlive this.
  QueryStatistics(const KvShape& cache, const QueryShape& queries, Rope rope,
                  std::span<const Policy> policies, ThreadPool& pool,
                  const char* simd_target = nullptr);

  // Adds query rows [n_rows, n_q_heads, k_head_dim] of a layer, after RoPE, for
  // positions first_position, first_position + 1, ..., the last ones whose keys
  // the cache holds.
  void Observe(uint32_t layer, KvCache& cache, const float* queries,
               uint32_t n_rows, uint32_t first_position);

  // For policies that need attention sums. SumsOf() is the attention of query
  // rows of the last tokens to each slot of a cache, [n_kv_heads, slots],
  // averaged over the query heads of each KV head. LastSums() is that of the
  // rows observed last.
  std::vector<float> SumsOf(uint32_t layer, KvCache& cache,
                            const float* queries, uint32_t n_rows) const;
  std::span<const float> LastSums(uint32_t layer) const {
    return layers_[layer].last_sums;
  }

  // The inputs of an eviction now, one per layer. Valid as long as this object
  // and until the next call.
  //   attention_sums: a mean over the query heads of each KV head
  //   query_mean, query_covariance: of the queries before RoPE, their rotation
  //     averaged over the next 512 positions
  //   query_centers: of the queries before RoPE
  //   queries: of the whole prompt, after RoPE
  //   key_filter: points away from the direction that the queries of a KV head,
  //     after RoPE, have in common
  std::span<const kvevict_signal_inputs> Inputs();

 private:
  // The moments of one head's rows.
  struct Moments {
    std::vector<double> sum;  // [head_dim]
    std::vector<float>
        products;  // [head_dim, head_dim], of all pairs of elements
    void Add(const std::vector<float>& rows, uint32_t n_rows, ThreadPool& pool);
  };
  struct Layer {
    uint32_t n_rows = 0;
    std::vector<Moments> after_rope;  // per query head
    std::vector<float> mean, covariance, filter, centers;
    std::vector<float> sums;  // [n_kv_heads, capacity]
    std::vector<float> last_sums;
    std::vector<float> queries;  // [n_rows, n_q_heads, head_dim]
    kvevict_plane planes[6];
  };

  void AddSums(uint32_t layer, KvCache& cache, const float* queries,
               uint32_t n_rows);
  void CreateCalibration(uint32_t n_layers, const Rope& rope,
                         const char* simd_target);
  void FindExpected(uint32_t l, Layer& layer) const;
  void FindFilter(Layer& layer) const;

  uint32_t n_q_heads_;
  uint32_t n_kv_heads_;
  uint32_t head_dim_;
  size_t n_pairs_;
  bool wants_expected_ = false;
  bool wants_filter_ = false;
  bool wants_centers_ = false;
  bool wants_queries_ = false;
  std::unique_ptr<Evictor> attention_;  // computes sums, if a policy needs them
  ThreadPool& pool_;
  uint32_t n_seen_ = 0;
  struct DestroyCalibration {
    void operator()(kvevict_calibration* c) const {
      kvevict_calibration_destroy(c);
    }
  };
  LibraryContext context_;
  // The queries before RoPE, if a policy wants them.
  std::unique_ptr<kvevict_calibration, DestroyCalibration> calibration_;
  std::vector<Layer> layers_;
  std::vector<kvevict_signal_inputs> inputs_;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_QUERY_STATISTICS_H_
