#include "core/paged/paged_cache.h"

#include <algorithm>
#include <cstring>

#include "core/dtype.h"
#include "core/paged/paged_options.h"
#include "core/policy/policy.h"
#include "core/view/view.h"
#include "kvevict/paged.h"

namespace kvevict {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kRecentAlignment = 64;

bool HaveLikeRows(const kvevict_layer_geometry& a,
                  const kvevict_layer_geometry& b) {
  return a.n_kv_heads == b.n_kv_heads && a.k_head_dim == b.k_head_dim &&
         a.v_head_dim == b.v_head_dim && a.k_dtype == b.k_dtype &&
         (a.v_dtype == b.v_dtype || a.v_head_dim == 0);
}

// A plane of blocks with `head_dim` elements in a row. Its address is set
// later.
kvevict_plane BlockPlane(kvevict_dtype dtype, uint32_t head_dim,
                         uint32_t n_kv_heads, uint32_t block_size,
                         kvevict_block_layout layout) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.dtype = dtype;
  plane.head_dim = head_dim;
  const auto row = static_cast<int64_t>(RowBytes(plane));
  const bool by_heads = layout == KVEVICT_BLOCK_LAYOUT_HEAD_MAJOR;
  plane.token_stride_bytes = by_heads ? row : row * n_kv_heads;
  plane.head_stride_bytes = by_heads ? row * block_size : row;
  plane.block_stride_bytes = row * n_kv_heads * block_size;
  return plane;
}

bool IsPlain(kvevict_dtype dtype) {
  return InfoOf(static_cast<DType>(dtype)).is_plain();
}

// Calls visit(role) for the scales and minima that rows of a layer have in
// their blocks.
template <typename Visit>
void ForEachNumber(const kvevict_layer_geometry& g,
                   const kvevict_paged_cache_options& options,
                   const Visit& visit) {
  const auto visit_of = [&](kvevict_dtype dtype, kvevict_role scale,
                            kvevict_role minimum) {
    const DTypeInfo& info = InfoOf(static_cast<DType>(dtype));
    if (info.scale == Scale::kNone) return;
    if (info.scale == Scale::kOptional && options.number_dtype == 0) return;
    visit(scale);
    if (info.takes_minimum) visit(minimum);
  };
  visit_of(g.k_dtype, KVEVICT_ROLE_KEY_SCALE, KVEVICT_ROLE_KEY_MINIMUM);
  if (!HasValues(g)) return;
  visit_of(g.v_dtype, KVEVICT_ROLE_VALUE_SCALE, KVEVICT_ROLE_VALUE_MINIMUM);
}

}  // namespace

// Computes where the planes of groups begin in the pool's memory.
struct PagedCache::Layout {
  CheckedSize bytes{0};
  CheckedSize n_blocks{0};
  CheckedSize recent_bytes{0};

