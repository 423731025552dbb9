// Norms of rows in any layout, as scores and as weights of scores, and how far their
// elements lie apart, against double precision.
#include "cuda/kernels/row_norm.cu"

#include "tests/cuda/kernels/cache_layer.h"

namespace kvevict {
namespace {

constexpr uint32_t kMost = 150;
constexpr float kEpsilon = 0.25f;

enum Form { kNegated, kWeighs, kRange, kVariance, kForms };

// Sums are exact: multiples of 1/64 below 2^24.
double FormOf(Form form, const float* row, uint32_t dim, float before) {
  const auto [least, most] = std::minmax_element(row, row + dim);
  double sum = 0.0;
  double squares = 0.0;
  for (uint32_t d = 0; d < dim; ++d) {
    sum += row[d];
    squares += double{row[d]} * row[d];
  }
  const float norm = std::sqrt(static_cast<float>(squares));
  const auto n = static_cast<float>(dim);
  const float mean = static_cast<float>(sum) / n;
  switch (form) {
    case kNegated:
      return -norm;
    case kWeighs:
      return before == kInfinity ? before : (before + kEpsilon) * norm;
    case kRange:
      return *most - *least;
    default:
      return std::max(static_cast<float>(squares) / n - mean * mean, 0.0f);
  }
}

void Check(Form form, uint32_t turn, Random& random) {
  const PlaneShape s = PlaneOfTurn(turn, kMost, random);
  CacheLaunch c(s, 1 + turn % 3, 0, random);
  c.Draw(1, random);  // all are finite
  std::vector<std::vector<float>> before;
  for (CacheLayer& layer : c.layers) {
    for (size_t i = 0; i < layer.scores.size(); ++i) {
      const size_t head = i / layer.n_tokens;
      const uint32_t n =
          c.tokens.Of(before.size(), static_cast<uint32_t>(head));
      if (i % layer.n_tokens >= n) continue;
      layer.scores[i] = random.Below(9) == 0 ? kInfinity : random.Gaussian();
    }
    before.push_back(layer.scores);
  }
  cuda::RowNormParams p = {};
  p.rows = s.cache_rows();
  p.tokens = c.tokens.table();
  p.n_kv_heads = s.n_heads;
  p.use = form == kWeighs ? cuda::kNormWeighs : cuda::kNormNegated;
  p.epsilon = kEpsilon;
  p.is_variance = form == kVariance;
  for (size_t l = 0; l < c.layers.size(); ++l) {
    const CacheLayer& layer = c.layers[l];
    p.layers[l] = {Address(layer.memory.data()), Address(layer.tables.data()),
                   Address(layer.scores.data()), layer.n_tokens,
                   c.tokens.FirstOf(l)};
  }
  Run(form < kRange ? cuda::row_norms : cuda::row_spreads,
      c.Grid(kMost, cuda::NormBlockRows(p.rows.lanes)), cuda::kNormThreads, p,
      Schedule(turn));
  c.Compare(turn, [&](size_t l, uint32_t head, uint32_t n) {
    Wanted wanted(n);
    for (uint32_t t = 0; t < n; ++t) {
      const double v =
          FormOf(form, c.layers[l].Row(s, head, t), s.head_dim,
                 before[l][size_t{head} * c.layers[l].n_tokens + t]);
      wanted.values[t] = v;
      // A variance is a difference of rounded means.
      wanted.bounds[t] = form == kVariance ? 0x1p-20 * (1 + v) : 0.0;
    }
    return wanted;
  });
}

}  // namespace
}  // namespace kvevict

int main() {
  using namespace kvevict;  // NOLINT
  Random random(TestSeed("row_norm"));
  for (uint32_t turn = 0; turn < 66 * kForms; ++turn) {
    Check(static_cast<Form>(turn % kForms), turn / kForms, random);
  }
}
