// Attention of some queries over slots of a cache. The slots can be split in
// spans whose results are joined.
#ifndef KVEVICT_CORE_KERNELS_ATTENTION_H_
#define KVEVICT_CORE_KERNELS_ATTENTION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/parts.h"
#include "core/simd.h"

namespace kvevict {

// Slots [begin, end).
struct SlotSpan {
  uint32_t begin = 0;
  uint32_t end = 0;

  uint32_t size() const { return end - begin; }
};

// The query rows of some adjacent KV heads, and what they see. Row (h *
// n_queries + i) * group + g is query first_query + i of head h * group + g.
struct Attention {
  RowSource queries;  // of the first query head; row i is query i
  int64_t query_head_stride = 0;
  RowSource keys;  // of the first KV head
  int64_t key_head_stride = 0;
  RowSource values;
  int64_t value_head_stride = 0;
  // f32 by slot, added to the logits of the KV head; base nullptr: none.
  RowSource biases;
  int64_t bias_head_stride = 0;
  bool values_are_keys = false;  // values are the first elements of keys' rows
  uint32_t n_heads = 1;
  uint32_t group = 1;  // query heads of a KV head
  uint32_t k_dim = 0;
  uint32_t v_dim = 0;
  uint32_t first_query = 0;
  uint32_t n_queries = 0;
  uint32_t n_tokens = 0;  // slots held
  int64_t slot_of_0 = 0;  // slot of query 0; may be before slot 0
  uint32_t window = 0;    // 0: none
  bool non_causal = false;
  float scale = 0.0f;
  float softcap = 0.0f;  // 0: none

  bool has_biases() const { return kHasBiases && biases.base != nullptr; }
  // The cap that is left once logits have their biases, which are not capped.
  float softcap_of_biased() const { return has_biases() ? 0.0f : softcap; }
  uint32_t rows_per_head() const { return n_queries * group; }
  uint32_t n_rows() const { return n_heads * rows_per_head(); }
  // The slots that query first_query + i sees.
  SlotSpan SeenBy(uint32_t i) const {
    const int64_t own = slot_of_0 + first_query + i;
    const auto clamp = [&](int64_t slot) {
      return static_cast<uint32_t>(
          std::clamp<int64_t>(slot, 0, int64_t{n_tokens}));
    };
    const uint32_t begin = window == 0 ? 0 : clamp(own + 1 - window);
    return {begin, std::max(begin, non_causal ? n_tokens : clamp(own + 1))};
  }
  // A span that contains all slots that any of the queries sees.
  SlotSpan Seen() const { return {SeenBy(0).begin, SeenBy(n_queries - 1).end}; }
};

// Heads with more rows use matrix products. Fewer rows are multiplied one by
// one, and adjacent heads are read together.
inline constexpr uint32_t kMostDotRows = 16;
constexpr bool UsesDots(uint32_t rows_per_head) {
  return rows_per_head <= kMostDotRows;
}

// Slots that are multiplied with the rows together. Spans begin at multiples of
// it.
inline constexpr uint32_t kAttentionTile = 64;

// The softmax over some slots as if they were all. x are the logits in base 2.
// It has a reference near the maximum of x, the sum of 2^(x - reference), and
// values weighted by it. Rows that have seen nothing have reference -infinity
// and sums of 0.
struct AttentionState {
  float* reference = nullptr;  // [n_rows]
  float* sum = nullptr;        // [n_rows]
  float* out = nullptr;        // [n_rows, OutStride()]

  static size_t OutStride(uint32_t v_dim);
  // The floats of a state, which begins at a cache line.
  static size_t Floats(uint32_t n_rows, uint32_t v_dim);
  static AttentionState At(float* memory, uint32_t n_rows);
};

// The scratch of AttendSpan(), which begins at a cache line; the same for every
// CPU target.
size_t AttentionScratchFloats(const Attention& args);

// Writes the state of the slots in a span that rows see. Deterministic on one
// CPU target; targets differ by rounding. See kvevict_attend() for NaN and
// infinity.
void AttendSpan(SimdTarget simd, const Attention& args, SlotSpan span,
                const AttentionState& state, float* scratch);

// Adds the state of the slots that follow to that of those before.
void JoinAttention(SimdTarget simd, uint32_t n_rows, uint32_t v_dim,
                   const AttentionState& from, const AttentionState& to);

// The memory for results.
struct AttentionResult {
  const float* sinks = nullptr;  // of the first query head; nullptr: none
  RowSource out;                 // of the first query head; row i is query i
  int64_t out_head_stride = 0;
  // f32 of the first query head, query 0; nullptr: none.
  uint8_t* lse = nullptr;
  int64_t lse_row_stride = 0;
  int64_t lse_head_stride = 0;
};

// Writes the results of a state of all slots, and overwrites the state.
void FinishAttention(SimdTarget simd, const Attention& args,
                     const AttentionState& state,
                     const AttentionResult& result);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_ATTENTION_H_
