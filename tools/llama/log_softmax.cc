#include "tools/llama/log_softmax.h"

#include <algorithm>
#include <cmath>

namespace kvevict::tools {

double LogSumExp(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  return max + std::log(sum);
}

double LogSoftmax(std::span<const float> logits, int32_t id) {
  return logits[static_cast<size_t>(id)] - LogSumExp(logits);
}

double KlDivergence(std::span<const float> p, std::span<const float> q) {
  const double p_norm = LogSumExp(p);
  const double q_norm = LogSumExp(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - p_norm;
    sum += std::exp(log_p) * (log_p - (q[i] - q_norm));
  }
  return sum;
}

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) -
                              logits.begin());
}

}  // namespace kvevict::tools
