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

// What a row's softmax sees and weighs beyond the causal one.
struct WindowRowOptions {
  bool all_keys = false;   // rows see those behind their own token too
  bool past_only = false;  // rows see the keys before the window, no others
  // A row's weights times the keys before its own token.
  bool weigh_by_past = false;
  bool max_of_rows = false;  // in place of the sum over the window's rows
  // Query heads of which a row's logits are the maximum. They follow each other.
  uint32_t logit_heads = 1;
  // Above 0: the mean over rows has so many times their unbiased variance added. For
  // windows of 2 to kMaxMeasuredWindow rows, and none of the above but past_only.
  float spread = 0.0f;
};

// Variances below this part of a mean square are rounding, and count as 0.
inline constexpr float kVarianceRounding = 0x1p-17f;

// What is measured of a group's weights in the slots before the window, for windows
// as those above.
struct WindowMeasure {
  // The sum over the first n_first slots and the last n_last, of all rows and heads;
  // or entropy and variance.
  bool is_of_ends = false;
  uint32_t n_first = 0;
  uint32_t n_last = 0;
  // Out, added to what is there: the sum; or -sum a ln(a + 1e-10), and the unbiased
  // variance over rows, summed over slots and heads.
  double first = 0.0;
  double variance = 0.0;
};

struct WindowAttention {
  // Queries of the group: head g of the group, window row w is
  // queries.Row(w) + g * query_head_stride. There are logit_heads times as many.
  RowSource queries;
  int64_t query_head_stride = 0;
  // Natural log-sum-exps of the rows' logits, strides in bytes; nullptr: unknown. One
  // pass over the keys then suffices.
  const float* lse = nullptr;
  int64_t lse_row_stride = 0;
  int64_t lse_head_stride = 0;
  RowSource keys;
  uint32_t first_key = 0;  // of n_tokens rows
  uint32_t n_tokens = 0;   // >= window
  uint32_t window = 0;     // >= 1; row w is token n_tokens - window + w
  uint32_t group = 0;      // query heads that read this KV head, by logit_heads
  uint32_t head_dim = 0;
  float scale = 0.0f;  // of the logits
  float softcap =
      0.0f;  // above 0: scaled logits x become softcap tanh(x / softcap)
  // Of the group's query heads, natural logits that are in every row's softmax and have
  // no key; of logit_heads the largest is. Log-sum-exps that are given have them.
  const float* sinks = nullptr;
  WindowRowOptions rows;
  // For each query head and key, the sum over the window's rows of the softmax
  // weights, times out_scale: [group, n_tokens], rows out_stride elements apart; or
  // what group_reduce makes of the heads' rows, in order: [n_tokens].
  float* out = nullptr;
  size_t out_stride = 0;
  float out_scale = 1.0f;
  std::optional<Reduce> group_reduce;
  WindowMeasure* measure = nullptr;
  // At least WindowAttentionScratchBytes().least, 64-byte aligned.
  void* scratch = nullptr;
  size_t scratch_bytes = 0;
};

// Scratch for one call; independent of the CPU target. SIZE_MAX if it does not fit
// in size_t. Queries go through the keys in batches of about 2 MiB, and at best all
// exponentials of a batch have room: n_tokens floats for each of its queries.
//
// At least those of 64 tokens: 3.5 MiB and 672 bytes for each element of head_dim,
// whatever the group, with n_tokens floats more where the queries of one head exceed a
// batch (a window above 2,048 with head_dim 128). Mostly far less.
struct WindowAttentionScratchSize {
  size_t least;
  size_t best;
};
WindowAttentionScratchSize WindowAttentionScratchBytes(
    uint32_t n_tokens, uint32_t window, uint32_t group, uint32_t head_dim,
    uint32_t logit_heads = 1);

// The same that serves any window of up to n_tokens.
WindowAttentionScratchSize WindowAttentionScratchOfAnyWindow(uint32_t n_tokens,
                                                             uint32_t group,
                                                             uint32_t head_dim);

// Exact two-pass softmax over tiles of keys, in f32; reads the key rows that a batch
// of queries sees once for the batch, and computes the exponentials that scratch has no
// room for a second time.
// Deterministic on one CPU target, whatever the scratch; targets differ by
// rounding.
//
// NaN and infinity do what the formula says. A row that sees a logit of NaN or
// +infinity, or nothing but -infinity, weighs every key that it sees by NaN. So
// one NaN in a key makes all rows that see it NaN, and with them out for all
// keys these rows see; one NaN in a query does so for its query head. Otherwise
// a logit of -infinity weighs 0, as does one more than 126 (base 2) below the
// row's highest. Keys that a row does not see never matter to it. Of log-sum-exps
// that are given, NaN and infinity make a row's weights NaN.
void ComputeWindowAttention(SimdTarget simd, const WindowAttention& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_H_
