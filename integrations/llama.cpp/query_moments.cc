#include "query_moments.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>

#include "observer.h"

namespace kvevict::llama {
namespace {

// Positions over which the rotation of future queries is averaged, as in the
// paper on expected attention (arXiv:2510.00636).
constexpr uint32_t kFuturePositions = 512;

// The range of YaRN's ramp between stretched and unstretched pairs, as in ggml.
struct Ramp {
  double first, last;

  double StretchedShare(size_t pair) const {
    const double x =
        (static_cast<double>(pair) - first) / std::max(0.001, last - first);
    return 1 - std::min(1.0, std::max(0.0, x));
  }
};

Ramp FindRamp(int32_t n_dims, int32_t n_ctx, double base, double beta_fast,
              double beta_slow) {
  constexpr double kPi = 3.14159265358979323846;
  const auto pair_of = [&](double beta) {
    return n_dims * std::log(n_ctx / (beta * 2 * kPi)) / (2 * std::log(base));
  };
  return {std::max(0.0, std::floor(pair_of(beta_fast))),
          std::min<double>(n_dims - 1, std::ceil(pair_of(beta_slow)))};
}

// Multiplies (x, y), as a complex number, by another.
template <typename T>
void Turn(std::complex<double> turn, T& x, T& y) {
  const double real = x * turn.real() - y * turn.imag();
  y = static_cast<T>(x * turn.imag() + y * turn.real());
  x = static_cast<T>(real);
}

}  // namespace

Rotation FindRotation(const ggml_tensor* q) {
  const ggml_tensor* node = Root(q);
  // Gemma scales its queries after RoPE.
  while (node->op == GGML_OP_SCALE) node = Root(node->src[0]);
  Rotation rotation;
  if (node->op != GGML_OP_ROPE) {
    rotation.unknown =
        "its attention has no RoPE directly before it, by which queries could "
        "be rotated back (MLA, layers without RoPE and rotated quantized keys "
        "have none)";
    return rotation;
  }
  // The arguments of ggml_rope_ext().
  const int32_t n_dims = node->op_params[1], mode = node->op_params[2];
  const int32_t n_ctx = node->op_params[4];
  float real[6];  // base, scale, ext_factor, attn_factor, beta_fast, beta_slow
  std::memcpy(real, node->op_params + 5, sizeof real);
  const double base = real[0], scale = real[1], ext_factor = real[2];
  rotation.halves = (mode & (GGML_ROPE_TYPE_NEOX | GGML_ROPE_TYPE_MROPE)) != 0;
  const auto n_pairs = static_cast<size_t>(n_dims / 2);
  std::vector<float> factors(n_pairs, 1.0f);
  if (node->src[2] != nullptr) {
    ReadTensor(node->src[2], factors.data(), 0, n_pairs * sizeof(float));
  }
  const Ramp ramp = ext_factor == 0
                        ? Ramp{0, 0}
                        : FindRamp(n_dims, n_ctx, base, real[4], real[5]);
  for (size_t p = 0; p < n_pairs; ++p) {
    const double whole =
        std::pow(base, -2.0 * static_cast<double>(p) / n_dims) / factors[p];
    const double unstretched =
        ext_factor == 0 ? 0 : ramp.StretchedShare(p) * ext_factor;
    rotation.inv_freq.push_back(whole *
                                (scale * (1 - unstretched) + unstretched));
  }
  return rotation;
}

void QueryMoments::Add(const Rotation& rotation, const float* row,
                       uint32_t n_heads, uint32_t head_dim, uint32_t position) {
  const size_t dim = head_dim;
  if (n_rows_ == 0) {
    head_dim_ = dim;
    sums_.assign(n_heads * dim, 0);
    products_.assign(n_heads * dim * dim, 0);
  }
  std::vector<std::complex<double>> turns;
  for (const double inv_freq : rotation.inv_freq) {
    turns.push_back(std::polar(1.0, -inv_freq * position));
  }
  std::vector<float> q(dim);
  for (size_t h = 0; h < n_heads; ++h) {
    std::copy_n(row + h * dim, dim, q.begin());
    for (size_t p = 0; p < turns.size(); ++p) {
      Turn(turns[p], q[rotation.First(p)], q[rotation.Second(p)]);
    }
    double* const sums = &sums_[h * dim];
    float* products = &products_[h * dim * dim];
    for (size_t i = 0; i < dim; ++i, products += dim) {
      sums[i] += q[i];
      for (size_t j = 0; j < dim; ++j) products[j] += q[i] * q[j];
    }
  }
  ++n_rows_;
}

void QueryMoments::Expect(const Rotation& rotation, uint32_t next,
                          std::vector<float>& mean,
                          std::vector<float>& covariance) const {
  const size_t dim = head_dim_;
  std::vector<std::complex<double>> turns;
  for (const double inv_freq : rotation.inv_freq) {
    std::complex<double> sum;
    for (uint32_t i = 0; i < kFuturePositions; ++i) {
      sum += std::polar(1.0, inv_freq * (1.0 * next + i));
    }
    turns.push_back(sum / double{kFuturePositions});
  }
  std::vector<double> m(dim), c(dim * dim);
  mean.clear();
  covariance.clear();
  for (size_t h = 0; h < sums_.size() / dim; ++h) {
    for (size_t i = 0; i < dim; ++i) m[i] = sums_[h * dim + i] / n_rows_;
    for (size_t i = 0; i < dim; ++i) {
      for (size_t j = 0; j < dim; ++j) {
        c[i * dim + j] =
            double{products_[(h * dim + i) * dim + j]} / n_rows_ - m[i] * m[j];
      }
    }
    for (size_t p = 0; p < turns.size(); ++p) {
      const size_t x = rotation.First(p), y = rotation.Second(p);
      Turn(turns[p], m[x], m[y]);
      for (size_t i = 0; i < dim; ++i) {
        Turn(turns[p], c[x * dim + i], c[y * dim + i]);
      }
      for (size_t i = 0; i < dim; ++i) {
        Turn(turns[p], c[i * dim + x], c[i * dim + y]);
      }
    }
    mean.insert(mean.end(), m.begin(), m.end());
    covariance.insert(covariance.end(), c.begin(), c.end());
  }
}

}  // namespace kvevict::llama
