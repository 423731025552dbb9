#include "rotation.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "observer.h"

namespace kvevict::llama {
namespace {

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

}  // namespace kvevict::llama
