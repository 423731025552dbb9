#include "tests/kernels/row_store.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "hwy/base.h"
#include "tests/kernels/half_bits.h"

namespace kvevict {
namespace {

uint16_t Bits16(DType dtype, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (dtype == DType::kBF16) return static_cast<uint16_t>(bits >> 16);
  const hwy::float16_t half = hwy::F16FromF32(value);
  uint16_t result;
  std::memcpy(&result, &half, sizeof(result));
  return result;
}

void StoreElement(DType dtype, float value, uint8_t* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, &value, sizeof(value));
  } else {
    const uint16_t bits = Bits16(dtype, value);
    std::memcpy(to, &bits, sizeof(bits));
  }
}

constexpr uint32_t kMoreInRing = 3;  // more rows than are used

struct Shape {
  uint32_t group_elems = 0;
  int64_t group_stride = 0;
  int64_t element_stride;
  int64_t row_stride;
  int64_t block_stride;
  size_t n_blocks;
  size_t bytes;
};

Shape ShapeOf(size_t n_rows, size_t dim, const RowLayout& layout) {
  const int64_t size = ElementBytes(layout.dtype);
  Shape s;
  if (layout.grouped) {
    s.group_elems = 8;
    while (dim % s.group_elems != 0) --s.group_elems;
    s.element_stride = size;
    s.row_stride = s.group_elems * size;
    s.group_stride = static_cast<int64_t>(n_rows) * s.row_stride;
    s.n_blocks = 1;
    s.bytes = n_rows * dim * static_cast<size_t>(size);
    s.block_stride = 0;
    return s;
  }
  if (layout.transposed) {
    s.row_stride = size;
    s.element_stride = static_cast<int64_t>(n_rows) * size;
  } else {
    s.element_stride = size * layout.element_step;
    s.row_stride = static_cast<int64_t>(dim - 1) * s.element_stride + size +
                   layout.row_gap_bytes;
  }
  const size_t rows_per_block =
      layout.block_size == 0 ? n_rows : layout.block_size;
  const size_t n_stored = n_rows + (layout.far ? kMoreInRing : 0);
  s.n_blocks = (n_stored + rows_per_block - 1) / rows_per_block;
  const int64_t block_bytes =
      static_cast<int64_t>(rows_per_block - 1) * s.row_stride +
      static_cast<int64_t>(dim - 1) * s.element_stride + size;
  s.block_stride = block_bytes + layout.row_gap_bytes;
  s.bytes = static_cast<size_t>(
      static_cast<int64_t>(s.n_blocks - 1) * s.block_stride + block_bytes);
  return s;
}

}  // namespace

std::vector<float> RoundTo(DType dtype, std::vector<float> values) {
  for (float& value : values) {
    if (dtype == DType::kBF16) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      bits &= 0xFFFF0000u;
      std::memcpy(&value, &bits, sizeof(bits));
    } else if (dtype == DType::kF16) {
      value = hwy::F32FromF16(hwy::F16FromF32(value));
    }
  }
  return values;
}

double StoreError(DType dtype, double v) {
  const int bits = dtype == DType::kF32 ? 24 : dtype == DType::kF16 ? 11 : 8;
  return std::abs(v) * std::ldexp(1.0, -bits) +
         (dtype == DType::kF16 ? 0x1p-25 : 0.0);
}

float ElementOf(const RowSource& rows, uint32_t row, uint32_t i) {
  const uint8_t* const at = rows.Row(row) + rows.Element(i);
  if (rows.dtype == DType::kF32) {
    float v;
    std::memcpy(&v, at, sizeof(v));
    return v;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return static_cast<float>(rows.dtype == DType::kF16 ? DecodeF16(bits)
                                                      : DecodeBF16(bits));
}

RowStore::RowStore(const std::vector<float>& rows, uint32_t dim,
                   const RowLayout& layout)
    : n_bytes_(ShapeOf(rows.size() / dim, dim, layout).bytes),
      memory_(n_bytes_, layout.guard) {
  const size_t n_rows = rows.size() / dim;
  Shape shape = ShapeOf(n_rows, dim, layout);
  std::memset(memory_.data(), 0xFF, shape.bytes);

  source_.base = memory_.data();
  source_.dtype = layout.dtype;
  const int64_t last_row = static_cast<int64_t>(
      (layout.block_size == 0 ? n_rows : layout.block_size) - 1);
  if (layout.reversed_rows) {
    source_.base += last_row * shape.row_stride;
    shape.row_stride = -shape.row_stride;
  }
  if (layout.reversed_elements) {
    source_.base += int64_t{dim - 1} * shape.element_stride;
    shape.element_stride = -shape.element_stride;
  }
  source_.row_stride = shape.row_stride;
  source_.element_stride = shape.element_stride;
  source_.group_elems = shape.group_elems;
  source_.group_stride = shape.group_stride;
  if (layout.block_size > 0) {
    // Odd blocks come first, descending, then even ones, ascending.
    for (size_t b = shape.n_blocks; b-- > 0;) {
      if (b % 2 == 1) block_table_.push_back(static_cast<int32_t>(b));
    }
    for (size_t b = 0; b < shape.n_blocks; b += 2) {
      block_table_.push_back(static_cast<int32_t>(b));
    }
    source_.block_size = layout.block_size;
    source_.block_stride = shape.block_stride;
    source_.block_table = block_table_.data();
  }
  if (layout.far) {
    source_.is_plain = false;
    source_.ring_slots = static_cast<uint32_t>(n_rows) + kMoreInRing;
    source_.ring_first = source_.ring_slots / 2;
    source_.block_table = nullptr;
    for (const int32_t block : block_table_) {
      addresses_.push_back(reinterpret_cast<uintptr_t>(memory_.data()) +
                           static_cast<uint64_t>(block * shape.block_stride));
    }
    source_.addresses = addresses_.data();
    source_.origin = reinterpret_cast<uintptr_t>(memory_.data());
    source_.block_stride = 0;
  }
  for (size_t r = 0; r < n_rows; ++r) {
    const uint8_t* row = source_.Row(static_cast<uint32_t>(r));
    for (size_t i = 0; i < dim; ++i) {
      StoreElement(layout.dtype, rows[r * dim + i],
                   const_cast<uint8_t*>(row) + source_.Element(i));
    }
  }
}

std::vector<RowLayout> EveryLayout(DType dtype) {
  RowLayout gap, spread, reversed, paged, transposed, grouped, far;
  gap.row_gap_bytes = 3;
  spread.element_step = 3;
  spread.guard = GuardedPages::Against::kBegin;
  reversed.reversed_rows = reversed.reversed_elements = true;
  paged.block_size = 5;
  paged.row_gap_bytes = 2;
  transposed.transposed = true;
  grouped.grouped = true;
  far.far = true;
  far.block_size = 3;
  std::vector<RowLayout> layouts = {RowLayout(), gap,        spread,  reversed,
                                    paged,       transposed, grouped, far};
  for (RowLayout& layout : layouts) layout.dtype = dtype;
  return layouts;
}

RowLayout AnyLayout(Random& random, DType dtype) {
  const std::vector<RowLayout> layouts = EveryLayout(dtype);
  return layouts[random.Below(static_cast<uint32_t>(layouts.size()))];
}

}  // namespace kvevict
