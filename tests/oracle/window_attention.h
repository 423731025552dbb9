// Window attention of one KV head in double precision, with the error that an f32
// kernel may make.
#ifndef KVEVICT_TESTS_ORACLE_WINDOW_ATTENTION_H_
#define KVEVICT_TESTS_ORACLE_WINDOW_ATTENTION_H_

#include <cstdint>
#include <vector>

namespace kvevict::oracle {

struct WindowAttentionInput {
  uint32_t n_tokens = 0;
  uint32_t window = 0;
  uint32_t group = 0;
  // Query heads whose logits' maximum is that of one head of the group.
  uint32_t logit_heads = 1;
  bool past_only = false;      // rows see the keys before the window alone
  bool weigh_by_past = false;  // weights times the keys before the row's own
  bool max_of_rows = false;    // in place of their sum
  // Above 0: the window is all tokens, and rows see the keys of their chunk of so many,
  // before them and after.
  uint32_t chunk = 0;
  // Times the unbiased variance over rows, is added to their mean.
  float spread = 0.0f;
  // How many slots before the window its ends are.
  uint32_t n_first = 0;
  uint32_t n_last = 0;
  uint32_t head_dim = 0;
  float scale = 0.0f;
  float softcap = 0.0f;  // of scaled logits; 0: none
  std::vector<float>
      sinks;  // [group, logit_heads], of which the largest counts
  std::vector<float> queries;  // [group, logit_heads, window, head_dim]
  std::vector<float> keys;     // [n_tokens, head_dim]
  // How far a dot product may be off, in 2^-24 of the largest magnitude among its
  // products and partial sums; 0: as sums in f32, in any order.
  double dot_error = 0.0;
  // How far the kernel's element of a query may be off, as a part of it.
  double query_error = 0.0;
};

struct WindowAttentionResult {
  // [group, n_tokens], summed over the window, or the largest
  std::vector<double> weights;
  std::vector<double> tolerance;  // [group, n_tokens], absolute
  // Of the slots before the window, over rows and heads: -sum a ln(a + 1e-10), the
  // variances over rows, the weights at the ends. With their tolerances.
  struct Measure {
    double value = 0.0;
    double tolerance = 0.0;
  };
  Measure entropy;
  Measure variance;
  Measure ends;
};

WindowAttentionResult WindowAttention(const WindowAttentionInput& in);

}  // namespace kvevict::oracle

#endif  // KVEVICT_TESTS_ORACLE_WINDOW_ATTENTION_H_
