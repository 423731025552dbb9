#include "tools/engine/kv_cache.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <numeric>

#include "tools/engine/kvevict_error.h"
#include "tools/engine/platform.h"

namespace kvevict::tools {
namespace {

// The size of large pages.
constexpr size_t kAlignment = size_t{2} << 20;

size_t RoundUp(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

bool IsQuantized(kvevict_dtype dtype) {
  return dtype == KVEVICT_DTYPE_U8 || dtype == KVEVICT_DTYPE_U4;
}

// The plane of packed rows of all heads of a slot. Its address is not known
// yet.
kvevict_plane Plane(const KvShape& shape, kvevict_dtype dtype,
                    uint32_t head_dim, kvevict_role role) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.dtype = dtype;
  plane.head_dim = head_dim;
  plane.role = role;
  plane.head_stride_bytes = static_cast<int64_t>(RowBytes(dtype, head_dim));
  plane.token_stride_bytes = plane.head_stride_bytes * shape.n_kv_heads;
  plane.block_stride_bytes = plane.token_stride_bytes * shape.layout.block_size;
  return plane;
}

std::vector<kvevict_plane> PlanesOf(const KvShape& shape) {
  std::vector<kvevict_plane> planes = {
      Plane(shape, shape.dtype, shape.k_head_dim, KVEVICT_ROLE_NONE),
      Plane(shape, shape.dtype, shape.v_head_dim, KVEVICT_ROLE_NONE)};
  if (!IsQuantized(shape.dtype)) {
    if (shape.has_biases) {
      planes.push_back(Plane(shape, KVEVICT_DTYPE_F32, 1, KVEVICT_ROLE_BIAS));
    }
    return planes;
  }
  for (kvevict_role role :
       {KVEVICT_ROLE_KEY_SCALE, KVEVICT_ROLE_KEY_MINIMUM,
        KVEVICT_ROLE_VALUE_SCALE, KVEVICT_ROLE_VALUE_MINIMUM}) {
    const bool is_shared =
        shape.layout.group_tokens > 0 && role <= KVEVICT_ROLE_KEY_MINIMUM;
    planes.push_back(Plane(shape, KVEVICT_DTYPE_F16,
                           is_shared ? shape.k_head_dim : 1, role));
    if (is_shared) planes.back().group_tokens = shape.layout.group_tokens;
  }
  if (shape.layout.group_tokens == 0) return planes;
  planes.push_back(Plane(shape, KVEVICT_DTYPE_F32, shape.k_head_dim,
                         KVEVICT_ROLE_KEY_RECENT));
  planes.push_back(Plane(shape, KVEVICT_DTYPE_F32, shape.v_head_dim,
                         KVEVICT_ROLE_VALUE_RECENT));
  return planes;
}

bool IsRecent(const kvevict_plane& plane) {
  return plane.role == KVEVICT_ROLE_KEY_RECENT ||
         plane.role == KVEVICT_ROLE_VALUE_RECENT;
}

// The rows from the i-th on.
kvevict_plane From(kvevict_plane plane, uint32_t i) {
  plane.data += static_cast<uint64_t>(i * plane.token_stride_bytes);
  return plane;
}

// The plane of f32 rows of all heads, `stride` floats apart.
kvevict_plane Rows(const float* rows, size_t stride, uint32_t head_dim) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = reinterpret_cast<uintptr_t>(rows);
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = head_dim;
  plane.token_stride_bytes = static_cast<int64_t>(stride * sizeof(float));
  plane.head_stride_bytes = int64_t{head_dim} * sizeof(float);
  return plane;
}

}  // namespace

size_t RowBytes(kvevict_dtype dtype, uint32_t n) {
  switch (dtype) {
    case KVEVICT_DTYPE_F32:
      return size_t{n} * 4;
    case KVEVICT_DTYPE_U8:
      return n;
    case KVEVICT_DTYPE_U4:
      return n / 2;
    default:  // f16 and bf16
      return size_t{n} * 2;
  }
}

void KvCache::FreeDeleter::operator()(uint8_t* memory) const {
  FreeAligned(memory);
}

