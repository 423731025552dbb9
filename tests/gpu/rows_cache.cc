#include "tests/gpu/rows_cache.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/gpu/random_values.h"

namespace kvevict::gpu::rows {
namespace {

uint64_t RoundedUp(uint64_t n, uint64_t unit) {
  return (n + unit - 1) / unit * unit;
}

uint64_t RowBytesOf(kvevict_dtype dtype, uint32_t head_dim) {
  return static_cast<uint64_t>(kvevict_row_bytes(dtype, head_dim));
}

// Slots that a plane has room for.
uint32_t Slots(const CacheShape& s) {
  const uint32_t unit =
      std::max({s.block_size, s.format.key_group, uint32_t{1}});
  return static_cast<uint32_t>(RoundedUp(s.n_tokens, unit));
}

// bf16 rows that differ from one direction by a quarter of its elements, as keys
// do around their mean.
void FillAroundMean(uint64_t seed, uint32_t head_dim, uint64_t n_rows,
                    std::vector<uint8_t>* out) {
  std::vector<float> mean(head_dim);
  std::vector<float> noise(n_rows * head_dim);
  FillWithValues(seed, KVEVICT_DTYPE_F32, head_dim, mean.data());
  FillWithValues(seed + 1, KVEVICT_DTYPE_F32, noise.size(), noise.data());
  for (uint64_t i = 0; i < noise.size(); ++i) {
    StoreValue(KVEVICT_DTYPE_BF16, mean[i % head_dim] + noise[i] / 4,
               out->data() + 2 * i);
  }
}

// All layers hold the same values: other bytes would take the GPU equally long,
// and the host far longer to make.
void Repeat(const Gpu& gpu, const std::vector<uint8_t>& host,
            const Buffer& to) {
  to.Write(host.data(), host.size());
  for (uint64_t at = host.size(); at < to.n_bytes(); at += host.size()) {
    Check(gpu.driver(),
          gpu.driver().cuMemcpyDtoDAsync(to.address() + at, to.address(),
                                         host.size(), gpu.stream()),
          "cuMemcpyDtoDAsync");
  }
  gpu.Synchronize();
}

}  // namespace

uint64_t CacheShape::RowBytes() const {
  const Model& m = model;
  const uint64_t n_rows =
      uint64_t{m.n_layers} * n_sequences * n_tokens * m.n_kv_heads;
  const uint64_t n_planes = has_values ? 2 : 1;
  const uint64_t numbers =
      2 * (uint64_t{format.has_scale} + uint64_t{format.has_minimum});
  uint64_t bytes =
      n_planes * n_rows * (RowBytesOf(format.dtype, m.head_dim) + numbers);
  if (format.key_group != 0) {
    bytes = bytes - n_rows * numbers +
            n_rows * m.head_dim * numbers / format.key_group;
  }
  return bytes;
}

Cache::Cache(const Gpu& gpu, const CacheShape& shape, uint64_t seed)
    : shape_(shape),
      plane_bytes_(uint64_t{Slots(shape)} * shape.model.n_kv_heads *
                   RowBytesOf(shape.format.dtype, shape.model.head_dim)),
      keys_(gpu, plane_bytes_ * shape.model.n_layers * shape.n_sequences),
      values_(gpu, shape.has_values ? keys_.n_bytes() : 0) {
  const Model& m = shape.model;
  const uint64_t n_rows = uint64_t{Slots(shape)} * m.n_kv_heads;
  std::vector<uint8_t> host(plane_bytes_);
  FillWithValues(seed, shape.format.dtype, n_rows * m.head_dim, host.data());
  if (shape.has_values) Repeat(gpu, host, values_);
  if (shape.keys == Content::kAroundMean) {
    FillAroundMean(seed, m.head_dim, n_rows, &host);
  }
  Repeat(gpu, host, keys_);
  const uint32_t n_views = m.n_layers * shape.n_sequences;
  for (const bool present : {shape.format.has_scale, shape.format.has_minimum,
                             shape.format.has_scale && shape.has_values,
                             shape.format.has_minimum && shape.has_values}) {
    const bool of_keys = numbers_.size() < 2;
    const uint64_t n = !present ? 0
                       : of_keys && shape.format.key_group != 0
                           ? n_rows / shape.format.key_group * m.head_dim
                           : n_rows;
    numbers_.emplace_back(gpu, 2 * n * n_views);
    if (!present) continue;
    std::vector<uint8_t> values(2 * n);
    for (uint64_t i = 0; i < n; ++i) {
      StoreValue(KVEVICT_DTYPE_F16, static_cast<float>(1 + i % 3) / 256.0f,
                 &values[2 * i]);
    }
    Repeat(gpu, values, numbers_.back());
  }
  if (shape.block_size != 0) MakeTable(gpu, seed);
  views_.assign(n_views, KVEVICT_VIEW_INIT);
  companions_.resize(n_views);
  for (uint32_t i = 0; i < n_views; ++i) {
    kvevict_view& view = views_[i];
    view.n_kv_heads = m.n_kv_heads;
    view.k = Rows(keys_, i);
    if (shape.has_values) view.v = Rows(values_, i);
    if (table_ != nullptr) {
      view.block_size = shape.block_size;
      view.block_table = table_->pointer<int32_t>();
      view.block_table_len = table_->n_bytes() / sizeof(int32_t);
    }
    AddCompanions(i);
  }
}

kvevict_plane Cache::Rows(const Buffer& buffer, uint32_t i) const {
  const Model& m = shape_.model;
  const void* const data = buffer.pointer<uint8_t>() + i * plane_bytes_;
  const kvevict_dtype dtype = shape_.format.dtype;
  if (shape_.block_size == 0) {
    return shape_.head_major ? kvevict_plane_head_major(
                                   data, dtype, Slots(shape_), m.head_dim)
                             : kvevict_plane_token_major(
                                   data, dtype, m.n_kv_heads, m.head_dim);
  }
  return shape_.head_major
             ? kvevict_plane_head_major_blocks(data, dtype, shape_.block_size,
                                               m.n_kv_heads, m.head_dim)
             : kvevict_plane_token_major_blocks(data, dtype, shape_.block_size,
                                                m.n_kv_heads, m.head_dim);
}

kvevict_plane Cache::Numbers(kvevict_role role, uint32_t i) {
  const Model& m = shape_.model;
  const Buffer& buffer = numbers_[role - KVEVICT_ROLE_KEY_SCALE];
  const bool of_keys = role <= KVEVICT_ROLE_KEY_MINIMUM;
  const uint32_t group = of_keys ? shape_.format.key_group : 0;
  const uint64_t bytes =
      buffer.n_bytes() / (uint64_t{m.n_layers} * shape_.n_sequences);
  kvevict_plane plane = kvevict_plane_token_major(
      buffer.pointer<uint8_t>() + i * bytes, KVEVICT_DTYPE_F16, m.n_kv_heads,
      group == 0 ? 1 : m.head_dim);
  plane.role = role;
  plane.group_tokens = group;
  return plane;
}

void Cache::AddCompanions(uint32_t i) {
  std::vector<kvevict_plane>& planes = companions_[i];
  const Format& f = shape_.format;
  if (f.has_scale) planes.push_back(Numbers(KVEVICT_ROLE_KEY_SCALE, i));
  if (f.has_minimum) planes.push_back(Numbers(KVEVICT_ROLE_KEY_MINIMUM, i));
  if (shape_.has_values) {
    if (f.has_scale) planes.push_back(Numbers(KVEVICT_ROLE_VALUE_SCALE, i));
    if (f.has_minimum) planes.push_back(Numbers(KVEVICT_ROLE_VALUE_MINIMUM, i));
  }
  views_[i].companions = planes.empty() ? nullptr : planes.data();
  views_[i].n_companions = static_cast<uint32_t>(planes.size());
}

void Cache::MakeTable(const Gpu& gpu, uint64_t seed) {
  std::vector<int32_t> blocks(Slots(shape_) / shape_.block_size);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(seed));
  table_ = std::make_unique<Buffer>(gpu, blocks.size() * sizeof(int32_t));
  table_->Write(blocks.data(), table_->n_bytes());
}

