#include "tools/llama/weights.h"

#include <algorithm>
#include <cmath>

namespace kvevict::tools {

Matrix Matrix::FromFile(size_t n_outputs, size_t n_inputs,
                        const std::vector<float>& rows) {
  constexpr size_t kTile = 32;  // Both sides of a tile stay in the L1 cache.
  Matrix matrix{n_inputs, n_outputs, std::vector<float>(rows.size())};
  for (size_t o0 = 0; o0 < n_outputs; o0 += kTile) {
    const size_t o1 = std::min(o0 + kTile, n_outputs);
    for (size_t i0 = 0; i0 < n_inputs; i0 += kTile) {
      const size_t i1 = std::min(i0 + kTile, n_inputs);
      for (size_t o = o0; o < o1; ++o) {
        for (size_t i = i0; i < i1; ++i) {
          matrix.elems[i * n_outputs + o] = rows[o * n_inputs + i];
        }
      }
    }
  }
  return matrix;
}

std::vector<double> RopeInvFreq(uint32_t n_dims, double base) {
  std::vector<double> inv_freq(n_dims / 2);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = std::pow(base, -2.0 * static_cast<double>(i) / n_dims);
  }
  return inv_freq;
}

}  // namespace kvevict::tools
