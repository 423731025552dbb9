// Keys for tests of signals that read nothing else: numbers, layouts, targets.
#ifndef KVEVICT_TESTS_KERNELS_KEY_CASES_H_
#define KVEVICT_TESTS_KERNELS_KEY_CASES_H_

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/simd.h"
#include "tests/kernels/random.h"
#include "tests/kernels/row_store.h"

namespace kvevict {

inline constexpr DType kKeyDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
inline constexpr uint32_t kKeyDims[] = {1,   2,   3,   7,   8,   15,  16,
                                        17,  31,  33,  41,  64,  80,  96,
                                        127, 128, 129, 256, 300, 576, 1031};

inline RowLayout Packed(DType dtype = DType::kF32) {
  RowLayout layout;
  layout.dtype = dtype;
  return layout;
}

// Keys like those of models: every channel has a mean of its own, some far from zero.
inline std::vector<float> DrawKeys(Random& random, DType dtype, uint32_t n,
                                   uint32_t dim) {
  std::vector<float> means(dim);
  for (float& mean : means) {
    mean = random.Gaussian() * (random.Below(20) == 0 ? 10 : 0.5f);
  }
  std::vector<float> keys(size_t{n} * dim);
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = means[i % dim] + random.Gaussian();
  }
  return RoundTo(dtype, keys);
}

template <class Number>
bool SameBits(const std::vector<Number>& a, const std::vector<Number>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(Number)) == 0;
}

// x86 targets before AVX2 multiply and add in two steps; so does plain C++ here.
inline bool HasFusedArithmetic(SimdTarget simd) {
  const std::string_view name = simd.name;
  return name.find("SSE") == name.npos && name != "EMU128" && name != "SCALAR";
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_KERNELS_KEY_CASES_H_
