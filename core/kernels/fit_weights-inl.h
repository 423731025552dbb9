// Weights of queries and kept rows, a tile of them at a time.
#if defined(KVEVICT_CORE_KERNELS_FIT_WEIGHTS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_FIT_WEIGHTS_INL_H_
#undef KVEVICT_CORE_KERNELS_FIT_WEIGHTS_INL_H_
#else
#define KVEVICT_CORE_KERNELS_FIT_WEIGHTS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/dtypes/load-inl.h"
#include "core/kernels/attention_softmax-inl.h"
#include "core/kernels/fit_parts.h"
#include "core/kernels/fit_values.h"
#include "core/kernels/row_panel-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// Weights of queries for a tile of the matrix X, or of X'.
class WeightTile {
 public:
  WeightTile(const FitValues& args, const FitParts& parts, bool by_slots)
      : args_(args), p_(parts), by_slots_(by_slots) {}

  // Fills rows [first, first + n) of X, or with by_slots of X'.
  void Fill(uint32_t first, uint32_t n) const {
    const size_t dim = args_.rows.k_dim;
    const uint32_t width = RowPanel::Width();
    const uint32_t n_groups = PackBlock(
        n, dim,
        [&](uint32_t i, float* row) HWY_ATTR { LoadRowOf(first + i, row); },
        p_.staged, p_.block);
    const RowPanel panel(dim, p_.staged, p_.panel);
    for (uint32_t c = 0; c < p_.n_unknowns; c += width) {
      const auto n_columns =
          static_cast<uint32_t>(std::min<size_t>(width, p_.n_unknowns - c));
      panel.Pack(n_columns, [&](uint32_t i, float* row)
                                HWY_ATTR { LoadColumnOf(c + i, row); });
      for (uint32_t g = 0; g < n_groups; ++g) {
        const uint32_t row = g * static_cast<uint32_t>(kRowsPerBlock);
        HWY_ALIGN float logits[kRowsPerBlock * 2 * kRowPad];
        MultiplyBlock(p_.block + row * dim, panel.data(), dim, logits, width);
        for (uint32_t r = row; r < std::min<size_t>(n, row + kRowsPerBlock);
             ++r) {
          float* const mine = logits + (r - row) * width;
          Weigh(first + r, c, mine);
          std::copy_n(mine, n_columns, p_.tile + r * p_.stride + c);
        }
      }
    }
    for (uint32_t r = 0; r < n; ++r) {
      std::fill(p_.tile + r * p_.stride + p_.n_unknowns,
                p_.tile + (r + 1) * p_.stride, 0.0);
    }
  }

 private:
  HWY_INLINE void LoadRowOf(uint32_t i, float* row) const {
    by_slots_ ? LoadKey(i, row) : LoadScaled(i, row);
  }
  HWY_INLINE void LoadColumnOf(uint32_t i, float* row) const {
    by_slots_ ? LoadScaled(i, row) : LoadKey(i, row);
  }
  HWY_INLINE void LoadKey(uint32_t i, float* row) const {
    LoadRow(args_.rows.keys, static_cast<uint32_t>(args_.keep[i]), 0,
            args_.rows.k_dim, row);
  }
  HWY_INLINE void LoadScaled(uint32_t i, float* row) const {
    LoadQuery(args_.rows, 0, i, row);
    ScaleRow(QueryScale(args_.rows.scale, args_.rows.softcap),
             PaddedRow(args_.rows.k_dim), row);
  }

  // Turns the logits of a row and a panel of columns into weights.
  HWY_INLINE void Weigh(uint32_t row, uint32_t column, float* logits) const {
    const RowTag d;
    const float softcap = args_.rows.softcap;
    const auto cap = hn::Set(d, softcap * kLog2OfE);
    for (size_t i = 0; i < RowPanel::Width(); i += hn::Lanes(d)) {
      auto x = hn::LoadU(d, logits + i);
      if (softcap != 0.0f) x = Cap(d, cap, x);
      if (args_.rows.has_biases()) {
        const auto bias = by_slots_ ? hn::Set(d, p_.biases[row])
                                    : hn::LoadU(d, p_.biases + column + i);
        x = hn::Add(x, hn::Mul(bias, hn::Set(d, kLog2OfE)));
      }
      const auto reference = by_slots_
                                 ? hn::LoadU(d, p_.references + column + i)
                                 : hn::Set(d, p_.references[row]);
      const auto inverse = by_slots_ ? hn::LoadU(d, p_.inverses + column + i)
                                     : hn::Set(d, p_.inverses[row]);
      const auto e = Exp2(d, hn::Sub(x, BaseOf(d, reference)));
      hn::StoreU(hn::Mul(e, inverse), d, logits + i);
    }
  }

  const FitValues& args_;
  const FitParts& p_;
  const bool by_slots_;
};

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
