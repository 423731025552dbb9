// Writes rows to a sequence of a paged cache, and reads them.
#include <algorithm>
#include <cstring>

#include "core/dtype.h"
#include "core/paged/cleared_biases.h"
#include "core/paged/paged_sequence.h"
#include "core/parts.h"
#include "core/view/extent.h"
#include "core/view/row_change.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

kvevict_view ViewOf(const PagedRows& rows, uint32_t n_kv_heads) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = n_kv_heads;
  view.k = rows.k;
  view.v = rows.v;
  return view;
}

// Whether a plane has a floating-point dtype.
bool IsPlain(const kvevict_plane& plane) {
  return InfoOf(static_cast<DType>(plane.dtype)).is_plain();
}

// Removes from a sequence's view its biases, the planes that `rows` lack, and
// the companions of these. Companions of other planes are copied to
// `companions`, which has room for kMostCompanions.
void LeavePart(const PagedRows& rows, kvevict_plane* companions,
               kvevict_view* view) {
  const RowChange lacks = {!IsPresent(rows.k), !IsPresent(rows.v)};
  if (!lacks.any() && BiasesOf(*view) == nullptr) return;
  if (lacks.k) view->k = kvevict_plane{};
  if (lacks.v) view->v = kvevict_plane{};
  uint32_t n = 0;
  for (uint32_t i = 0; i < view->n_companions; ++i) {
    const kvevict_plane& plane = view->companions[i];
    if (plane.role == KVEVICT_ROLE_BIAS) continue;
    if (!IsRecent(plane)) {
      if (lacks.Covers(plane)) continue;
    } else if (plane.role == KVEVICT_ROLE_KEY_RECENT ? lacks.k : lacks.v) {
      continue;
    }
    companions[n++] = plane;
  }
  view->companions = companions;
  view->n_companions = n;
}

// The packed row of head 0 in a slot, for a cache in contiguous memory or in
// blocks by id.
uint8_t* SlotAt(const kvevict_view& view, const kvevict_plane& plane,
                uint32_t slot) {
  int64_t at;
  if (view.block_size == 0) {
    at = slot * plane.token_stride_bytes;
  } else {
    const uint32_t block = slot / view.block_size;
    at = view.block_table[block] * plane.block_stride_bytes +
         int64_t{slot - block * view.block_size} * plane.token_stride_bytes;
  }
  return reinterpret_cast<uint8_t*>(plane.data + static_cast<uint64_t>(at));
}

// Slots of one cache that are copied to slots of another.
struct CopiedRows {
  const kvevict_view& from;
  uint32_t first;
  uint32_t n;
  const kvevict_view& to;
  uint32_t to_first;
};

