#include "core/view/view_roles.h"

#include <iterator>

#include "core/dtype.h"
#include "core/dtype_name.h"
#include "core/parts.h"
#include "core/plan/plan.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

// Checks a companion whose rows are as long as those it belongs to, and packed.
Status CheckRowsOf(const RoleInfo& role, const kvevict_plane& plane,
                   const kvevict_plane& rows) {
  const DTypeInfo& info = InfoOf(static_cast<DType>(plane.dtype));
  if (info.is_plain() && plane.head_dim == rows.head_dim &&
      plane.group_elems == 0 &&
      ElementStride(plane) == int64_t{info.element_bytes}) {
    return Status();
  }
  return InvalidArgument(
      "companion.dtype %s, head_dim %u, element_stride_bytes %lld: a %s of %s "
      "must have its %u elements, packed, in f32, f16 or bf16",
      DTypeName(plane.dtype).text, plane.head_dim,
      static_cast<long long>(plane.element_stride_bytes), role.name,
      role.rows_name, rows.head_dim);
}

// Checks scales or minima that tokens share.
Status CheckTokenGroups(const kvevict_view& view, const RoleInfo& role,
                        const kvevict_plane& plane) {
  const auto n = static_cast<unsigned long long>(plane.group_tokens);
  const kvevict_plane& rows = view.*role.rows;
  const DTypeInfo& info = InfoOf(static_cast<DType>(rows.dtype));
  if (!info.takes_minimum) {
    return InvalidArgument("companion.group_tokens %llu, but %s.dtype is %s", n,
                           role.rows_name, info.name);
  }
  if (n > kMostGroupTokens) {
    return InvalidArgument("companion.group_tokens %llu > %u", n,
                           kMostGroupTokens);
  }
  if (view.ring_slots != 0 ||
      (view.block_size != 0 && view.block_size % n != 0)) {
    return InvalidArgument(
        "companion.group_tokens %llu with block_size %u, ring_slots %u: groups "
        "must divide blocks, and rings have none",
        n, view.block_size, view.ring_slots);
  }
  if (IsConstant(view, plane)) {
    return InvalidArgument(
        "companion.group_tokens %llu, but token_stride_bytes is 0", n);
  }
  return CheckRowsOf(role, plane, rows);
}

// Checks recent rows, which are not quantized.
Status CheckRecent(const kvevict_view& view, const RoleInfo& role,
                   const kvevict_plane& plane) {
  const kvevict_plane& rows = view.*role.rows;
  const DTypeInfo& info = InfoOf(static_cast<DType>(rows.dtype));
  if (!info.is_quantized()) {
    return InvalidArgument("companion.role %s, but %s.dtype is %s", role.name,
                           role.rows_name, info.name);
  }
  if (plane.block_stride_bytes != 0 || plane.address_table != 0 ||
      view.ring_slots != 0) {
    return InvalidArgument(
        "companion.block_stride_bytes %lld, address_table 0x%llx, ring_slots "
        "%u: a %s cannot lie in blocks or belong to a ring",
        static_cast<long long>(plane.block_stride_bytes),
        static_cast<unsigned long long>(plane.address_table), view.ring_slots,
        role.name);
  }
  return CheckRowsOf(role, plane, rows);
}

// Checks a bias, which each slot has.
Status CheckBias(const kvevict_view& view, const kvevict_plane& plane) {
  if (!kHasBiases) {
    return Unsupported("companion.role bias: this build leaves it out");
  }
  if (plane.dtype != KVEVICT_DTYPE_F32 || plane.head_dim != 1 ||
      IsConstant(view, plane)) {
    return InvalidArgument(
        "companion.dtype %s, head_dim %u, token_stride_bytes %lld: a bias must "
        "be one f32 for each slot",
        DTypeName(plane.dtype).text, plane.head_dim,
        static_cast<long long>(plane.token_stride_bytes));
  }
  if (IsPresent(view.k)) return Status();
  return InvalidArgument("companion.role bias, but k.data is 0");
}

}  // namespace

