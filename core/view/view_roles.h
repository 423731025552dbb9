// The roles of companions.
#ifndef KVEVICT_CORE_VIEW_VIEW_ROLES_H_
#define KVEVICT_CORE_VIEW_VIEW_ROLES_H_

#include <cstdint>

#include "core/status.h"

namespace kvevict {

inline constexpr uint32_t kMostGroupTokens = 256;

// What a role refers to.
struct RoleInfo {
  const char* name;
  const char* rows_name;
  kvevict_plane kvevict_view::*rows;
  enum { kScale, kMinimum, kRecent } part;
};
inline constexpr RoleInfo kRoles[] = {
    {"none", "", nullptr, RoleInfo::kScale},
    {"key_scale", "k", &kvevict_view::k, RoleInfo::kScale},
    {"key_minimum", "k", &kvevict_view::k, RoleInfo::kMinimum},
    {"value_scale", "v", &kvevict_view::v, RoleInfo::kScale},
    {"value_minimum", "v", &kvevict_view::v, RoleInfo::kMinimum},
    {"key_recent", "k", &kvevict_view::k, RoleInfo::kRecent},
    {"value_recent", "v", &kvevict_view::v, RoleInfo::kRecent},
    {"bias", "k", nullptr, RoleInfo::kScale},
};

// Checks that companion i, a valid plane, is what its role says.
Status CheckRole(const kvevict_view& view, uint32_t i);

// Checks that valid companions go together: K and V agree on recent rows, and
// scale and minimum agree on groups.
Status CheckRoles(const kvevict_view& view);

}  // namespace kvevict

#endif  // KVEVICT_CORE_VIEW_VIEW_ROLES_H_
