// Random geometries, policies and planes.
#ifndef KVEVICT_TESTS_GPU_RANDOM_CASE_H_
#define KVEVICT_TESTS_GPU_RANDOM_CASE_H_

#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  // Returns a number in [low, high].
  uint32_t In(uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(engine_() % (uint64_t{high} - low + 1));
  }
  // True in one of n cases.
  bool OneOf(uint32_t n) { return In(1, n) == 1; }
  template <typename T>
  T Pick(std::initializer_list<T> values) {
    return values.begin()[In(0, static_cast<uint32_t>(values.size()) - 1)];
  }
  uint64_t Bits() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

// What a model has much of, at the cost of everything else.
enum class Much { kNothing, kLayers, kTokens, kSelection };

// The parts of a model.
struct ModelCase {
  Geometry geometry;
  oracle_policy policy;
  std::vector<uint32_t> head_budgets = {};  // the plan's, or none
  bool reports_mass = false;
  bool select_on_host = false;
  bool debug = false;
  bool observes = true;  // query rows, else at evictions
  uint32_t table_block =
      0;  // if not 0, caches in such blocks, evicted by table
};

// A model of that policy. It fits contexts of ten to max_tokens tokens, and may still be
// refused. Evicts by table if it can and is asked to.
ModelCase RandomCase(Random* random, const std::string& policy,
                     Much much = Much::kNothing, bool by_table = false);

// A layer without a full cache, whose other fields nobody may read.
kvevict_layer_geometry UnreadLayer(kvevict_layer_cache cache);

// Rows [n_heads, n_rows] somewhere in memory.
struct RandomPlane {
  kvevict_plane plane{};  // data is the offset in the memory
  uint64_t n_bytes = 0;
};

// Nests the axes of a plane in any order with gaps, some of them downwards. row_len
// is in elements, or bytes of opaque rows. n_blocks is 1 if tokens are not in
// blocks of n_tokens. block_align divides the distance of blocks. Elements lie in
// groups only if they may.
RandomPlane DrawPlane(Random* random, kvevict_dtype dtype, uint32_t row_len,
                      uint32_t n_heads, uint32_t n_tokens, uint32_t n_blocks,
                      bool may_group = false, uint32_t block_align = 1);

// Query rows [n_rows, n_q_heads, k_head_dim] without gaps.
RandomPlane PackedPlane(const kvevict_layer_geometry& g, uint32_t n_rows);

kvevict_dtype RandomDType(Random* random);
// 0 for opaque rows, and if elements share bytes.
uint32_t ElementBytesOf(kvevict_dtype dtype);
// Writes a number of a dtype, sometimes NaN or infinity if `special`.
void WriteRandomElement(Random* random, kvevict_dtype dtype, bool special,
                        void* to);

// Whether the last queries of a window rank.
inline bool ByWindow(oracle_kind kind) {
  return kind == ORACLE_SNAPKV || kind == ORACLE_PYRAMIDKV ||
         kind == ORACLE_TOVA || kind == ORACLE_R_KV || kind == ORACLE_CAKE;
}

// Whether the CPU's scores differ by rounding, so that its twin is lent the GPU's.
// They come from kvevict_score(), so not if they depend on positions.
inline bool LendsScores(const oracle_policy& policy) {
  return policy.kind != ORACLE_STREAMING_LLM && policy.kind != ORACLE_CUSTOM &&
         !policy.reads_positions;
}

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_RANDOM_CASE_H_
