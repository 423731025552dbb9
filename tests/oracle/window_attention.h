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
  uint32_t head_dim = 0;
  float scale = 0.0f;
  std::vector<float> queries;  // [group, window, head_dim]
  std::vector<float> keys;     // [n_tokens, head_dim]
  // How far a dot product may be off, in 2^-24 of the largest magnitude among its
  // products and partial sums; 0: as sums in f32, in any order.
  double dot_error = 0.0;
};

struct WindowAttentionResult {
  std::vector<double> weights;    // [group, n_tokens], summed over the window
  std::vector<double> tolerance;  // [group, n_tokens], absolute
};

WindowAttentionResult WindowAttention(const WindowAttentionInput& in);

}  // namespace kvevict::oracle

#endif  // KVEVICT_TESTS_ORACLE_WINDOW_ATTENTION_H_
