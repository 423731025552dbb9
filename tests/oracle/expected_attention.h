// Expected attention of one KV head in double precision, with the error that an f32
// kernel may make.
#ifndef KVEVICT_TESTS_ORACLE_EXPECTED_ATTENTION_H_
#define KVEVICT_TESTS_ORACLE_EXPECTED_ATTENTION_H_

#include <cstdint>
#include <vector>

namespace kvevict::oracle {

struct ExpectedAttentionInput {
  uint32_t n_tokens = 0;
  uint32_t n_sink = 0;
  uint32_t group = 0;
  uint32_t head_dim = 0;
  float scale = 0.0f;
  std::vector<float> keys;        // [n_tokens, head_dim]
  std::vector<float> biases;      // [n_tokens], or none
  std::vector<float> mean;        // [group, head_dim]
  std::vector<float> covariance;  // [group, head_dim, head_dim], or none
  // The additions of a row's sum in f32 that follow each other.
  double sum_steps = 0.0;
};

struct ExpectedAttentionResult {
  std::vector<double> weights;    // [group, n_tokens]; NaN if the row's is
  std::vector<double> tolerance;  // [group, n_tokens], absolute
};

ExpectedAttentionResult ExpectedAttention(const ExpectedAttentionInput& in);

}  // namespace kvevict::oracle

#endif  // KVEVICT_TESTS_ORACLE_EXPECTED_ATTENTION_H_
