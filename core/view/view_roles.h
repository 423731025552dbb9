// What companions are for the rows that they go with.
#ifndef KVEVICT_CORE_VIEW_VIEW_ROLES_H_
#define KVEVICT_CORE_VIEW_VIEW_ROLES_H_

#include <cstdint>

#include "core/status.h"

namespace kvevict {

inline constexpr uint32_t kMostGroupTokens = 256;

// Checks companion i, a valid plane, as what its role says that it is.
Status CheckRole(const kvevict_view& view, uint32_t i);

// Checks, of companions each of which is, that K and V agree on whether there are recent
// rows, and scale and minimum on groups.
Status CheckRoles(const kvevict_view& view);

}  // namespace kvevict

#endif  // KVEVICT_CORE_VIEW_VIEW_ROLES_H_