Buffer RandomKeepLists(const Gpu& gpu, uint32_t n_lists, uint32_t n_tokens,
                       uint32_t budget, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> slots(n_tokens);
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<int32_t> lists;
  for (uint32_t l = 0; l < n_lists; ++l) {
    std::sample(slots.begin(), slots.end(), std::back_inserter(lists), budget,
                random);
  }
  Buffer buffer(gpu, lists.size() * sizeof(int32_t));
  buffer.Write(lists.data(), buffer.n_bytes());
  return buffer;
}

Queries::Queries(const Gpu& gpu, const Model& model, uint32_t n_sequences,
                 uint32_t n_rows, kvevict_dtype dtype, uint64_t seed)
    : n_layers_(model.n_layers),
      rows_(gpu, uint64_t{n_sequences} * model.n_layers * n_rows *
                     model.n_q_heads * RowBytesOf(dtype, model.head_dim)) {
  const uint64_t n_planes = uint64_t{n_sequences} * model.n_layers;
  const uint64_t bytes = rows_.n_bytes() / n_planes;
  std::vector<uint8_t> host(bytes);
  FillWithValues(seed, dtype,
                 uint64_t{n_rows} * model.n_q_heads * model.head_dim,
                 host.data());
  Repeat(gpu, host, rows_);
  for (uint64_t i = 0; i < n_planes; ++i) {
    planes_.push_back(
        kvevict_plane_token_major(rows_.pointer<uint8_t>() + i * bytes, dtype,
                                  model.n_q_heads, model.head_dim));
  }
}

}  // namespace kvevict::gpu::rows
