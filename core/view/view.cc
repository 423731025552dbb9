#include "core/view/view.h"

#include <algorithm>
#include <cstring>

#include "core/dtype.h"
#include "core/dtype_name.h"
#include "core/view/block_numbers.h"
#include "core/view/extent.h"
#include "core/view/overlap.h"
#include "core/view/view_roles.h"

namespace kvevict {
namespace {

// Checks the groups of a plane whose elements have this many bytes; 0: opaque
// rows.
Status CheckGroups(const char* name, const kvevict_plane& plane,
                   uint32_t element_bytes) {
  const auto group_stride = static_cast<long long>(plane.group_stride_bytes);
  if (plane.group_elems == 0) {
    if (group_stride == 0) return Status();
    return InvalidArgument("%s.group_stride_bytes %lld, but group_elems is 0",
                           name, group_stride);
  }
  if (element_bytes == 0 || plane.head_dim % plane.group_elems != 0) {
    return InvalidArgument("%s.group_elems %u does not divide head_dim %u",
                           name, plane.group_elems, plane.head_dim);
  }
  if (ElementStride(plane) == int64_t{element_bytes}) return Status();
  return InvalidArgument(
      "%s.element_stride_bytes %lld, but elements of a group are packed", name,
      static_cast<long long>(plane.element_stride_bytes));
}

Status CheckElements(const char* name, const kvevict_plane& plane) {
  const DTypeInfo* info = nullptr;
  if (Status status = FindBuiltDType("dtype", plane.dtype, &info);
      !status.ok()) {
    return Prefixed(status, "%s.", name);
  }
  if (info->dtype == DType::kOpaque) {
    if (plane.row_bytes == 0) {
      return InvalidArgument("%s.row_bytes 0 < 1 of an opaque plane", name);
    }
    if (plane.head_dim != 0 || plane.element_stride_bytes != 0) {
      return InvalidArgument(
          "%s.head_dim %u, element_stride_bytes %lld: 0 in an opaque plane",
          name, plane.head_dim,
          static_cast<long long>(plane.element_stride_bytes));
    }
  } else if (plane.head_dim == 0) {
    return InvalidArgument("%s.head_dim 0 < 1", name);
  } else if (plane.row_bytes != 0) {
    return InvalidArgument("%s.row_bytes %u is not 0, but dtype is %s", name,
                           plane.row_bytes, info->name);
  }
  if (info->element_bytes == 0 && plane.element_stride_bytes != 0) {
    return InvalidArgument(
        "%s.element_stride_bytes %lld is not 0: elements of %s lie packed",
        name, static_cast<long long>(plane.element_stride_bytes), info->name);
  }
  if (info->block_elements > 1 && plane.head_dim % info->block_elements != 0) {
    return InvalidArgument("%s.head_dim %u is not a multiple of %u of dtype %s",
                           name, plane.head_dim, info->block_elements,
                           info->name);
  }
  uint64_t reserved = 0;
  for (uint64_t word : plane.reserved) reserved |= word;
  if (reserved != 0) {
    return InvalidArgument("%s.reserved 0x%llx is not 0", name,
                           static_cast<unsigned long long>(reserved));
  }
  if (PackedBytes(info->dtype, plane.head_dim) > UINT32_MAX) {
    return InvalidArgument("%s.head_dim %u makes a row of more than %u bytes",
                           name, plane.head_dim, UINT32_MAX);
  }
  return CheckGroups(name, plane, info->element_bytes);
}

// Checks a plane's address table, or that it has none.
Status CheckAddressTable(const char* name, const kvevict_view& view,
                         const kvevict_plane& plane) {
  if (plane.address_table == 0) {
    if (plane.address_table_len == 0) return Status();
    return InvalidArgument("%s.address_table is 0, but address_table_len is %u",
                           name, plane.address_table_len);
  }
  if (view.block_size == 0) {
    return InvalidArgument("%s.address_table given, but block_size is 0", name);
  }
  if (plane.address_table % sizeof(uint64_t) != 0) {
    return InvalidArgument(
        "%s.address_table 0x%llx is not aligned to %zu", name,
        static_cast<unsigned long long>(plane.address_table), sizeof(uint64_t));
  }
  if (plane.address_table_len > INT32_MAX) {
    return InvalidArgument("%s.address_table_len %u > %d", name,
                           plane.address_table_len, INT32_MAX);
  }
  if (plane.block_stride_bytes == 0) return Status();
  return InvalidArgument(
      "%s.block_stride_bytes %lld is not 0, but blocks have addresses", name,
      static_cast<long long>(plane.block_stride_bytes));
}

// Checks the addresses of a plane's blocks in use. `rows` is the range of rows
// within a block.
Status CheckAddresses(const char* name, const kvevict_plane& plane,
                      const BlockTables& used, bool by_id, bool on_host,
                      const Extent& rows) {
  if (!by_id && used.ExtentOf() > plane.address_table_len) {
    return InvalidArgument("%s.address_table_len %u < %llu blocks", name,
                           plane.address_table_len,
                           static_cast<unsigned long long>(used.ExtentOf()));
  }
  if (!on_host) return Status();
  const auto* const addresses =
      reinterpret_cast<const uint64_t*>(plane.address_table);
  Status status;
  used.ForEachUsed([&](uint64_t place, int32_t id) {
    const auto i = static_cast<unsigned long long>(place);
    if (static_cast<uint32_t>(id) >= plane.address_table_len) {
      status =
          InvalidArgument("block_table[%llu] %d >= %s.address_table_len %u", i,
                          id, name, plane.address_table_len);
    } else if (addresses[id] == 0) {
      status = InvalidArgument(
          "%s.address_table[%d] is 0, but block %llu of the tables has tokens",
          name, id, i);
    } else {
      Extent block = rows;
      block.Move(addresses[id]);
      if (block.IsAddressable()) return true;
      status = InvalidArgument(
          "%s.address_table[%d] 0x%llx: data and strides leave the 64-bit "
          "range",
          name, id, static_cast<unsigned long long>(addresses[id]));
    }
    return false;
  });
  return status;
}

// Only companions have roles.
Status CheckNoRole(const char* name, const kvevict_plane& plane) {
  if (plane.group_tokens != 0) {
    return InvalidArgument(
        "%s.group_tokens %llu is not 0: only companions have "
        "them",
        name, static_cast<unsigned long long>(plane.group_tokens));
  }
  if (plane.role == KVEVICT_ROLE_NONE) return Status();
  return InvalidArgument("%s.role %d is not 0: only companions have roles",
                         name, static_cast<int>(plane.role));
}

// A plane without an address must have no other fields. One that describes rows
// has lost its address, and its rows would stay behind.
Status CheckAbsent(const char* name, const kvevict_plane& plane) {
  static constexpr kvevict_plane kNone{};
  if (std::memcmp(&plane, &kNone, sizeof(plane)) == 0) return Status();
  return InvalidArgument(
      "%s.data is 0, but %s.dtype %s, head_dim %u, row_bytes %u, "
      "token_stride_bytes %lld: an absent plane is 0 throughout",
      name, name, DTypeName(plane.dtype).text, plane.head_dim, plane.row_bytes,
      static_cast<long long>(plane.token_stride_bytes));
}

Status CheckPlane(const char* name, const kvevict_view& view,
                  const kvevict_plane& plane, uint32_t n_tokens,
                  int64_t n_blocks) {
  KV_RETURN_IF_ERROR(CheckElements(name, plane));
  KV_RETURN_IF_ERROR(CheckAddressTable(name, view, plane));
  if (n_tokens == 0) return Status();
  if (IsConstant(view, plane)) {  // read only, the same for all tokens
    if (Extent(PlaneAxes(plane, view.n_kv_heads, 1)).IsAddressable()) {
      return Status();
    }
    return InvalidArgument(
        "%s: data 0x%llx and head_stride_bytes %lld leave the 64-bit range",
        name, static_cast<unsigned long long>(plane.data),
        static_cast<long long>(plane.head_stride_bytes));
  }
  const Grid grid(PlaneAxes(view, plane, n_tokens, n_blocks));
  if (plane.address_table == 0 && !grid.extent.IsAddressable()) {
    return InvalidArgument("%s: data 0x%llx and strides leave the 64-bit range",
                           name, static_cast<unsigned long long>(plane.data));
  }
  if (!grid.Nests()) {
    return InvalidArgument(
        "%s: rows of %u bytes %s with token_stride_bytes %lld, "
        "head_stride_bytes %lld, element_stride_bytes %lld, "
        "block_stride_bytes %lld, group_stride_bytes %lld",
        name, RowBytes(plane),
        grid.Collides() ? "overlap"
                        : "are too intricate to tell that they do not overlap",
        static_cast<long long>(plane.token_stride_bytes),
        static_cast<long long>(plane.head_stride_bytes),
        static_cast<long long>(plane.element_stride_bytes),
        static_cast<long long>(plane.block_stride_bytes),
        static_cast<long long>(plane.group_stride_bytes));
  }
  return Status();
}

Status CheckRing(const kvevict_view& view, uint32_t n_tokens) {
  if (view.ring_slots == 0) {
    if (view.ring_first == 0) return Status();
    return InvalidArgument("ring_first %u, but ring_slots is 0",
                           view.ring_first);
  }
  if (view.ring_slots > INT32_MAX) {
    return InvalidArgument("ring_slots %u > %d", view.ring_slots, INT32_MAX);
  }
  if (view.ring_first >= view.ring_slots) {
    return InvalidArgument("ring_first %u >= ring_slots %u", view.ring_first,
                           view.ring_slots);
  }
  if (n_tokens <= view.ring_slots) return Status();
  return InvalidArgument("%u tokens > ring_slots %u", n_tokens,
                         view.ring_slots);
}

Status CheckSharedBlocks(const kvevict_view& view) {
  if (view.n_shared_blocks == 0) return Status();
  if (view.block_size == 0) {
    return InvalidArgument("n_shared_blocks %u, but block_size is 0",
                           view.n_shared_blocks);
  }
  if (view.ring_slots == 0) return Status();
  return InvalidArgument("n_shared_blocks %u is not 0, but ring_slots is %u",
                         view.n_shared_blocks, view.ring_slots);
}

bool AllHaveAddresses(const kvevict_view& view) {
  bool all = true;
  ForEachPlane(view, [&](const kvevict_plane& plane) {
    all = all && plane.address_table != 0;
  });
  return all;
}

// Checks the block tables and the ids from first_slot on. `out_n_blocks`
// becomes the highest id used plus one, or as much of that as is known.
Status CheckBlockTables(const kvevict_view& view, const ListCounts& tokens,
                        bool on_host, uint32_t first_slot,
                        uint64_t* out_n_blocks) {
  *out_n_blocks = 1;
  const uint64_t stride = view.block_table_head_stride;
  if (view.block_size == 0) {
    if (view.block_table != nullptr || view.block_table_len != 0 ||
        stride != 0) {
      return InvalidArgument("block_table given, but block_size is 0");
    }
    return Status();
  }
  if (stride > UINT32_MAX) {
    return InvalidArgument("block_table_head_stride %llu > %u",
                           static_cast<unsigned long long>(stride), UINT32_MAX);
  }
  const BlockTables tables(view, tokens);
  if (tables.n_tables() > 1 && stride < tables.MostUsed()) {
    return InvalidArgument(
        "block_table_head_stride %llu < %llu blocks of %u for %u tokens",
        static_cast<unsigned long long>(stride),
        static_cast<unsigned long long>(tables.MostUsed()), view.block_size,
        tokens.most);
  }
  if (view.block_table == nullptr && AllHaveAddresses(view)) {
    if (view.block_table_len == 0) return Status();
    return InvalidArgument("block_table is NULL, but block_table_len is %zu",
                           view.block_table_len);
  }
  if (tables.ExtentOf() > view.block_table_len) {
    return InvalidArgument(
        "block_table_len %zu < %llu: %llu blocks of %u for %u tokens in the "
        "last of %u tables",
        view.block_table_len,
        static_cast<unsigned long long>(tables.ExtentOf()),
        static_cast<unsigned long long>(tables.MostUsed()), view.block_size,
        tokens.most, tables.n_tables());
  }
  if (tables.MostUsed() > 0 && view.block_table == nullptr) {
    return InvalidArgument("block_table is NULL, but block_size is %u",
                           view.block_size);
  }
  if (!on_host) {  // at least this many ids differ
    *out_n_blocks = std::max<uint64_t>(1, tables.MostUsed());
    return Status();
  }
  Status status;
  const BlockTables used(view, tokens, first_slot);
  used.ForEachUsed([&](uint64_t i, int32_t id) {
    if (id < 0) {
      status = InvalidArgument("block_table[%llu] %d < 0",
                               static_cast<unsigned long long>(i), id);
    }
    *out_n_blocks = std::max<uint64_t>(*out_n_blocks, uint64_t{1} + id);
    return id >= 0;
  });
  return status;
}

}  // namespace

Status ValidateReadView(const kvevict_view& view, const ListCounts& all,
                        bool on_host, uint32_t first_slot) {
  if (view.n_kv_heads < 1 || view.n_kv_heads > kMaxHeads) {
    return InvalidArgument("n_kv_heads %u is not in [1, %u]", view.n_kv_heads,
                           kMaxHeads);
  }
  if (!IsPresent(view.k) && !IsPresent(view.v)) {
    return InvalidArgument("k.data and v.data are both 0: no rows");
  }
  if (view.n_companions > kMaxCompanions) {
    return InvalidArgument("n_companions %u > %u", view.n_companions,
                           kMaxCompanions);
  }
  if (view.n_companions > 0 && view.companions == nullptr) {
    return InvalidArgument("companions is NULL, but n_companions is %u",
                           view.n_companions);
  }
  const uint32_t first_recent = FirstRecent(view);
  if (first_recent != UINT32_MAX && all.each != nullptr) {
    return InvalidArgument(
        "companions: there are %u recent rows, but heads hold different "
        "numbers of tokens",
        RecentOf(view, all.most));
  }
  const ListCounts tokens =
      first_recent < all.most ? ListCounts(first_recent) : all;
  KV_RETURN_IF_ERROR(CheckRing(view, tokens.most));
  KV_RETURN_IF_ERROR(CheckSharedBlocks(view));
  uint64_t n_blocks;
  KV_RETURN_IF_ERROR(
      CheckBlockTables(view, tokens, on_host, first_slot, &n_blocks));

  const auto check = [&](const char* name, const kvevict_plane& plane) {
    if (IsRecent(plane)) {
      kvevict_view apart = KVEVICT_VIEW_INIT;
      apart.n_kv_heads = view.n_kv_heads;
      return CheckPlane(name, apart, plane, RecentOf(view, all.most), 1);
    }
    KV_RETURN_IF_ERROR(CheckPlane(name, view, plane, tokens.most, n_blocks));
    if (plane.address_table == 0 || tokens.most <= first_slot) return Status();
    return CheckAddresses(name, plane, BlockTables(view, tokens, first_slot),
                          view.block_table != nullptr, on_host,
                          Extent(PlaneAxes(view, plane, tokens.most, 1)));
  };
  KV_RETURN_IF_ERROR(CheckNoRole("k", view.k));
  KV_RETURN_IF_ERROR(CheckNoRole("v", view.v));
  KV_RETURN_IF_ERROR(IsPresent(view.k) ? check("k", view.k)
                                       : CheckAbsent("k", view.k));
  KV_RETURN_IF_ERROR(IsPresent(view.v) ? check("v", view.v)
                                       : CheckAbsent("v", view.v));
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    if (!IsPresent(view.companions[i])) {
      return InvalidArgument("companions[%u].data is 0", i);
    }
    Status status = check("companion", view.companions[i]);
    if (status.ok()) status = CheckRole(view, i);
    if (!status.ok()) return Prefixed(status, "companions[%u]: ", i);
  }
  // Most views have no companions, so no roles to check.
  if (view.n_companions == 0 && view.first_recent == 0) return Status();
  return CheckRoles(view);
}