Status CheckRole(const kvevict_view& view, uint32_t i) {
  const kvevict_plane& plane = view.companions[i];
  if (plane.role < 0 || plane.role >= static_cast<int>(std::size(kRoles))) {
    return InvalidArgument("companion.role %d is no role",
                           static_cast<int>(plane.role));
  }
  const RoleInfo& role = kRoles[plane.role];
  if (plane.group_tokens != 0 &&
      (role.rows == nullptr || role.part == RoleInfo::kRecent)) {
    return InvalidArgument("companion.group_tokens %llu, but role is %s",
                           static_cast<unsigned long long>(plane.group_tokens),
                           role.name);
  }
  if (plane.role == KVEVICT_ROLE_NONE) return Status();
  if (plane.role != KVEVICT_ROLE_BIAS && role.part != RoleInfo::kRecent &&
      plane.group_tokens == 0 &&
      (!InfoOf(static_cast<DType>(plane.dtype)).is_plain() ||
       plane.head_dim != 1)) {
    return InvalidArgument(
        "companion.dtype %s, head_dim %u: a %s must be one number of f32, f16 "
        "or bf16",
        DTypeName(plane.dtype).text, plane.head_dim, role.name);
  }
  for (uint32_t j = 0; j < i; ++j) {
    if (view.companions[j].role != plane.role) continue;
    return InvalidArgument("companion.role %s is also that of companions[%u]",
                           role.name, j);
  }
  if (plane.role == KVEVICT_ROLE_BIAS) return CheckBias(view, plane);
  const kvevict_plane& rows = view.*role.rows;
  if (!IsPresent(rows)) {
    return InvalidArgument("companion.role %s, but %s.data is 0", role.name,
                           role.rows_name);
  }
  if (role.part == RoleInfo::kRecent) return CheckRecent(view, role, plane);
  if (plane.group_tokens != 0) return CheckTokenGroups(view, role, plane);
  const DTypeInfo& info = InfoOf(static_cast<DType>(rows.dtype));
  if (role.part == RoleInfo::kMinimum ? info.takes_minimum
                                      : info.scale != Scale::kNone) {
    return Status();
  }
  return InvalidArgument("companion.role %s, but %s.dtype %s has none",
                         role.name, role.rows_name, info.name);
}

Status CheckRoles(const kvevict_view& view) {
  const auto group_of = [&](kvevict_role role) {
    const kvevict_plane* const plane = FindRole(view, role);
    return plane == nullptr ? 0 : plane->group_tokens;
  };
  for (const kvevict_role scale :
       {KVEVICT_ROLE_KEY_SCALE, KVEVICT_ROLE_VALUE_SCALE}) {
    const auto minimum = static_cast<kvevict_role>(scale + 1);
    if (FindRole(view, minimum) == nullptr ||
        group_of(scale) == group_of(minimum)) {
      continue;
    }
    return InvalidArgument(
        "companions: group_tokens of %s is %llu, but of %s %llu",
        kRoles[scale].name, static_cast<unsigned long long>(group_of(scale)),
        kRoles[minimum].name,
        static_cast<unsigned long long>(group_of(minimum)));
  }
  const bool has_keys = FindRole(view, KVEVICT_ROLE_KEY_RECENT) != nullptr;
  const bool has_values = FindRole(view, KVEVICT_ROLE_VALUE_RECENT) != nullptr;
  if (!has_keys && !has_values) {
    if (view.first_recent == 0) return Status();
    return InvalidArgument("first_recent %u, but no companion is recent",
                           view.first_recent);
  }
  if (BiasesOf(view) != nullptr) {
    return InvalidArgument(
        "companions: rows have a bias, and there are recent rows: a view has "
        "one of both");
  }
  if (has_keys == IsPresent(view.k) && has_values == IsPresent(view.v)) {
    return Status();
  }
  return InvalidArgument(
      "companions: %s is recent, but %s is not: both must be, or neither",
      has_keys ? "k" : "v", has_keys ? "v" : "k");
}

Status CheckMovesByRow(const kvevict_view& view) {
  if (!GroupedRows(view).any() && FirstRecent(view) == UINT32_MAX) {
    return Status();
  }
  return Unsupported("companions: %s", ReasonText(KVEVICT_REASON_TOKEN_GROUPS));
}

}  // namespace kvevict
