#include "tools/llama/weights.h"

#include <cmath>

namespace kvevict::tools {

std::vector<double> RopeInvFreq(uint32_t n_dims, double base) {
  std::vector<double> inv_freq(n_dims / 2);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = std::pow(base, -2.0 * static_cast<double>(i) / n_dims);
  }
  return inv_freq;
}

}  // namespace kvevict::tools
