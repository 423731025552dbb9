// What tests of kernels compare by.
#ifndef KVEVICT_TESTS_KERNELS_KEY_CASES_H_
#define KVEVICT_TESTS_KERNELS_KEY_CASES_H_

#include <cstring>
#include <string_view>
#include <vector>

#include "core/simd.h"

namespace kvevict {

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
