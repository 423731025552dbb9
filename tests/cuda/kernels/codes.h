// Rows of quantized dtypes for kernel tests: how numbers become codes, and their
// scales and minima.
#ifndef KVEVICT_TESTS_CUDA_KERNELS_CODES_H_
#define KVEVICT_TESTS_CUDA_KERNELS_CODES_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include "core/dtype.h"
#include "cuda/kernels/params.h"
#include "tests/kernels/random.h"
#include "tests/oracle/quantized.h"

namespace kvevict {

// The dtypes of a program's caches: those whose numbers stand for themselves, or
// the quantized ones if its kernels are built for them.
#ifdef KV_DTYPES
constexpr uint32_t kFirstDType = cuda::kE4M3,
                   kNDTypes = std::size(kDTypes) - kFirstDType;
#else
constexpr uint32_t kFirstDType = cuda::kF32, kNDTypes = 3;
#endif
constexpr uint32_t DTypeOfTurn(uint32_t turn) {
  return kFirstDType + turn % kNDTypes;
}
// The dtype of other operands.
inline uint32_t AnyDType(Random& random) {
  return cuda::kF32 + random.Below(kFirstDType + kNDTypes - cuda::kF32);
}

constexpr bool IsQuantized(uint32_t dtype) { return dtype >= cuda::kE4M3; }
constexpr const DTypeInfo& InfoOfId(uint32_t dtype) {
  return *FindDType(static_cast<int32_t>(dtype));
}
constexpr bool IsFp8(uint32_t dtype) {
  return InfoOfId(dtype).codes.is_float();
}
constexpr bool HasBlocks(uint32_t dtype) {
  return InfoOfId(dtype).packing == Packing::kBlocks;
}
// Elements that are stored together.
constexpr uint32_t BlockElements(uint32_t dtype) {
  return InfoOfId(dtype).block_elements;
}

// The stored form of a number of 8 significant bits, which all plain dtypes hold.
inline uint32_t EncodeElement(uint32_t dtype, float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  if (dtype == cuda::kF32) return bits;
  if (dtype == cuda::kBF16) return bits >> 16;
  const uint32_t sign = bits >> 16 & 0x8000;
  if (v == 0.0f) return sign;
  if (std::isnan(v)) return sign | 0x7e00;
  if (std::isinf(v)) return sign | 0x7c00;
  return sign | (((bits & 0x7fffffffu) >> 13) - (112u << 10));
}

// Scales or minima: one per row of n_heads, per head, or for all, or none. Or one
// per element of groups of rows.
struct Numbers {
  enum Of { kNone, kRow, kHead, kAll, kGroup };
  Of of = kNone;
  uint32_t dtype = cuda::kF32;
  uint32_t n_heads = 1;
  uint32_t group = 1;  // rows
  uint32_t dim = 1;
  std::vector<float> values;    // by rows [block, head, row], or group, element
  std::vector<uint8_t> memory;  // the same, stored

