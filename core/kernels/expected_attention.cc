#include "core/kernels/expected_attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/expected_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/dtypes/load-inl.h"
#include "core/kernels/exp2-inl.h"
#include "hwy/highway.h"

// The same for every target.
#ifndef KVEVICT_CORE_KERNELS_EXPECTED_ATTENTION_TILE_
#define KVEVICT_CORE_KERNELS_EXPECTED_ATTENTION_TILE_
namespace kvevict {
namespace {

// Keys of a tile, which is transposed, [PaddedDim(), kStripKeys]. Three vectors
// of any length divide it.
constexpr size_t kStripKeys = 48;
// Rows of a covariance that are multiplied together.
constexpr size_t kPanelRows = 4;
// Covariances of larger heads are read in place.
constexpr size_t kMostPackedDim = 1024;

constexpr size_t PaddedDim(size_t dim) {
  return (dim + kPanelRows - 1) / kPanelRows * kPanelRows;
}

// Floats of PackCovariance().
constexpr size_t PackedFloats(size_t dim) {
  const size_t n_panels = PaddedDim(dim) / kPanelRows;
  return kPanelRows * kPanelRows * n_panels * (n_panels + 1) / 2;
}

}  // namespace
}  // namespace kvevict
#endif

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// ---- Logits ----

// Loads rows [first, first + n) of the keys. The tile's other keys are 0.
void LoadTile(const ExpectedAttention& args, uint32_t first, uint32_t n,
              float* HWY_RESTRICT tile, float* HWY_RESTRICT row) {
  const size_t dim = args.head_dim;
  std::fill(tile + dim * kStripKeys, tile + PaddedDim(dim) * kStripKeys, 0.0f);
  for (uint32_t t = 0; t < n; ++t) {
    LoadRow(args.keys, first + t, 0, dim, row);
    for (size_t i = 0; i < dim; ++i) tile[i * kStripKeys + t] = row[i];
  }
  if (n == kStripKeys) return;
  for (size_t i = 0; i < dim; ++i) {
    std::fill(tile + i * kStripKeys + n, tile + (i + 1) * kStripKeys, 0.0f);
  }
}

// sums[t] += mean.k over the tile's keys.
void AddMean(const float* HWY_RESTRICT mean, size_t dim,
             const float* HWY_RESTRICT tile, float* HWY_RESTRICT sums) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  for (size_t t = 0; t < kStripKeys; t += 3 * lanes) {
    auto a = hn::Zero(d), b = a, c = a;
    for (size_t i = 0; i < dim; ++i) {
      const float* const keys = tile + i * kStripKeys + t;
      const auto m = hn::Set(d, mean[i]);
      a = hn::MulAdd(m, hn::LoadU(d, keys), a);
      b = hn::MulAdd(m, hn::LoadU(d, keys + lanes), b);
      c = hn::MulAdd(m, hn::LoadU(d, keys + 2 * lanes), c);
    }
    hn::StoreU(hn::Add(hn::LoadU(d, sums + t), a), d, sums + t);
    hn::StoreU(hn::Add(hn::LoadU(d, sums + t + lanes), b), d, sums + t + lanes);
    hn::StoreU(hn::Add(hn::LoadU(d, sums + t + 2 * lanes), c), d,
               sums + t + 2 * lanes);
  }
}

// Packs a covariance for k' C k, with C_ij + C_ji in the lower triangle, which
// halves the products. There are panels of kPanelRows rows i, each [columns j
// up to the last row, kPanelRows].
void PackCovariance(const float* HWY_RESTRICT c, size_t dim,
                    float* HWY_RESTRICT packed) {
  for (size_t first = 0; first < dim; first += kPanelRows) {
    for (size_t j = 0; j < first + kPanelRows; ++j) {
      for (size_t i = first; i < first + kPanelRows; ++i) {
        const bool is_there = j <= i && i < dim;
        const float v = is_there ? c[i * dim + j] : 0.0f;
        *packed++ = is_there && j < i ? v + c[j * dim + i] : v;
      }
    }
  }
}

