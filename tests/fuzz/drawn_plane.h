// Planes of any kind, in memory of exactly the bytes that their strides reach.
#ifndef KVEVICT_TESTS_FUZZ_DRAWN_PLANE_H_
#define KVEVICT_TESTS_FUZZ_DRAWN_PLANE_H_

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "tests/oracle/compact.h"

namespace kvevict {

// Rows of any dtype; those with pairs and blocks usually have whole ones.
inline kvevict_plane DrawRows(Draw& draw) {
  kvevict_plane plane{};
  plane.dtype = static_cast<kvevict_dtype>(draw.Below(12));
  uint32_t dim = 1 + draw.Below(6);
  if (plane.dtype >= KVEVICT_DTYPE_U4 && draw.Below(20) > 0) {
    dim *= plane.dtype >= KVEVICT_DTYPE_Q8_0 ? 32 : 2;
  }
  (plane.dtype == KVEVICT_DTYPE_OPAQUE ? plane.row_bytes : plane.head_dim) =
      dim;
  return plane;
}

inline kvevict_plane DrawNumber(Draw& draw, kvevict_role role) {
  kvevict_plane plane{};
  plane.dtype = static_cast<kvevict_dtype>(1 + draw.Below(3));
  plane.head_dim = 1;
  plane.role = role;
  return plane;
}

// Strides that nest in a random order and direction with gaps; sometimes any.
inline void DrawStrides(Draw& draw, const kvevict_view& view, uint32_t n_tokens,
                        bool has_addresses, kvevict_plane* plane) {
  struct Axis {
    int64_t* stride;
    uint32_t n;
  };
  const uint32_t n_rows = std::max(n_tokens, view.ring_slots);
  const uint32_t in_block =
      view.block_size == 0 ? n_rows : std::min(n_rows, view.block_size);
  std::vector<Axis> axes = {{&plane->token_stride_bytes, in_block},
                            {&plane->head_stride_bytes, view.n_kv_heads}};
  if (view.block_size > 0 && !has_addresses) {
    axes.push_back({&plane->block_stride_bytes, n_rows + 1});
  }
  int64_t reach = oracle_row_bytes(plane);
  const bool has_elements =
      plane->dtype != KVEVICT_DTYPE_OPAQUE && plane->dtype < KVEVICT_DTYPE_U4;
  if (has_elements && draw.Below(2) == 0) {
    const int64_t element = reach / plane->head_dim;
    if (draw.Below(2) == 0) {
      axes.push_back({&plane->element_stride_bytes, plane->head_dim});
      reach = element;
    } else {
      do {
        plane->group_elems = 1 + draw.Below(plane->head_dim);
      } while (plane->head_dim % plane->group_elems != 0);
      axes.push_back(
          {&plane->group_stride_bytes, plane->head_dim / plane->group_elems});
      reach = element * plane->group_elems;
    }
  }
  for (size_t i = axes.size(); i > 1; --i) {
    std::swap(axes[i - 1], axes[draw.Below(static_cast<uint32_t>(i))]);
  }
  for (const Axis& axis : axes) {
    *axis.stride = reach + draw.Below(4);
    reach += *axis.stride * (std::max(axis.n, 1u) - 1);
    if (draw.Below(3) == 0) *axis.stride = -*axis.stride;
    if (draw.Below(40) == 0) *axis.stride = int64_t{draw.Below(90)} - 40;
  }
}

// The memory of a plane: one piece, or one for each block with an address.
class PlaneMemory {
 public:
  // Gives the plane its addresses; false if they would take too much. `n_blocks` is
  // that of an address table, 0 without one.
  bool Place(Draw& draw, const kvevict_view& view, uint32_t n_tokens,
             uint32_t n_blocks, kvevict_plane* plane) {
    pieces_.resize(std::max(n_blocks, 1u));
    addresses_.resize(n_blocks);
    const uint64_t within = n_blocks > 0 ? draw.Below(4) : 0;
    for (uint32_t i = 0; i < n_blocks; ++i) addresses_[i] = FakeAddress(i);
    plane->address_table = reinterpret_cast<uint64_t>(addresses_.data());
    plane->address_table_len = n_blocks;
    plane->data = n_blocks > 0 ? within : FakeAddress(0);
    ForEachByte(view, *plane, 0, n_tokens, [&](uint64_t fake) {
      Piece& piece = pieces_[PieceOf(fake)];
      const int64_t at = OffsetOf(fake);
      piece.low = piece.high > piece.low ? std::min(piece.low, at) : at;
      piece.high = std::max(piece.high, at + 1);
    });
    int64_t n_bytes = 0;
    for (const Piece& piece : pieces_) n_bytes += piece.high - piece.low;
    if (n_bytes > kMostBytes) return false;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      Piece& piece = pieces_[i];
      const auto n = static_cast<size_t>(piece.high - piece.low);
      piece.memory = std::make_unique<uint8_t[]>(std::max<size_t>(n, 1));
      for (size_t b = 0; b < n; ++b) {
        piece.memory[b] = static_cast<uint8_t>(b * 7 + draw.Byte());
      }
      const uint64_t begin = reinterpret_cast<uint64_t>(piece.memory.get()) -
                             static_cast<uint64_t>(piece.low);
      // A block without tokens has none.
      if (n_blocks > 0) addresses_[i] = n > 0 ? begin : 0;
      if (n_blocks == 0) plane->data = begin;
    }
    return true;
  }

