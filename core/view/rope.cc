#include "core/view/rope.h"

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
    if (std::abs(g.rope_inv_freq[f]) <= kMaxFrequency) continue;
    return InvalidArgument("rope_inv_freq[%zu] %s is not in [%g, %g]", f,
                           NumberText(g.rope_inv_freq[f]).c_str(),
                           -kMaxFrequency, kMaxFrequency);
  }
  return Status();
}

uint64_t TurnsOf(float inv_freq) {
  // 1 / (2 pi), in words of 32 bits.
  constexpr uint64_t kTurn[] = {0x28be60db, 0x9391054a, 0x7f09d5f4};
  int exponent;
  const float part = std::frexp(std::abs(inv_freq), &exponent);
  // inv_freq is m 2^(exponent - 24). `high` and `low` are m / (2 pi) in units
  // of 2^-64.
  const auto m = static_cast<uint64_t>(std::ldexp(part, 24));
  const uint64_t rest = m * kTurn[1] + (m * kTurn[2] >> 32);
  const uint64_t high = m * kTurn[0] + (rest >> 32);
  const uint64_t low = rest & 0xffffffff;
  const int shift = 24 - exponent;  // 7 or more
  uint64_t turns = 0;
  if (shift < 32) {
    turns = (high << (32 - shift)) | (low >> shift);
  } else if (shift < 96) {
    turns = high >> (shift - 32);
  }
  return inv_freq < 0.0f ? ~turns + 1 : turns;
}

Status Rope::Copy(const kvevict_geometry& g) {
  KV_RETURN_IF_ERROR(frequencies_.Allocate("frequencies of RoPE",
                                           CheckedSize(g.rope_inv_freq_len)));
  KV_RETURN_IF_ERROR(
      turns_.Allocate("turns of RoPE", CheckedSize(g.rope_inv_freq_len)));
  for (size_t f = 0; f < g.rope_inv_freq_len; ++f) {
    const double w = g.rope_inv_freq[f];
    frequencies_[f] = {w, MeanTurn(w)};
    turns_[f] = TurnsOf(g.rope_inv_freq[f]);
  }
  is_interleaved_ = g.rope_layout == KVEVICT_ROPE_LAYOUT_INTERLEAVED;
  return Status();
}

Complex Rope::TurnOf(uint32_t f, double position) const {
  return Turn(frequencies_[f].w * position);
}

void Rope::TurnsAt(uint32_t position, Complex* turns) const {
  for (size_t f = 0; f < frequencies_.size(); ++f) {
    const Complex mean = frequencies_[f].mean;
    const Complex now = Turn(frequencies_[f].w * position);
    turns[f] = {now.re * mean.re - now.im * mean.im,
                now.re * mean.im + now.im * mean.re};
  }
}

}  // namespace kvevict