// sums[t] += k_i (row i of the covariance).k for the panel of rows from i on.
// Twelve sums hide the latency of the products, and sixteen registers hold
// everything.
void AddPanel(const float* HWY_RESTRICT panel, size_t i,
              const float* HWY_RESTRICT tile, float* HWY_RESTRICT sums) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t n_columns = i + kPanelRows;
  for (size_t t = 0; t < kStripKeys; t += 3 * lanes) {
    auto a0 = hn::Zero(d), b0 = a0, c0 = a0, a1 = a0, b1 = a0, c1 = a0;
    auto a2 = a0, b2 = a0, c2 = a0, a3 = a0, b3 = a0, c3 = a0;
    for (size_t j = 0; j < n_columns; ++j) {
      const float* const keys = tile + j * kStripKeys + t;
      const float* const column = panel + j * kPanelRows;
      const auto x = hn::LoadU(d, keys);
      const auto y = hn::LoadU(d, keys + lanes);
      const auto z = hn::LoadU(d, keys + 2 * lanes);
      auto v = hn::Set(d, column[0]);
      a0 = hn::MulAdd(v, x, a0);
      b0 = hn::MulAdd(v, y, b0);
      c0 = hn::MulAdd(v, z, c0);
      v = hn::Set(d, column[1]);
      a1 = hn::MulAdd(v, x, a1);
      b1 = hn::MulAdd(v, y, b1);
      c1 = hn::MulAdd(v, z, c1);
      v = hn::Set(d, column[2]);
      a2 = hn::MulAdd(v, x, a2);
      b2 = hn::MulAdd(v, y, b2);
      c2 = hn::MulAdd(v, z, c2);
      v = hn::Set(d, column[3]);
      a3 = hn::MulAdd(v, x, a3);
      b3 = hn::MulAdd(v, y, b3);
      c3 = hn::MulAdd(v, z, c3);
    }
    const float* const keys = tile + i * kStripKeys + t;
    const auto add = [&](size_t at, auto p, auto q, auto r, auto s) HWY_ATTR {
      const float* k = keys + at;
      auto sum = hn::LoadU(d, sums + t + at);
      sum = hn::MulAdd(p, hn::LoadU(d, k), sum);
      sum = hn::MulAdd(q, hn::LoadU(d, k + kStripKeys), sum);
      sum = hn::MulAdd(r, hn::LoadU(d, k + 2 * kStripKeys), sum);
      sum = hn::MulAdd(s, hn::LoadU(d, k + 3 * kStripKeys), sum);
      hn::StoreU(sum, d, sums + t + at);
    };
    add(0, a0, a1, a2, a3);
    add(lanes, b0, b1, b2, b3);
    add(2 * lanes, c0, c1, c2, c3);
  }
}

// The same for row i of a covariance in place.
void AddOneRow(const float* HWY_RESTRICT row, size_t i, size_t dim,
               const float* HWY_RESTRICT tile, float* HWY_RESTRICT sums) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  for (size_t t = 0; t < kStripKeys; t += lanes) {
    auto a = hn::Zero(d);
    for (size_t j = 0; j < dim; ++j) {
      a = hn::MulAdd(hn::Set(d, row[j]),
                     hn::LoadU(d, tile + j * kStripKeys + t), a);
    }
    const auto k = hn::LoadU(d, tile + i * kStripKeys + t);
    hn::StoreU(hn::MulAdd(a, k, hn::LoadU(d, sums + t)), d, sums + t);
  }
}

