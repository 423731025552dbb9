// The name of an element type in messages.
#ifndef KVEVICT_CORE_DTYPE_NAME_H_
#define KVEVICT_CORE_DTYPE_NAME_H_

#include <cstdint>
#include <cstdio>

#include "core/dtype.h"

namespace kvevict {

// The dtype's name, or the number if it is no dtype.
struct DTypeName {
  explicit DTypeName(int32_t id) {
    const DTypeInfo* const info = FindDType(id);
    if (info != nullptr) {
      std::snprintf(text, sizeof(text), "%s", info->name);
    } else {
      std::snprintf(text, sizeof(text), "%d", static_cast<int>(id));
    }
  }
  char text[16];
};

}  // namespace kvevict
#endif  // KVEVICT_CORE_DTYPE_NAME_H_
