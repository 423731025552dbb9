#include "tests/cuda/window_attention/stored.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>

namespace kvevict::cuda {
namespace {

// ---- Elements ----

// Strides are multiples of this.
uint32_t ElementBytes(uint32_t dtype) {
  if (dtype == kF32) return 4;
  return IsQuantized(dtype) && !HasBlocks(dtype) ? 1 : 2;
}
int64_t RowBytes(uint32_t dtype, uint32_t dim) {
  return oracle_packed_bytes(static_cast<kvevict_dtype>(dtype), dim);
}

// For codes, a number that they reach with any scale and minimum drawn.
float RoundToCodes(uint32_t dtype, float v) {
  const bool coarse = IsNibbles(static_cast<int>(dtype));
  const float unit = coarse ? 0.5f : 0.125f;
  const float most = coarse ? 3.0f : 4.0f;
  return std::clamp(std::round(v / unit) * unit, -most, most);
}

}  // namespace

float RoundTo(uint32_t dtype, float v) {
  if (dtype == kF32 || !std::isfinite(v)) return v;
  if (IsQuantized(dtype) && !IsFp8(dtype)) return RoundToCodes(dtype, v);
  if (std::abs(v) < (IsFp8(dtype) ? 0x1p-5f : 0x1p-14f)) return 0.0f;
  const int n_bits = dtype == kF16 ? 11 : dtype == kBF16 ? 8 : 3;
  int exponent;
  const float fraction = std::frexp(v, &exponent);
  return std::ldexp(std::round(std::ldexp(fraction, n_bits)),
                    exponent - n_bits);
}

namespace {

// The stored form of a number that the dtype can hold.
uint32_t Encode(uint32_t dtype, float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  if (dtype == 1) return bits;
  if (dtype == 3) return bits >> 16;
  const uint32_t sign = bits >> 16 & 0x8000;
  if (std::isnan(v)) return sign | 0x7e00;
  if (std::isinf(v)) return sign | 0x7c00;
  if (v == 0.0f) return sign;
  return sign | (((bits & 0x7fffffffu) >> 13) - (112u << 10));
}

// ---- Rows in memory ----

void Store(const Rows& rows, uint32_t dtype, uint64_t row_address,
           uint32_t element, float v) {
  const uint32_t bits = Encode(dtype, v);
  std::memcpy(
      reinterpret_cast<void*>(row_address + element * rows.element_stride),
      &bits, ElementBytes(dtype));
}

Rows MakeRows(RowOrder order, uint32_t dtype, uint32_t n_heads, uint32_t n_rows,
              uint32_t dim, uint32_t gap, uint32_t n_copies = 1) {
  const int64_t e = ElementBytes(dtype);
  const int64_t row_bytes = RowBytes(dtype, dim);
  Rows rows;
  int64_t bytes = 0;
  int64_t first = 0;
  rows.element_stride = e;
  if (order == RowOrder::kElementMajor) {
    rows.row_stride = e;
    rows.element_stride = n_rows * e;
    rows.head_stride = dim * rows.element_stride + gap;
    bytes = n_heads * rows.head_stride;
  } else if (order == RowOrder::kHeadMajor) {
    rows.row_stride = row_bytes + gap;
    rows.head_stride = n_rows * rows.row_stride;
    bytes = n_heads * rows.head_stride;
  } else {
    rows.head_stride = row_bytes + gap;
    rows.row_stride = n_heads * rows.head_stride;
    bytes = n_rows * rows.row_stride;
    if (order == RowOrder::kReversed) {
      first = (n_rows - 1) * rows.row_stride;
      rows.row_stride = -rows.row_stride;
    }
  }
  // There is no gap after the last row.
  const int64_t all = n_copies * bytes - gap;
  rows.memory = std::make_unique<uint8_t[]>(static_cast<size_t>(all));
  std::memset(rows.memory.get(), 0xff, static_cast<size_t>(all));
  rows.base = reinterpret_cast<uint64_t>(rows.memory.get()) +
              static_cast<uint64_t>(first);
  return rows;
}

uint32_t Gap(const AttentionVariant& v, const AttentionLayout& layout,
             uint32_t dtype) {
  return v.use_mma || layout.gap_is_wide ? 16 : ElementBytes(dtype);
}

}  // namespace

Rows StoreQueries(const AttentionVariant& v, const AttentionLayer& layer,
                  const AttentionLayout& layout) {
  const auto n_kv_heads = static_cast<uint32_t>(layer.size());
  const uint32_t group = v.group * v.logit_heads;
  const uint32_t n_rows = QueryRows(v, layer[0].n_tokens);
  const uint32_t n_stored = n_rows + layout.n_spare;
  Rows rows = MakeRows(layout.queries, v.q_dtype, n_kv_heads * group, n_stored,
                       v.head_dim, Gap(v, layout, v.q_dtype));
  for (uint32_t head = 0; head < n_kv_heads * group; ++head) {
    const oracle::WindowAttentionInput& in = layer[head / group];
    for (uint32_t w = 0; w < in.window; ++w) {
      const uint32_t stored = (layout.first_row + w) % n_stored;
      for (uint32_t d = 0; d < v.head_dim; ++d) {
        Store(rows, v.q_dtype,
              rows.base + head * rows.head_stride + stored * rows.row_stride, d,
              in.queries[(head % group * in.window + w) * v.head_dim + d]);
      }
    }
  }
  return rows;
}

namespace {

// All layers of a launch have the same stride, larger than any table.
constexpr uint32_t kTableStride = 800;

constexpr uint32_t kMostRows = 4096;

}  // namespace

KeyNumbers DrawKeyNumbers(const AttentionVariant& v, uint32_t n_heads,
                          Random& random) {
  const uint32_t dtype = v.k_dtype;
  if (!IsQuantized(dtype) || HasBlocks(dtype)) return {};
  const auto draw = [&](const std::vector<float>& choices) {
    return DrawNumbers(n_heads, kMostRows, random, choices);
  };
  if (IsFp8(dtype)) {
    return {random.Below(3) == 0 ? Numbers() : draw({0.5f, 1.0f, 2.0f}), {}};
  }
  if (BlockElements(dtype) == 2) return {draw({0.5f}), draw({-3.0f, -4.0f})};
  const bool is_signed = dtype == kI8;
  if (v.use_mma || (is_signed && random.Below(2) == 0))
    return {draw({0.125f, 0.0625f}), {}};
  return {draw({0.125f, 0.0625f}),
          is_signed ? draw({-1.0f, 0.5f}) : draw({-4.0f, -6.5f})};
}

RowNumbers BesideHeads(const Numbers& numbers, uint32_t block) {
  RowNumbers n = numbers.InBlocksOf(block);
  if (numbers.of != Numbers::kRow) return n;
  n.head_stride = numbers.bytes();
  n.row_stride = n.head_stride * numbers.n_heads;
  n.block_stride = n.row_stride * block;
  return n;
}
namespace {

float NumberAt(const Numbers& numbers, uint32_t row, uint32_t head,
               float otherwise) {
  if (numbers.of == Numbers::kNone) return otherwise;
  if (numbers.of != Numbers::kRow) {
    return numbers.values[numbers.Index(0, head, 0, 1, 0)];
  }
  return numbers.values[size_t{row} * numbers.n_heads + head];
}

// The bytes of a row of codes.
void StoreCodes(const AttentionVariant& v, const float* key, float scale,
                float minimum, Random& random, int64_t element_stride,
                uint64_t to) {
  std::vector<float> stored(key, key + v.head_dim);
  const std::vector<uint8_t> bytes = EncodeRow(
      v.k_dtype, v.head_dim, [=](uint32_t) { return scale; },
      [=](uint32_t) { return minimum; }, random, stored.data());
  const int64_t step = BlockElements(v.k_dtype) == 1 ? element_stride : 1;
  for (size_t i = 0; i < bytes.size(); ++i) {
    *reinterpret_cast<uint8_t*>(to + i * step) = bytes[i];
  }
  for (uint32_t d = 0; d < v.head_dim; ++d) {
    if (stored[d] == key[d] || std::isnan(key[d])) continue;
    std::fprintf(stderr, "%s: no code stands for %g\n", v.name,
                 static_cast<double>(key[d]));
    std::exit(1);
  }
}

}  // namespace

Keys StoreKeys(const AttentionVariant& v, const AttentionLayer& layer,
               const AttentionLayout& layout, const KeyNumbers& numbers) {
  const auto n_heads = static_cast<uint32_t>(layer.size());
  const uint32_t n_tokens = layer[0].n_tokens;
  const uint32_t block = v.paged ? layout.block_size : n_tokens;
  Keys keys;
  const uint32_t n_blocks = v.paged ? (n_tokens + block - 1) / block + 1 : 1;
  keys.rows = MakeRows(layout.keys, v.k_dtype, n_heads, block, v.head_dim,
                       v.few ? 16 : Gap(v, layout, v.k_dtype), n_blocks);
  const Rows& rows = keys.rows;
  keys.block_stride =
      layout.keys == RowOrder::kTokenMajor || layout.keys == RowOrder::kReversed
          ? std::abs(rows.row_stride) * block
          : rows.head_stride * n_heads;
  const bool has_tables = v.paged && v.ragged;
  if (has_tables) keys.table_head_stride = kTableStride;
  Random random(n_tokens);
  for (uint32_t t = 0; t < (has_tables ? n_heads : 1); ++t) {
    std::vector<int32_t> table(n_blocks);
    std::iota(table.begin(), table.end(), 0);
    for (uint32_t i = n_blocks; v.paged && i > 1; --i) {
      std::swap(table[i - 1], table[random.Below(i)]);
    }
    keys.table.resize(t * kTableStride, INT32_MIN);
    keys.table.insert(keys.table.end(), table.begin(), table.end());
  }
  for (uint32_t head = 0; head < n_heads; ++head) {
    for (uint32_t j = 0; j < layer[head].n_tokens; ++j) {
      const uint64_t row = rows.base + head * rows.head_stride +
                           keys.Block(head, j / block) * keys.block_stride +
                           j % block * rows.row_stride;
      if (IsQuantized(v.k_dtype)) {
        const uint32_t at =
            static_cast<uint32_t>(keys.Block(head, j / block)) * block +
            j % block;
        StoreCodes(v, &layer[head].keys[size_t{j} * v.head_dim],
                   NumberAt(numbers.scales, at, head, 1.0f),
                   NumberAt(numbers.minima, at, head, 0.0f), random,
                   rows.element_stride, row);
        continue;
      }
      for (uint32_t d = 0; d < v.head_dim; ++d) {
        Store(rows, v.k_dtype, row, d,
              layer[head].keys[size_t{j} * v.head_dim + d]);
      }
    }
  }
  keys.table.resize(keys.table.size() - (v.paged ? 1 : 0));
  return keys;
}

std::vector<float> StoreBiases(const AttentionLayer& layer, const Keys& keys,
                               bool paged, const AttentionLayout& layout) {
  std::vector<float> stored;
  const auto n_heads = static_cast<uint32_t>(layer.size());
  for (uint32_t h = 0; h < n_heads; ++h) {
    for (uint32_t t = 0; t < layer[h].biases.size(); ++t) {
      const uint32_t block = paged ? t / layout.block_size : 0;
      const size_t row =
          paged ? size_t(keys.Block(h, block)) * layout.block_size +
                      t % layout.block_size
                : t;
      const size_t at = row * n_heads + h;
      if (at >= stored.size()) {
        stored.resize(at + 1, std::numeric_limits<float>::quiet_NaN());
      }
      stored[at] = layer[h].biases[t];
    }
  }
  return stored;
}

}  // namespace kvevict::cuda