  size_t Add(size_t block_bytes, CheckedSize n) {
    const size_t begin = bytes.value();
    bytes = (bytes + CheckedSize(block_bytes) * n).AlignUp(kAlignment);
    return begin;
  }
  // Adds the planes of layers like this one.
  void AddGroup(const kvevict_layer_geometry& g, uint32_t n_layers,
                const kvevict_paged_cache_options& options,
                uint32_t most_recent, bool has_biases, Group* out) {
    const uint32_t block_size = BlockSizeOf(options);
    const CheckedSize n = CheckedSize(options.n_blocks) * CheckedSize(n_layers);
    n_blocks = n_blocks + n;
    kvevict_view& view = out->view;
    view = KVEVICT_VIEW_INIT;
    view.n_kv_heads = g.n_kv_heads;
    view.block_size = block_size;
    const auto add = [&](kvevict_dtype dtype, uint32_t head_dim,
                         kvevict_role role, kvevict_plane* plane,
                         uint32_t group = 0) {
      *plane = BlockPlane(dtype, head_dim, g.n_kv_heads,
                          block_size / std::max(1u, group), options.layout);
      plane->role = role;
      plane->group_tokens = group;
      plane->data = Add(static_cast<size_t>(plane->block_stride_bytes), n);
    };
    add(g.k_dtype, g.k_head_dim, KVEVICT_ROLE_NONE, &view.k);
    if (HasValues(g)) add(g.v_dtype, g.v_head_dim, KVEVICT_ROLE_NONE, &view.v);
    view.companions = out->numbers;
    ForEachNumber(g, options, [&](kvevict_role role) {
      const bool of_keys =
          role == KVEVICT_ROLE_KEY_SCALE || role == KVEVICT_ROLE_KEY_MINIMUM;
      const uint32_t group = of_keys ? options.group_tokens : 0;
      add(options.number_dtype == 0 ? KVEVICT_DTYPE_F32 : options.number_dtype,
          group == 0 ? 1 : g.k_head_dim, role,
          &out->numbers[view.n_companions++], group);
    });
    if (has_biases && IsPlain(g.k_dtype) && IsPlain(g.v_dtype)) {
      add(KVEVICT_DTYPE_F32, 1, KVEVICT_ROLE_BIAS,
          &out->numbers[view.n_companions++]);
    }
    if (most_recent > 0) AddRecent(options, most_recent, n_layers, out);
    out->n_layers = n_layers;
    out->n_blocks = out->n_free = static_cast<uint32_t>(n.value());
  }
  // Adds the recent rows of a sequence, which are not quantized: [n_kv_heads,
  // most, head_dim].
  void AddRecent(const kvevict_paged_cache_options& options, uint32_t most,
                 uint32_t n_layers, Group* out) {
    const kvevict_view& view = out->view;
    CheckedSize n_bytes(0);
    const auto add = [&](const kvevict_plane& rows, kvevict_role role,
                         kvevict_plane* plane) {
      plane->role = role;
      plane->dtype =
          options.recent_dtype == 0 ? KVEVICT_DTYPE_F32 : options.recent_dtype;
      plane->head_dim = rows.head_dim;
      const size_t row = RowBytes(*plane);
      plane->token_stride_bytes = static_cast<int64_t>(row);
      plane->head_stride_bytes = plane->token_stride_bytes * most;
      plane->data = n_bytes.value();
      const CheckedSize n_rows = CheckedSize(most) * view.n_kv_heads;
      n_bytes = (n_bytes + n_rows * row).AlignUp(kRecentAlignment);
    };
    add(view.k, KVEVICT_ROLE_KEY_RECENT, &out->recent[0]);
    if (view.v.head_dim > 0) {
      add(view.v, KVEVICT_ROLE_VALUE_RECENT, &out->recent[1]);
    }
    out->recent_bytes = n_bytes.value();
    recent_bytes = recent_bytes + n_bytes * CheckedSize(n_layers);
  }
  Status Check() const {
    if (!bytes.ok()) {
      return InvalidArgument("blocks: more bytes than size_t holds");
    }
    if (!recent_bytes.ok()) {
      return InvalidArgument("recent rows: more bytes than size_t holds");
    }
    return Status();
  }
};

namespace {

// Calls visit(first layer, count) for each kind of layers.
template <typename Visit>
void ForEachKind(const Plan& plan, const Visit& visit) {
  for (uint32_t l = 0; l < plan.n_layers(); ++l) {
    const auto is_like = [&](uint32_t other) {
      return HaveLikeRows(plan.layer(l).geometry, plan.layer(other).geometry);
    };
    uint32_t n = 0, n_before = 0;
    for (uint32_t other = 0; other < plan.n_layers(); ++other) {
      if (!is_like(other)) continue;
      ++n;
      n_before += other < l;
    }
    if (n_before == 0) visit(l, n);
  }
}

Status CheckBlocks(const Plan& plan,
                   const kvevict_paged_cache_options& options) {
  KV_RETURN_IF_ERROR(CheckPagedOptions(plan, options));
  Status status;
  ForEachKind(plan, [&](uint32_t l, uint32_t n_layers) {
    const uint64_t n = uint64_t{n_layers} * options.n_blocks;
    if (n <= INT32_MAX || !status.ok()) return;
    status = InvalidArgument(
        "n_blocks %u: %llu blocks of layer %u and layers like it > %d",
        options.n_blocks, static_cast<unsigned long long>(n),
        plan.layer(l).number, INT32_MAX);
  });
  return status;
}

}  // namespace