KvCache::KvCache(const KvShape& shape)
    : shape_(shape),
      lengths_(size_t{shape.n_layers} * shape.n_kv_heads, 0),
      first_recent_(shape.n_layers, 0) {
  const std::vector<kvevict_plane> planes = PlanesOf(shape);
  n_planes_ = static_cast<uint32_t>(planes.size());
  uint32_t n_slots = shape.capacity;
  if (shape.layout.block_size > 0) {
    const uint32_t n_blocks =
        (n_slots + shape.layout.block_size - 1) / shape.layout.block_size;
    n_slots = n_blocks * shape.layout.block_size;
    // No block is where it would be without the table.
    block_table_.resize(n_blocks);
    std::iota(block_table_.rbegin(), block_table_.rend(), 0);
  }
  std::vector<size_t> offsets;
  size_t n_bytes = 0;
  for (uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (const kvevict_plane& plane : planes) {
      planes_.push_back(plane);
      offsets.push_back(n_bytes);
      const size_t n_rows = RowsOf(
          plane,
          n_slots + shape.layout.recent_tokens + shape.layout.group_tokens,
          shape.layout.recent_tokens + shape.layout.group_tokens);
      n_bytes += (SlotBytes(plane) * n_rows + 63) / 64 * 64;
    }
  }
  n_bytes = RoundUp(n_bytes + 1);
  void* memory = AllocateAligned(kAlignment, n_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  PreferLargePages(memory, n_bytes);
  memory_.reset(static_cast<uint8_t*>(memory));
  for (size_t i = 0; i < planes_.size(); ++i) {
    planes_[i].data = reinterpret_cast<uintptr_t>(memory_.get() + offsets[i]);
  }
  kvevict_context* context = nullptr;
  Check(kvevict_context_create(nullptr, &context));
  context_.reset(context);
}

void* KvCache::Data(uint32_t layer, uint32_t plane) const {
  return reinterpret_cast<void*>(Planes(layer)[plane].data);
}

uint32_t KvCache::RowsOf(const kvevict_plane& plane, uint32_t n_slots,
                         uint32_t n_recent) const {
  if (IsRecent(plane)) return n_recent;
  n_slots -= n_recent;
  if (plane.group_tokens == 0) return n_slots;
  return (n_slots + shape_.layout.group_tokens - 1) /
         shape_.layout.group_tokens;
}

double KvCache::BytesOf(uint32_t n_slots, uint32_t n_recent) const {
  double n_bytes = 0;
  for (uint32_t i = 0; i < n_planes_; ++i) {
    n_bytes += static_cast<double>(SlotBytes(planes_[i])) *
               RowsOf(planes_[i], n_slots, n_recent);
  }
  return n_bytes;
}

void KvCache::Store(uint32_t layer, const kvevict_view& rows, uint32_t n_rows,
                    bool quantizes) {
  kvevict_view cache = View(layer);
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = n_rows;
  move.view = &rows;
  move.destination = &cache;
  move.first_slot = quantizes ? first_recent_[layer] : length(layer);
  if (quantizes) {  // it is not told which rows are recent
    cache.n_companions -= 2;
    cache.first_recent = 0;
    first_recent_[layer] += n_rows;
  }
  Check(kvevict_compact(context_.get(), &move, 1, nullptr, 0, nullptr));
}

// Quantizes the first n_rows recent rows.
void KvCache::Quantize(uint32_t layer, uint32_t n_rows) {
  const uint32_t n_left = RecentOf(layer) - n_rows;
  kvevict_view rows = KVEVICT_VIEW_INIT;
  rows.n_kv_heads = shape_.n_kv_heads;
  rows.k = Planes(layer)[6];
  rows.v = Planes(layer)[7];
  rows.k.role = rows.v.role = KVEVICT_ROLE_NONE;
  Store(layer, rows, n_rows, true);
  for (const kvevict_plane& plane : {rows.k, rows.v}) {
    auto* const first = reinterpret_cast<uint8_t*>(plane.data);
    std::memmove(first, first + n_rows * SlotBytes(plane),
                 n_left * SlotBytes(plane));
  }
}

void KvCache::Append(uint32_t layer, uint32_t n_rows, const float* k,
                     size_t k_row_stride, const float* v, size_t v_row_stride) {
  assert(length(layer) + n_rows <= shape_.capacity);
  if (shape_.layout.group_tokens > 0) {
    kvevict_view rows = KVEVICT_VIEW_INIT;
    rows.n_kv_heads = shape_.n_kv_heads;
    rows.k = Rows(k, k_row_stride, shape_.k_head_dim);
    rows.v = Rows(v, v_row_stride, shape_.v_head_dim);
    // Quantizes whole groups of the tokens beyond the recent ones.
    const uint32_t n_recent = RecentOf(layer);
    const uint32_t n_all = n_recent + n_rows;
    const uint32_t n_more =
        n_all - std::min(n_all, shape_.layout.recent_tokens);
    const uint32_t n_quantized =
        n_more / shape_.layout.group_tokens * shape_.layout.group_tokens;
    const uint32_t n_old = std::min(n_quantized, n_recent);
    const uint32_t n_new = n_quantized - n_old;
    if (n_old > 0) Quantize(layer, n_old);
    if (n_new > 0) Store(layer, rows, n_new, true);
    set_length(layer, length(layer) + n_new);
    rows.k = From(rows.k, n_new);
    rows.v = From(rows.v, n_new);
    Store(layer, rows, n_rows - n_new, false);
    set_length(layer, length(layer) + n_rows - n_new);
    return;
  }
  // Heads of one length are stored at once.
  const uint32_t at_once = is_ragged(layer) ? 1 : shape_.n_kv_heads;
  std::vector<kvevict_plane> planes(Planes(layer), Planes(layer) + n_planes_);
  for (uint32_t head = 0; head < shape_.n_kv_heads; head += at_once) {
    kvevict_view rows = KVEVICT_VIEW_INIT;
    rows.n_kv_heads = at_once;
    rows.k = Rows(k + size_t{head} * shape_.k_head_dim, k_row_stride,
                  shape_.k_head_dim);
    rows.v = Rows(v + size_t{head} * shape_.v_head_dim, v_row_stride,
                  shape_.v_head_dim);
    kvevict_view cache = View(layer);
    cache.n_kv_heads = at_once;
    cache.k = planes[0];
    cache.v = planes[1];
    cache.companions = n_planes_ == 2 ? nullptr : &planes[2];
    if (shape_.has_biases) {  // the rows have none
      cache.companions = nullptr;
      cache.n_companions = 0;
    }
    kvevict_move move = KVEVICT_MOVE_INIT;
    move.n_tokens = n_rows;
    move.view = &rows;
    move.first_slot = lengths(layer)[head];
    move.destination = &cache;
    Check(kvevict_compact(context_.get(), &move, 1, nullptr, 0, nullptr));
    for (kvevict_plane& plane : planes) {
      plane.data += static_cast<uint64_t>(plane.head_stride_bytes);
    }
    for (uint32_t h = head; shape_.has_biases && h < head + at_once; ++h) {
      ClearBiases(layer, h, lengths(layer)[h], n_rows);
    }
  }
  set_length(layer, length(layer) + n_rows);
}

void KvCache::ClearBiases(uint32_t layer, uint32_t head, uint32_t first,
                          uint32_t n) {
  const uint32_t block_size = shape_.layout.block_size;
  auto* const biases = static_cast<float*>(Data(layer, 2));
  for (uint32_t slot = first; slot < first + n; ++slot) {
    const size_t row =
        block_size == 0 ? slot
                        : size_t(block_table_[slot / block_size]) * block_size +
                              slot % block_size;
    biases[row * shape_.n_kv_heads + head] = 0.0f;
  }
}

std::span<const uint32_t> KvCache::lengths(uint32_t layer) const {
  return std::span(lengths_).subspan(size_t{layer} * shape_.n_kv_heads,
                                     shape_.n_kv_heads);
}

uint32_t KvCache::length(uint32_t layer) const {
  return std::ranges::max(lengths(layer));
}

void KvCache::set_length(uint32_t layer, uint32_t n_slots) {
  first_recent_[layer] = std::min(first_recent_[layer], n_slots);
  const uint32_t change = n_slots - length(layer);  // modulo 2^32
  const auto first = lengths_.begin() + layer * shape_.n_kv_heads;
  std::for_each_n(first, shape_.n_kv_heads,
                  [&](uint32_t& of_head) { of_head += change; });
}

void KvCache::set_lengths(uint32_t layer, std::span<const uint32_t> of_heads) {
  const uint32_t n_recent = RecentOf(layer);
  std::ranges::copy(of_heads, lengths_.begin() + layer * shape_.n_kv_heads);
  first_recent_[layer] = length(layer) - n_recent;
}

bool KvCache::is_ragged(uint32_t layer) const {
  return std::ranges::min(lengths(layer)) < length(layer);
}

void KvCache::CopyFrom(const KvCache& other) {
  const uint32_t n_planes = std::min(n_planes_, other.n_planes_);
  lengths_ = other.lengths_;
  first_recent_ = other.first_recent_;
  // The number of contiguous slots.
  const uint32_t n_together =
      shape_.layout.block_size > 0 ? shape_.layout.block_size : shape_.capacity;
  for (uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    for (uint32_t i = 0; i < n_planes; ++i) {
      const auto* from = static_cast<const uint8_t*>(other.Data(layer, i));
      auto* to = static_cast<uint8_t*>(Data(layer, i));
      const size_t slot_bytes = SlotBytes(planes_[i]);
      const uint32_t n_rows =
          RowsOf(planes_[i], length(layer), RecentOf(layer));
      for (uint32_t slot = 0; slot < n_rows; slot += n_together) {
        const size_t first =
            shape_.layout.block_size == 0
                ? 0
                : size_t(block_table_[slot / n_together]) * n_together;
        const size_t n = std::min(n_together, n_rows - slot);
        std::memcpy(to + first * slot_bytes, from + first * slot_bytes,
                    n * slot_bytes);
      }
    }
    for (uint32_t h = 0; n_planes < n_planes_ && h < shape_.n_kv_heads; ++h) {
      ClearBiases(layer, h, 0, lengths(layer)[h]);
    }
  }
}

uint64_t KvCache::bytes_in_use() const {
  double n_bytes = 0;
  for (uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    const uint32_t n_heads = shape_.n_kv_heads;
    if (shape_.layout.block_size == 0) {
      for (const uint32_t n : lengths(layer)) {
        n_bytes += BytesOf(n, RecentOf(layer)) / n_heads;
      }
    } else {
      const uint32_t n_blocks = (length(layer) + shape_.layout.block_size - 1) /
                                shape_.layout.block_size;
      n_bytes += BytesOf(n_blocks * shape_.layout.block_size, 0);
    }
  }
  return static_cast<uint64_t>(n_bytes);
}

double KvCache::times_smaller_than_f32() const {
  const auto f32_bytes = static_cast<double>(
      RowBytes(KVEVICT_DTYPE_F32, shape_.k_head_dim + shape_.v_head_dim));
  double n_bytes = 0, n_rows = 0;
  for (uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    for (const uint32_t n : lengths(layer)) {
      n_bytes += BytesOf(n, RecentOf(layer)) / shape_.n_kv_heads;
      n_rows += n;
    }
  }
  return n_rows * f32_bytes / n_bytes;
}

kvevict_view KvCache::View(uint32_t layer) const {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = shape_.n_kv_heads;
  const kvevict_plane* planes = Planes(layer);
  view.k = planes[0];
  view.v = planes[1];
  view.n_companions = n_planes_ - 2;
  if (n_planes_ > 2) view.companions = planes + 2;
  if (shape_.layout.group_tokens > 0) view.first_recent = first_recent_[layer];
  view.block_size = shape_.layout.block_size;
  if (shape_.layout.block_size > 0) {
    view.block_table = block_table_.data();
    view.block_table_len = block_table_.size();
  }
  return view;
}

}  // namespace kvevict::tools
