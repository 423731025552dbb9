// Element types of the cache, from the list core/dtypes.inc.
#ifndef KVEVICT_CORE_DTYPE_H_
#define KVEVICT_CORE_DTYPE_H_

#include <cstdint>
#include <iterator>

#include "core/codes.h"
#include "core/parts.h"

namespace kvevict {

enum class DType : int32_t {
#define KVEVICT_DTYPE(Name, text, id, ...) k##Name = id,
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
};

// Whether rows have a scale beside them.
enum class Scale : uint32_t { kNone, kOptional, kNeeded };

struct DTypeInfo {
  DType dtype;
  const char* name;
  uint32_t element_bytes;   // 0 if an element is not whole bytes
  uint32_t block_elements;  // 0 for opaque, like block_bytes
  uint32_t block_bytes;
  Scale scale;
  bool takes_minimum;
  bool can_move;
  bool can_score;
  bool can_rotate;
  Packing packing;
  CodeNumbers codes;
  bool is_built;  // false: refused, see core/parts.h

  // True for floating-point numbers, which need no decoding parameters.
  constexpr bool is_plain() const { return element_bytes > 1; }
  constexpr bool is_quantized() const { return can_score && !is_plain(); }
  // Codes are integers, with a scale of their row or element.
  constexpr bool is_scaled_integer() const {
    return codes.highest != 0 && packing != Packing::kBlocks;
  }
};

constexpr bool IsBuilt(const char* text, Packing packing) {
  return IsBuilt(text) && (packing == Packing::kNumbers || IsBuilt("codes"));
}

inline constexpr DTypeInfo kDTypes[] = {
#define KVEVICT_DTYPE(Name, text, id, bytes, block, block_bytes, scale,  \
                      minimum, move, score, rotate, packing, codes, ...) \
  {DType::k##Name,                                                       \
   text,                                                                 \
   bytes,                                                                \
   block,                                                                \
   block_bytes,                                                          \
   Scale(scale),                                                         \
   minimum != 0,                                                         \
   move != 0,                                                            \
   score != 0,                                                           \
   rotate != 0,                                                          \
   Packing::k##packing,                                                  \
   codes,                                                                \
   IsBuilt(text, Packing::k##packing)},
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
};

// nullptr if `id` is no dtype.
constexpr const DTypeInfo* FindDType(int32_t id) {
  for (const DTypeInfo& info : kDTypes) {
    if (static_cast<int32_t>(info.dtype) == id) return &info;
  }
  return nullptr;
}

// Rows stand at their ids, and have decoders.
static_assert([] {
  int32_t id = 0;
  for (const DTypeInfo& info : kDTypes) {
    if (static_cast<int32_t>(info.dtype) != id++) return false;
    const CodeNumbers& codes = info.codes;
    if (codes.is_float() && !codes.can_be_decoded()) return false;
  }
  return true;
}());
constexpr const DTypeInfo& InfoOf(DType dtype) {
  return kDTypes[static_cast<int32_t>(dtype)];
}

// False if this build leaves out all quantized dtypes, and with them the code
// that reads and writes codes.
inline constexpr bool kHasQuantized = [] {
  for (const DTypeInfo& info : kDTypes) {
    if (info.is_quantized() && info.is_built) return true;
  }
  return false;
}();

constexpr uint32_t ElementBytes(DType dtype) {
  return InfoOf(dtype).element_bytes;
}

// Bytes of a row with n packed elements in whole blocks; 0 for opaque.
constexpr uint64_t PackedBytes(DType dtype, uint32_t n) {
  const DTypeInfo& info = InfoOf(dtype);
  if (info.block_elements == 0) return 0;
  return uint64_t{n} / info.block_elements * info.block_bytes;
}

}  // namespace kvevict

#endif  // KVEVICT_CORE_DTYPE_H_