// Logits of the tile's keys for one query head, with its packed covariance or
// NULL.
void LogitsOf(const ExpectedAttention& args, uint32_t head, const float* packed,
              const float* tile, float (&logits)[kStripKeys]) {
  const size_t dim = args.head_dim;
  const RowTag d;
  HWY_ALIGN float linear[kStripKeys] = {};
  HWY_ALIGN float square[kStripKeys] = {};
  AddMean(args.mean + head * args.mean_stride, dim, tile, linear);
  if (packed != nullptr) {
    for (size_t i = 0; i < dim; i += kPanelRows) {
      AddPanel(packed, i, tile, square);
      packed += (i + kPanelRows) * kPanelRows;
    }
  } else {
    const float* const rows = args.covariance + head * args.covariance_stride;
    for (size_t i = 0; i < dim; ++i) {
      AddOneRow(rows + i * dim, i, dim, tile, square);
    }
  }
  const auto scale = hn::Set(d, args.scale);
  const auto half = hn::Set(d, args.scale * args.scale * 0.5f);
  for (size_t t = 0; t < kStripKeys; t += hn::Lanes(d)) {
    const auto more = hn::Mul(half, hn::LoadU(d, square + t));
    hn::StoreU(hn::MulAdd(scale, hn::LoadU(d, linear + t), more), d,
               logits + t);
  }
}

// Writes the logits of keys from n_sink on to where their weights will be.
void LogitsByCovariance(const ExpectedAttention& args, uint32_t n_sink) {
  const size_t dim = args.head_dim;
  float* const tile = static_cast<float*>(args.scratch);
  float* const row = tile + PaddedDim(dim) * kStripKeys;
  float* const packed = row + PaddedRow(dim);
  const bool packs = dim <= kMostPackedDim;
  for (uint32_t head = 0; packs && head < args.group; ++head) {
    PackCovariance(args.covariance + head * args.covariance_stride, dim,
                   packed + head * PackedFloats(dim));
  }
  HWY_ALIGN float logits[kStripKeys];
  for (uint32_t first = n_sink; first < args.n_tokens;) {
    const uint32_t n = static_cast<uint32_t>(
        std::min<size_t>(kStripKeys, args.n_tokens - first));
    LoadTile(args, first, n, tile, row);
    for (uint32_t head = 0; head < args.group; ++head) {
      LogitsOf(args, head, packs ? packed + head * PackedFloats(dim) : nullptr,
               tile, logits);
      std::copy_n(logits, n, args.out + head * args.out_stride + first);
    }
    first += n;
  }
}

// The same without a covariance: a dot product for each key.
void LogitsByMean(const ExpectedAttention& args, uint32_t n_sink) {
  const size_t dim = args.head_dim;
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t n_whole = dim / lanes * lanes;
  float* const row = static_cast<float*>(args.scratch);
  for (uint32_t t = n_sink; t < args.n_tokens; ++t) {
    LoadRow(args.keys, t, 0, dim, row);
    for (uint32_t head = 0; head < args.group; ++head) {
      const float* const mean = args.mean + head * args.mean_stride;
      auto a = hn::Zero(d), b = a;
      size_t i = 0;
      for (; i + 2 * lanes <= n_whole; i += 2 * lanes) {
        a = hn::MulAdd(hn::LoadU(d, mean + i), hn::LoadU(d, row + i), a);
        b = hn::MulAdd(hn::LoadU(d, mean + i + lanes),
                       hn::LoadU(d, row + i + lanes), b);
      }
      if (i < n_whole) {
        a = hn::MulAdd(hn::LoadU(d, mean + i), hn::LoadU(d, row + i), a);
      }
      if (n_whole < dim) {
        const size_t rest = dim - n_whole;
        b = hn::MulAdd(hn::LoadN(d, mean + n_whole, rest),
                       hn::LoadN(d, row + n_whole, rest), b);
      }
      args.out[head * args.out_stride + t] =
          args.scale * hn::ReduceSum(d, hn::Add(a, b));
    }
  }
}

// ---- Softmax ----

float MaxOf(const float* row, size_t n) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  float most = -std::numeric_limits<float>::infinity();
  auto v = hn::Set(d, most);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) v = hn::Max(v, hn::LoadU(d, row + i));
  most = hn::ReduceMax(d, v);
  for (; i < n; ++i) most = std::max(most, row[i]);
  return most;
}