  void Remember() {
    for (Piece& piece : pieces_) piece.other = piece.Bytes();
  }
  bool IsUntouched() const {
    return std::all_of(pieces_.begin(), pieces_.end(), [](const Piece& piece) {
      return piece.other == piece.Bytes();
    });
  }
  // Exchanges the memory's content with the remembered one.
  void Exchange() {
    for (Piece& piece : pieces_) {
      const std::vector<uint8_t> now = piece.Bytes();
      std::copy(piece.other.begin(), piece.other.end(), piece.memory.get());
      piece.other = now;
    }
  }
  // Whether the memory is as remembered, except for rows [first_open, n_tokens).
  bool IsAsBefore(const kvevict_view& view, const kvevict_plane& plane,
                  uint32_t first_open, uint32_t n_tokens) {
    ForEachByte(view, plane, first_open, n_tokens, [&](uint64_t address) {
      *reinterpret_cast<uint8_t*>(address) = 0;
    });
    Exchange();
    ForEachByte(view, plane, first_open, n_tokens, [&](uint64_t address) {
      *reinterpret_cast<uint8_t*>(address) = 0;
    });
    return IsUntouched();
  }

 private:
  static constexpr int64_t kMostBytes = 1 << 16;
  // The pieces lie far apart until they have memory.
  static constexpr uint64_t kApart = uint64_t{1} << 40;

  struct Piece {
    int64_t low = 0;   // first byte reached
    int64_t high = 0;  // one past the last
    std::unique_ptr<uint8_t[]> memory;
    std::vector<uint8_t> other;

    std::vector<uint8_t> Bytes() const {
      return {memory.get(), memory.get() + (high - low)};
    }
  };

  static uint64_t FakeAddress(uint64_t piece) { return (piece + 1) * kApart; }
  static uint64_t PieceOf(uint64_t fake) {
    return (fake + kApart / 2) / kApart - 1;
  }
  static int64_t OffsetOf(uint64_t fake) {
    return static_cast<int64_t>(fake - FakeAddress(PieceOf(fake)));
  }

  template <typename Visit>
  static void ForEachByte(const kvevict_view& view, const kvevict_plane& plane,
                          uint32_t first, uint32_t n_tokens,
                          const Visit& visit) {
    for (uint32_t t = first; t < n_tokens; ++t) {
      for (uint32_t h = 0; h < view.n_kv_heads; ++h) {
        for (uint32_t b = 0; b < oracle_row_bytes(&plane); ++b) {
          visit(reinterpret_cast<uint64_t>(
              oracle_row_byte(&view, &plane, t, h, b)));
        }
      }
    }
  }

  std::vector<Piece> pieces_;
  std::vector<uint64_t> addresses_;
};

}  // namespace kvevict

#endif  // KVEVICT_TESTS_FUZZ_DRAWN_PLANE_H_
