// f32 queries as two parts of 16 bits.
#ifndef KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_QUERIES_CUH_
#define KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_QUERIES_CUH_

#include "device.cuh"
#include "parts.cuh"
#include "window_attention.h"
#include "window_attention_codes.cuh"
#include "window_attention_rows.cuh"

namespace kvevict::cuda {
namespace {

constexpr bool kSplits = SplitsQueries(KV_USE_MMA != 0, KV_Q_DTYPE);
constexpr uint32_t kParts = kSplits ? 2 : 1;
constexpr bool kScalesQueries = kSplits && kElement == kF16;

// Row r of a block's fragments belongs to this row of its queries. Tiles of
// high parts are followed by those of low ones.
KV_DEVICE uint32_t RowOfFragments(uint32_t r) {
  return kSplits ? r / (2 * kTileRows) * kTileRows + r % kTileRows : r;
}

// Stores rows of fragments in shared memory, kPitch bytes apart. find(row,
// is_there) returns the address of a row's query, scale(row) what its parts are
// multiplied by afterwards, a power of two.
template <uint32_t kRows, uint32_t kBlockThreads, uint32_t kDim,
          uint32_t kPitch, class Find, class Scale>
KV_DEVICE void SplitRows(uint8_t* buffer, const Find& find,
                         const Scale& scale) {
  constexpr uint32_t kPieces = kDim / 8;  // of 8 elements, per row
#pragma unroll 1
  for (uint32_t i = Afresh(threadIdx.x); i < kRows * kPieces;
       i += kBlockThreads) {
    const uint32_t row = i / kPieces;
    const uint32_t piece = i % kPieces;
    const bool is_low = row / kTileRows % 2 != 0;
    bool is_there;
    const uint64_t from = find(row, is_there) + piece * 32;
    Bytes16 parts{};
    if (is_there) {
      const Bytes16 v[2] = {LoadGlobal<Bytes16>(from),
                            LoadGlobal<Bytes16>(from + 16)};
      const float factor = kScalesQueries ? InverseOfPower(scale(row)) : 1.0f;
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const float element = ToFloat<kF32>(v[n / 4].x[n % 4]) * factor;
        parts.x[n / 2] |= PartOf<kElement>(element, is_low) << n % 2 * 16;
      }
    }
    *reinterpret_cast<Bytes16*>(buffer + row * kPitch + piece * 16) = parts;
  }
}

// Finds what the parts of each row are multiplied by afterwards. address(row)
// is 0 if there is no row.
template <uint32_t kRows, uint32_t kBlockThreads, uint32_t kDim, class Address>
KV_DEVICE void ScaleOfRows(const Address& address, float* scales) {
  const uint32_t thread = Afresh(threadIdx.x);
#pragma unroll 1
  for (uint32_t row = thread / 32; row < kRows; row += kBlockThreads / 32) {
    const uint64_t from = address(row);
    uint32_t largest = 0;
    for (uint32_t e = thread % 32 * 4; from != 0 && e < kDim; e += 128) {
      const Bytes16 v = LoadGlobal<Bytes16>(from + e * sizeof(float));
      for (uint32_t n = 0; n < 4; ++n) {
        const uint32_t size = v.x[n] & 0x7fffffff;
        largest = size > largest ? size : largest;
      }
    }
    for (uint32_t lanes = 1; lanes < 32; lanes *= 2) {
      const uint32_t other = ShuffleXor(largest, lanes);
      largest = other > largest ? other : largest;
    }
    if (thread % 32 == 0) scales[row] = ScaleOfLargest(largest);
  }
}

}  // namespace
}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_QUERIES_CUH_
