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
  // This many query heads have their logits' maximum taken as one head of the group.
  uint32_t logit_heads = 1;
  bool past_only = false;      // rows only see the keys before the window
  bool weigh_by_past = false;  // times the keys before the row's own
  bool max_of_rows = false;    // instead of their sum
  // Above 0: the window is all tokens, and rows see the keys of their chunk of this
  // many, before them and after.
  uint32_t chunk = 0;
  // The unbiased variance over rows, times this, is added to their mean.
  float spread = 0.0f;
  // The slots before the window that count as its ends.
  uint32_t n_first = 0;
  uint32_t n_last = 0;
  uint32_t head_dim = 0;
  float scale = 0.0f;
  float softcap = 0.0f;  // of scaled logits; 0: none
  std::vector<float>
      sinks;  // [group, logit_heads], of which the largest counts
  std::vector<float> biases;   // [n_tokens], added to capped logits; or none
  std::vector<float> queries;  // [group, logit_heads, window, head_dim]
  std::vector<float> keys;     // [n_tokens, head_dim]
  // The error of a dot product in 2^-24 of the largest magnitude among its
  // products and partial sums; 0: as for sums in f32, in any order.
  double dot_error = 0.0;
  // How far the kernel's element of a query may be off, as a part of it.
  double query_error = 0.0;
};

struct WindowAttentionResult {
  // [group, n_tokens], summed over the window, or the largest.
  std::vector<double> weights;
  std::vector<double> tolerance;  // [group, n_tokens], absolute
  // Measures of the slots before the window, over rows and heads, with tolerances:
  // -sum a ln(a + 1e-10), the variances over rows, the weights at the ends.
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
