#include "core/paged_sequence.h"

#include <algorithm>
#include <cstring>

#include "core/dtype.h"
#include "core/extent.h"
#include "core/row_change.h"
#include "core/view.h"

namespace kvevict {

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

Status PagedSequence::ReadTables(Stream stream) {
  if (device_tables_.data() == nullptr) return Status();
  return cache_->context().backend().read(
      cache_->context(), stream, device_tables_.data(),
      tables_.size() * sizeof(int32_t), tables_.data());
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
    // Until it is taken others are counted alone: of sequences that want to own the same
    // block together, the last one that holds it needs no copy.
    cache_->Release(layer, Table(layer)[b]);
    replaced = kWanted;
    ++n_replaced_;
    cache_->Want(layer, 1);
  }
}

void PagedSequence::TakeWanted() {
  ForEachReplaced([&](uint32_t layer, size_t i) {
    cache_->Share(layer, tables_[i]);
    replaced_[i] = tables_[i];
    tables_[i] = cache_->Take(layer);
  });
}

Status PagedSequence::CopyTaken(Stream stream, bool has_grown) {
  if (n_replaced_ == 0 && !has_grown) return Status();
  const Context& context = cache_->context();
  const Backend& backend = context.backend();
  Status status;
  ForEachReplaced([&](uint32_t layer, size_t i) {
    const auto copy = [&](const kvevict_plane& plane, size_t n_bytes) {
      if (!status.ok()) return;
      auto* const blocks = reinterpret_cast<uint8_t*>(plane.data);
      status =
          backend.copy(context, stream, blocks + size_t(replaced_[i]) * n_bytes,
                       n_bytes, blocks + size_t(tables_[i]) * n_bytes);
    };
    PagedCache::ForEachBlockOf(cache_->GroupOf(layer), copy);
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
    if (replaced_[i] == kWanted) {
      cache_->Share(layer, tables_[i]);
    } else {
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

// Of numbers that stand for themselves.
bool IsPlain(const kvevict_plane& plane) {
  return InfoOf(static_cast<DType>(plane.dtype)).is_plain();
}

// A sequence's view without the planes that the rows lack, nor their numbers.
struct PartOfView {
  kvevict_view view;
  kvevict_plane numbers[4];

  PartOfView(const kvevict_view& all, const PagedRows& rows) : view(all) {
    const RowChange lacks = {!IsPresent(rows.k), !IsPresent(rows.v)};
    if (lacks.k) view.k = kvevict_plane{};
    if (lacks.v) view.v = kvevict_plane{};
    view.companions = numbers;
    view.n_companions = 0;
    for (uint32_t i = 0; i < all.n_companions; ++i) {
      if (lacks.Covers(all.companions[i])) continue;
      numbers[view.n_companions++] = all.companions[i];
    }
  }
  PartOfView(const PartOfView&) = delete;
};

// Where a packed row is, of a cache in contiguous memory or in blocks by id.
uint8_t* RowAt(const kvevict_view& view, const kvevict_plane& plane,
               uint32_t head, uint32_t slot) {
  int64_t at = head * plane.head_stride_bytes;
  if (view.block_size == 0) {
    at += slot * plane.token_stride_bytes;
  } else {
    const uint32_t block = slot / view.block_size;
    at += view.block_table[block] * plane.block_stride_bytes +
          int64_t{slot - block * view.block_size} * plane.token_stride_bytes;
  }
  return reinterpret_cast<uint8_t*>(plane.data + static_cast<uint64_t>(at));
}

// Slots of one cache that are copied to those of another.
struct CopiedRows {
  const kvevict_view& from;
  uint32_t first;
  uint32_t n;
  const kvevict_view& to;
  uint32_t to_first;
};

// Steps of decoding copy a row or two of each head, which is done before an operation
// has begun.
constexpr uint32_t kFewRows = 4;

bool AreFew(const CopiedRows& rows) {
  const auto is_packed = [](const kvevict_plane& plane) {
    return !IsPresent(plane) || PieceBytes(plane) == RowBytes(plane);
  };
  return rows.n <= kFewRows && is_packed(rows.from.k) &&
         is_packed(rows.from.v) && is_packed(rows.to.k) && is_packed(rows.to.v);
}

void CopyFew(const CopiedRows& rows, const kvevict_plane& from,
             const kvevict_plane& to) {
  if (!IsPresent(from)) return;
  const uint32_t n_bytes = RowBytes(from);
  for (uint32_t i = 0; i < rows.n; ++i) {
    for (uint32_t head = 0; head < rows.from.n_kv_heads; ++head) {
      std::memcpy(RowAt(rows.to, to, head, rows.to_first + i),
                  RowAt(rows.from, from, head, rows.first + i), n_bytes);
    }
  }
}

Status CopyRows(const PagedCache& cache, const CopiedRows& rows,
                Stream stream) {
  const Context& context = cache.context();
  const Backend& backend = context.backend();
  const RowChange change = ChangeOf(rows.from, rows.to);
  if (backend.on_host && !change.any() && AreFew(rows)) {
    CopyFew(rows, rows.from.k, rows.to.k);
    CopyFew(rows, rows.from.v, rows.to.v);
    return Status();
  }
  MoveJob job;
  job.view = &rows.from;
  job.tokens = rows.first + rows.n;
  job.keep = KeepLists::Packed(cache.slots() + rows.first, 1, rows.n);
  job.first_slot = rows.to_first;
  job.destination = &rows.to;
  job.change = change;
  const Jobs<MoveJob> jobs(job);
  KV_RETURN_IF_ERROR(backend.compact(context, stream, {jobs, {}}));
  return change.any() ? backend.requantize(context, stream, {jobs}) : Status();
}

}  // namespace

Status PagedSequence::CheckRows(const PagedRows& rows, Stream stream) const {
  kvevict_layer_geometry g = cache_->plan().layer(rows.layer).geometry;
  const uint32_t held = lengths_[rows.layer];
  if (rows.first_slot > held || rows.n_tokens > held - rows.first_slot) {
    return InvalidArgument("first_slot %u + n_tokens %u > %u slots held",
                           rows.first_slot, rows.n_tokens, held);
  }
  const kvevict_view view = ViewOf(rows, g.n_kv_heads);
  KV_RETURN_IF_ERROR(ValidateView(view, rows.n_tokens, true));
  // What stands for itself is stored anew.
  if (IsPlain(rows.k)) g.k_dtype = rows.k.dtype;
  if (IsPlain(rows.v)) g.v_dtype = rows.v.dtype;
  KV_RETURN_IF_ERROR(MatchGeometry(view, g));
  if (IsPresent(rows.v) && !HasValues(g)) {
    return InvalidArgument("v.data is not 0, but the geometry has no values");
  }
  if (!cache_->IsApart(rows.k, g.n_kv_heads, rows.n_tokens) ||
      !cache_->IsApart(rows.v, g.n_kv_heads, rows.n_tokens)) {
    return InvalidArgument("rows overlap the cache's blocks");
  }
  const PartOfView part(View(rows.layer), rows);
  MoveJob job;
  job.view = &view;
  job.destination = &part.view;
  job.change = ChangeOf(view, part.view);
  KV_RETURN_IF_ERROR(CheckScales(view, job.change.k, job.change.v));
  const Backend& backend = cache_->context().backend();
  if (!job.change.any() || backend.check_requantizing == nullptr) {
    return Status();
  }
  return backend.check_requantizing(cache_->context(), stream,
                                    Jobs<MoveJob>(job));
}

Status PagedSequence::Write(std::span<const PagedRows> rows, Stream stream) {
  for (size_t i = 0; i < rows.size(); ++i) {
    Status status = CheckRows(rows[i], stream);
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
    const PartOfView part(View(one.layer), one);
    KV_RETURN_IF_ERROR(CopyRows(*cache_,
                                {ViewOf(one, part.view.n_kv_heads), 0,
                                 one.n_tokens, part.view, one.first_slot},
                                stream));
  }
  return Status();
}

Status PagedSequence::Read(std::span<const PagedRows> rows,
                           Stream stream) const {
  for (size_t i = 0; i < rows.size(); ++i) {
    Status status = CheckRows(rows[i], stream);
    if (!status.ok()) return Prefixed(status, "rows[%zu]: ", i);
  }
  for (const PagedRows& one : rows) {
    if (one.n_tokens == 0) continue;
    const PartOfView part(View(one.layer), one);
    KV_RETURN_IF_ERROR(CopyRows(*cache_,
                                {part.view, one.first_slot, one.n_tokens,
                                 ViewOf(one, part.view.n_kv_heads), 0},
                                stream));
  }
  return Status();
}

}  // namespace kvevict
