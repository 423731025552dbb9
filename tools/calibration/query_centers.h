// Where a model's queries lie before RoPE: what the policy triattention scores by.
#ifndef KVEVICT_TOOLS_CALIBRATION_QUERY_CENTERS_H_
#define KVEVICT_TOOLS_CALIBRATION_QUERY_CENTERS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace kvevict::tools {

struct QueryCenters {
  uint32_t n_layers = 0;
  uint32_t n_q_heads = 0;
  uint32_t n_kv_heads = 0;  // 0: the file does not tell
  uint32_t head_dim = 0;
  uint32_t n_pairs = 0;
  float theta = 0.0f;  // of RoPE; 0: the file does not tell
  float attn_scale = 0.0f;
  // [n_layers, n_q_heads, 3, n_pairs]: of each pair of elements the mean's real and
  // imaginary part, and the mean length.
  std::vector<float> values;

  // A head's three rows.
  const float* Head(uint32_t layer, uint32_t head) const {
    return values.data() +
           (size_t{layer} * n_q_heads + head) * 3 * size_t{n_pairs};
  }
};

// Reads a calibration file: TriAttention's .pt, or TRIA of version 1 or 2. Throws
// std::runtime_error that names the file and what is wrong with it.
QueryCenters ReadQueryCenters(const std::string& path);

// Of every pair of every head the length of its mean as a part of the mean length,
// ascending: how much pairs of queries point one way.
std::vector<float> Concentrations(const QueryCenters& centers);

// What is wrong with the numbers, or "".
std::string Problem(const QueryCenters& centers);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_CALIBRATION_QUERY_CENTERS_H_
