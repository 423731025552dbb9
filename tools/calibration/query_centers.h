// The centers of a model's queries before RoPE, by which the policy
// triattention scores.
#ifndef KVEVICT_TOOLS_CALIBRATION_QUERY_CENTERS_H_
#define KVEVICT_TOOLS_CALIBRATION_QUERY_CENTERS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace kvevict::tools {

struct QueryCenters {
  uint32_t n_layers = 0;
  uint32_t n_q_heads = 0;
  uint32_t n_kv_heads = 0;  // 0: the file does not say
  uint32_t head_dim = 0;
  uint32_t n_pairs = 0;
  float theta = 0.0f;  // of RoPE; 0: the file does not say
  float attn_scale = 0.0f;
  // [n_layers, n_q_heads, 3, n_pairs]: for each pair of elements the real and
  // imaginary part of the mean, and the mean length.
  std::vector<float> values;

  // A head's three rows.
  const float* Head(uint32_t layer, uint32_t head) const {
    return values.data() +
           (size_t{layer} * n_q_heads + head) * 3 * size_t{n_pairs};
  }
};

// Reads a calibration file: TriAttention's .pt, or TRIA of version 1 or 2.
// Throws std::runtime_error that names the file and the error.
QueryCenters ReadQueryCenters(const std::string& path);

// For every pair of every head, the length of its mean divided by the mean
// length, ascending: how much the pairs of queries point in one direction.
std::vector<float> Concentrations(const QueryCenters& centers);

// The error in the numbers, or "".
std::string Problem(const QueryCenters& centers);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_CALIBRATION_QUERY_CENTERS_H_
