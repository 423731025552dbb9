#include "tools/calibration/query_centers.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tools/calibration/pt.h"
#include "tools/calibration/tria.h"
#include "tools/calibration/zip.h"
#include "tools/engine/mapped_file.h"

namespace kvevict::tools {

QueryCenters ReadQueryCenters(const std::string& path) {
  const MappedFile file(path);
  if (IsTria(file.bytes())) return ReadTria(path, file.bytes());
  if (IsZip(file.bytes())) return ReadPt(path, file.bytes());
  throw std::runtime_error(path + ": neither a .pt of PyTorch nor TRIA");
}

std::vector<float> Concentrations(const QueryCenters& c) {
  std::vector<float> parts;
  for (uint32_t i = 0; i < c.n_layers * c.n_q_heads; ++i) {
    const float* const re = c.values.data() + size_t{i} * 3 * c.n_pairs;
    const float* const im = re + c.n_pairs;
    const float* const length = im + c.n_pairs;
    for (uint32_t f = 0; f < c.n_pairs; ++f) {
      const float mean = std::sqrt(re[f] * re[f] + im[f] * im[f]);
      parts.push_back(length[f] > 0.0f ? mean / length[f] : 0.0f);
    }
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

std::string Problem(const QueryCenters& c) {
  const auto says = [](const char* what, uint64_t n, uint64_t low,
                       uint64_t high) {
    if (n >= low && n <= high) return std::string();
    return std::string(what) + " " + std::to_string(n) + " is not in [" +
           std::to_string(low) + ", " + std::to_string(high) + "]";
  };
  for (const std::string& problem :
       {says("layers", c.n_layers, 1, 4096),
        says("query heads", c.n_q_heads, 1, 65535),
        says("KV heads", c.n_kv_heads, 0, c.n_q_heads),
        says("pairs", c.n_pairs, 1, c.head_dim / 2)}) {
    if (!problem.empty()) return problem;
  }
  for (size_t i = 0; i < c.values.size(); ++i) {
    const size_t row = i / c.n_pairs;
    if (std::isfinite(c.values[i]) && (row % 3 != 2 || c.values[i] >= 0.0f)) {
      continue;
    }
    return "layer " + std::to_string(row / 3 / c.n_q_heads) + ", head " +
           std::to_string(row / 3 % c.n_q_heads) + ": " +
           std::to_string(c.values[i]) + " is no " +
           (row % 3 == 2 ? "length" : "number");
  }
  return "";
}

}  // namespace kvevict::tools