Status ValidateView(const kvevict_view& view, const ListCounts& tokens,
                    bool on_host, uint32_t first_slot) {
  KV_RETURN_IF_ERROR(ValidateReadView(view, tokens, on_host, first_slot));
  return CheckPlanesApart(CacheOf(view, 0, tokens, on_host, first_slot));
}

Status CheckNotShared(const kvevict_view& view, uint32_t first_slot) {
  if (view.n_shared_blocks == 0) return Status();
  const uint64_t end = uint64_t{view.n_shared_blocks} * view.block_size;
  if (first_slot >= end) return Status();
  return InvalidArgument(
      "n_shared_blocks %u of %u tokens: rows from slot %u on may be written, "
      "but others also hold those below %llu",
      view.n_shared_blocks, view.block_size, first_slot,
      static_cast<unsigned long long>(end));
}

Status ValidateRows(const char* name, const kvevict_plane& rows,
                    kvevict_dtype dtype, uint32_t head_dim, uint32_t n_heads,
                    uint32_t n_rows) {
  if (!IsPresent(rows)) return InvalidArgument("%s.data is 0", name);
  if (rows.dtype != dtype) {
    return InvalidArgument("%s.dtype %s is not %s", name,
                           DTypeName(rows.dtype).text, DTypeName(dtype).text);
  }
  if (rows.head_dim != head_dim) {
    return InvalidArgument("%s.head_dim %u is not %u", name, rows.head_dim,
                           head_dim);
  }
  if (rows.group_elems != 0 || rows.address_table != 0) {
    return InvalidArgument(
        "%s.group_elems %u, address_table 0x%llx: only planes of a view have "
        "them",
        name, rows.group_elems,
        static_cast<unsigned long long>(rows.address_table));
  }
  KV_RETURN_IF_ERROR(CheckElements(name, rows));
  KV_RETURN_IF_ERROR(CheckNoRole(name, rows));
  // Rows are read only, so they may overlap (broadcast), but they must be
  // addressable.
  if (n_rows > 0 && !Extent(PlaneAxes(rows, n_heads, n_rows)).IsAddressable()) {
    return InvalidArgument("%s: data 0x%llx and strides leave the 64-bit range",
                           name, static_cast<unsigned long long>(rows.data));
  }
  return Status();
}

