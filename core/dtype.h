// Element types of the cache, as the list core/dtypes.inc has them.
#ifndef KVEVICT_CORE_DTYPE_H_
#define KVEVICT_CORE_DTYPE_H_

#include <cstdint>
#include <iterator>

namespace kvevict {

enum class DType : int32_t {
#define KVEVICT_DTYPE(Name, text, id, bytes, move, score, rotate) k##Name = id,
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
};

struct DTypeInfo {
  DType dtype;
  const char* name;
  uint32_t element_bytes;  // 0 for opaque
  bool can_move;
  bool can_score;
  bool can_rotate;
};

inline constexpr DTypeInfo kDTypes[] = {
#define KVEVICT_DTYPE(Name, text, id, bytes, move, score, rotate) \
  {DType::k##Name, text, bytes, move != 0, score != 0, rotate != 0},
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
};

// nullptr for a number that is no dtype.
constexpr const DTypeInfo* FindDType(int32_t id) {
  for (const DTypeInfo& info : kDTypes) {
    if (static_cast<int32_t>(info.dtype) == id) return &info;
  }
  return nullptr;
}

constexpr uint32_t ElementBytes(DType dtype) {
  return FindDType(static_cast<int32_t>(dtype))->element_bytes;
}

constexpr bool CanRotate(DType dtype) {
  return FindDType(static_cast<int32_t>(dtype))->can_rotate;
}

}  // namespace kvevict

#endif  // KVEVICT_CORE_DTYPE_H_
