// The work of an eviction at full size, step by step, for timing.
#ifndef KVEVICT_TESTS_GPU_BENCH_H_
#define KVEVICT_TESTS_GPU_BENCH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/backend.h"
#include "core/context.h"
#include "core/evict/layer_eviction.h"
#include "cuda/compact.h"
#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

// Qwen3-8B has 36 layers, 32 query heads and 8 KV heads of 128.
struct Workload {
  uint32_t n_layers;
  uint32_t n_q_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t n_tokens;
  uint32_t window;
  uint32_t budget;
  kvevict_dtype dtype;  // of keys and values
  kvevict_dtype q_dtype;

  uint64_t element() const { return dtype == KVEVICT_DTYPE_F32 ? 4 : 2; }
  uint64_t query_element() const {
    return q_dtype == KVEVICT_DTYPE_F32 ? 4 : 2;
  }
  uint64_t PlaneBytes() const {  // K of a layer
    return uint64_t{n_tokens} * n_kv_heads * head_dim * element();
  }
  uint64_t WindowBytes() const {
    return uint64_t{window} * n_q_heads * head_dim * query_element();
  }
};

// The shaping of scores, on top of a budget and a window.
constexpr char kPooled[] = "scope=head";
constexpr char kUnpooled[] = "scope=head,pool=none,keep_window=no";

// Keys, values and queries of all layers in device memory.
struct BenchData {
  BenchData(const Gpu& gpu, const Workload& w, uint64_t seed);

  Workload workload;
  Buffer keys;
  Buffer values;
  Buffer queries;
};

// Jobs over the data.
class Bench {
 public:
  // has_lse: the row log-sum-exps are given, so that the keys are read once.
  Bench(const Gpu& gpu, const BenchData& data, uint32_t window, bool has_lse,
        const char* shaping);

  void Score() const { Score(JobsOf(&LayerEviction::score)); }
  void ScoreQueryByQuery(uint32_t n_queries) const;
  void Pool() const;
  void Select() const;
  void PoolAndSelect() const;  // pools and selects like an eviction
  void Compact() const;
  void CompactIn(cuda::CompactForm form) const;
  void Reorder() const;  // every layer's kept rows, a ring from its middle on
  // Pooling works in place, so its input is kept here.
  void KeepScores() const { CopyScores(scores_, first_scores_); }
  void RestoreScores() const { CopyScores(first_scores_, scores_); }

  uint64_t score_bytes() const { return score_scratch_.n_bytes(); }

 private:
  const Context& context() const {
    return *reinterpret_cast<const Context*>(context_.get());
  }
  const Backend& backend() const { return context().backend(); }
  // All layers are alike.
  const kvevict_layer_geometry& layer() const { return geometry_.layer(0); }
  std::span<uint8_t> Scratch(const Buffer& buffer) const {
    return {buffer.pointer<uint8_t>(), buffer.n_bytes()};
  }
  template <typename Job>
  Jobs<Job> JobsOf(Job LayerEviction::*job) const {
    return Jobs<Job>(std::span(layers_), job);
  }
  ShapeArgs ShapeOfAll() const;
  SelectArgs SelectionOfAll() const;
  void Score(Jobs<ScoreJob> jobs) const;
  void CopyScores(const Buffer& from, const Buffer& to) const;

  const Gpu& gpu_;
  Geometry geometry_;
  const std::string policy_text_;
  const Policy policy_;  // the core's form
  ContextHandle context_;
  Buffer staged_query_;
  Buffer row_lse_;
  Buffer scores_;
  Buffer first_scores_;
  Buffer keep_;
  Buffer score_scratch_;
  Buffer select_scratch_;
  Buffer move_scratch_;
  Buffer ring_;
  std::vector<kvevict_view> views_;
  std::vector<LayerEviction> layers_;
};

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_BENCH_H_
