// Everything an engine does to evict: a guide to the public C API.
//
//   1. create    context -> policy -> plan -> sequence, and one workspace
//   2. prefill   show every layer's query rows, chunk by chunk: Observe();
//                note the tokens stored: Append()
//   3. evict     one call for the whole model: Evict()
//   4. decode    the next row goes to slot stored_length(layer, head) and is
//                rotated for position logical_length(). If the policy evicts
//                while decoding, steps 2 and 3 follow each token, and
//                EndPrompt() comes before the first.
#ifndef KVEVICT_TOOLS_ENGINE_EVICTOR_H_
#define KVEVICT_TOOLS_ENGINE_EVICTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kvevict/kvevict.h"
#include "tools/engine/kv_cache.h"
#include "tools/engine/kvevict_error.h"
#include "tools/engine/library_context.h"
#include "tools/engine/policy.h"
#include "tools/engine/rope.h"
#include "tools/engine/thread_pool.h"
#include "tools/engine/workspace.h"

namespace kvevict::tools {

// Query heads and, if it is not 1/sqrt(head_dim), the scale of the logits.
struct QueryShape {
  uint32_t n_q_heads = 0;
  float softmax_scale = 0.0f;
};

// The eviction state of one sequence under one policy.
class Evictor {
 public:
  // `pool` must outlive the evictor. simd_target names the SIMD target of the
  // library; nullptr: the best one. `rope` is for policies that need it.
  // reports_mass is for MassKept().
  Evictor(const KvShape& cache, const QueryShape& queries, const Policy& policy,
          ThreadPool& pool, const char* simd_target = nullptr,
          const Rope& rope = {}, bool reports_mass = false);

  // Query rows [n_rows, n_q_heads, k_head_dim] of a layer, f32 after RoPE, for
  // positions first_position, first_position + 1, ...
  void Observe(uint32_t layer, const float* queries, uint32_t n_rows,
               uint32_t first_position);

  // The attention of those rows to slots, summed over the rows: [n_kv_heads,
  // slots], for all slots once their tokens are stored.
  void ObserveSums(uint32_t layer, std::span<const float> sums, uint32_t n_rows,
                   uint32_t first_position);

  // The engine stored n_tokens more rows in every layer.
  void Append(uint32_t n_tokens);

  // The prompt is what was stored so far.
  void EndPrompt();

  struct Report {
    uint64_t bytes_before = 0;
    uint64_t bytes_after = 0;
    bool evicted = false;
    double milliseconds = 0;  // wall time of the library call
  };

  // Shrinks the cache in place and sets its new lengths. `inputs`, one per
  // layer or none, are what the policy reads in addition to the cache and the
  // observed queries. Queries in them are of all slots and only for policies
  // that need those.
  Report Evict(KvCache& cache,
               std::span<const kvevict_signal_inputs> inputs = {});

  // The share of the policy's scores that the last eviction kept, mean over
  // keep lists; NaN if scores are no mass.
  float MassKept() const;

  // Computes the policy's scores from n_rows query rows, those of the last
  // tokens that the layer holds: out [n_kv_heads, slots held]. For policies
  // that score by queries.
  void Score(uint32_t layer, KvCache& cache, const float* queries,
             uint32_t n_rows, std::span<float> out);

  // The smallest budget per KV head, equal in every layer, with which heads
  // keep `mass` of the sum of the policy's scores on average. `inputs`, one per
  // layer, have what it reads in addition to the cache, with the queries of its
  // window or of all slots.
  uint32_t BudgetForMass(double mass, KvCache& cache,
                         std::span<const kvevict_signal_inputs> inputs);

  uint32_t stored_length(uint32_t layer, uint32_t kv_head = 0) const;
  uint32_t logical_length() const;

  const kvevict_sequence* sequence() const { return sequence_.get(); }

 private:
  kvevict_plane QueryRows(const float* queries) const;

  template <auto Destroy>
  struct Deleter {
    template <typename T>
    void operator()(T* handle) const {
      Destroy(handle);
    }
  };

  uint32_t n_layers_;
  uint32_t n_q_heads_;
  uint32_t n_kv_heads_;
  uint32_t head_dim_;
  Policy policy_;
  bool wants_all_queries_;
  LibraryContext context_;
  std::unique_ptr<kvevict_plan, Deleter<kvevict_plan_destroy>> plan_;
  std::unique_ptr<kvevict_sequence, Deleter<kvevict_sequence_destroy>>
      sequence_;
  Workspace workspace_;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_EVICTOR_H_
