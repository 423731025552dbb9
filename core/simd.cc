#include "core/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

// An empty kernel: what matters is for which targets it was compiled.
HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
int64_t Target() { return HWY_TARGET; }
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

const char* SimdTargetAt(uint32_t index) {
  // In Highway a better target has a lower bit.
  int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  for (; index > 0 && usable != 0; --index) usable &= usable - 1;
  return usable == 0 ? nullptr : hwy::TargetName(usable & -usable);
}

}  // namespace kvevict
#endif  // HWY_ONCE
