// The words of cuda/kernels/device.cuh for the host; see simt.h.
#ifndef KVEVICT_TESTS_RIG_SIMT_HOST_DEVICE_HOST_H_
#define KVEVICT_TESTS_RIG_SIMT_HOST_DEVICE_HOST_H_

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

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

using simt::Site;

// ---- Threads of a block and of a warp ----

inline void BlockSync(Site site = Site::Here()) { simt::BlockBarrier(site); }
inline bool BlockAny(bool v, Site site = Site::Here()) {
  return simt::BlockReduceOr(v, site);
}
inline void WarpSync(Site site = Site::Here()) { simt::WarpBarrier(site); }

// A double goes in two halves, as the compiler for devices makes it.
inline double ShuffleXor(double v, unsigned lane_mask,
                         Site site = Site::Here()) {
  auto halves = std::bit_cast<std::array<uint32_t, 2>>(v);
  for (uint32_t& half : halves) {
    half =
        simt::WarpShuffle("ShuffleXor", half, simt::Lane() ^ lane_mask, site);
  }
  return std::bit_cast<double>(halves);
}
template <class T>
T ShuffleXor(T v, unsigned lane_mask, Site site = Site::Here()) {
  return std::bit_cast<T>(simt::WarpShuffle("ShuffleXor",
                                            std::bit_cast<uint32_t>(v),
                                            simt::Lane() ^ lane_mask, site));
}
template <class T>
T ShuffleUp(T v, unsigned delta, Site site = Site::Here()) {
  const unsigned lane = simt::Lane();
  return std::bit_cast<T>(
      simt::WarpShuffle("ShuffleUp", std::bit_cast<uint32_t>(v),
                        lane >= delta ? lane - delta : lane, site));
}
template <class T>
T Shuffle(T v, unsigned lane, Site site = Site::Here()) {
  return std::bit_cast<T>(
      simt::WarpShuffle("Shuffle", std::bit_cast<uint32_t>(v), lane, site));
}
inline unsigned Ballot(bool v, Site site = Site::Here()) {
  return simt::WarpBallot(v, site);
}

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

namespace shim {

template <size_t kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using Type = uint8_t;
};
template <>
struct WordOf<2> {
  using Type = uint16_t;
};
template <>
struct WordOf<4> {
  using Type = uint32_t;
};
template <>
struct WordOf<8> {
  using Type = uint64_t;
};

// Tests keep anything at an address, so words alias everything.
template <size_t kBytes>
using Word [[gnu::may_alias]] = typename WordOf<kBytes <= 8 ? kBytes : 8>::Type;

template <class T>
T* At(uint64_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

template <size_t kBytes>
void Read(const void* from, void* to) {
  using W = Word<kBytes>;
  for (size_t i = 0; i < kBytes; i += sizeof(W)) {
    const W w = *reinterpret_cast<const volatile W*>(
        static_cast<const char*>(from) + i);
    std::memcpy(static_cast<char*>(to) + i, &w, sizeof(W));
  }
}

template <size_t kBytes>
void Write(void* to, const void* from) {
  using W = Word<kBytes>;
  for (size_t i = 0; i < kBytes; i += sizeof(W)) {
    W w;
    std::memcpy(&w, static_cast<const char*>(from) + i, sizeof(W));
    *reinterpret_cast<volatile W*>(static_cast<char*>(to) + i) = w;
  }
}

}  // namespace shim

template <class T>
T LoadGlobal(uint64_t address, Site site = Site::Here()) {
  simt::CheckAligned(address, sizeof(T), site);
  T v;
  shim::Read<sizeof(T)>(shim::At<void>(address), &v);
  return v;
}
template <class T>
void StoreGlobal(uint64_t address, T v, Site site = Site::Here()) {
  simt::CheckAligned(address, sizeof(T), site);
  shim::Write<sizeof(T)>(shim::At<void>(address), &v);
}

// ---- Asynchronous copies ----
// Poison lies at the destination from the issue until the wait that copies.

inline void CopyAsync16(void* shared, uint64_t address, bool valid,
                        Site site = Site::Here()) {
  simt::CheckShared16(shared, site);
  if (valid) simt::CheckAligned(address, 16, site);
  Bytes16 poison;
  std::memset(&poison, 0xff, 16);
  shim::Write<16>(shared, &poison);
  simt::AddCopy(shared, valid ? address : 0);
}
inline void CopyAsyncCommit() { simt::CommitCopies(); }
template <int kGroups>
void CopyAsyncWait() {
  simt::Copy copy;
  while (simt::TakeCopy(kGroups, &copy)) {
    Bytes16 v = {};
    if (copy.address != 0) shim::Read<16>(shim::At<void>(copy.address), &v);
    shim::Write<16>(copy.shared, &v);
  }
}

// ---- Matrices ----

inline void LoadMatrix4(uint32_t (&r)[4], const void* shared_row,
                        Site site = Site::Here()) {
  simt::CheckShared16(shared_row, site);
  uint32_t row[4];
  shim::Read<16>(shared_row, row);
  simt::WarpLoadMatrix4(r, row, site);
}
inline void LoadTransposed4(uint32_t (&r)[4], const void* shared_row,
                            Site site = Site::Here()) {
  simt::CheckShared16(shared_row, site);
  uint32_t row[4];
  shim::Read<16>(shared_row, row);
  simt::WarpLoadTransposed4(r, row, site);
}

template <int kDType>
void MultiplyAccumulate16816(float (&c)[4], const uint32_t (&a)[4],
                             const uint32_t (&b)[2], Site site = Site::Here()) {
  static_assert(kDType == kF16 || kDType == kBF16);
  simt::WarpMultiply16816(ToFloat<kDType>, kDType == kF16 ? -14 : -126, c, a, b,
                          site);
}

// ---- Atomics ----

inline uint32_t AtomicAddShared(uint32_t* shared, uint32_t v) {
  return __atomic_fetch_add(shared, v, __ATOMIC_RELAXED);
}
inline uint32_t AtomicAddGlobal(uint64_t address, uint32_t v,
                                Site site = Site::Here()) {
  simt::CheckAligned(address, 4, site);
  simt::Preempt(simt::Access::kWrite);
  return __atomic_fetch_add(shim::At<uint32_t>(address), v, __ATOMIC_RELAXED);
}
inline uint32_t AtomicTicket(uint64_t address, Site site = Site::Here()) {
  simt::CheckAligned(address, 4, site);
  simt::Preempt(simt::Access::kWrite);
  return __atomic_fetch_add(shim::At<uint32_t>(address), 1, __ATOMIC_ACQ_REL);
}
inline uint32_t LoadAcquire(uint64_t address, Site site = Site::Here()) {
  simt::CheckAligned(address, 4, site);
  simt::Preempt(simt::Access::kRead);
  return __atomic_load_n(shim::At<uint32_t>(address), __ATOMIC_ACQUIRE);
}
inline void StoreRelease(uint64_t address, uint32_t v,
                         Site site = Site::Here()) {
  simt::CheckAligned(address, 4, site);
  simt::Preempt(simt::Access::kWrite);
  __atomic_store_n(shim::At<uint32_t>(address), v, __ATOMIC_RELEASE);
}

inline void SpinYield(Site site = Site::Here()) { simt::Yield(site); }

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_RIG_SIMT_HOST_DEVICE_HOST_H_
