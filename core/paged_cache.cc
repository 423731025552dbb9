#include "core/paged_cache.h"

#include <algorithm>
#include <cstring>

#include "core/dtype.h"
#include "core/extent.h"
#include "core/view.h"

namespace kvevict {
namespace {

constexpr size_t kAlignment = 256;
constexpr uint32_t kMostBlockSize = 65536;

bool HaveLikeRows(const kvevict_layer_geometry& a,
                  const kvevict_layer_geometry& b) {
  return a.n_kv_heads == b.n_kv_heads && a.k_head_dim == b.k_head_dim &&
         a.v_head_dim == b.v_head_dim && a.k_dtype == b.k_dtype &&
         (a.v_dtype == b.v_dtype || a.v_head_dim == 0);
}

Status CheckOptions(const Plan& plan,
                    const kvevict_paged_cache_options& options) {
  if (options.n_blocks < 1) return InvalidArgument("n_blocks 0 < 1");
  if (options.block_size > kMostBlockSize) {
    return InvalidArgument("block_size %u > %u", options.block_size,
                           kMostBlockSize);
  }
  if (options.layout != KVEVICT_BLOCK_LAYOUT_HEAD_MAJOR &&
      options.layout != KVEVICT_BLOCK_LAYOUT_TOKEN_MAJOR) {
    return InvalidArgument("layout %d is no layout of blocks",
                           static_cast<int>(options.layout));
  }
  if (options.memory == nullptr && options.memory_bytes != 0) {
    return InvalidArgument("memory is NULL, but memory_bytes is %zu",
                           options.memory_bytes);
  }
  for (const PlanLayer& layer : plan.layers()) {
    const kvevict_layer_geometry& g = layer.geometry;
    if (g.k_dtype == KVEVICT_DTYPE_OPAQUE ||
        (HasValues(g) && g.v_dtype == KVEVICT_DTYPE_OPAQUE)) {
      return Unsupported(
          "layer %u has opaque rows: how many bytes they have is not said",
          layer.number);
    }
    for (const kvevict_dtype dtype : {g.k_dtype, g.v_dtype}) {
      const DTypeInfo& info = InfoOf(static_cast<DType>(dtype));
      if (info.scale != Scale::kNeeded) continue;
      return Unsupported(
          "layer %u has rows of %s: blocks have no place for their scales",
          layer.number, info.name);
    }
  }
  return Status();
}

// A plane of blocks with `head_dim` elements to a row; its address comes later.
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

}  // namespace

// ---- The pool ----

// Where the planes of groups begin in the memory of all.
struct PagedCache::Layout {
  CheckedSize bytes{0};
  CheckedSize n_blocks{0};

