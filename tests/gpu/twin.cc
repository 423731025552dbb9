#include "tests/gpu/twin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "core/dtype.h"
#include "tests/gpu/random_values.h"

namespace kvevict::gpu {
namespace {

constexpr uint32_t kPlanes = 3;
constexpr uint32_t kCompanionBytes = 12;

uint32_t PackedBytes(kvevict_dtype dtype, uint32_t n) {
  return static_cast<uint32_t>(
      kvevict::PackedBytes(static_cast<DType>(dtype), n));
}
uint32_t ElementBytes(kvevict_dtype dtype) { return PackedBytes(dtype, 1); }

uint32_t RoundUp(uint32_t n, uint32_t unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace

Geometry GeometryOf(const Shape& shape) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = shape.n_q_heads;
  layer.n_kv_heads = shape.n_kv_heads;
  layer.k_head_dim = layer.v_head_dim = shape.head_dim;
  layer.q_dtype = shape.q_dtype;
  layer.k_dtype = layer.v_dtype = shape.kv_dtype;
  return {shape.n_layers, shape.n_tokens + kRoomForDecoding, {layer}};
}

Twin::Twin(const Gpu& gpu, const Shape& shape, uint64_t seed)
    : shape_(shape),
      layers_(shape.n_layers),
      host_views_(shape.n_layers, KVEVICT_VIEW_INIT),
      device_views_(shape.n_layers, KVEVICT_VIEW_INIT) {
  if (BlockSize() > 0) {
    block_table_.resize(RoundUp(max_tokens(), kBlockSize) / BlockSize());
    std::iota(block_table_.begin(), block_table_.end(), 0);
    if (shape.layout == Layout::kPaged) {
      std::shuffle(block_table_.begin(), block_table_.end(),
                   std::mt19937_64(seed));
    } else {  // it began in the middle
      std::rotate(block_table_.begin(),
                  block_table_.begin() + shape.n_tokens / 3,
                  block_table_.end());
    }
    device_block_table_ =
        std::make_unique<Buffer>(gpu, block_table_.size() * sizeof(int32_t));
    device_block_table_->Write(block_table_.data(),
                               device_block_table_->n_bytes());
  }
  const uint64_t rows =
      uint64_t{RoundUp(max_tokens(), kBlockSize)} * shape.n_kv_heads;
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    Layer& layer = layers_[l];
    layer.original.resize(rows * (RowBytes(0) + RowBytes(1) + RowBytes(2)));
    const uint64_t values = rows * 2 * shape.head_dim;
    FillWithValues(seed + 2 * l, shape.kv_dtype, values, layer.original.data());
    FillWithValues(seed + 3 * l, KVEVICT_DTYPE_F32, rows * RowBytes(2) / 4,
                   layer.original.data() + rows * 2 * RowBytes(0));
    auto* const biases = reinterpret_cast<float*>(layer.original.data() +
                                                  rows * 2 * RowBytes(0));
    for (uint64_t i = 0; i < rows && has_biases(); ++i) {
      biases[i] *= shape.most_bias;
    }
    layer.queries.resize(uint64_t{max_tokens()} * shape.n_q_heads *
                         shape.head_dim * ElementBytes(shape.q_dtype));
    FillWithValues(seed + 2 * l + 1, shape.q_dtype,
                   layer.queries.size() / ElementBytes(shape.q_dtype),
                   layer.queries.data());
    layer.device = std::make_unique<Buffer>(gpu, layer.original.size());
    layer.device_queries = std::make_unique<Buffer>(gpu, layer.queries.size());
    layer.device_queries->Write(layer.queries.data(), layer.queries.size());
    layer.host.resize(layer.original.size());
    LayOut(l, reinterpret_cast<uintptr_t>(layer.host.data()), &host_views_[l],
           &layer.host_companion);
    LayOut(l, layer.device->address(), &device_views_[l],
           &layer.device_companion);
    host_views_[l].block_table =
        block_table_.empty() ? nullptr : block_table_.data();
    if (device_block_table_ != nullptr) {
      device_views_[l].block_table = device_block_table_->pointer<int32_t>();
    }
  }
  Restore();
}

uint32_t Twin::RowBytes(uint32_t plane) const {
  if (plane == 2) return has_biases() ? sizeof(float) : kCompanionBytes;
  return PackedBytes(shape_.kv_dtype, shape_.head_dim);
}

void Twin::LayOut(uint32_t, uint64_t base, kvevict_view* view,
                  kvevict_plane* companion) const {
  const uint32_t slots = RoundUp(max_tokens(), kBlockSize);
  view->n_kv_heads = shape_.n_kv_heads;
  view->companions = companion;
  view->n_companions = 1;
  *companion = {};
  if (BlockSize() > 0) {
    view->block_size = BlockSize();
    view->block_table_len = block_table_.size();
  }
  for (uint32_t p = 0; p < kPlanes; ++p) {
    kvevict_plane& plane = p == 0 ? view->k : p == 1 ? view->v : *companion;
    const int64_t row = RowBytes(p);
    plane.data = base + Offset(p, 0, 0);
    if (shape_.layout == Layout::kHeadMajor) {
      plane.token_stride_bytes = row;
      plane.head_stride_bytes = row * slots;
    } else {
      plane.token_stride_bytes = row * shape_.n_kv_heads;
      plane.head_stride_bytes = row;
    }
    if (BlockSize() > 0) {
      plane.block_stride_bytes = row * shape_.n_kv_heads * BlockSize();
      plane.data -=
          static_cast<uint64_t>(block_table_[0] * plane.block_stride_bytes);
    }
    if (p == 2 && has_biases()) {
      plane.dtype = KVEVICT_DTYPE_F32;
      plane.head_dim = 1;
      plane.role = KVEVICT_ROLE_BIAS;
    } else if (p == 2) {
      plane.row_bytes = kCompanionBytes;
    } else {
      plane.dtype = shape_.kv_dtype;
      plane.head_dim = shape_.head_dim;
    }
  }
}

uint32_t Twin::BlockSize() const {
  switch (shape_.layout) {
    case Layout::kPaged:
      return kBlockSize;
    case Layout::kWrappedRing:
      return 1;
    default:
      return 0;
  }
}

uint64_t Twin::Offset(uint32_t plane, uint32_t slot, uint32_t kv_head) const {
  const uint64_t slots = RoundUp(max_tokens(), kBlockSize);
  uint64_t begin = 0;
  for (uint32_t p = 0; p < plane; ++p) {
    begin += slots * shape_.n_kv_heads * RowBytes(p);
  }
  uint64_t row = slot;
  if (BlockSize() > 0) {
    row = uint64_t{static_cast<uint32_t>(block_table_[slot / BlockSize()])} *
              BlockSize() +
          slot % BlockSize();
  }
  const uint64_t place = shape_.layout == Layout::kHeadMajor
                             ? kv_head * slots + row
                             : row * shape_.n_kv_heads + kv_head;
  return begin + place * RowBytes(plane);
}

kvevict_plane Twin::HostQueries(uint32_t layer, uint32_t first) const {
  kvevict_plane plane{};
  plane.head_stride_bytes = shape_.head_dim * ElementBytes(shape_.q_dtype);
  plane.token_stride_bytes = plane.head_stride_bytes * shape_.n_q_heads;
  plane.data = reinterpret_cast<uintptr_t>(layers_[layer].queries.data()) +
               static_cast<uint64_t>(plane.token_stride_bytes) * first;
  plane.dtype = shape_.q_dtype;
  plane.head_dim = shape_.head_dim;
  return plane;
}

kvevict_plane Twin::DeviceQueries(uint32_t layer, uint32_t first) const {
  kvevict_plane plane = HostQueries(layer, first);
  plane.data += layers_[layer].device_queries->address() -
                reinterpret_cast<uintptr_t>(layers_[layer].queries.data());
  return plane;
}

void Twin::Restore() {
  for (Layer& layer : layers_) {
    layer.host = layer.original;
    layer.device->Write(layer.original.data(), layer.original.size());
  }
}

void Twin::Store(uint32_t position, uint32_t slot) {
  for (Layer& layer : layers_) {
    for (uint32_t p = 0; p < kPlanes; ++p) {
      for (uint32_t h = 0; h < shape_.n_kv_heads; ++h) {
        const uint8_t* row = &layer.original[Offset(p, position, h)];
        const uint64_t to = Offset(p, slot, h);
        std::memcpy(&layer.host[to], row, RowBytes(p));
        layer.device->Write(row, RowBytes(p), to);
      }
    }
  }
}

void Twin::Fetch(uint32_t layer) {
  layers_[layer].fetched = layers_[layer].device->ReadAll<uint8_t>();
}

std::string Twin::CompareWithHost(uint32_t layer, uint32_t n_tokens) const {
  const Layer& l = layers_[layer];
  for (uint32_t p = 0; p < kPlanes; ++p) {
    for (uint32_t slot = 0; slot < n_tokens; ++slot) {
      for (uint32_t h = 0; h < shape_.n_kv_heads; ++h) {
        const uint64_t offset = Offset(p, slot, h);
        if (std::memcmp(&l.fetched[offset], &l.host[offset], RowBytes(p)) !=
            0) {
          return fmt::format("layer {}, plane {}, slot {}, head {} differs",
                             layer, p, slot, h);
        }
      }
    }
  }
  return "";
}

std::string Twin::CompareWithPositions(
    uint32_t layer, uint32_t kv_head,
    const std::vector<int32_t>& positions) const {
  const Layer& l = layers_[layer];
  for (uint32_t p = 0; p < kPlanes; ++p) {
    for (uint32_t slot = 0; slot < positions.size(); ++slot) {
      const auto position = static_cast<uint32_t>(positions[slot]);
      if (std::memcmp(&l.fetched[Offset(p, slot, kv_head)],
                      &l.original[Offset(p, position, kv_head)],
                      RowBytes(p)) != 0) {
        return fmt::format(
            "layer {}, plane {}, head {}: slot {} does not hold position {}",
            layer, p, kv_head, slot, position);
      }
    }
  }
  return "";
}

bool Twin::IsUntouched(uint32_t layer, uint32_t first_slot) const {
  const Layer& l = layers_[layer];
  if (first_slot == 0) return l.fetched == l.original;
  for (uint32_t p = 0; p < kPlanes; ++p) {
    for (uint32_t slot = first_slot; slot < max_tokens(); ++slot) {
      for (uint32_t h = 0; h < shape_.n_kv_heads; ++h) {
        const uint64_t offset = Offset(p, slot, h);
        if (std::memcmp(&l.fetched[offset], &l.original[offset], RowBytes(p)) !=
            0) {
          return false;
        }
      }
    }
  }
  return true;
}

uint64_t Twin::CacheBytes(uint64_t n_tokens) const {
  return n_tokens * shape_.n_layers * shape_.n_kv_heads *
         (RowBytes(0) + RowBytes(1) + RowBytes(2));
}

}  // namespace kvevict::gpu
