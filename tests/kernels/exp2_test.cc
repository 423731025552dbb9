// core/kernels/exp2-inl.h against the standard library in double precision.
#include <criterion/criterion.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/exp2_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernels/exp2-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
void TestedExp2(const float* in, size_t n, float* out) {
  const hn::CappedTag<float, 16> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::StoreU(Exp2(d, hn::LoadU(d, in + i)), d, out + i);
  }
}
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {
namespace {

HWY_EXPORT(TestedExp2);

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// n is padded to whole vectors.
std::vector<float> Exp2Of(SimdTarget simd, std::vector<float> in) {
  in.resize((in.size() + 15) / 16 * 16);
  std::vector<float> out(in.size());
  KV_DISPATCH(simd, TestedExp2)(in.data(), in.size(), out.data());
  return out;
}

TestSuite(exp2);

Test(exp2, is_within_2e_7) {
  std::vector<float> in;
  for (int i = -126 * 4096; i < 127 * 4096; ++i) {
    in.push_back(static_cast<float>(i) / 4096.0f + 1e-5f);
  }
  for (int n = -126; n <= 127; ++n) in.push_back(static_cast<float>(n));
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> out = Exp2Of(simd, in);
    for (size_t i = 0; i < in.size(); ++i) {
      const double expected = std::exp2(static_cast<double>(in[i]));
      cr_assert(std::abs(out[i] / expected - 1.0) <= 2e-7, "%s: 2^%.9g = %.9g",
                simd.name, static_cast<double>(in[i]),
                static_cast<double>(out[i]));
    }
  });
}

Test(exp2, is_exact_for_integers) {
  ForEachTarget([&](SimdTarget simd) {
    for (int n = -126; n <= 127; ++n) {
      const float x = static_cast<float>(n);
      cr_assert(Exp2Of(simd, {x})[0] == std::ldexp(1.0f, n), "%s: %d",
                simd.name, n);
    }
  });
}

Test(exp2, is_zero_far_below) {
  ForEachTarget([&](SimdTarget simd) {
    for (float x : {std::nextafter(-126.0f, -kInfinity), -127.0f, -1e3f, -1e10f,
                    -3e38f, -kInfinity}) {
      cr_assert(Exp2Of(simd, {x})[0] == 0.0f, "%s: %g", simd.name,
                static_cast<double>(x));
    }
  });
}

// The payload of this NaN, read as an exponent, would make it a number.
Test(exp2, keeps_nan_of_any_payload) {
  ForEachTarget([&](SimdTarget simd) {
    for (uint32_t bits : {0x7FC00000u, 0x7FC00001u, 0x7FFFFFFFu, 0xFFC00000u,
                          0xFFC12345u, 0x7F800001u}) {
      float x;
      std::memcpy(&x, &bits, sizeof(x));
      cr_assert(std::isnan(Exp2Of(simd, {x})[0]), "%s: %08x", simd.name, bits);
    }
  });
}

}  // namespace
}  // namespace kvevict
#endif  // HWY_ONCE