  size_t Add(size_t block_bytes, CheckedSize n) {
    const size_t begin = bytes.value();
    bytes = (bytes + CheckedSize(block_bytes) * n).AlignUp(kAlignment);
    return begin;
  }
  // The planes of layers like this one.
  void AddGroup(const kvevict_layer_geometry& g, uint32_t n_layers,
                const kvevict_paged_cache_options& options, Group* out) {
    const uint32_t block_size =
        options.block_size == 0 ? 16 : options.block_size;
    const CheckedSize n = CheckedSize(options.n_blocks) * CheckedSize(n_layers);
    n_blocks = n_blocks + n;
    kvevict_view& view = out->view;
    view = KVEVICT_VIEW_INIT;
    view.n_kv_heads = g.n_kv_heads;
    view.block_size = block_size;
    view.k = BlockPlane(g.k_dtype, g.k_head_dim, g.n_kv_heads, block_size,
                        options.layout);
    out->k_bytes = static_cast<size_t>(view.k.block_stride_bytes);
    view.k.data = Add(out->k_bytes, n);
    if (HasValues(g)) {
      view.v = BlockPlane(g.v_dtype, g.v_head_dim, g.n_kv_heads, block_size,
                          options.layout);
      out->v_bytes = static_cast<size_t>(view.v.block_stride_bytes);
      view.v.data = Add(out->v_bytes, n);
    }
    out->n_layers = n_layers;
    out->n_blocks = out->n_free = static_cast<uint32_t>(n.value());
  }
  Status Check() const {
    if (!bytes.ok()) {
      return InvalidArgument("blocks: more bytes than size_t holds");
    }
    return Status();
  }
};

namespace {

// Calls visit(first layer, number) for each kind of layers.
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
  KV_RETURN_IF_ERROR(CheckOptions(plan, options));
  Status status;
  ForEachKind(plan, [&](uint32_t l, uint32_t n_layers) {
    const uint64_t n = uint64_t{n_layers} * options.n_blocks;
    if (n <= INT32_MAX || !status.ok()) return;
    status =
        InvalidArgument("n_blocks %u: %llu of layer %u and those like it > %d",
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
    layout.AddGroup(plan.layer(l).geometry, n_layers, options, &group);
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
  Layout layout;
  n_groups = 0;
  ForEachKind(plan(), [&](uint32_t l, uint32_t n) {
    layout.AddGroup(plan().layer(l).geometry, n, options, &groups_[n_groups]);
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
    group.view.k.data += reinterpret_cast<uint64_t>(memory_);
    if (group.v_bytes > 0) {
      group.view.v.data += reinterpret_cast<uint64_t>(memory_);
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

bool PagedCache::IsApart(const kvevict_plane& plane, uint32_t n_heads,
                         uint32_t n_rows) const {
  if (!IsPresent(plane) || n_rows == 0) return true;
  const Extent rows(PlaneAxes(plane, n_heads, n_rows));
  const auto begin = reinterpret_cast<uint64_t>(memory_);
  return rows.end <= begin || rows.begin >= Wide{begin} + n_bytes_;
}

void PagedCache::FillUsage(kvevict_paged_cache_usage* out) const {
  const Lock lock(*this);
  out->n_sequences = n_sequences_;
  out->n_slots = n_slots_;
  for (const Group& group : groups_) {
    const uint64_t block_bytes = group.k_bytes + group.v_bytes;
    out->n_blocks += group.n_blocks;
    out->n_free += group.n_free;
    out->n_shared += group.n_shared;
    out->bytes += group.n_blocks * block_bytes;
    out->bytes_in_use += (group.n_blocks - group.n_free) * block_bytes;
  }
}

PagedCache::Lock::Lock(const PagedCache& cache) : lock_(cache.mutex_) {
  for (Group& group : cache.groups_) group.n_wanted = 0;
}

Status PagedCache::CheckWanted() const {
  for (uint32_t l = 0; l < plan().n_layers(); ++l) {
    const Group& group = GroupOf(l);
    if (group.n_wanted <= group.n_free) continue;
    return OutOfMemory(
        "needs %u blocks of layer %u and those like it, of which %u of %u are "
        "free",
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

// ---- A sequence ----

PagedSequence::PagedSequence(const PagedCache& cache)
    : cache_(cache),
      tables_(cache.context()),
      replaced_(cache.context()),
      device_tables_(cache.context()),
      lengths_(cache.context()) {}

Status PagedSequence::Create(const PagedCache& cache, PagedSequence** out) {
  const Context& context = cache.context();
  auto* sequence = NewObject<PagedSequence>(context, cache);
  if (sequence == nullptr) return OutOfMemory("paged sequence: no memory");
  sequence->table_stride_ = cache.BlocksFor(cache.plan().max_tokens());
  const uint32_t n_layers = cache.plan().n_layers();
  const CheckedSize n =
      CheckedSize(n_layers) * CheckedSize(sequence->table_stride_);
  Status status = sequence->tables_.Allocate("block tables", n);
  if (status.ok()) status = sequence->replaced_.Allocate("block tables", n);
  if (status.ok() && !context.backend().on_host) {
    status = sequence->device_tables_.AllocateUncleared("block tables", n);
  }
  // Last: what has lengths is counted.
  if (status.ok()) {
    status = sequence->lengths_.Allocate("lengths", CheckedSize(n_layers));
  }
  if (!status.ok()) {
    DeleteObject(context, sequence);
    return status;
  }
  std::fill(sequence->replaced_.begin(), sequence->replaced_.end(), kNone);
  const PagedCache::Lock lock(cache);
  cache.CountSequence(1);
  *out = sequence;
  return Status();
}

PagedSequence::~PagedSequence() {
  if (lengths_.size() == 0) return;
  for (uint32_t l = 0; l < n_layers(); ++l) Shrink(l, 0);
  const PagedCache::Lock lock(*cache_);
  cache_->CountSequence(-1);
}

void PagedSequence::Destroy() {
  const Retained<PagedCache> alive(*cache_);
  DeleteObject(alive->context(), this);
}

kvevict_view PagedSequence::View(uint32_t layer) const {
  kvevict_view view = cache_->GroupOf(layer).view;
  const int32_t* const tables =
      device_tables_.data() != nullptr ? device_tables_.data() : tables_.data();
  view.block_table = tables + size_t{layer} * table_stride_;
  view.block_table_len = cache_->BlocksFor(lengths_[layer]);
  return view;
}

uint32_t PagedSequence::CountShared(uint32_t layer) const {
  const PagedCache::Lock lock(*cache_);
  if (cache_->GroupOf(layer).n_shared == 0) return 0;
  uint32_t n = cache_->BlocksFor(lengths_[layer]);
  while (n > 0 && !cache_->IsShared(layer, Table(layer)[n - 1])) --n;
  return n;
}

Status PagedSequence::ShowTables(Stream stream) const {
  if (device_tables_.data() == nullptr) return Status();
  return cache_->context().backend().write(
      cache_->context(), stream, tables_.data(),
      tables_.size() * sizeof(int32_t), device_tables_.data());
}

Status PagedSequence::Fork(Stream stream, PagedSequence** out) const {
  PagedSequence* fork = nullptr;
  KV_RETURN_IF_ERROR(Create(*cache_, &fork));
  {
    const PagedCache::Lock lock(*cache_);
    for (uint32_t l = 0; l < n_layers(); ++l) {
      const uint32_t n = cache_->BlocksFor(lengths_[l]);
      for (uint32_t b = 0; b < n; ++b) cache_->Share(l, Table(l)[b]);
      std::copy_n(Table(l), n, fork->Table(l));
      fork->lengths_[l] = lengths_[l];
      cache_->CountSlots(lengths_[l]);
    }
  }
  if (Status status = fork->ShowTables(stream); !status.ok()) {
    fork->Destroy();
    return status;
  }
  *out = fork;
  return Status();
}

void PagedSequence::Shrink(uint32_t layer, uint32_t n_slots) {
  if (n_slots >= lengths_[layer]) return;
  const PagedCache::Lock lock(*cache_);
  for (uint32_t b = cache_->BlocksFor(n_slots);
       b < cache_->BlocksFor(lengths_[layer]); ++b) {
    cache_->Release(layer, Table(layer)[b]);
  }
  cache_->CountSlots(int64_t{n_slots} - lengths_[layer]);
  lengths_[layer] = n_slots;
}

// ---- Blocks of its own ----

template <typename Visit>
void PagedSequence::ForEachReplaced(const Visit& visit) const {
  uint32_t left = n_replaced_;
  for (size_t i = 0; left > 0; ++i) {
    if (replaced_[i] == kNone) continue;
    --left;
    visit(static_cast<uint32_t>(i / table_stride_), i);
  }
}

void PagedSequence::WantOwn(uint32_t layer, uint32_t begin, uint32_t end) {
  const uint32_t end_block = cache_->BlocksFor(std::min(end, lengths_[layer]));
  for (uint32_t b = begin / cache_->block_size(); b < end_block; ++b) {
    int32_t& replaced = replaced_[size_t{layer} * table_stride_ + b];
    if (replaced != kNone || !cache_->IsShared(layer, Table(layer)[b])) {
      continue;
    }
    replaced = kWanted;
    ++n_replaced_;
    cache_->Want(layer, 1);
  }
}

void PagedSequence::TakeWanted() {
  ForEachReplaced([&](uint32_t layer, size_t i) {
    replaced_[i] = tables_[i];
    tables_[i] = cache_->Take(layer);
  });
}

Status PagedSequence::CopyTaken(Stream stream, bool has_grown) {
  if (n_replaced_ == 0 && !has_grown) return Status();
  const Context& context = cache_->context();
  const Backend& backend = context.backend();
  Status status;
  const auto copy = [&](const kvevict_plane& plane, size_t n_bytes,
                        int32_t from, int32_t to) {
    if (!status.ok() || n_bytes == 0) return;
    auto* const blocks = reinterpret_cast<uint8_t*>(plane.data);
    status = backend.copy(context, stream, blocks + size_t(from) * n_bytes,
                          n_bytes, blocks + size_t(to) * n_bytes);
  };
  ForEachReplaced([&](uint32_t layer, size_t i) {
    const PagedCache::Group& group = cache_->GroupOf(layer);
    copy(group.view.k, group.k_bytes, replaced_[i], tables_[i]);
    copy(group.view.v, group.v_bytes, replaced_[i], tables_[i]);
  });
  if (status.ok()) status = ShowTables(stream);
  const PagedCache::Lock lock(*cache_);
  if (!status.ok()) {
    GiveUp();
    return status;
  }
  ForEachReplaced([&](uint32_t layer, size_t i) {
    cache_->Release(layer, replaced_[i]);
    replaced_[i] = kNone;
  });
  n_replaced_ = 0;
  return Status();
}

void PagedSequence::GiveUp() {
  ForEachReplaced([&](uint32_t layer, size_t i) {
    if (replaced_[i] != kWanted) {
      cache_->Release(layer, tables_[i]);
      tables_[i] = replaced_[i];
    }
    replaced_[i] = kNone;
  });
  n_replaced_ = 0;
}

// Calls want_blocks() for what it is to want, and makes these its own.
template <typename Blocks>
Status PagedSequence::Replace(const Blocks& want_blocks, Stream stream) {
  {
    const PagedCache::Lock lock(*cache_);
    want_blocks();
    if (Status status = cache_->CheckWanted(); !status.ok()) {
      GiveUp();
      return status;
    }
    TakeWanted();
  }
  return CopyTaken(stream);
}

Status PagedSequence::Own(uint32_t first_slot, Stream stream) {
  return Replace(
      [&] {
        for (uint32_t l = 0; l < n_layers(); ++l) {
          WantOwn(l, first_slot, lengths_[l]);
        }
      },
      stream);
}

Status PagedSequence::Append(uint32_t n_tokens, Stream stream) {
  const uint32_t most = cache_->plan().max_tokens();
  for (uint32_t l = 0; l < n_layers(); ++l) {
    if (n_tokens <= most - lengths_[l]) continue;
    return InvalidArgument(
        "n_tokens %u behind %u of layer %u: more than max_tokens %u", n_tokens,
        lengths_[l], cache_->plan().layer(l).number, most);
  }
  if (n_tokens == 0) return Status();
  bool has_grown = false;
  {
    const PagedCache::Lock lock(*cache_);
    const auto n_blocks = [&](uint32_t l) {
      return cache_->BlocksFor(lengths_[l]);
    };
    const auto n_after = [&](uint32_t l) {
      return cache_->BlocksFor(lengths_[l] + n_tokens);
    };
    for (uint32_t l = 0; l < n_layers(); ++l) {
      WantOwn(l, lengths_[l], lengths_[l]);
      cache_->Want(l, n_after(l) - n_blocks(l));
    }
    if (Status status = cache_->CheckWanted(); !status.ok()) {
      GiveUp();
      return status;
    }
    TakeWanted();
    for (uint32_t l = 0; l < n_layers(); ++l) {
      for (uint32_t b = n_blocks(l); b < n_after(l); ++b) {
        Table(l)[b] = cache_->Take(l);
        has_grown = true;
      }
      lengths_[l] += n_tokens;
      cache_->CountSlots(n_tokens);
    }
  }
  Status status = CopyTaken(stream, has_grown);
  if (status.ok()) return status;
  for (uint32_t l = 0; l < n_layers(); ++l) Shrink(l, lengths_[l] - n_tokens);
  return status;
}

// ---- Rows ----

namespace {

kvevict_view ViewOf(const PagedRows& rows, uint32_t n_kv_heads) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = n_kv_heads;
  view.k = rows.k;
  view.v = rows.v;
  return view;
}

// A sequence's view without the planes that the rows lack.
kvevict_view Without(kvevict_view view, const PagedRows& rows) {
  if (!IsPresent(rows.k)) view.k = kvevict_plane{};
  if (!IsPresent(rows.v)) view.v = kvevict_plane{};
  return view;
}

// Copies slots [first, first + n) of one cache to those from `to_first` on of another.
Status CopyRows(const PagedCache& cache, const kvevict_view& from,
                uint32_t first, uint32_t n, const kvevict_view& to,
                uint32_t to_first, Stream stream) {
  MoveJob job;
  job.view = &from;
  job.tokens = first + n;
  job.keep = KeepLists::Packed(cache.slots() + first, 1, n);
  job.first_slot = to_first;
  job.destination = &to;
  const Context& context = cache.context();
  return context.backend().compact(context, stream, {Jobs<MoveJob>(job), {}});
}

}  // namespace

Status PagedSequence::CheckRows(const PagedRows& rows) const {
  const kvevict_layer_geometry& g = cache_->plan().layer(rows.layer).geometry;
  const uint32_t held = lengths_[rows.layer];
  if (rows.first_slot > held || rows.n_tokens > held - rows.first_slot) {
    return InvalidArgument("first_slot %u + n_tokens %u > %u slots held",
                           rows.first_slot, rows.n_tokens, held);
  }
  const kvevict_view view = ViewOf(rows, g.n_kv_heads);
  KV_RETURN_IF_ERROR(ValidateView(view, rows.n_tokens, true));
  KV_RETURN_IF_ERROR(MatchGeometry(view, g));
  if (IsPresent(rows.v) && !HasValues(g)) {
    return InvalidArgument("v.data is not 0, but the geometry has no values");
  }
  if (cache_->IsApart(rows.k, g.n_kv_heads, rows.n_tokens) &&
      cache_->IsApart(rows.v, g.n_kv_heads, rows.n_tokens)) {
    return Status();
  }
  return InvalidArgument("rows overlap the cache's blocks");
}

Status PagedSequence::Write(std::span<const PagedRows> rows, Stream stream) {
  for (size_t i = 0; i < rows.size(); ++i) {
    Status status = CheckRows(rows[i]);
    if (!status.ok()) return Prefixed(status, "rows[%zu]: ", i);
  }
  KV_RETURN_IF_ERROR(Replace(
      [&] {
        for (const PagedRows& one : rows) {
          if (one.n_tokens == 0) continue;
          WantOwn(one.layer, one.first_slot, one.first_slot + one.n_tokens);
        }
      },
      stream));
  for (const PagedRows& one : rows) {
    if (one.n_tokens == 0) continue;
    const kvevict_view view = View(one.layer);
    KV_RETURN_IF_ERROR(CopyRows(*cache_, ViewOf(one, view.n_kv_heads), 0,
                                one.n_tokens, Without(view, one),
                                one.first_slot, stream));
  }
  return Status();
}

Status PagedSequence::Read(std::span<const PagedRows> rows,
                           Stream stream) const {
  for (size_t i = 0; i < rows.size(); ++i) {
    Status status = CheckRows(rows[i]);
    if (!status.ok()) return Prefixed(status, "rows[%zu]: ", i);
  }
  for (const PagedRows& one : rows) {
    if (one.n_tokens == 0) continue;
    const kvevict_view view = View(one.layer);
    KV_RETURN_IF_ERROR(CopyRows(*cache_, Without(view, one), one.first_slot,
                                one.n_tokens, ViewOf(one, view.n_kv_heads), 0,
                                stream));
  }
  return Status();
}

}  // namespace kvevict
