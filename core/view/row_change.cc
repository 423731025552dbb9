#include "core/view/row_change.h"

#include "core/dtype.h"
#include "core/dtype_name.h"
#include "core/view/overlap.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

// The roles of the scale and minimum of K or V, and their names in messages.
struct Numbers {
  const char* rows_name;
  const char* minimum_name;
  kvevict_plane kvevict_view::*rows;
  kvevict_role scale, minimum;
  bool RowChange::*changes;
};
constexpr Numbers kKeyNumbers = {"k",
                                 "key_minimum",
                                 &kvevict_view::k,
                                 KVEVICT_ROLE_KEY_SCALE,
                                 KVEVICT_ROLE_KEY_MINIMUM,
                                 &RowChange::k};
constexpr Numbers kValueNumbers = {"v",
                                   "value_minimum",
                                   &kvevict_view::v,
                                   KVEVICT_ROLE_VALUE_SCALE,
                                   KVEVICT_ROLE_VALUE_MINIMUM,
                                   &RowChange::v};

// Whether both views have companions of this role that are alike, or neither
// has one. One that is not moved must be the same plane in both.
bool AreAlike(const kvevict_view& view, const kvevict_view& destination,
              kvevict_role role) {
  const kvevict_plane* const a = FindRole(view, role);
  const kvevict_plane* const b = FindRole(destination, role);
  if (a == nullptr || b == nullptr) return a == b;
  const bool stays = IsConstant(view, *a);
  if (a->dtype != b->dtype || stays != IsConstant(destination, *b)) {
    return false;
  }
  return !stays ||
         (a->data == b->data && a->head_stride_bytes == b->head_stride_bytes);
}

bool Changes(const kvevict_view& view, const kvevict_view& destination,
             const Numbers& numbers) {
  const kvevict_plane& from = view.*numbers.rows;
  const kvevict_plane& to = destination.*numbers.rows;
  if (!IsPresent(from) || !IsPresent(to)) return false;
  if (view.n_companions == 0 && destination.n_companions == 0) {
    return from.dtype != to.dtype;
  }
  if (GroupedRows(view).*numbers.changes ||
      GroupedRows(destination).*numbers.changes ||
      FirstRecent(view) != UINT32_MAX ||
      FirstRecent(destination) != UINT32_MAX) {
    return true;
  }
  return from.dtype != to.dtype ||
         !AreAlike(view, destination, numbers.scale) ||
         !AreAlike(view, destination, numbers.minimum);
}

Status CheckSide(const char* name, const kvevict_plane& plane, bool other_is) {
  if (IsPresent(plane) == other_is) return Status();
  return InvalidArgument(
      "%s.data is 0%s", name,
      other_is ? ", but not the view's" : " in the view alone");
}

Status CheckMoved(const char* name, const kvevict_view& view,
                  const kvevict_plane& a, const kvevict_view& destination,
                  const kvevict_plane& b) {
  if (a.role != b.role || IsConstant(view, a) != IsConstant(destination, b)) {
    return InvalidArgument(
        "%s.role %d, token_stride_bytes %lld do not match the view's %d, %lld",
        name, static_cast<int>(b.role),
        static_cast<long long>(b.token_stride_bytes), static_cast<int>(a.role),
        static_cast<long long>(a.token_stride_bytes));
  }
  if (a.dtype == b.dtype && a.head_dim == b.head_dim &&
      a.row_bytes == b.row_bytes) {
    return Status();
  }
  return InvalidArgument(
      "%s.dtype %s, head_dim %u, row_bytes %u are not the view's %s, %u, %u",
      name, DTypeName(b.dtype).text, b.head_dim, b.row_bytes,
      DTypeName(a.dtype).text, a.head_dim, a.row_bytes);
}