Status PagedCache::FindBytes(const Plan& plan,
                             const kvevict_paged_cache_options& options,
                             size_t* out) {
  KV_RETURN_IF_ERROR(CheckBlocks(plan, options));
  Layout layout;
  ForEachKind(plan, [&](uint32_t l, uint32_t n_layers) {
    Group group{};
    layout.AddGroup(plan.layer(l).geometry, n_layers, options,
                    MostRecent(plan, options), FitsBiases(plan.policy()),
                    &group);
  });
  KV_RETURN_IF_ERROR(layout.Check());
  *out = layout.bytes.value();
  return Status();
}

PagedCache::PagedCache(const Plan& plan)
    : plan_(plan),
      groups_(plan.context()),
      group_of_(plan.context()),
      free_(plan.context()),
      holders_(plan.context()),
      own_memory_(plan.context()),
      slots_(plan.context()) {}

Status PagedCache::Create(const Plan& plan,
                          const kvevict_paged_cache_options& options,
                          PagedCache** out) {
  size_t n_bytes = 0;
  KV_RETURN_IF_ERROR(FindBytes(plan, options, &n_bytes));
  if (options.memory != nullptr && options.memory_bytes < n_bytes) {
    return InvalidArgument("memory_bytes %zu < %zu", options.memory_bytes,
                           n_bytes);
  }
  if (reinterpret_cast<uintptr_t>(options.memory) % kAlignment != 0) {
    return InvalidArgument("memory %p is not aligned to %zu", options.memory,
                           kAlignment);
  }
  auto* cache = NewObject<PagedCache>(plan.context(), plan);
  if (cache == nullptr) return OutOfMemory("paged cache: no memory");
  if (Status status = cache->Allocate(options); !status.ok()) {
    cache->Unref();
    return status;
  }
  *out = cache;
  return Status();
}

Status PagedCache::Allocate(const kvevict_paged_cache_options& options) {
  const uint32_t n_layers = plan().n_layers();
  KV_RETURN_IF_ERROR(group_of_.Allocate("layers", CheckedSize(n_layers)));
  uint32_t n_groups = 0;
  ForEachKind(plan(), [&](uint32_t, uint32_t) { ++n_groups; });
  KV_RETURN_IF_ERROR(groups_.Allocate("pools", CheckedSize(n_groups)));
  least_recent_ = options.recent_tokens;
  most_recent_ = MostRecent(plan(), options);
  rows_stand_alone_ = RowsStandAlone(options);
  Layout layout;
  n_groups = 0;
  ForEachKind(plan(), [&](uint32_t l, uint32_t n) {
    layout.AddGroup(plan().layer(l).geometry, n, options, most_recent_,
                    FitsBiases(plan().policy()), &groups_[n_groups]);
    for (uint32_t other = l; other < n_layers; ++other) {
      if (HaveLikeRows(plan().layer(l).geometry,
                       plan().layer(other).geometry)) {
        group_of_[other] = n_groups;
      }
    }
    ++n_groups;
  });
  block_size_ = groups_[0].view.block_size;
  n_bytes_ = layout.bytes.value();
  recent_bytes_ = layout.recent_bytes.value();

  KV_RETURN_IF_ERROR(free_.AllocateUncleared("free blocks", layout.n_blocks));
  KV_RETURN_IF_ERROR(holders_.Allocate("blocks", layout.n_blocks));
  if (options.memory == nullptr) {
    KV_RETURN_IF_ERROR(
        own_memory_.AllocateUncleared("blocks", CheckedSize(n_bytes_)));
    memory_ = own_memory_.data();
  } else {
    memory_ = static_cast<const uint8_t*>(options.memory);
  }
  size_t first = 0;
  for (Group& group : groups_) {
    const auto begin = reinterpret_cast<uint64_t>(memory_);
    group.view.k.data += begin;
    if (group.view.v.head_dim > 0) group.view.v.data += begin;
    for (uint32_t i = 0; i < group.view.n_companions; ++i) {
      group.numbers[i].data += begin;
    }
    group.free = free_.data() + first;
    group.holders = holders_.data() + first;
    first += group.n_blocks;
    for (uint32_t i = 0; i < group.n_blocks; ++i) {
      group.free[i] = static_cast<int32_t>(group.n_blocks - 1 - i);
    }
  }

  const uint32_t n_slots = plan().max_tokens();
  KV_RETURN_IF_ERROR(slots_.AllocateUncleared("slots", CheckedSize(n_slots)));
  Array<int32_t> slots(context());
  KV_RETURN_IF_ERROR(slots.AllocateUncleared("slots", CheckedSize(n_slots)));
  for (uint32_t i = 0; i < n_slots; ++i) slots[i] = static_cast<int32_t>(i);
  return context().backend().write(context(), nullptr, slots.data(),
                                   n_slots * sizeof(int32_t), slots_.data());
}

