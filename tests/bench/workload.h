// The workloads: one layer's queries and keys of a model.
#ifndef KVEVICT_TESTS_BENCH_WORKLOAD_H_
#define KVEVICT_TESTS_BENCH_WORKLOAD_H_

#include <cstdint>
#include <vector>

#include "core/kernels/row_source.h"
#include "core/kernels/window_attention.h"
#include "tests/bench/clocks.h"
#include "tests/bench/huge_buffer.h"

namespace kvevict::bench {

struct Workload {
  const char* name;
  uint32_t n_tokens;
  uint32_t n_q_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t window;
  uint32_t budget;

  uint32_t group() const { return n_q_heads / n_kv_heads; }
  // The multiplications and additions of queries times keys.
  double flops() const {
    return 2.0 * n_q_heads * window * head_dim * n_tokens;
  }
};

// One layer of an 8B-class model; a long context; a small one that shows overheads;
// 16 query heads per KV head; MLA, whose heads share one latent KV head; sizes that
// are no multiple of anything.
inline constexpr Workload kA = {"A", 16384, 32, 8, 128, 64, 2048};
inline constexpr Workload kB = {"B", 131072, 32, 8, 128, 64, 8192};
inline constexpr Workload kC = {"C", 2048, 8, 2, 64, 32, 256};
inline constexpr Workload kG = {"G", 16384, 32, 2, 128, 32, 2048};
inline constexpr Workload kM = {"M", 8192, 128, 1, 576, 32, 2048};
inline constexpr Workload kOdd = {
    "odd (S=16381, D=80, G=3)", 16381, 24, 8, 80, 61, 2048};
inline constexpr Workload kSmoke = {"smoke", 500, 6, 2, 40, 9, 50};

enum class KeyLayout { kTokenMajor, kHeadMajor };  // [S, Hkv, D], [Hkv, S, D]

// Gaussian queries [n_q_heads, window, head_dim] and keys in one or both layouts. 2
// % of the tokens point towards a query, so that the softmax is not flat.
class AttentionData {
 public:
  AttentionData(const Workload& workload, DType dtype);

  const Workload& workload() const { return workload_; }
  RowSource Queries(uint32_t q_head) const;
  RowSource Keys(KeyLayout layout, uint32_t kv_head) const;

  // Scores all heads into weights(); an item of work is a KV head. Uses the least
  // scratch and a share of what the best has beyond that. Takes one pass if
  // log-sum-exps of all rows, of any value, are said to be known. Adds the rows'
  // variance so many times, and measures or not, for windows up to 64.
  Timing Score(SimdTarget simd, KeyLayout layout, uint32_t n_threads,
               double scratch = 1.0, bool knows_lse = false,
               float spread = 0.0f, bool measures = false);
  // [n_q_heads, n_tokens]
  const float* weights() const { return weights_.data(); }

 private:
  const Workload workload_;
  const DType dtype_;
  HugeBuffer<uint8_t> queries_;
  HugeBuffer<uint8_t> token_major_;
  HugeBuffer<uint8_t> head_major_;
  HugeBuffer<float> weights_;
  WindowAttentionScratchSize scratch_size_;
  std::vector<HugeBuffer<uint8_t>> scratch_;  // per thread, made when needed
};

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_WORKLOAD_H_
