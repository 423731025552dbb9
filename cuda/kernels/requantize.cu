// Stores rows as another dtype, with the bytes of core/kernels/requantize.cc on
// targets with a fused multiply-add.
#include "requantize.h"

#include "cache_rows.cuh"
#include "codes.cuh"
#include "device.cuh"
#include "requantized_rows.cuh"

namespace kvevict::cuda {

namespace {

constexpr uint32_t kWarp = 32;

// A row that is read, by the lanes of a warp.
template <class Tag>
struct FromRow {
  const CacheRows& rows;
  CacheRow row;
  uint32_t lane;

  KV_DEVICE float Element(uint32_t i) const {
    return LoadElement(Tag(), rows, row, FindElement(Tag(), rows, i));
  }
  // All lanes get the range.
  KV_DEVICE Range FindRange() const {
    Range range;
    for (uint32_t i = lane; i < rows.n_elements; i += kWarp) {
      range.Widen(Element(i));
    }
    range.OverWarp();
    return range;
  }
};

// A row that is written.
struct ToRow {
  const CacheRows& rows;
  uint64_t address;
  uint64_t scale;  // addresses of scale and minimum; 0: none
  uint64_t minimum;
};

template <class Tag>
KV_DEVICE Coder FindCoder(Tag, const Range& range, const ToRow& to,
                          uint32_t lane) {
  Coder coder = {1.0f, 0.0f, 0.0f};
  const RowNumbers& scale = to.rows.scale;
  const RowNumbers& minimum = to.rows.minimum;
  if (to.scale == 0) return coder;
  if (scale.is_constant != 0) {
    coder.scale = LoadNumber(scale.dtype, to.scale);
    if (to.minimum != 0) coder.minimum = LoadNumber(minimum.dtype, to.minimum);
    return coder;
  }
  if constexpr (IsSmallFloat(Tag::kValue)) {
    coder.scale = ScaleOf<Tag::kValue>(range, scale.dtype);
  } else {
    coder = NumbersOf<Tag::kValue>(range, scale.dtype, minimum.dtype,
                                   to.minimum != 0);
  }
  if (lane == 0) {
    StoreNumber(scale.dtype, to.scale, coder.scale);
    if (to.minimum != 0) {
      StoreNumber(minimum.dtype, to.minimum,
                  IsNumber(coder.scale) ? coder.minimum : 0.0f);
    }
  }
  if constexpr (!IsSmallFloat(Tag::kValue)) coder.Reach();
  return coder;
}

// Stores ggml's blocks of 32, an element per lane.
template <class To, class From>
KV_DEVICE void StoreBlocks(To, const From& from, const ToRow& to) {
  constexpr bool kNibbles = IsNibbles(To::kValue);
  for (uint32_t b = 0; b < to.rows.n_elements / kWarp; ++b) {
    const float v = from.Element(b * kWarp + from.lane);
    Range range;
    range.Widen(v);
    range.OverWarp();
    float most = range.size();
    if (kNibbles) {  // the first of that absolute value, with its sign
      const unsigned lanes = Ballot((v < 0.0f ? -v : v) == most);
      const uint32_t first = PopCount(lanes ^ (lanes - 1)) - 1;
      most = Shuffle(v, range.IsFinite() ? first : 0) + 0.0f;
    }
    const BlockScale scale(most / (kNibbles ? -8.0f : 127.0f),
                           range.IsFinite());
    const uint64_t block = to.address + b * To::kBlockBytes;
    if (from.lane == 0) {
      StoreGlobal(block, static_cast<uint16_t>(scale.bits));
    }
    const uint32_t code = BlockCode<To::kValue>(v, scale.inverse);
    if (kNibbles) {
      const uint32_t high = ShuffleXor(code, 16);
      if (from.lane < 16) {
        StoreGlobal(block + 2 + from.lane,
                    static_cast<uint8_t>(code | high << 4));
      }
    } else {
      StoreGlobal(block + 2 + from.lane, static_cast<uint8_t>(code));
    }
  }
}

template <class To, class From>
KV_DEVICE void StoreCodes(To tag, const From& from, const ToRow& to) {
  const uint32_t n = to.rows.n_elements;
  Range range;
  if (to.scale != 0 && to.rows.scale.is_constant == 0) range = from.FindRange();
  const Coder coder = FindCoder(tag, range, to, from.lane);
  const auto code = [&](uint32_t i) {
    return CodeOf<To::kValue>(from.Element(i), coder);
  };
  if constexpr (IsNibbles(To::kValue)) {
    for (uint32_t j = from.lane; j < n / 2; j += kWarp) {
      const bool pairs = To::kFacts.packing == Packing::kPairs;
      const uint32_t low = code(pairs ? 2 * j + 1 : j);
      const uint32_t high = code(pairs ? 2 * j : n / 2 + j);
      StoreGlobal(to.address + j, static_cast<uint8_t>(low | high << 4));
    }
  } else {
    for (uint32_t i = from.lane; i < n; i += kWarp) {
      StoreGlobal(to.address + ElementOffset(to.rows.layout, i),
                  static_cast<uint8_t>(code(i)));
    }
  }
}

template <class To, class From>
KV_DEVICE void StoreRow(To tag, const From& from, const ToRow& to) {
  if constexpr (To::kHasBlocks) {
    StoreBlocks(tag, from, to);
  } else if constexpr (!To::kIsPlain) {
    StoreCodes(tag, from, to);
  } else {
    for (uint32_t i = from.lane; i < to.rows.n_elements; i += kWarp) {
      const uint64_t at = to.address + ElementOffset(to.rows.layout, i);
      const uint32_t bits = PlainBits<To::kValue>(from.Element(i));
      if constexpr (To::kBytes == 4) {
        StoreGlobal(at, bits);
      } else {
        StoreGlobal(at, static_cast<uint16_t>(bits));
      }
    }
  }
}

// The layout of recent rows.
KV_DEVICE CacheRows AsRecent(const CacheRows& rows) {
  CacheRows recent = rows;
  recent.layout.element_stride = rows.recent.dtype == kF32 ? 4 : 2;
  recent.layout.group_elems = 0;
  return recent;
}

// Calls use(tag, target) with the place to which row i of the list goes. Not
// for codes with scales of token groups, which are not stored here.
template <class Use>
KV_DEVICE void WithTarget(const RequantizedRows& rows, uint32_t i,
                          const Use& use) {
  const RequantizePlane& plane = rows.plane;
  const CacheRows& to = rows.to;
  const uint32_t slot = plane.first_slot + i;
  CacheRow row;
  if (FindRecent(to, rows.head, slot, row)) {
    const CacheRows recent = AsRecent(to);
    const ToRow target = {recent, row.address, 0, 0};
    WithPlainDType(to.recent.dtype, [&](auto tag) { use(tag, target); });
    return;
  }
  if (kReadsTokenGroups && to.scale.group_tokens != 0) return;
  const auto number = [&](const RowNumbers& numbers) {
    return NumberAddress(to.layout, numbers, plane.to_table, rows.head, slot);
  };
  const ToRow target = {
      to, RowAddress(to.layout, plane.to, plane.to_table, rows.head, slot),
      number(to.scale), number(to.minimum)};
  WithDType(to.dtype, [&](auto tag) { use(tag, target); });
}

}  // namespace

// Grid (n_keep / kRequantizeRows of the longest list, n_kv_heads, n_planes). A
// warp stores every 8th of a block's rows, a lane every 32nd element. Reads
// rows twice if they get a new scale, the second time from a cache, and writes
// them once.
KV_KERNEL(requantize_rows, RequantizeParams, kRequantizeThreads, 4) {
  const RequantizePlane& plane = p.planes[blockIdx.z];
  const RequantizedRows rows(p, plane, blockIdx.y);
  const uint32_t lane = threadIdx.x % kWarp;
  for (uint32_t r = threadIdx.x / kWarp; r < kRequantizeRows;
       r += kRequantizeThreads / kWarp) {
    const uint32_t i = blockIdx.x * kRequantizeRows + r;
    if (i >= rows.n_keep) break;
    const CacheRow row = rows.From(i);
    WithTarget(rows, i, [&](auto to, const ToRow& target) {
      WithDType(rows.from.dtype, [&](auto from) {
        StoreRow(to, FromRow<decltype(from)>{rows.from, row, lane}, target);
      });
    });
  }
}

}  // namespace kvevict::cuda
