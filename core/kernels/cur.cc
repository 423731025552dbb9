#include "core/kernels/cur.h"

#include <algorithm>
#include <limits>

namespace kvevict {
namespace {

// 1 / sum, or 0 if it is too small to divide by.
float InverseOf(float sum) {
  return sum >= std::numeric_limits<float>::min() ? 1.0f / sum : 0.0f;
}

bool IsFinite(float square) {  // `square` is not negative, but may be NaN
  return square <= std::numeric_limits<float>::max();
}

// Computes the products of the shares of a window's tokens, and returns their
// sum.
double MultiplyShares(uint32_t n, const float* value_norms, float* scores) {
  float k_sum = 0.0f, v_sum = 0.0f;
  for (uint32_t i = 0; i < n; ++i) {
    const float k = scores[i] * scores[i];
    const float v = value_norms[i] * value_norms[i];
    const bool counts = IsFinite(k) && IsFinite(v);
    k_sum += counts ? k : 0.0f;
    v_sum += counts ? v : 0.0f;
  }
  const float k_scale = InverseOf(k_sum);
  const float v_scale = InverseOf(v_sum);
  double sum = 0.0;
  for (uint32_t i = 0; i < n; ++i) {
    const float k = scores[i] * scores[i];
    const float v = value_norms[i] * value_norms[i];
    const bool counts = IsFinite(k) && IsFinite(v);
    const float share = (k * k_scale) * (v * v_scale);
    scores[i] = counts ? share : std::numeric_limits<float>::quiet_NaN();
    sum += counts ? static_cast<double>(share) : 0.0;
  }
  return sum;
}

}  // namespace

void ComputeCurShares(const CurShares& args) {
  double sum = 0.0;
  for (uint32_t first = 0; first < args.n_tokens;) {
    const uint32_t n = std::min(args.window, args.n_tokens - first);
    sum += MultiplyShares(n, args.value_norms + first, args.scores + first);
    first += n;
  }
  const float scale = InverseOf(static_cast<float>(sum));
  for (uint32_t t = 0; t < args.n_tokens; ++t) args.scores[t] *= scale;
  std::fill_n(args.scores, std::min(args.n_sink, args.n_tokens), 1.0f);
}

}  // namespace kvevict
