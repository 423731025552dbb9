// Converts keys that are one-byte codes to the 16-bit elements that tensor
// cores take.
#ifndef KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_CODES_CUH_
#define KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_CODES_CUH_

#include "cache_rows.cuh"
#include "device.cuh"
#include "window_attention.h"
#include "window_attention_rows.cuh"

namespace kvevict::cuda {
namespace {

constexpr uint32_t kElement = MmaElement(KV_Q_DTYPE, KV_K_DTYPE);

// A code as an element, which holds it exactly.
KV_DEVICE uint32_t ElementOfCode(uint32_t code) {
  const float v = ValueOfCode<KV_K_DTYPE>(code);
  if constexpr (kElement == kBF16) {
    return FromFloat<kF32>(v) >> 16;
  } else if constexpr (FactsOf(KV_K_DTYPE).codes.is_half_of_f16()) {
    return code << 8;
  } else {
    return v == v ? FromFloat<kF16>(v) : 0x7e00;
  }
}

// The elements of 8 codes.
KV_DEVICE Bytes16 ElementsOfCodes(uint32_t low, uint32_t high) {
  Bytes16 elements;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t codes = (i < 2 ? low : high) >> i % 2 * 16;
    elements.x[i] = ElementOfCode(codes & 255) | ElementOfCode(codes >> 8 & 255)
                                                     << 16;
  }
  return elements;
}

// Stores the elements of 16 codes.
KV_DEVICE void StoreElements(uint8_t* shared, const Bytes16& codes) {
  auto* const to = reinterpret_cast<Bytes16*>(shared);
  to[0] = ElementsOfCodes(codes.x[0], codes.x[1]);
  to[1] = ElementsOfCodes(codes.x[2], codes.x[3]);
}

// Converts rows of kDim codes to rows of elements in shared memory, kPitch
// bytes apart. find(row, is_there) returns a row's address. A thread loads up
// to four pieces at once.
template <uint32_t kRows, uint32_t kBlockThreads, uint32_t kDim,
          uint32_t kPitch, class Find>
KV_DEVICE void ConvertRows(uint8_t* buffer, const Find& find) {
  constexpr uint32_t kPieces = kDim / 16;  // of 16 codes, per row
  constexpr uint32_t kLoads = kRows * kPieces;
  constexpr uint32_t kAtOnce =
      CeilDiv(kLoads, kBlockThreads) < 4 ? CeilDiv(kLoads, kBlockThreads) : 4;
#pragma unroll 1
  for (uint32_t first = Afresh(threadIdx.x); first < kLoads;
       first += kAtOnce * kBlockThreads) {
    Bytes16 codes[kAtOnce];
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t i = first + n * kBlockThreads;
      codes[n] = Bytes16{};
      bool is_there = false;
      if (i >= kLoads) continue;
      const uint64_t from = find(i / kPieces, is_there);
      if (is_there) codes[n] = LoadGlobal<Bytes16>(from + i % kPieces * 16);
    }
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t i = first + n * kBlockThreads;
      if (i >= kLoads) continue;
      StoreElements(buffer + i / kPieces * kPitch + i % kPieces * 32, codes[n]);
    }
  }
}

}  // namespace
}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_CODES_CUH_