Status MatchGeometry(const kvevict_view& view,
                     const kvevict_layer_geometry& g) {
  if (view.n_kv_heads != g.n_kv_heads) {
    return InvalidArgument("n_kv_heads %u is not the geometry's %u",
                           view.n_kv_heads, g.n_kv_heads);
  }
  const auto match = [](const char* name, const kvevict_plane& plane,
                        kvevict_dtype dtype, uint32_t head_dim) {
    if (!IsPresent(plane)) return Status();
    if (plane.dtype != dtype) {
      return InvalidArgument("%s.dtype %s is not the geometry's %s", name,
                             DTypeName(plane.dtype).text,
                             DTypeName(dtype).text);
    }
    if (plane.head_dim != head_dim) {
      return InvalidArgument("%s.head_dim %u is not the geometry's %u", name,
                             plane.head_dim, head_dim);
    }
    return Status();
  };
  KV_RETURN_IF_ERROR(match("k", view.k, g.k_dtype, g.k_head_dim));
  return match("v", view.v, g.v_dtype, g.v_head_dim);
}

Status CheckComplete(const kvevict_view& view,
                     const kvevict_layer_geometry& g) {
  if (!IsPresent(view.k)) {
    return InvalidArgument("k.data is 0, but the geometry has keys");
  }
  if (!IsPresent(view.v) && HasValues(g)) {
    return InvalidArgument(
        "v.data is 0, but the geometry has values (v_dtype %s, v_head_dim %u): "
        "they would stay behind",
        DTypeName(g.v_dtype).text, g.v_head_dim);
  }
  return Status();
}

Status FindBuiltDType(const char* name, kvevict_dtype dtype,
                      const DTypeInfo** out) {
  *out = FindDType(static_cast<int32_t>(dtype));
  if (*out == nullptr) {
    return InvalidArgument("%s %d is no dtype", name, static_cast<int>(dtype));
  }
  if ((*out)->is_built) return Status();
  return Unsupported("%s %s: this build leaves it out", name, (*out)->name);
}

}  // namespace kvevict
