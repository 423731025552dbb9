#include "core/simd.h"

#include <cstdio>
#include <cstring>

#include "core/status.h"

// Some kernels are compiled for AVX3_DL too, see pkg/highway.cmake.
#define HWY_WANT_AVX3_DL
#include "hwy/targets.h"

namespace kvevict {
namespace {

size_t TableIndex(int64_t target) {
  // In a build for one target the table has one entry.
  if constexpr ((HWY_TARGETS & (HWY_TARGETS - 1)) == 0) return 0;
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  return chosen.GetIndex();
}

}  // namespace

SimdTarget SimdTargetAt(uint32_t index) {
  // In Highway a better target has a lower bit.
  int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  for (; index > 0 && usable != 0; --index) usable &= usable - 1;
  if (usable == 0) return {};
  const int64_t target = usable & -usable;
  return {hwy::TargetName(target), TableIndex(target)};
}

Status FindSimdTarget(const char* name, SimdTarget* out) {
  char names[256] = "";
  for (uint32_t i = 0;; ++i) {
    const SimdTarget target = SimdTargetAt(i);
    if (target.name == nullptr) break;
    if (name == nullptr || std::strcmp(name, target.name) == 0) {
      *out = target;
      return Status();
    }
    const size_t length = std::strlen(names);
    std::snprintf(names + length, sizeof(names) - length, "%s%s",
                  i == 0 ? "" : ", ", target.name);
  }
  return InvalidArgument("simd_target \"%.40s\" is not one of %s", name, names);
}

}  // namespace kvevict