  int64_t bytes() const { return dtype == cuda::kF32 ? 4 : 2; }
  size_t Index(uint32_t block, uint32_t head, uint32_t row, uint32_t rows,
               uint32_t element) const {
    if (of == kAll) return 0;
    if (of == kHead) return head;
    const uint32_t n_groups = (rows + group - 1) / group;
    const size_t i = (size_t{block} * n_heads + head) * n_groups + row / group;
    return i * dim + (of == kGroup ? element : 0);
  }
  // Arguments for rows that lie in blocks of so many, in this order.
  cuda::RowNumbers InBlocksOf(uint32_t rows) const {
    cuda::RowNumbers n = {};
    if (of == kNone) return n;
    n.base = reinterpret_cast<uint64_t>(memory.data());
    n.dtype = dtype;
    n.is_constant = of != kRow && of != kGroup;
    if (of == kHead) n.head_stride = bytes();
    if (n.is_constant != 0) return n;
    if (of == kGroup) n.group_tokens = group;
    n.row_stride = dim * bytes();
    n.head_stride = (rows + group - 1) / group * n.row_stride;
    n.block_stride = n.head_stride * n_heads;
    return n;
  }
};

// `dim` is that of rows with scales of groups; 0: none have them.
inline Numbers DrawNumbers(uint32_t n_heads, uint32_t n_rows, Random& random,
                           const std::vector<float>& choices,
                           uint32_t dim = 0) {
  Numbers n;
  constexpr Numbers::Of kOf[] = {Numbers::kRow, Numbers::kRow, Numbers::kHead,
                                 Numbers::kAll};
  n.of = dim > 0 ? Numbers::kGroup : kOf[random.Below(4)];
  n.dtype = cuda::kF32 + random.Below(3);
  n.n_heads = n_heads;
  if (dim > 0) n.dim = dim, n.group = 1u << random.Below(6);
  const size_t size = n.of == Numbers::kHead ? n_heads
                      : n.of == Numbers::kAll
                          ? 1
                          : size_t{n_heads} * n_rows * n.dim;
  n.memory.resize(size * static_cast<size_t>(n.bytes()));
  for (size_t i = 0; i < size; ++i) {
    n.values.push_back(
        choices[random.Below(static_cast<uint32_t>(choices.size()))]);
    const uint32_t bits = EncodeElement(n.dtype, n.values[i]);
    std::memcpy(n.memory.data() + i * static_cast<size_t>(n.bytes()), &bits,
                static_cast<size_t>(n.bytes()));
  }
  return n;
}

// Powers of two leave eighths what they are. Codes reach +-6.5 with most of them.
inline Numbers DrawScales(uint32_t dtype, uint32_t n_heads, uint32_t n_rows,
                          Random& random, uint32_t dim = 0) {
  if (!IsQuantized(dtype) || HasBlocks(dtype)) return {};
  if (IsFp8(dtype)) {
    if (InfoOfId(dtype).scale == Scale::kNone || random.Below(3) == 0)
      return {};
    return DrawNumbers(n_heads, n_rows, random, {0.5f, 1.0f, 2.0f});
  }
  if (BlockElements(dtype) == 2) {
    return DrawNumbers(n_heads, n_rows, random, {0.5f, 1.0f}, dim);
  }
  return DrawNumbers(n_heads, n_rows, random, {0.125f, 0.25f}, dim);
}
inline Numbers DrawMinima(uint32_t dtype, uint32_t n_heads, uint32_t n_rows,
                          Random& random, uint32_t dim = 0) {
  if (!IsQuantized(dtype) || HasBlocks(dtype) || IsFp8(dtype)) return {};
  if (random.Below(4) == 0) return {};
  return DrawNumbers(n_heads, n_rows, random, {-6.5f, -4.0f, -0.125f, 1.5f},
                     dim);
}

// The last rows are not quantized, and alike in every layer: [head, row, element].
struct Recent {
  uint32_t first = UINT32_MAX;  // there are none
  uint32_t dtype = cuda::kF32;
  uint32_t n_heads = 1;
  uint32_t dim = 1;
  std::vector<float> values;
  std::vector<uint8_t> memory;