void PagedCache::Unref() const {
  if (n_refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  auto* self = const_cast<PagedCache*>(this);
  const Context& context = self->context();
  const Retained<Context> alive(context);
  self->~PagedCache();
  context.Free(self, sizeof(*self), alignof(PagedCache));
}

void PagedCache::FillUsage(kvevict_paged_cache_usage* out) const {
  const Lock lock(*this);
  out->n_sequences = n_sequences_;
  out->n_slots = n_slots_;
  for (const Group& group : groups_) {
    uint64_t block_bytes = 0;
    ForEachBlockOf(group, [&](const kvevict_plane&, size_t n_bytes) {
      block_bytes += n_bytes;
    });
    const kvevict_view& view = group.view;
    const uint64_t n_recent =
        uint64_t{n_sequences_} * group.n_layers * most_recent_;
    out->f32_bytes += (uint64_t{group.n_blocks} * view.block_size + n_recent) *
                      view.n_kv_heads * sizeof(float) *
                      (view.k.head_dim + view.v.head_dim);
    out->n_blocks += group.n_blocks;
    out->n_free += group.n_free;
    out->n_shared += group.n_shared;
    out->bytes += group.n_blocks * block_bytes;
    out->bytes_in_use += (group.n_blocks - group.n_free) * block_bytes;
  }
  out->bytes += n_sequences_ * recent_bytes_;
  out->bytes_in_use += n_sequences_ * recent_bytes_;
}

PagedCache::Lock::Lock(const PagedCache& cache) : lock_(cache.mutex_) {
  for (Group& group : cache.groups_) group.n_wanted = 0;
}

Status PagedCache::CheckWanted() const {
  for (uint32_t l = 0; l < plan().n_layers(); ++l) {
    const Group& group = GroupOf(l);
    if (group.n_wanted <= group.n_free) continue;
    return OutOfMemory(
        "needs %u blocks of layer %u and layers like it, but %u of %u are free",
        group.n_wanted, plan().layer(l).number, group.n_free, group.n_blocks);
  }
  return Status();
}

int32_t PagedCache::Take(uint32_t layer) const {
  Group& group = GroupOf(layer);
  const int32_t block = group.free[--group.n_free];
  group.holders[block] = 1;
  return block;
}

void PagedCache::Share(uint32_t layer, int32_t block) const {
  Group& group = GroupOf(layer);
  if (++group.holders[block] == 2) ++group.n_shared;
}

void PagedCache::Release(uint32_t layer, int32_t block) const {
  Group& group = GroupOf(layer);
  switch (--group.holders[block]) {
    case 0:
      group.free[group.n_free++] = block;
      break;
    case 1:
      --group.n_shared;
      break;
    default:
      break;
  }
}

}  // namespace kvevict
