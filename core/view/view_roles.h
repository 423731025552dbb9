// The roles of companions.
#ifndef KVEVICT_CORE_VIEW_VIEW_ROLES_H_
#define KVEVICT_CORE_VIEW_VIEW_ROLES_H_

#include <cstdint>

#include "core/status.h"

namespace kvevict {

inline constexpr uint32_t kMostGroupTokens = 256;

// Checks that companion i, a valid plane, is what its role says.
Status CheckRole(const kvevict_view& view, uint32_t i);

// Checks that valid companions go together: K and V agree on recent rows, and
// scale and minimum agree on groups.
Status CheckRoles(const kvevict_view& view);

}  // namespace kvevict

#endif  // KVEVICT_CORE_VIEW_VIEW_ROLES_H_
