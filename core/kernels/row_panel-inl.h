// Rows packed in panels, for products of many rows of a head with many others.
#if defined(KVEVICT_CORE_KERNELS_ROW_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_ROW_PANEL_INL_H_
#undef KVEVICT_CORE_KERNELS_ROW_PANEL_INL_H_
#else
#define KVEVICT_CORE_KERNELS_ROW_PANEL_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/dtypes/load-inl.h"
#include "core/kernels/row_source.h"
#include "core/kernels/window_attention_product-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

// Rows that are multiplied with a panel together. With so many, packing the
// panel takes little time compared to the products, and they fit in the L2
// cache.
inline constexpr uint32_t kBlock = 192;
static_assert(kBlock % kRowsPerBlock == 0);

// Makes rows of a panel far enough apart that they do not evict each other from
// the L1 cache.
constexpr size_t StagedRow(size_t dim) { return PaddedRow(dim) + kRowPad; }

// KeysPerPanel() rows, as [padded, width].
class RowPanel {
 public:
  // staged: scratch of StagedFloats(), panel: PanelFloats().
  RowPanel(size_t dim, float* staged, float* panel)
      : dim_(dim), staged_(staged), panel_(panel) {}

  static constexpr size_t StagedFloats(size_t dim) {
    return 2 * kRowPad * StagedRow(dim);
  }
  static constexpr size_t PanelFloats(size_t dim) {
    return 2 * kRowPad * PaddedRow(dim);
  }
  static uint32_t Width() { return static_cast<uint32_t>(KeysPerPanel()); }
  size_t padded() const { return PaddedRow(dim_); }
  const float* data() const { return panel_; }
  // A row of the panel as load() wrote it.
  const float* RowAt(uint32_t i) const { return staged_ + i * StagedRow(dim_); }

  // Packs rows 0 .. n - 1 as load(i, row) writes them, [padded] each, followed
  // by zeros.
  template <class Load>
  HWY_INLINE void Pack(uint32_t n, const Load& load) const {
    const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(RowTag()));
    const size_t stride = StagedRow(dim_);
    for (uint32_t i = 0; i < Width(); i += lanes) {
      float* const rows = staged_ + i * stride;
      for (uint32_t r = 0; r < lanes; ++r) {
        float* const row = rows + r * stride;
        if (i + r < n) {
          load(i + r, row);
        } else {
          std::fill_n(row, padded(), 0.0f);
        }
      }
      Transpose(rows, stride, padded(), panel_ + i, Width());
    }
  }

  // sums[i] = the sum over the elements of row i, in order, by add(element, its
  // values in several rows, sums so far).
  template <class Add>
  HWY_INLINE void SumOver(const Add& add, float* sums) const {
    const RowTag d;
    const size_t lanes = hn::Lanes(d);
    auto a = hn::Zero(d), b = a;
    const float* at = panel_;
    for (size_t e = 0; e < dim_; ++e, at += 2 * lanes) {
      a = add(e, hn::LoadU(d, at), a);
      b = add(e, hn::LoadU(d, at + lanes), b);
    }
    hn::StoreU(a, d, sums);
    hn::StoreU(b, d, sums + lanes);
  }
  HWY_INLINE void SquaresOf(float* sums) const {
    SumOver([](size_t, auto v, auto sum)
                HWY_ATTR { return hn::MulAdd(v, v, sum); },
            sums);
  }

 private:
  const size_t dim_;
  float* const staged_;
  float* const panel_;
};

// row[0, padded) *= scale.
HWY_INLINE void ScaleRow(float scale, size_t padded, float* row) {
  const RowTag d;
  const auto by = hn::Set(d, scale);
  for (size_t i = 0; i < padded; i += hn::Lanes(d)) {
    hn::StoreU(hn::Mul(hn::LoadU(d, row + i), by), d, row + i);
  }
}

// sum[0, padded) += row * scale.
HWY_INLINE void AddScaledRow(const float* HWY_RESTRICT row, float scale,
                             size_t padded, float* HWY_RESTRICT sum) {
  const RowTag d;
  const auto by = hn::Set(d, scale);
  for (size_t i = 0; i < padded; i += hn::Lanes(d)) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, row + i), by, hn::LoadU(d, sum + i)), d,
               sum + i);
  }
}

constexpr size_t BlockFloats(size_t dim) { return kBlock * dim; }

// Packs n <= kBlock rows, as load(i, row) writes them, to [groups, dim,
// kRowsPerBlock]. Rows that fill up the last group are 0. `row` is scratch for
// one. Returns the number of groups.
template <class Load>
HWY_INLINE uint32_t PackBlock(uint32_t n, size_t dim, const Load& load,
                              float* HWY_RESTRICT row,
                              float* HWY_RESTRICT block) {
  const auto n_groups =
      static_cast<uint32_t>((n + kRowsPerBlock - 1) / kRowsPerBlock);
  for (uint32_t r = 0; r < n_groups * kRowsPerBlock; ++r) {
    if (r < n) {
      load(r, row);
    } else {
      std::fill_n(row, dim, 0.0f);
    }
    float* const to =
        block + r / kRowsPerBlock * dim * kRowsPerBlock + r % kRowsPerBlock;
    for (size_t e = 0; e < dim; ++e) to[e * kRowsPerBlock] = row[e];
  }
  return n_groups;
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
