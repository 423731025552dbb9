// The words of cuda/kernels/device.cuh for the host; see simt.h.
#ifndef KVEVICT_TESTS_RIG_SIMT_HOST_DEVICE_HOST_H_
#define KVEVICT_TESTS_RIG_SIMT_HOST_DEVICE_HOST_H_

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "tests/rig/simt/thread.h"

#ifdef KV_VARIANT
#define KV_KERNEL(name, Params, threads, min_blocks) \
  namespace KV_VARIANT {                             \
  void name(const Params& p);                        \
  }                                                  \
  void KV_VARIANT::name([[maybe_unused]] const Params& p)
#else
#define KV_KERNEL(name, Params, threads, min_blocks) \
  void name(const Params& p);                        \
  void name([[maybe_unused]] const Params& p)
#endif
#define KV_DEVICE [[maybe_unused]] inline
#define KV_SHARED(T, name, n)  \
  static char kv_id_of_##name; \
  T(&name)                     \
  [n] = *static_cast<T(*)[n]>( \
      ::kvevict::simt::SharedArray(&kv_id_of_##name, sizeof(T[n])))
#define KV_DYNAMIC_SHARED(name) \
  uint8_t* const name = ::kvevict::simt::DynamicShared()

#define threadIdx (::kvevict::simt::ThreadIndex())
#define blockIdx (::kvevict::simt::BlockIndex())
#define blockDim (::kvevict::simt::BlockSize())
#define gridDim (::kvevict::simt::GridSize())

namespace kvevict::cuda {

// ---- Threads of a block and of a warp ----

inline void BlockSync() { simt::BlockBarrier(); }
inline bool BlockAny(bool v) { return simt::BlockReduceOr(v); }
inline void WarpSync() { simt::WarpBarrier(); }

// A double goes in two halves, as the compiler for devices makes it.
inline double ShuffleXor(double v, unsigned lane_mask) {
  auto halves = std::bit_cast<std::array<uint32_t, 2>>(v);
  for (uint32_t& half : halves) {
    half = simt::WarpShuffle(half, simt::Lane() ^ lane_mask);
  }
  return std::bit_cast<double>(halves);
}
template <class T>
T Shuffle(T v, unsigned lane) {
  return std::bit_cast<T>(simt::WarpShuffle(std::bit_cast<uint32_t>(v), lane));
}
template <class T>
T ShuffleXor(T v, unsigned lane_mask) {
  return Shuffle(v, simt::Lane() ^ lane_mask);
}
template <class T>
T ShuffleUp(T v, unsigned delta) {
  const unsigned lane = simt::Lane();
  return Shuffle(v, lane >= delta ? lane - delta : lane);
}
inline unsigned Ballot(bool v) { return simt::WarpBallot(v); }

inline int PopCount(unsigned v) { return std::popcount(v); }
inline int CountLeadingZeros(unsigned v) { return std::countl_zero(v); }

inline uint32_t Afresh(uint32_t v) { return v; }

// ---- Arithmetic ----

inline float Exp2(float v) {
  const float r = std::exp2(v);
  return r < std::numeric_limits<float>::min() ? 0.0f : r;
}
inline float Log2(float v) { return std::log2(v); }
inline float Fma(float a, float b, float c) { return std::fma(a, b, c); }
inline float Multiply(float a, float b) { return a * b; }
inline float SquareRoot(float v) { return std::sqrt(v); }
inline double Fma(double a, double b, double c) { return std::fma(a, b, c); }
inline double SquareRoot(double v) { return std::sqrt(v); }

template <int kDType>
float ToFloat(uint32_t bits) {
  static_assert(kDType == kF32 || kDType == kF16 || kDType == kBF16);
  if constexpr (kDType == kF32) {
    return std::bit_cast<float>(bits);
  } else if constexpr (kDType == kBF16) {
    return std::bit_cast<float>(bits << 16);
  } else {
    const uint32_t sign = (bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 31;
    const uint32_t fraction = bits & 1023;
    if (exponent == 0) {
      const float v = static_cast<float>(fraction) * 0x1p-24f;
      return sign != 0 ? -v : v;
    }
    const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
    return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
  }
}

template <int kDType>
uint32_t FromFloat(float v) {
  static_assert(kDType == kF32 || kDType == kF16 || kDType == kBF16);
  const auto bits = std::bit_cast<uint32_t>(v);
  if constexpr (kDType == kF32) {
    return bits;
  } else if constexpr (kDType == kBF16) {
    const uint32_t up = (bits & 0xffff) > 0x8000 ||
                        ((bits & 0xffff) == 0x8000 && (bits >> 16 & 1) != 0);
    return (bits >> 16) + up;
  } else {
    const float size = std::fabs(v);
    const uint32_t sign = bits >> 16 & 0x8000;
    if (size >= 65520.0f) return sign | 0x7c00;
    const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
    const auto units =
        static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    return sign | ((static_cast<uint32_t>(exponent + 14) << 10) + units);
  }
}

// ---- Global memory ----
// Tests keep anything at an address, so it is copied.

template <class T>
T LoadGlobal(uint64_t address) {
  T v;
  std::memcpy(&v, reinterpret_cast<const void*>(address), sizeof(T));
  return v;
}
template <class T>
void StoreGlobal(uint64_t address, T v) {
  std::memcpy(reinterpret_cast<void*>(address), &v, sizeof(T));
}

// ---- Copies, which are done at once ----

inline void CopyAsync16(void* shared, uint64_t address, bool valid) {
  const Bytes16 v = valid ? LoadGlobal<Bytes16>(address) : Bytes16{};
  std::memcpy(shared, &v, sizeof(v));
}
inline void CopyAsyncCommit() {}
template <int kGroups>
void CopyAsyncWait() {}

// ---- Matrices ----

inline void LoadMatrix4(uint32_t (&r)[4], const void* shared_row) {
  uint32_t row[4];
  std::memcpy(row, shared_row, sizeof(row));
  simt::WarpLoadMatrix4(r, row);
}
inline void LoadTransposed4(uint32_t (&r)[4], const void* shared_row) {
  uint32_t row[4];
  std::memcpy(row, shared_row, sizeof(row));
  simt::WarpLoadTransposed4(r, row);
}

template <int kDType>
void MultiplyAccumulate16816(float (&c)[4], const uint32_t (&a)[4],
                             const uint32_t (&b)[2]) {
  static_assert(kDType == kF16 || kDType == kBF16);
  simt::WarpMultiply16816(ToFloat<kDType>, kDType == kF16 ? -14 : -126, c, a,
                          b);
}

// ---- Atomics; nobody else runs ----

inline uint32_t AtomicAddShared(uint32_t* shared, uint32_t v) {
  return std::exchange(*shared, *shared + v);
}
inline uint32_t AtomicAddGlobal(uint64_t address, uint32_t v) {
  return AtomicAddShared(reinterpret_cast<uint32_t*>(address), v);
}
inline uint32_t AtomicTicket(uint64_t address) {
  return AtomicAddGlobal(address, 1);
}
inline uint32_t LoadAcquire(uint64_t address) {
  return LoadGlobal<uint32_t>(address);
}
inline void StoreRelease(uint64_t address, uint32_t v) {
  StoreGlobal(address, v);
}

// Blocks that a block could wait for have ended.
inline void SpinYield() {}

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_RIG_SIMT_HOST_DEVICE_HOST_H_
