#include "core/rope.h"

#include <cmath>

#include "core/number_text.h"

namespace kvevict {
namespace {

Complex Turn(double angle) { return {std::cos(angle), std::sin(angle)}; }

// A power of two times an f32 is exact.
Complex MeanTurn(double w) {
  constexpr uint32_t kFarthest = 65536;
  Complex sum = {0.0, 0.0};
  uint32_t n = 0;
  for (uint32_t distance = 1; distance <= kFarthest; distance *= 2, ++n) {
    const Complex turn = Turn(w * distance);
    sum = {sum.re + turn.re, sum.im + turn.im};
  }
  return {sum.re / n, sum.im / n};
}

}  // namespace

Status CheckRope(const kvevict_geometry& g) {
  if (g.rope_layout != KVEVICT_ROPE_LAYOUT_HALF &&
      g.rope_layout != KVEVICT_ROPE_LAYOUT_INTERLEAVED) {
    return InvalidArgument("rope_layout %d is not in [0, 1]",
                           static_cast<int>(g.rope_layout));
  }
  const size_t n = g.rope_inv_freq_len;
  if (g.rope_inv_freq == nullptr && n != 0) {
    return InvalidArgument(
        "rope_inv_freq is NULL, but rope_inv_freq_len is %zu", n);
  }
  if (n > kMaxRopeFrequencies) {
    return InvalidArgument("rope_inv_freq_len %zu > %u", n,
                           kMaxRopeFrequencies);
  }
  for (size_t f = 0; f < n; ++f) {
    if (std::isfinite(g.rope_inv_freq[f])) continue;
    return InvalidArgument("rope_inv_freq[%zu] %s is not finite", f,
                           NumberText(g.rope_inv_freq[f]).c_str());
  }
  return Status();
}

Status Rope::Copy(const kvevict_geometry& g) {
  KV_RETURN_IF_ERROR(frequencies_.Allocate("frequencies of RoPE",
                                           CheckedSize(g.rope_inv_freq_len)));
  for (size_t f = 0; f < g.rope_inv_freq_len; ++f) {
    const double w = g.rope_inv_freq[f];
    frequencies_[f] = {w, MeanTurn(w)};
  }
  is_interleaved_ = g.rope_layout == KVEVICT_ROPE_LAYOUT_INTERLEAVED;
  return Status();
}

void Rope::TurnsAt(uint32_t n_seen, Complex* turns) const {
  for (size_t f = 0; f < frequencies_.size(); ++f) {
    const Complex mean = frequencies_[f].mean;
    const Complex now = Turn(frequencies_[f].w * n_seen);
    turns[f] = {now.re * mean.re - now.im * mean.im,
                now.re * mean.im + now.im * mean.re};
  }
}

}  // namespace kvevict
