// Attention of the observation window over one KV head's keys.
#ifndef KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_H_
#define KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/kernels/pool1d.h"
#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

// How a row's softmax differs from the plain causal one.
struct WindowRowOptions {
  bool all_keys = false;   // rows also see keys after their own token
  bool past_only = false;  // rows see only the keys before the window
  // A row's weights are multiplied by the number of keys before its own token.
  bool weigh_by_past = false;
  bool max_of_rows = false;  // instead of the sum over the window's rows
  // Rows are neither summed nor scaled: `out` has one for each query head and
  // row of the window, without group_reduce, spread and measure.
  bool apart = false;
  // A row's logits are the maximum over this many adjacent query heads.
  uint32_t logit_heads = 1;
  // If above 0, this many times the unbiased variance of the rows is added to
  // their mean. It needs a window of 2 to kMaxMeasuredWindow rows, and none of
  // the above except past_only.
  float spread = 0.0f;
};

// Variances below this part of a mean square are rounding errors and count as
// 0.
inline constexpr float kVarianceRounding = 0x1p-17f;

// Measures of a group's weights in the slots before the window, for the same
// windows as `spread`.
struct WindowMeasure {
  // The sum over the first n_first and the last n_last slots, for all rows and
  // heads; else entropy and variance.
  bool is_of_ends = false;
  uint32_t n_first = 0;
  uint32_t n_last = 0;
  // Out, added to the present values: the sum of the ends; or -sum a ln(a +
  // 1e-10), and the unbiased variance over rows, summed over slots and heads.
  double first = 0.0;
  double variance = 0.0;
};

// A row of a list of queries that are not all the window's.
struct ListedRow {
  uint32_t n_visible = 0;  // the row sees this many first keys
  float weight = 0.0f;     // factor of its weights
};

struct WindowAttention {
  // The queries of the group: head g, window row w is at queries.Row(w) + g *
  // query_head_stride. There are logit_heads times as many heads.
  RowSource queries;
  int64_t query_head_stride = 0;
  // If not NULL the rows are those of a list of `window` records, which say
  // what they see. Rows from n_own on are reference.Row(w - n_own). A list
  // excludes all_keys, past_only, weigh_by_past, spread, measure and lse.
  const ListedRow* list = nullptr;
  uint32_t n_own = UINT32_MAX;
  RowSource reference;
  int64_t reference_head_stride = 0;
  // The natural log-sum-exps of the rows' logits, with strides in bytes;
  // nullptr: unknown. If they are known one pass over the keys suffices.
  const float* lse = nullptr;
  int64_t lse_row_stride = 0;
  int64_t lse_head_stride = 0;
  RowSource keys;
  RowSource biases;        // f32 by slot, added to logits; base nullptr: none
  uint32_t first_key = 0;  // of n_tokens rows
  uint32_t n_tokens = 0;   // >= window, without a list
  // Rows, at least 1. Without a list row w is token n_tokens - window + w.
  uint32_t window = 0;
  uint32_t group = 0;  // query heads of this KV head / logit_heads
  uint32_t head_dim = 0;
  float scale = 0.0f;  // of the logits
  float softcap =
      // Above 0: scaled logits x become softcap tanh(x / softcap).
      0.0f;
  // Natural logits of the group's query heads, which are in every row's softmax
  // but have no key. With logit_heads the largest of a row's heads is used.
  // Given log-sum-exps include them.
  const float* sinks = nullptr;
  WindowRowOptions rows;
  // For each query head and key, the sum over the window's rows of the softmax
  // weights, times out_scale: [group, n_tokens], rows out_stride elements
  // apart; with rows.apart [group, window, n_tokens]. With group_reduce the
  // heads' rows are reduced in order: [n_tokens].
  float* out = nullptr;
  size_t out_stride = 0;
  float out_scale = 1.0f;
  std::optional<Reduce> group_reduce;
  WindowMeasure* measure = nullptr;
  // At least WindowAttentionScratchBytes().least, 64-byte aligned.
  void* scratch = nullptr;
  size_t scratch_bytes = 0;
};

// The scratch of one call, independent of the CPU target. SIZE_MAX if it does
// not fit in size_t. Queries go through the keys in batches of about 2 MiB. At
// best all exponentials of a batch have room: n_tokens floats for each of its
// queries.
//
// At least those of 64 tokens have room: 3.5 MiB plus 672 bytes for each
// element of head_dim, whatever the group, and n_tokens floats more if the
// queries of one head exceed a batch (a window above 2,048 with head_dim 128).
// Usually it is far less.
struct WindowAttentionScratchSize {
  size_t least;
  size_t best;
};
WindowAttentionScratchSize WindowAttentionScratchBytes(
    uint32_t n_tokens, uint32_t window, uint32_t group, uint32_t head_dim,
    uint32_t logit_heads = 1);

// The scratch that serves any window of up to n_tokens.
WindowAttentionScratchSize WindowAttentionScratchOfAnyWindow(uint32_t n_tokens,
                                                             uint32_t group,
                                                             uint32_t head_dim);

// Exact two-pass softmax over tiles of keys, in f32. Reads the key rows that a
// batch of queries sees once per batch. Exponentials for which scratch has no
// room are computed twice. Deterministic on one CPU target, whatever the
// scratch; targets differ by rounding.
//
// NaN and infinity do what the formula says. A row that sees a logit of NaN or
// +infinity, or only -infinity, gives every key that it sees the weight NaN. So
// one NaN in a key makes all rows that see it NaN, and with them `out` for all
// keys that these rows see. One NaN in a query does so for its query head.
// Otherwise a logit of -infinity has weight 0, as does one more than 126 (base
// 2) below the row's highest. Keys that a row does not see never matter to it.
// Given log-sum-exps of NaN or infinity make a row's weights NaN. With biases,
// which hide slots, the weights of a row whose logits or log-sum-exp are
// -infinity are 0 instead.
void ComputeWindowAttention(SimdTarget simd, const WindowAttention& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_H_