// row = 2^((row - most) log2 e). Returns their sum: in f32 over pieces, which
// are added in double.
double ExpRow(float* row, size_t n, float most) {
  constexpr size_t kPiece = 512;
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  const auto highest = hn::Set(d, most);
  const auto log2e = hn::Set(d, 1.44269504088896340736f);
  double total = 0.0;
  for (size_t begin = 0; begin < n; begin += kPiece) {
    const size_t end = std::min(n, begin + kPiece);
    // Sum j adds the elements j, j + kRowPad, ... of the piece.
    HWY_ALIGN float sums[kRowPad] = {};
    for (size_t i = begin; i < end; i += lanes) {
      const size_t n_lanes = std::min(lanes, end - i);
      const auto x = hn::Sub(hn::LoadN(d, row + i, n_lanes), highest);
      const auto e = hn::IfThenElseZero(hn::FirstN(d, n_lanes),
                                        Exp2(d, hn::Mul(x, log2e)));
      hn::StoreN(e, d, row + i, n_lanes);
      float* const sum = sums + (i - begin) % kRowPad;
      hn::StoreU(hn::Add(hn::LoadU(d, sum), e), d, sum);
    }
    total += double{AddUp(sums)};
  }
  return total;
}

void ScaleRow(float* row, size_t n, float scale) {
  const RowTag d;
  const auto factor = hn::Set(d, scale);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const size_t lanes = std::min(hn::Lanes(d), n - i);
    hn::StoreN(hn::Mul(hn::LoadN(d, row + i, lanes), factor), d, row + i,
               lanes);
  }
}

// Adds biases to the logits of keys from n_sink on.
void AddBiases(const ExpectedAttention& args, uint32_t n_sink) {
  for (uint32_t t = n_sink; t < args.n_tokens; ++t) {
    float bias;
    std::memcpy(&bias, args.biases.Row(t), sizeof(bias));
    for (uint32_t head = 0; head < args.group; ++head) {
      args.out[head * args.out_stride + t] += bias;
    }
  }
}

void ExpectedAttentionOf(const ExpectedAttention& args) {
  const uint32_t n = args.n_tokens;
  const uint32_t n_sink = std::min(args.n_sink, n);
  if (args.covariance != nullptr) {
    LogitsByCovariance(args, n_sink);
  } else {
    LogitsByMean(args, n_sink);
  }
  const bool biased = kHasBiases && args.biases.base != nullptr;
  if (biased) AddBiases(args, n_sink);
  for (uint32_t head = 0; head < args.group; ++head) {
    float* const out = args.out + head * args.out_stride;
    std::fill(out, out + n_sink, 0.0f);
    const size_t n_weights = n - n_sink;
    float most = MaxOf(out + n_sink, n_weights);
    // -infinity cannot be subtracted. Biases that hide all keys leave weights
    // of 0.
    if (biased && most == -std::numeric_limits<float>::infinity()) most = 0.0f;
    const double sum = ExpRow(out + n_sink, n_weights, most);
    if (sum == 0.0) continue;
    ScaleRow(out + n_sink, n_weights, static_cast<float>(1.0 / sum));
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(ExpectedAttentionOf);

CheckedSize ExpectedAttentionScratchBytes(uint32_t head_dim, uint32_t group) {
  // The tile, a padded row of it, and covariances.
  const CheckedSize rows =
      CheckedSize(kStripKeys + 1) * CheckedSize(head_dim + 16);
  const CheckedSize packed =
      CheckedSize(group) *
      CheckedSize(head_dim <= kMostPackedDim ? PackedFloats(head_dim) : 0);
  return (rows + packed) * CheckedSize(sizeof(float));
}

void ComputeExpectedAttention(SimdTarget simd, const ExpectedAttention& args) {
  KV_DISPATCH(simd, ExpectedAttentionOf)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
