// What the kernels know about the machine: every word that is not plain C++.
//
// It has inline PTX and intrinsics, for sm_70 and later.
//
//   KV_KERNEL(name, Params, threads, min_blocks) { ... p.n_rows ... }
//       begins an entry point; its argument is called p
//   KV_DEVICE                   marks a function of the device
//   KV_SHARED(T, name, n)       T name[n] in shared memory, 16-byte aligned
//   KV_DYNAMIC_SHARED(name)     uint8_t* name, as large as the launch says
//   threadIdx blockIdx blockDim gridDim
//
// Collectives (BlockSync, BlockAny, WarpSync, shuffles, Ballot, loads of
// matrices and their product) are for all threads of the block or warp: none may have
// returned.
#ifndef KVEVICT_CUDA_KERNELS_DEVICE_CUH_
#define KVEVICT_CUDA_KERNELS_DEVICE_CUH_

#include "params.h"

namespace kvevict::cuda {

struct alignas(16) Bytes16 {
  uint32_t x[4];
};

// Bits of f32. A constexpr would appear in every module, by name.
enum : uint32_t { kInfinityBits = 0x7f800000u, kNaNBits = 0x7fc00000u };
// The target architecture: 800 is sm_80.
enum : uint32_t { kArch = __CUDA_ARCH__ };

}  // namespace kvevict::cuda

// Arguments stay in constant memory although their address is taken.
#define KV_KERNEL(name, Params, threads, min_blocks)                \
  extern "C" __global__ void __launch_bounds__(threads, min_blocks) \
      name(const __grid_constant__ Params p)
#define KV_DEVICE __device__ __forceinline__
#define KV_SHARED(T, name, n) __shared__ alignas(16) T name[n]
#define KV_DYNAMIC_SHARED(name)                                      \
  extern __shared__ __align__(16) unsigned char kv_dynamic_shared[]; \
  unsigned char* const name = kv_dynamic_shared

namespace kvevict::cuda {

// ---- Threads of a block and of a warp ----

KV_DEVICE void BlockSync() { __syncthreads(); }
// Whether any thread of the block passes true. It is also a BlockSync.
KV_DEVICE bool BlockAny(bool v) { return __syncthreads_or(v) != 0; }
KV_DEVICE void WarpSync() { __syncwarp(); }

constexpr unsigned kFullWarp = 0xffffffffu;

template <class T>
KV_DEVICE T ShuffleXor(T v, unsigned lane_mask) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  return __shfl_xor_sync(kFullWarp, v, static_cast<int>(lane_mask));
}
// Lanes below `delta` keep their own value.
template <class T>
KV_DEVICE T ShuffleUp(T v, unsigned delta) {
  static_assert(sizeof(T) == 4);
  return __shfl_up_sync(kFullWarp, v, delta);
}
template <class T>
KV_DEVICE T Shuffle(T v, unsigned lane) {
  static_assert(sizeof(T) == 4);
  return __shfl_sync(kFullWarp, v, static_cast<int>(lane));
}
// Bit i is what lane i passed.
KV_DEVICE unsigned Ballot(bool v) { return __ballot_sync(kFullWarp, v); }

KV_DEVICE int PopCount(unsigned v) { return __popc(v); }
KV_DEVICE int CountLeadingZeros(unsigned v) {  // 32 for 0
  return __clz(static_cast<int>(v));
}

// Returns the same value. What is computed from it inside a loop is computed
// there, and takes no registers across the loop.
KV_DEVICE uint32_t Afresh(uint32_t v) {
  asm volatile("" : "+r"(v));
  return v;
}

// ---- Arithmetic ----

// 2^v within 2 ulp; subnormal results are 0.
KV_DEVICE float Exp2(float v) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
KV_DEVICE float Log2(float v) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
KV_DEVICE float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
// The rounded product, even if something is added to it.
KV_DEVICE float Multiply(float a, float b) { return __fmul_rn(a, b); }
KV_DEVICE float SquareRoot(float v) { return __fsqrt_rn(v); }
KV_DEVICE double Fma(double a, double b, double c) { return __fma_rn(a, b, c); }
KV_DEVICE double SquareRoot(double v) { return __dsqrt_rn(v); }

// The value of an element whose stored form is in the low bits.
template <int kDType>
KV_DEVICE float ToFloat(uint32_t bits) {
  static_assert(kDType == kF32 || kDType == kF16 || kDType == kBF16);
  if constexpr (kDType == kF32) {
    return __uint_as_float(bits);
  } else if constexpr (kDType == kBF16) {
    return __uint_as_float(bits << 16);
  } else {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(static_cast<uint16_t>(bits)));
    return r;
  }
}

// The stored form of an element, rounded to the nearest, halves to even. Not
// for NaN.
template <int kDType>
KV_DEVICE uint32_t FromFloat(float v) {
  static_assert(kDType == kF32 || kDType == kF16 || kDType == kBF16);
  const uint32_t bits = __float_as_uint(v);
  if constexpr (kDType == kF32) {
    return bits;
  } else if constexpr (kDType == kBF16) {
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  } else {
    uint16_t r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v));
    return r;
  }
}

// Accesses are volatile and never through the read-only cache, because kernels
// work in place.