// Checks that rows that change can be decoded to floats and encoded from
// floats.
Status CheckChanged(const kvevict_view& view, const kvevict_view& destination,
                    const Numbers& numbers) {
  const char* const name = numbers.rows_name;
  const kvevict_plane& from = view.*numbers.rows;
  const kvevict_plane& to = destination.*numbers.rows;
  const DTypeInfo& info = InfoOf(static_cast<DType>(to.dtype));
  const DTypeInfo& source = InfoOf(static_cast<DType>(from.dtype));
  if (!info.can_score || !source.can_score) {
    return Unsupported(
        "%s.dtype %s is not the view's %s, and no numbers can be read", name,
        info.name, source.name);
  }
  if (from.head_dim != to.head_dim) {
    return InvalidArgument("%s.head_dim %u is not the view's %u", name,
                           to.head_dim, from.head_dim);
  }
  const kvevict_plane* const scale = FindRole(destination, numbers.scale);
  const kvevict_plane* const minimum = FindRole(destination, numbers.minimum);
  if (scale == nullptr || !info.takes_minimum) return Status();
  const bool stays = IsConstant(destination, *scale);
  if (minimum == nullptr) {
    if (stays || info.codes.lowest < 0) return Status();
    return InvalidArgument(
        "companions: none has role %s, without which %s.dtype %s cannot store "
        "numbers below 0",
        numbers.minimum_name, name, info.name);
  }
  if (stays == IsConstant(destination, *minimum)) return Status();
  return InvalidArgument(
      "companions: the scale and the minimum of %s must both move with rows, "
      "or neither",
      name);
}

Status Match(const kvevict_view& view, const kvevict_view& destination,
             const Numbers& numbers, bool changes) {
  const kvevict_plane& from = view.*numbers.rows;
  const kvevict_plane& to = destination.*numbers.rows;
  KV_RETURN_IF_ERROR(CheckSide(numbers.rows_name, to, IsPresent(from)));
  return changes ? CheckChanged(view, destination, numbers)
                 : CheckMoved(numbers.rows_name, view, from, destination, to);
}

uint32_t CountMoved(const kvevict_view& view, const RowChange& change) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    n += change.Covers(view.companions[i]) ? 0 : 1;
  }
  return n;
}

}  // namespace

RowChange ChangeOf(const kvevict_view& view, const kvevict_view& destination) {
  return {Changes(view, destination, kKeyNumbers),
          Changes(view, destination, kValueNumbers)};
}

uint32_t PartnerOf(const kvevict_view& view, const kvevict_view& destination,
                   const RowChange& change, uint32_t i) {
  if (!change.any()) return i;
  uint32_t n_before = 0;
  for (uint32_t j = 0; j < i; ++j) {
    n_before += change.Covers(view.companions[j]) ? 0 : 1;
  }
  uint32_t j = 0;
  for (; j < destination.n_companions; ++j) {
    if (change.Covers(destination.companions[j])) continue;
    if (n_before-- == 0) break;
  }
  return j;
}

Status MatchRows(const kvevict_view& view, const kvevict_view& destination,
                 const RowChange& change) {
  if (view.n_kv_heads != destination.n_kv_heads) {
    return InvalidArgument("n_kv_heads %u is not the view's %u",
                           destination.n_kv_heads, view.n_kv_heads);
  }
  KV_RETURN_IF_ERROR(Match(view, destination, kKeyNumbers, change.k));
  KV_RETURN_IF_ERROR(Match(view, destination, kValueNumbers, change.v));
  const uint32_t n_moved = CountMoved(view, change);
  if (n_moved != CountMoved(destination, change)) {
    return InvalidArgument(
        change.any()
            ? "n_companions %u, without the numbers of rows that change, are "
              "not the view's %u"
            : "n_companions %u is not the view's %u",
        CountMoved(destination, change), n_moved);
  }
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    if (change.Covers(view.companions[i])) continue;
    const uint32_t j = PartnerOf(view, destination, change, i);
    const Status status = CheckMoved("companion", view, view.companions[i],
                                     destination, destination.companions[j]);
    if (!status.ok()) return Prefixed(status, "companions[%u]: ", j);
  }
  return CheckScales(destination, change.k, change.v);
}

Status CheckDestination(const kvevict_view& view,
                        const kvevict_view& destination,
                        const ListCounts& written, uint32_t first_slot,
                        bool on_host) {
  if (AreOne(view, destination)) {
    return InvalidArgument(
        "destination is the view itself: NULL moves rows in place");
  }
  Status status = ValidateView(destination, written, on_host, first_slot);
  if (status.ok()) status = CheckNotShared(destination, first_slot);
  if (!status.ok()) return Prefixed(status, "destination: ");
  const RowChange change = ChangeOf(view, destination);
  status = MatchRows(view, destination, change);
  if (!status.ok()) return Prefixed(status, "destination: ");
  status = CheckScales(view, change.k, change.v);
  return status.ok() ? status : Prefixed(status, "view: ");
}

}  // namespace kvevict