  int64_t row_stride() const { return dim * (dtype == cuda::kF32 ? 4 : 2); }
  int64_t head_stride() const {
    return static_cast<int64_t>(memory.size()) / n_heads;
  }
  const float* Row(uint32_t head, uint32_t slot) const {
    return values.data() + values.size() / n_heads * head +
           size_t{slot - first} * dim;
  }
  cuda::RecentRows params() const {
    if (first == UINT32_MAX) return {};
    return {reinterpret_cast<uint64_t>(memory.data()), row_stride(),
            head_stride(), first, dtype};
  }
};

inline Recent DrawRecent(uint32_t n_heads, uint32_t dim, uint32_t n_slots,
                         Random& random) {
  Recent r;
  r.first = random.Below(n_slots);
  r.dtype = cuda::kF32 + random.Below(3);
  r.n_heads = n_heads;
  r.dim = dim;
  const size_t n = size_t{n_heads} * (n_slots - r.first) * dim;
  const size_t bytes = r.dtype == cuda::kF32 ? 4 : 2;
  r.memory.resize(n * bytes);
  for (size_t i = 0; i < n; ++i) {
    r.values.push_back(
        static_cast<float>(static_cast<int>(random.Below(105)) - 52) / 8.0f);
    const uint32_t bits = EncodeElement(r.dtype, r.values[i]);
    std::memcpy(r.memory.data() + i * bytes, &bits, bytes);
  }
  return r;
}

inline int Rounded(float v, int least, int most) {
  if (!std::isfinite(v)) return most;
  return std::clamp(static_cast<int>(std::lround(v)), least, most);
}

// The code of v or a neighbour of it.
inline uint32_t EncodeCode(uint32_t dtype, float v) {
  if (IsFp8(dtype)) {
    const CodeNumbers& codes = InfoOfId(dtype).codes;
    if (std::isnan(v)) return codes.nan;
    const auto bits = std::bit_cast<uint32_t>(v);
    const uint32_t size = bits & 0x7fffffffu;
    const uint32_t least = codes.bias_bits() + (1u << 23);  // normal number
    const auto bias = static_cast<int>(codes.bias + codes.fraction) - 1;
    const uint32_t code =
        size < least ? static_cast<uint32_t>(std::ldexp(std::abs(v), bias))
                     : (size - codes.bias_bits()) >> (23 - codes.fraction);
    return (bits >> 24 & 0x80) | std::min(code, codes.infinity);
  }
  switch (dtype) {
    case cuda::kU8:
      return static_cast<uint32_t>(Rounded(v, 0, 255));
    case cuda::kI8:
    case cuda::kQ8_0:
      return static_cast<uint32_t>(Rounded(v, -128, 127)) & 255;
    case cuda::kQ4_0:
      return static_cast<uint32_t>(Rounded(v, -8, 7) + 8);
    default:
      return static_cast<uint32_t>(Rounded(v, 0, 15));
  }
}

// The bytes of a packed row near n numbers, which become what it stands for.
// scale_of(e) and minimum_of(e) belong to its elements, if they have some.
template <typename ScaleOf, typename MinimumOf>
std::vector<uint8_t> EncodeRow(uint32_t dtype, uint32_t n,
                               const ScaleOf& scale_of,
                               const MinimumOf& minimum_of, Random& random,
                               float* row) {
  const auto oracle_dtype = static_cast<kvevict_dtype>(dtype);
  std::vector<uint8_t> bytes(oracle_packed_bytes(oracle_dtype, n));
  float block_scale = 0.0f;
  for (uint32_t e = 0; e < n; ++e) {
    if (HasBlocks(dtype)) {
      const bool nibbles = dtype == cuda::kQ4_0;
      uint8_t* const block = bytes.data() + e / 32 * (nibbles ? 18 : 34);
      if (e % 32 == 0) {
        block_scale = nibbles ? 0.5f : random.Below(2) == 0 ? 0.125f : 0.0625f;
        const uint32_t bits = EncodeElement(cuda::kF16, block_scale);
        std::memcpy(block, &bits, 2);
      }
      const uint32_t code = EncodeCode(dtype, row[e] / block_scale);
      block[2 + e % (nibbles ? 16 : 32)] |=
          static_cast<uint8_t>(nibbles && e % 32 >= 16 ? code << 4 : code);
      continue;
    }
    const uint32_t code =
        EncodeCode(dtype, (row[e] - minimum_of(e)) / scale_of(e));
    if (dtype == cuda::kU4) {
      bytes[e / 2] |= static_cast<uint8_t>(e % 2 == 0 ? code << 4 : code);
    } else if (dtype == cuda::kU4Halves) {
      bytes[e % (n / 2)] |= static_cast<uint8_t>(e < n / 2 ? code : code << 4);
    } else {
      bytes[e] = static_cast<uint8_t>(code);
    }
  }
  for (uint32_t e = 0; e < n; ++e) {
    const double code = oracle_code(oracle_dtype, bytes.data(), n, e);
    const float scale = HasBlocks(dtype) ? 1.0f : scale_of(e);
    row[e] = static_cast<float>(code * double{scale} + double{minimum_of(e)});
  }
  return bytes;
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_CUDA_KERNELS_CODES_H_
