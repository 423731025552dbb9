#include "tests/gpu/random_values.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/dtype.h"

namespace kvevict::gpu {
namespace {

constexpr int kSteps = 128;  // 7 bits, as many as bf16 has

// xorshift64*: fast, and good enough to fill gigabytes.
struct Random {
  uint64_t state;

  uint64_t operator()() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Du;
  }
};

// The f16 or bf16 number equal to `f`.
uint16_t ToHalf(float f, kvevict_dtype dtype) {
  const auto bits = std::bit_cast<uint32_t>(f);
  if (dtype == KVEVICT_DTYPE_BF16) return static_cast<uint16_t>(bits >> 16);
  if (f == 0.0f) return 0;
  const uint32_t exponent = ((bits >> 23) & 0xFF) - 127 + 15;
  return static_cast<uint16_t>(((bits >> 16) & 0x8000) | exponent << 10 |
                               ((bits >> 13) & 0x3FF));
}

template <typename T>
void Fill(uint64_t seed, const std::array<T, 2 * kSteps>& values, uint64_t n,
          void* out) {
  Random random{seed * 0x9E3779B97F4A7C15u + 1};
  auto* to = static_cast<T*>(out);
  for (uint64_t i = 0; i < n;) {
    uint64_t bits = random();
    for (int byte = 0; byte < 8 && i < n; ++byte, bits >>= 8) {
      std::memcpy(to + i++, &values[bits & 0xFF], sizeof(T));
    }
  }
}

}  // namespace

double ValueAt(kvevict_dtype dtype, const void* values, uint64_t i) {
  if (dtype == KVEVICT_DTYPE_F32) return static_cast<const float*>(values)[i];
  const uint32_t half = static_cast<const uint16_t*>(values)[i];
  if (dtype == KVEVICT_DTYPE_BF16) return std::bit_cast<float>(half << 16);
  const int exponent = static_cast<int>(half >> 10 & 31);
  const double magnitude =
      exponent == 0 ? 0.0 : std::ldexp(1024.0 + (half & 1023), exponent - 25);
  return half >> 15 ? -magnitude : magnitude;
}

void StoreValue(kvevict_dtype dtype, float value, void* to) {
  if (dtype == KVEVICT_DTYPE_F32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const uint16_t half = ToHalf(value, dtype);
  std::memcpy(to, &half, sizeof(half));
}

namespace {

// The code of 2^-n, as a float.
uint32_t CodeOfInverse(const CodeNumbers& of, uint32_t n) {
  if (n < of.bias) return (of.bias - n) << of.fraction;
  return 1u << (of.bias + of.fraction - 1 - n);  // below the normal numbers
}

void FillWithCodes(uint64_t seed, kvevict_dtype dtype, uint64_t n, void* out) {
  std::array<uint8_t, 2 * kSteps> codes;
  // For fp8, numbers from 1/8 to 1.
  const CodeNumbers& numbers = InfoOf(static_cast<DType>(dtype)).codes;
  uint32_t least = 0, n_sizes = 2 * kSteps;
  if (numbers.is_float()) {
    least = CodeOfInverse(numbers, 3);
    n_sizes = CodeOfInverse(numbers, 0) - least + 1;
  }
  for (uint32_t i = 0; i < 2 * kSteps; ++i) {
    codes[i] = static_cast<uint8_t>((i & 0x80) | (least + i % n_sizes));
  }
  const uint64_t n_bytes =
      PackedBytes(static_cast<DType>(dtype), static_cast<uint32_t>(n));
  Fill(seed, codes, n_bytes, out);
  const bool bytes = dtype == KVEVICT_DTYPE_Q8_0;
  if (!bytes && dtype != KVEVICT_DTYPE_Q4_0) return;
  for (uint64_t at = 0; at < n_bytes; at += bytes ? 34 : 18) {
    StoreValue(KVEVICT_DTYPE_F16, bytes ? 1.0f / 128 : 1.0f / 8,
               static_cast<uint8_t*>(out) + at);
  }
}

}  // namespace

void FillWithValues(uint64_t seed, kvevict_dtype dtype, uint64_t n, void* out) {
  if (InfoOf(static_cast<DType>(dtype)).is_quantized()) {
    return FillWithCodes(seed, dtype, n, out);
  }
  std::array<float, 2 * kSteps> floats;
  std::array<uint16_t, 2 * kSteps> halves;
  for (int i = 0; i < 2 * kSteps; ++i) {
    floats[i] = static_cast<float>(i - kSteps) / kSteps;
    halves[i] = ToHalf(floats[i], dtype);
  }
  if (dtype == KVEVICT_DTYPE_F32) {
    Fill(seed, floats, n, out);
  } else {
    Fill(seed, halves, n, out);
  }
}

}  // namespace kvevict::gpu
