// One head's keys as directions, in panels, and their sum.
#if defined(KVEVICT_CORE_KERNELS_DIRECTIONS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_DIRECTIONS_INL_H_
#undef KVEVICT_CORE_KERNELS_DIRECTIONS_INL_H_
#else
#define KVEVICT_CORE_KERNELS_DIRECTIONS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/kernels/copy_row-inl.h"
#include "core/kernels/row_panel-inl.h"
#include "core/kernels/row_source.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

// Tokens whose directions are added up separately, in whole panels: few enough
// that f32 loses little.
constexpr uint32_t kPiece = 256;

// Keys [first, first + n_tokens), and the factor that turns each into a
// direction.
struct Directions {
  const RowSource& keys;
  uint32_t first;
  uint32_t n_tokens;
  uint32_t head_dim;
  float inside;  // scale = 1 / (sqrt(square + inside) + beside)
  float beside;
  float* scales;  // [n_tokens]; 0: the key has no finite norm
};

// Keys in panels.
class DirectionPanels : public RowPanel {
 public:
  DirectionPanels(const Directions& args, float* staged, float* panel)
      : RowPanel(args.head_dim, staged, panel), args_(args) {
    // Elements that are not packed may each be on a cache line of their own,
    // which is too many to prefetch.
    if (args.keys.IsPacked(ElementBytes(args.keys.dtype))) {
      near_bytes_ =
          static_cast<uint32_t>(PackedBytes(args.keys.dtype, args.head_dim));
    }
  }

  // Packs keys [first, first + Width()), unchanged or as directions; 0 past the
  // last one.
  HWY_INLINE void Pack(uint32_t first, bool scaled) const {
    RowPanel::Pack(std::min(Width(), args_.n_tokens - first),
                   [&](uint32_t i, float* row)
                       HWY_ATTR { Load(first + i, scaled, row); });
  }
  // The same, and prefetches the next panel.
  HWY_INLINE void PackOnward(uint32_t first, bool scaled) const {
    RowPanel::Pack(std::min(Width(), args_.n_tokens - first),
                   [&](uint32_t i, float* row) HWY_ATTR {
                     const uint32_t later = first + i + Width();
                     if (later < args_.n_tokens) {
                       PrefetchRow(args_.keys.Row(args_.first + later),
                                   near_bytes_);
                     }
                     Load(first + i, scaled, row);
                   });
  }

  // row[0, padded()) = a key.
  HWY_INLINE void Load(uint32_t key, bool scaled, float* row) const {
    const float scale = scaled ? args_.scales[key] : 1.0f;
    if (scale == 0.0f) {
      std::fill_n(row, padded(), 0.0f);
      return;
    }
    LoadRow(args_.keys, args_.first + key, 0, args_.head_dim, row);
    if (scaled) ScaleRow(scale, padded(), row);
  }

 private:
  const Directions& args_;
  uint32_t near_bytes_ = 0;
};

// Fills the scales, and sum[0, padded) with the sum of all directions. `piece`
// is scratch for a row.
HWY_INLINE void FindDirections(const Directions& args,
                               const DirectionPanels& panels, float* sum,
                               float* piece) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float squares[2 * kRowPad];
  const size_t padded = panels.padded();
  std::fill_n(sum, padded, 0.0f);
  for (uint32_t first = 0; first < args.n_tokens; first += kPiece) {
    const uint32_t end = std::min(args.n_tokens, first + kPiece);
    std::fill_n(piece, padded, 0.0f);
    for (uint32_t t = first; t < end; t += RowPanel::Width()) {
      const uint32_t after = std::min(end, t + RowPanel::Width());
      panels.PackOnward(t, false);
      panels.SquaresOf(squares);
      for (uint32_t i = t; i < after; ++i) {
        const float norm = std::sqrt(squares[i - t] + args.inside);
        args.scales[i] = norm < kInfinity ? 1.0f / (norm + args.beside) : 0.0f;
        if (args.scales[i] == 0.0f) continue;
        AddScaledRow(panels.RowAt(i - t), args.scales[i], padded, piece);
      }
    }
    AddScaledRow(piece, 1.0f, padded, sum);
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
