// 2^x on every target.
#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/tools/engine_test_util.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/tools/engine_vector_test.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "tools/engine/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::tools {
namespace HWY_NAMESPACE {

void Exp2All(std::vector<float>& values) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < values.size(); i += lanes) {
    const size_t n = std::min(lanes, values.size() - i);
    const VF x = hn::LoadN(d, values.data() + i, n);
    hn::StoreN(Exp2(d, x), d, values.data() + i, n);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvevict::tools
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict::tools {
namespace {

HWY_EXPORT(Exp2All);

// The polynomial is good to 2e-8 in exact arithmetic; Horner's rule ends with two
// roundings of numbers near 1.
constexpr double kRelativeError = 2e-8 + 2.5 * kRoundoff;

Test(engine_vector, exp2_is_accurate_down_to_minus_125) {
  ForEachTarget([](const char* target) {
    std::vector<float> x;
    for (uint32_t i = 0; i <= 1000003; ++i) {
      x.push_back(-125.0f * static_cast<float>(i) / 1000003.0f);
    }
    std::vector<float> y = x;
    HWY_DYNAMIC_DISPATCH(Exp2All)(y);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp2(double{x[i]});
      worst = std::max(worst, std::fabs(double{y[i]} - exact) / exact);
    }
    cr_expect(worst <= kRelativeError, "%s: %g", target, worst);
    cr_expect(y[0] == 1.0f);
  });
}

Test(engine_vector, exp2_is_zero_below) {
  ForEachTarget([](const char* target) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    std::vector<float> y = {-125.01f, -126.0f, -150.0f,
                            -1e6f,    -1e38f,  -kInfinity};
    HWY_DYNAMIC_DISPATCH(Exp2All)(y);
    for (float value : y) cr_expect(value == 0.0f, "%s", target);
  });
}

}  // namespace
}  // namespace kvevict::tools
#endif  // HWY_ONCE