// T has 1, 2, 4, 8 or 16 bytes; the address is a multiple of that.
template <class T>
KV_DEVICE T LoadGlobal(uint64_t address) {
  T v;
  if constexpr (sizeof(T) == 16) {
    Bytes16 b;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b.x[0]), "=r"(b.x[1]), "=r"(b.x[2]), "=r"(b.x[3])
                 : "l"(address)
                 : "memory");
    memcpy(&v, &b, 16);
  } else if constexpr (sizeof(T) == 8) {
    uint64_t b;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(b) : "l"(address) : "memory");
    memcpy(&v, &b, 8);
  } else if constexpr (sizeof(T) == 4) {
    uint32_t b;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(b) : "l"(address) : "memory");
    memcpy(&v, &b, 4);
  } else if constexpr (sizeof(T) == 2) {
    uint16_t b;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(b) : "l"(address) : "memory");
    memcpy(&v, &b, 2);
  } else {
    static_assert(sizeof(T) == 1);
    uint32_t b;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(b) : "l"(address) : "memory");
    v = static_cast<T>(b);
  }
  return v;
}

template <class T>
KV_DEVICE void StoreGlobal(uint64_t address, T v) {
  if constexpr (sizeof(T) == 16) {
    Bytes16 b;
    memcpy(&b, &v, 16);
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address),
                 "r"(b.x[0]), "r"(b.x[1]), "r"(b.x[2]), "r"(b.x[3])
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    uint64_t b;
    memcpy(&b, &v, 8);
    asm volatile("st.global.u64 [%0], %1;" ::"l"(address), "l"(b) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    uint32_t b;
    memcpy(&b, &v, 4);
    asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(b) : "memory");
  } else if constexpr (sizeof(T) == 2) {
    uint16_t b;
    memcpy(&b, &v, 2);
    asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(b) : "memory");
  } else {
    static_assert(sizeof(T) == 1);
    asm volatile("st.global.u8 [%0], %1;" ::"l"(address),
                 "r"(static_cast<uint32_t>(v))
                 : "memory");
  }
}

// ---- Asynchronous copies from global to shared memory ----
// A thread's copies are visible to it after its CopyAsyncWait, and to others
// after another BlockSync. Before sm_80 they are plain copies.

KV_DEVICE uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Copies 16 bytes between addresses that are multiples of 16. If not valid it
// writes 16 zero bytes and does not read the address.
KV_DEVICE void CopyAsync16(void* shared, uint64_t address, bool valid) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   SharedAddress(shared)),
               "l"(address), "r"(valid ? 16 : 0)
               : "memory");
#else
  Bytes16 v = {{0, 0, 0, 0}};
  if (valid) v = LoadGlobal<Bytes16>(address);
  *static_cast<Bytes16*>(shared) = v;
#endif
}

// Closes a group of this thread's copies.
KV_DEVICE void CopyAsyncCommit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until all groups except the last kGroups are complete.
template <int kGroups>
KV_DEVICE void CopyAsyncWait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}

// ---- Matrices of 16-bit elements over a warp ----

// Loads four 8x8 matrices, from sm_75 on. Lane l passes row l % 8 of matrix
// l / 8, 16-byte aligned. r[m] of lane l is elements 2 (l % 4) and the next of
// row l / 4 of matrix m.
KV_DEVICE void LoadMatrix4(uint32_t (&r)[4], const void* shared_row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(SharedAddress(shared_row))
      : "memory");
}
// The same of the transposed matrices: r[m] of lane l is elements l / 4 of rows
// 2 (l % 4) and the next.
KV_DEVICE void LoadTransposed4(uint32_t (&r)[4], const void* shared_row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(SharedAddress(shared_row))
      : "memory");
}

// c += a b with a [16, 16], b [16, 8], c [16, 8] f32, from sm_80 on, laid out
// as PTX says of mma.m16n8k16. With g = lane / 4 and t = lane % 4, low half first:
//   a[0] = A[g][2t..], a[1] = A[g+8][2t..], a[2], a[3]: columns 8 on
//   b[0] = B[2t..][g], b[1] = B[2t+8..][g]
//   c[0], c[1] = C[g][2t..], c[2], c[3] = C[g+8][2t..]
template <int kDType>
KV_DEVICE void MultiplyAccumulate16816(float (&c)[4], const uint32_t (&a)[4],
                                       const uint32_t (&b)[2]) {
  static_assert(kDType == kF16 || kDType == kBF16);
  if constexpr (kDType == kF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// ---- Atomics: integers only, since with floats sums would depend on the order
// ----

// Both are relaxed and return the old value.
KV_DEVICE uint32_t AtomicAddShared(uint32_t* shared, uint32_t v) {
  return atomicAdd(shared, v);
}
KV_DEVICE uint32_t AtomicAddGlobal(uint64_t address, uint32_t v) {
  uint32_t old;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(v)
               : "memory");
  return old;
}

// Adds 1 and returns the old value. What threads with earlier tickets wrote
// before is visible.
KV_DEVICE uint32_t AtomicTicket(uint64_t address) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(old)
               : "l"(address)
               : "memory");
  return old;
}
KV_DEVICE uint32_t LoadAcquire(uint64_t address) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
               : "=r"(v)
               : "l"(address)
               : "memory");
  return v;
}
KV_DEVICE void StoreRelease(uint64_t address, uint32_t v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(v)
               : "memory");
}

// Lets other threads run in a loop that waits for a flag: while
// (LoadAcquire(flag) == 0) SpinYield();
KV_DEVICE void SpinYield() { __nanosleep(20); }

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_DEVICE_CUH_