// Decoding copies a row or two of each head per step, which takes less time
// than starting an operation.
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
  uint32_t n_heads = rows.from.n_kv_heads;
  size_t n_bytes = RowBytes(from);
  const auto ends_at_next = [&](const kvevict_plane& plane) {
    return plane.head_stride_bytes == static_cast<int64_t>(n_bytes);
  };
  if (ends_at_next(from) && ends_at_next(to)) {
    n_bytes *= n_heads;
    n_heads = 1;
  }
  for (uint32_t i = 0; i < rows.n; ++i) {
    const uint8_t* in = SlotAt(rows.from, from, rows.first + i);
    uint8_t* out = SlotAt(rows.to, to, rows.to_first + i);
    for (uint32_t head = 0; head < n_heads; ++head) {
      std::memcpy(out, in, n_bytes);
      in += from.head_stride_bytes;
      out += to.head_stride_bytes;
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

Status PagedSequence::ClearAppended(uint32_t n_tokens, Stream stream) const {
  ClearedBiases cleared(*cache_, stream);
  for (uint32_t l = 0; l < n_layers(); ++l) {
    for (uint32_t head = 0; head < held_stride_; ++head) {
      KV_RETURN_IF_ERROR(
          cleared.Add(CodedView(l), head, Held(l)[head], n_tokens));
    }
  }
  return cleared.Run();
}

Status PagedSequence::ClearBiasesOf(std::span<const PagedRows> rows,
                                    Stream stream) const {
  ClearedBiases cleared(*cache_, stream);
  for (const PagedRows& one : rows) {
    for (uint32_t head = 0; IsPresent(one.k) && head < held_stride_; ++head) {
      KV_RETURN_IF_ERROR(cleared.Add(CodedView(one.layer), head, one.first_slot,
                                     one.n_tokens));
    }
  }
  return cleared.Run();
}

Status PagedSequence::Quantize(uint32_t layer, uint32_t n_coded,
                               Stream stream) {
  const uint32_t first = NCoded(layer);
  const uint32_t n = std::min(n_coded - first, n_recent_[layer]);
  if (n == 0) return Status();
  const kvevict_view recent = RecentView(layer);
  KV_RETURN_IF_ERROR(
      CopyRows(*cache_, {recent, 0, n, CodedView(layer), first}, stream));
  MoveJob down;
  down.view = &recent;
  down.tokens = n_recent_[layer];
  down.keep = KeepLists::Packed(cache_->slots() + n, 1, n_recent_[layer] - n);
  const Context& context = cache_->context();
  return context.backend().compact(context, stream, {Jobs<MoveJob>(down), {}});
}

PagedSequence::Place PagedSequence::PlaceOf(const PagedRows& rows) const {
  const uint32_t n_coded = NCoded(rows.layer);
  if (n_recent_[rows.layer] == 0 || rows.first_slot < n_coded) {
    return {View(rows.layer), rows.first_slot};
  }
  return {RecentView(rows.layer), rows.first_slot - n_coded};
}

// Whether rows overlap no memory that the sequence's own rows may be in.
bool PagedSequence::IsApart(const kvevict_plane& plane, uint32_t n_heads,
                            uint32_t n_rows) const {
  if (!IsPresent(plane) || n_rows == 0) return true;
  const Extent rows(PlaneAxes(plane, n_heads, n_rows));
  const auto lies_apart = [&](const uint8_t* memory, size_t n_bytes) {
    const auto begin = reinterpret_cast<uint64_t>(memory);
    return rows.end <= begin || rows.begin >= Wide{begin} + n_bytes;
  };
  return lies_apart(cache_->memory(), cache_->n_bytes()) &&
         lies_apart(recent_.data(), cache_->recent_bytes());
}

// Checks that written rows end with a group, or with all rows that are in
// groups.
Status PagedSequence::CheckGroups(const PagedRows& rows) const {
  const kvevict_view& view = cache_->GroupOf(rows.layer).view;
  const uint32_t end = rows.first_slot + rows.n_tokens;
  if (!IsPresent(rows.k) || rows.n_tokens == 0 || !GroupedRows(view).k ||
      end >= NCoded(rows.layer)) {
    return Status();
  }
  const uint64_t group = FindNumbers(view, view.k, false)->group_tokens;
  if (end % group == 0) return Status();
  return InvalidArgument(
      "first_slot %u + n_tokens %u is within a group of %llu tokens: the rest "
      "of it would be lost",
      rows.first_slot, rows.n_tokens, static_cast<unsigned long long>(group));
}

// `writes_rows`: `rows` are written from the cache. Otherwise they are written
// to it.
Status PagedSequence::CheckRows(const PagedRows& rows, bool writes_rows,
                                Stream stream) const {
  kvevict_layer_geometry g = cache_->plan().layer(rows.layer).geometry;
  const uint32_t held = lengths_[rows.layer];
  if (rows.first_slot > held || rows.n_tokens > held - rows.first_slot) {
    return InvalidArgument("first_slot %u + n_tokens %u > %u slots held",
                           rows.first_slot, rows.n_tokens, held);
  }
  const kvevict_view view = ViewOf(rows, g.n_kv_heads);
  KV_RETURN_IF_ERROR(writes_rows ? ValidateView(view, rows.n_tokens, true)
                                 : ValidateReadView(view, rows.n_tokens, true));
  // Floating-point rows are converted.
  if (IsPlain(rows.k)) g.k_dtype = rows.k.dtype;
  if (IsPlain(rows.v)) g.v_dtype = rows.v.dtype;
  KV_RETURN_IF_ERROR(MatchGeometry(view, g));
  if (IsPresent(rows.v) && !HasValues(g)) {
    return InvalidArgument("v.data is not 0, but the geometry has no values");
  }
  if (!IsApart(rows.k, g.n_kv_heads, rows.n_tokens) ||
      !IsApart(rows.v, g.n_kv_heads, rows.n_tokens)) {
    return InvalidArgument("rows overlap the cache's blocks");
  }
  kvevict_view part = View(rows.layer);
  kvevict_plane companions[kMostCompanions];
  LeavePart(rows, companions, &part);
  MoveJob job;
  job.view = &view;
  job.destination = &part;
  job.change = ChangeOf(view, part);
  KV_RETURN_IF_ERROR(CheckScales(view, job.change.k, job.change.v));
  if (!job.change.any()) return Status();
  return cache_->context().backend().requantize.check(cache_->context(), stream,
                                                      {Jobs<MoveJob>(job)});
}

Status PagedSequence::Write(std::span<const PagedRows> rows, Stream stream) {
  for (size_t i = 0; i < rows.size(); ++i) {
    Status status = CheckRows(rows[i], false, stream);
    if (status.ok()) status = CheckGroups(rows[i]);
    if (!status.ok()) return Prefixed(status, "rows[%zu]: ", i);
  }
  KV_RETURN_IF_ERROR(OwnBlocksOf(rows, stream));
  if (has_biases()) KV_RETURN_IF_ERROR(ClearBiasesOf(rows, stream));
  for (const PagedRows& one : rows) {
    if (one.n_tokens == 0) continue;
    Place place = PlaceOf(one);
    kvevict_plane companions[kMostCompanions];
    LeavePart(one, companions, &place.view);
    KV_RETURN_IF_ERROR(CopyRows(*cache_,
                                {ViewOf(one, place.view.n_kv_heads), 0,
                                 one.n_tokens, place.view, place.first_slot},
                                stream));
  }
  return Status();
}

Status PagedSequence::Read(std::span<const PagedRows> rows,
                           Stream stream) const {
  for (size_t i = 0; i < rows.size(); ++i) {
    Status status = CheckRows(rows[i], true, stream);
    if (!status.ok()) return Prefixed(status, "rows[%zu]: ", i);
  }
  for (const PagedRows& one : rows) {
    if (one.n_tokens == 0) continue;
    Place place = PlaceOf(one);
    kvevict_plane companions[kMostCompanions];
    LeavePart(one, companions, &place.view);
    KV_RETURN_IF_ERROR(CopyRows(*cache_,
                                {place.view, place.first_slot, one.n_tokens,
                                 ViewOf(one, place.view.n_kv_heads), 0},
                                stream));
  }
  return Status();
}

}  // namespace kvevict
