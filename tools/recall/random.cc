#include "tools/recall/random.h"

#include <cmath>

namespace kvevict::tools {

std::vector<float> Gauss(uint64_t seed, size_t n, double deviation) {
  SplitMix64 random(seed);
  // A sum of four uniform numbers has variance 1/3.
  const double scale = deviation * std::sqrt(3.0);
  std::vector<float> values(n);
  for (float& value : values) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += random.Unit();
    value = static_cast<float>(scale * (sum - 2));
  }
  return values;
}

}  // namespace kvevict::tools
