#include "tests/gpu/random_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/dtype.h"
#include "tests/gpu/random_values.h"

namespace kvevict::gpu {
namespace {

// Elements that have bytes of their own, or whole rows.
uint32_t Units(const kvevict_plane& plane) {
  return ElementBytesOf(plane.dtype) == 0 ? 1 : plane.head_dim;
}
uint32_t UnitBytes(const kvevict_plane& plane) {
  if (plane.dtype == KVEVICT_DTYPE_OPAQUE) return plane.row_bytes;
  return static_cast<uint32_t>(PackedBytes(static_cast<DType>(plane.dtype),
                                           plane.head_dim / Units(plane)));
}

// The range of a plane's scales or minima: codes then stand for about [-1, 1].
struct NumberRange {
  float unit;
  uint32_t least;
  uint32_t most;
};
NumberRange RangeOf(kvevict_role role, kvevict_dtype of) {
  if (role == KVEVICT_ROLE_KEY_MINIMUM || role == KVEVICT_ROLE_VALUE_MINIMUM) {
    return {-0.25f, 0, 4};
  }
  if (of == KVEVICT_DTYPE_U8 || of == KVEVICT_DTYPE_I8)
    return {1.0f / 256, 1, 4};
  if (ElementBytesOf(of) == 0) return {1.0f / 32, 1, 4};
  return {0.5f, 1, 4};
}

bool IsRecentRole(kvevict_role role) {
  return role == KVEVICT_ROLE_KEY_RECENT || role == KVEVICT_ROLE_VALUE_RECENT;
}

bool IsWide(const kvevict_plane& plane) {
  return plane.element_stride_bytes == 0 && plane.group_elems == 0 &&
         plane.token_stride_bytes % 16 == 0 &&
         plane.head_stride_bytes % 16 == 0 &&
         plane.block_stride_bytes % 16 == 0 && plane.data % 16 == 0;
}

bool IsConstant(const kvevict_plane& plane) {
  return plane.role != KVEVICT_ROLE_NONE && plane.token_stride_bytes == 0;
}

}  // namespace

RandomLayer::RandomLayer(const Gpu& gpu, Random* random,
                         const kvevict_layer_geometry& geometry,
                         uint32_t n_slots, bool groups, uint32_t table_block,
                         bool table_by_head, bool wide)
    : n_kv_heads_(geometry.n_kv_heads),
      n_slots_(n_slots),
      block_size_(table_block) {
  if (table_block > 0) {
    // Neither a ring nor groups.
  } else if (groups) {
    group_tokens_ = random->Pick({1u, 2u, 8u, 32u});
    if (random->OneOf(2)) first_recent_ = random->In(0, n_slots_ - 1);
  } else if (random->OneOf(4)) {
    ring_slots_ = n_slots_ + random->In(0, 5);
    ring_first_ = random->In(0, ring_slots_ - 1);
  }
  if (table_block > 0 || random->OneOf(2)) {
    DrawTables(gpu, random, table_by_head);
  }
  const auto add = [&](kvevict_dtype dtype, uint32_t row_len) {
    RandomPlane drawn;
    do {
      drawn = DrawPlane(random, dtype, row_len, n_kv_heads_, RowsOfBlock(),
                        n_blocks_, /*may_group=*/true, BlockAlign());
    } while (wide && !IsWide(drawn.plane));
    AddPlane(drawn, KVEVICT_ROLE_NONE);
  };
  add(geometry.k_dtype, geometry.k_head_dim);
  add(geometry.v_dtype, geometry.v_head_dim);
  const auto add_numbers = [&](kvevict_dtype of, uint32_t head_dim,
                               kvevict_role scale, kvevict_role minimum) {
    const DTypeInfo& info = InfoOf(static_cast<DType>(of));
    const bool has_groups =
        groups && (scale == KVEVICT_ROLE_KEY_SCALE || random->OneOf(2));
    if (has_groups) {
      AddPacked(random, scale, head_dim);
    } else if (info.scale == Scale::kNeeded ||
               (info.scale == Scale::kOptional && random->OneOf(2))) {
      AddNumbers(random, scale);
    }
    if (has_groups) {
      AddPacked(random, minimum, head_dim);
    } else if (info.takes_minimum && random->OneOf(2)) {
      AddNumbers(random, minimum);
    }
  };
  add_numbers(geometry.k_dtype, geometry.k_head_dim, KVEVICT_ROLE_KEY_SCALE,
              KVEVICT_ROLE_KEY_MINIMUM);
  add_numbers(geometry.v_dtype, geometry.v_head_dim, KVEVICT_ROLE_VALUE_SCALE,
              KVEVICT_ROLE_VALUE_MINIMUM);
  if (first_recent_ != UINT32_MAX) {
    AddPacked(random, KVEVICT_ROLE_KEY_RECENT, geometry.k_head_dim);
    AddPacked(random, KVEVICT_ROLE_VALUE_RECENT, geometry.v_head_dim);
  }
  if (first_recent_ == UINT32_MAX && random->OneOf(4)) {
    AddPlane(DrawPlane(random, KVEVICT_DTYPE_F32, 1, n_kv_heads_, RowsOfBlock(),
                       n_blocks_, /*may_group=*/false, BlockAlign()),
             KVEVICT_ROLE_BIAS);
  }
  for (uint32_t i = random->In(0, 3); i > 0; --i) {
    if (random->OneOf(2)) {
      add(KVEVICT_DTYPE_OPAQUE, random->In(1, 33));
    } else {
      add(RandomDType(random), random->In(1, 9));
    }
  }
  const uint64_t n_bytes = n_bytes_;
  host_.resize(n_bytes);
  for (uint8_t& byte : host_) byte = static_cast<uint8_t>(random->Bits());
  for (const kvevict_plane& plane : planes_) {
    for (uint32_t h = 0; IsConstant(plane) && h < n_kv_heads_; ++h) {
      WriteNumber(random, plane, Offset(plane, 0, h, 0));
    }
  }
  // Multiples of 16, or only of the element's size.
  const uint32_t shift =
      has_addresses_ || wide || random->OneOf(2) ? 0 : 4 * random->In(0, 3);
  device_ = std::make_unique<Buffer>(gpu, n_bytes + shift);
  device_base_ = device_->address() + shift;
  device_->Write(host_.data(), n_bytes, shift);
  const auto host_base = reinterpret_cast<uintptr_t>(host_.data());
  std::vector<uint64_t> host_tables(planes_.size());
  std::vector<uint64_t> device_tables(planes_.size());
  for (size_t i = 0; has_addresses_ && i < planes_.size(); ++i) {
    host_addresses_.push_back(AddressesOf(planes_[i], host_base));
    const std::vector<uint64_t> table = AddressesOf(planes_[i], device_base_);
    device_addresses_.emplace_back(gpu, table.size() * sizeof(uint64_t));
    device_addresses_[i].Write(table.data(), device_addresses_[i].n_bytes());
    host_tables[i] = reinterpret_cast<uintptr_t>(host_addresses_[i].data());
    device_tables[i] = device_addresses_[i].address();
  }
  View(host_base, host_tables, &host_view_, &host_companions_);
  View(device_base_, device_tables, &device_view_, &device_companions_);
  if (block_size_ > 0 && has_ids_) {
    host_view_.block_table = block_table_.data();
    device_view_.block_table = device_table_->pointer<int32_t>();
  }
}

uint32_t RandomLayer::RowsOfBlock() const {
  return block_size_ > 0 ? block_size_ : std::max(n_slots_, ring_slots_);
}

void RandomLayer::AddPlane(RandomPlane drawn, kvevict_role role) {
  n_bytes_ = (n_bytes_ + 15) / 16 * 16;
  drawn.plane.role = role;
  drawn.plane.data += n_bytes_;
  n_bytes_ += drawn.n_bytes;
  if (block_size_ == 0) drawn.plane.block_stride_bytes = 0;
  planes_.push_back(drawn.plane);
}

void RandomLayer::AddNumbers(Random* random, kvevict_role role) {
  const kvevict_dtype dtype = RandomDType(random);
  RandomPlane drawn;
  if (random->OneOf(2)) {
    drawn = DrawPlane(random, dtype, 1, n_kv_heads_, RowsOfBlock(), n_blocks_,
                      /*may_group=*/false, BlockAlign());
  } else {  // one per head, or one for all
    drawn.plane.dtype = dtype;
    drawn.plane.head_dim = 1;
    if (random->OneOf(2)) {
      drawn.plane.head_stride_bytes = int64_t{ElementBytesOf(dtype)};
    }
    drawn.n_bytes = uint64_t{n_kv_heads_} * ElementBytesOf(dtype);
  }
  AddPlane(drawn, role);
}

void RandomLayer::AddPacked(Random* random, kvevict_role role,
                            uint32_t head_dim) {
  const bool is_recent = IsRecentRole(role);
  const uint32_t n_rows =
      is_recent ? n_slots_ - first_recent_
                : (RowsOfBlock() + group_tokens_ - 1) / group_tokens_;
  RandomPlane drawn;
  do {
    drawn = DrawPlane(random, RandomDType(random), head_dim, n_kv_heads_,
                      n_rows, is_recent ? 1 : n_blocks_, /*may_group=*/false,
                      is_recent ? 1 : BlockAlign());
  } while (drawn.plane.element_stride_bytes != 0);
  if (is_recent) {
    drawn.plane.block_stride_bytes = 0;
  } else {
    drawn.plane.group_tokens = group_tokens_;
  }
  AddPlane(drawn, role);
}

void RandomLayer::WriteNumber(Random* random, const kvevict_plane& plane,
                              uint64_t offset) {
  const bool of_keys = plane.role == KVEVICT_ROLE_KEY_SCALE ||
                       plane.role == KVEVICT_ROLE_KEY_MINIMUM;
  const NumberRange range = RangeOf(plane.role, planes_[of_keys ? 0 : 1].dtype);
  StoreValue(
      plane.dtype,
      range.unit * static_cast<float>(random->In(range.least, range.most)),
      host_.data() + offset);
}

// All blocks differ, also those of heads with tables of their own.
void RandomLayer::DrawTables(const Gpu& gpu, Random* random, bool by_head) {
  if (block_size_ == 0) {
    block_size_ = group_tokens_ > 0 ? group_tokens_ * random->In(1, 2)
                                    : random->Pick({1u, 2u, 7u, 16u});
  }
  const uint32_t n_rows = std::max(n_slots_, ring_slots_);
  const uint32_t used = (n_rows + block_size_ - 1) / block_size_;
  has_addresses_ = random->OneOf(2);
  has_ids_ = !has_addresses_ || random->OneOf(2);
  if (by_head || random->OneOf(3)) {
    table_head_stride_ = used + random->In(0, 2);
  }
  const uint32_t n_entries =
      table_head_stride_ == 0 ? used : table_head_stride_ * n_kv_heads_;
  n_blocks_ = n_entries + random->In(0, 3);
  block_table_.resize(n_blocks_);
  std::iota(block_table_.begin(), block_table_.end(), 0);
  for (uint32_t i = n_blocks_ - 1; i > 0; --i) {
    std::swap(block_table_[i], block_table_[random->In(0, i)]);
  }
  block_table_.resize(n_entries);
  device_table_ = std::make_unique<Buffer>(gpu, n_entries * sizeof(int32_t));
  device_table_->Write(block_table_.data(), device_table_->n_bytes());
}

std::vector<uint64_t> RandomLayer::AddressesOf(const kvevict_plane& plane,
                                               uint64_t base) const {
  const uint64_t first = base + plane.data / 16 * 16;
  const auto address_of = [&](int64_t id) {
    return first + static_cast<uint64_t>(id * plane.block_stride_bytes);
  };
  std::vector<uint64_t> addresses;
  if (has_ids_) {
    for (uint32_t id = 0; id < n_blocks_; ++id) {
      addresses.push_back(address_of(id));
    }
  } else {
    for (const int32_t id : block_table_) addresses.push_back(address_of(id));
  }
  return addresses;
}

void RandomLayer::View(uint64_t base, const std::vector<uint64_t>& tables,
                       kvevict_view* view,
                       std::vector<kvevict_plane>* companions) const {
  std::vector<kvevict_plane> planes = planes_;
  for (size_t i = 0; i < planes.size(); ++i) {
    if (!has_addresses_ || IsConstant(planes[i]) ||
        IsRecentRole(planes[i].role)) {
      planes[i].data += base;
      continue;
    }
    planes[i].data %= 16;  // blocks begin at multiples of it
    planes[i].block_stride_bytes = 0;
    planes[i].address_table = tables[i];
    planes[i].address_table_len =
        has_ids_ ? n_blocks_ : static_cast<uint32_t>(block_table_.size());
  }
  view->n_kv_heads = n_kv_heads_;
  view->k = planes[0];
  view->v = planes[1];
  companions->assign(planes.begin() + 2, planes.end());
  view->companions = companions->empty() ? nullptr : companions->data();
  view->n_companions = static_cast<uint32_t>(companions->size());
  view->block_size = block_size_;
  view->block_table_len = has_ids_ ? block_table_.size() : 0;
  view->block_table_head_stride = table_head_stride_;
  view->ring_slots = ring_slots_;
  view->ring_first = ring_first_;
  view->first_recent = first_recent_ == UINT32_MAX ? 0 : first_recent_;
}

uint64_t RandomLayer::Offset(const kvevict_plane& plane, uint32_t slot,
                             uint32_t head, uint32_t element) const {
  int64_t offset = static_cast<int64_t>(plane.data);
  if (ring_slots_ > 0) slot = (slot + ring_first_) % ring_slots_;
  const bool is_recent = IsRecentRole(plane.role);
  if (is_recent) slot -= first_recent_;
  if (block_size_ > 0 && !is_recent) {
    offset += block_table_[head * table_head_stride_ + slot / block_size_] *
              plane.block_stride_bytes;
    slot %= block_size_;
  }
  if (plane.group_tokens > 0) slot /= group_tokens_;
  offset += slot * plane.token_stride_bytes + head * plane.head_stride_bytes;
  if (plane.group_elems > 0) {
    offset += element / plane.group_elems * plane.group_stride_bytes;
    element %= plane.group_elems;
  }
  if (plane.dtype != KVEVICT_DTYPE_OPAQUE) {
    offset += element * (plane.element_stride_bytes != 0
                             ? plane.element_stride_bytes
                             : int64_t{ElementBytesOf(plane.dtype)});
  }
  return static_cast<uint64_t>(offset);
}

template <typename Visit>
void RandomLayer::ForEachPiece(uint32_t head, uint32_t slot,
                               const Visit& visit) const {
  for (const kvevict_plane& plane : planes_) {
    if (IsRecentRole(plane.role) && slot < first_recent_) continue;
    if (plane.group_tokens > 0 && slot % group_tokens_ != 0) continue;
    for (uint32_t e = 0; e < Units(plane); ++e) {
      visit(plane, Offset(plane, slot, head, e), UnitBytes(plane));
    }
  }
}

void RandomLayer::WriteRows(Random* random, uint32_t head, uint32_t slot,
                            bool special) {
  ForEachPiece(
      head, slot,
      [&](const kvevict_plane& plane, uint64_t offset, uint32_t n_bytes) {
        uint8_t* to = host_.data() + offset;
        if (plane.dtype == KVEVICT_DTYPE_OPAQUE) {
          for (uint32_t i = 0; i < n_bytes; ++i) {
            to[i] = static_cast<uint8_t>(random->Bits());
          }
        } else if (plane.role != KVEVICT_ROLE_NONE &&
                   !IsRecentRole(plane.role)) {
          if (!IsConstant(plane)) WriteNumber(random, plane, offset);
        } else if (Units(plane) != plane.head_dim) {
          FillWithValues(random->Bits(), plane.dtype, plane.head_dim, to);
        } else {
          WriteRandomElement(random, plane.dtype, special, to);
        }
      });
}

void RandomLayer::Upload() const {
  device_->Write(host_.data(), host_.size(), device_base_ - device_->address());
}

uint8_t* RandomLayer::ElementAt(bool of_values, uint32_t head, uint32_t slot,
                                uint32_t element) {
  return &host_[Offset(planes_[of_values ? 1 : 0], slot, head, element)];
}

float* RandomLayer::BiasAt(uint32_t head, uint32_t slot) {
  for (const kvevict_plane& plane : planes_) {
    if (plane.role != KVEVICT_ROLE_BIAS) continue;
    return reinterpret_cast<float*>(&host_[Offset(plane, slot, head, 0)]);
  }
  return nullptr;
}

void RandomLayer::Fetch() {
  device_->Read(host_.data(), host_.size(), device_base_ - device_->address());
}

std::string RandomLayer::TakeTables() {
  if (has_ids_) {
    return device_table_->ReadAll<int32_t>() == block_table_
               ? ""
               : "the tables of ids differ";
  }
  const auto host_base = reinterpret_cast<uintptr_t>(host_.data());
  for (size_t i = 0; i < planes_.size(); ++i) {
    std::vector<uint64_t> there = device_addresses_[i].ReadAll<uint64_t>();
    for (uint64_t& address : there) address += host_base - device_base_;
    if (there != host_addresses_[i]) return "the tables of addresses differ";
  }
  const std::vector<uint64_t> before = AddressesOf(planes_[0], host_base);
  std::vector<int32_t> blocks;
  for (const uint64_t address : host_addresses_[0]) {
    const auto at = std::find(before.begin(), before.end(), address);
    blocks.push_back(block_table_[static_cast<size_t>(at - before.begin())]);
  }
  block_table_ = std::move(blocks);
  return "";
}

std::string RandomLayer::Compare(const std::vector<uint32_t>& n_tokens) const {
  const uint64_t shift = device_base_ - device_->address();
  std::vector<uint8_t> got(host_.size());
  device_->Read(got.data(), got.size(), shift);
  std::vector<uint8_t> loose(host_.size());  // bytes that may hold anything
  for (uint32_t head = 0; head < n_kv_heads_; ++head) {
    for (uint32_t slot = n_tokens[head]; slot < n_slots_; ++slot) {
      ForEachPiece(
          head, slot,
          [&](const kvevict_plane& plane, uint64_t offset, uint32_t n_bytes) {
            if (plane.group_tokens > 0 || IsRecentRole(plane.role)) return;
            std::fill_n(loose.begin() + static_cast<long>(offset), n_bytes, 1);
          });
    }
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (loose[i] == 0 && got[i] != host_[i]) {
      return fmt::format("byte {} of {} differs", i, got.size());
    }
  }
  return "";
}

}  // namespace kvevict::gpu
