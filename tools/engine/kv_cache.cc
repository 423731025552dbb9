#include "tools/engine/kv_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>

#include "tools/engine/float_bits.h"

namespace kvevict::tools {
namespace {

// Large pages make long, strided reads cheaper. The system gives them where it can.
constexpr size_t kAlignment = size_t{2} << 20;

size_t RoundUp(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void StoreRow(kvevict_dtype dtype, const float* from, size_t n, uint8_t* to) {
  if (dtype == KVEVICT_DTYPE_F32) {
    std::memcpy(to, from, n * sizeof(float));
    return;
  }
  uint16_t* out = reinterpret_cast<uint16_t*>(to);
  if (dtype == KVEVICT_DTYPE_F16) {
    for (size_t i = 0; i < n; ++i) out[i] = F32ToF16(from[i]);
  } else {
    for (size_t i = 0; i < n; ++i) out[i] = F32ToBf16(from[i]);
  }
}

kvevict_plane Plane(const uint8_t* data, kvevict_dtype dtype, size_t row_bytes,
                    uint32_t head_dim) {
  kvevict_plane plane = {};
  plane.data = reinterpret_cast<uintptr_t>(data);
  plane.token_stride_bytes = static_cast<int64_t>(row_bytes);
  plane.head_stride_bytes = int64_t{head_dim} * ElementBytes(dtype);
  plane.dtype = dtype;
  plane.head_dim = head_dim;
  return plane;
}

}  // namespace

uint32_t ElementBytes(kvevict_dtype dtype) {
  return dtype == KVEVICT_DTYPE_F32 ? 4 : 2;
}

void KvCache::FreeDeleter::operator()(uint8_t* memory) const {
  std::free(memory);
}

KvCache::KvCache(const KvShape& shape)
    : shape_(shape),
      k_row_bytes_(size_t{shape.n_kv_heads} * shape.k_head_dim *
                   ElementBytes(shape.dtype)),
      v_row_bytes_(size_t{shape.n_kv_heads} * shape.v_head_dim *
                   ElementBytes(shape.dtype)),
      layer_bytes_((k_row_bytes_ + v_row_bytes_) * shape.capacity),
      lengths_(size_t{shape.n_layers} * shape.n_kv_heads, 0) {
  const size_t n_bytes = RoundUp(layer_bytes_ * shape.n_layers + 1);
  void* memory = std::aligned_alloc(kAlignment, n_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  madvise(memory, n_bytes, MADV_HUGEPAGE);
  memory_.reset(static_cast<uint8_t*>(memory));
}

uint8_t* KvCache::K(uint32_t layer) const {
  return memory_.get() + layer_bytes_ * layer;
}

uint8_t* KvCache::V(uint32_t layer) const {
  return K(layer) + k_row_bytes_ * shape_.capacity;
}

void KvCache::Append(uint32_t layer, uint32_t n_rows, const float* k,
                     size_t k_row_stride, const float* v, size_t v_row_stride) {
  assert(length(layer) + n_rows <= shape_.capacity);
  const size_t k_dim = shape_.k_head_dim, v_dim = shape_.v_head_dim;
  const size_t element = ElementBytes(shape_.dtype);
  // Heads of one length are one piece of memory.
  const uint32_t at_once = is_ragged(layer) ? 1 : shape_.n_kv_heads;
  for (uint32_t head = 0; head < shape_.n_kv_heads; head += at_once) {
    const size_t first = lengths(layer)[head];
    for (size_t row = 0; row < n_rows; ++row) {
      StoreRow(
          shape_.dtype, k + row * k_row_stride + head * k_dim, at_once * k_dim,
          K(layer) + (first + row) * k_row_bytes_ + head * k_dim * element);
      StoreRow(
          shape_.dtype, v + row * v_row_stride + head * v_dim, at_once * v_dim,
          V(layer) + (first + row) * v_row_bytes_ + head * v_dim * element);
    }
  }
  set_length(layer, length(layer) + n_rows);
}

std::span<const uint32_t> KvCache::lengths(uint32_t layer) const {
  return std::span(lengths_).subspan(size_t{layer} * shape_.n_kv_heads,
                                     shape_.n_kv_heads);
}

uint32_t KvCache::length(uint32_t layer) const {
  return std::ranges::max(lengths(layer));
}

void KvCache::set_length(uint32_t layer, uint32_t n_slots) {
  const uint32_t change = n_slots - length(layer);  // modulo 2^32
  const auto first = lengths_.begin() + layer * shape_.n_kv_heads;
  std::for_each_n(first, shape_.n_kv_heads,
                  [&](uint32_t& of_head) { of_head += change; });
}

void KvCache::set_lengths(uint32_t layer, std::span<const uint32_t> of_heads) {
  std::ranges::copy(of_heads, lengths_.begin() + layer * shape_.n_kv_heads);
}

bool KvCache::is_ragged(uint32_t layer) const {
  return std::ranges::min(lengths(layer)) < length(layer);
}

void KvCache::CopyFrom(const KvCache& other) {
  assert(layer_bytes_ == other.layer_bytes_);
  lengths_ = other.lengths_;
  for (uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    std::memcpy(K(layer), other.K(layer), k_row_bytes_ * length(layer));
    std::memcpy(V(layer), other.V(layer), v_row_bytes_ * length(layer));
  }
}

uint64_t KvCache::bytes_in_use() const {
  const uint64_t n_rows =
      std::accumulate(lengths_.begin(), lengths_.end(), uint64_t{0});
  return n_rows * ((k_row_bytes_ + v_row_bytes_) / shape_.n_kv_heads);
}

kvevict_view KvCache::View(uint32_t layer) const {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = shape_.n_kv_heads;
  view.k = Plane(K(layer), shape_.dtype, k_row_bytes_, shape_.k_head_dim);
  view.v = Plane(V(layer), shape_.dtype, v_row_bytes_, shape_.v_head_dim);
  return view;
}

}  // namespace kvevict::tools
