// The matrix product of a block of rows and a panel, such as queries and keys.
// Also packs these in the order in which the product reads them.
#if defined(KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_PRODUCT_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_PRODUCT_INL_H_
#undef KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_PRODUCT_INL_H_
#else
#define KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/dtypes/load-inl.h"
#include "core/kernels/row_source.h"
#include "core/kernels/window_attention_layout.h"
#include "hwy/highway.h"

// The accumulators need names: vectors of scalable targets cannot be in arrays.
#undef KV_EACH_ROW
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
#define KV_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)
#else
#define KV_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#endif

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Query rows per block: 8 x 2 accumulators fit in 32 registers, and 6 x 2 in 16
// (8 x 2 would spill there and halve the speed).
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
inline constexpr size_t kRowsPerBlock = 6;
#else
inline constexpr size_t kRowsPerBlock = 8;
#endif
static_assert(kRowsPerBlock <= kMaxRowsPerBlock);

// Keys per panel: the two vectors that a block of rows is multiplied with at
// once.
HWY_INLINE size_t KeysPerPanel() { return 2 * hn::Lanes(RowTag()); }

// Loads the r-th query of a batch.
HWY_INLINE void LoadQuery(const WindowAttention& args, const RowBatch& batch,
                          size_t r, float* HWY_RESTRICT row) {
  const auto head = static_cast<int64_t>(batch.head + r / batch.n_rows);
  const uint32_t w = batch.row + static_cast<uint32_t>(r % batch.n_rows);
  if (w < args.n_own) {
    LoadRow(args.queries.At(head * args.query_head_stride), w, 0, args.head_dim,
            row);
  } else {
    LoadRow(args.reference.At(head * args.reference_head_stride),
            w - args.n_own, 0, args.head_dim, row);
  }
}

// Packs [n_heads * n_rows of the batch, head_dim] to [block, head_dim,
// kRowsPerBlock], times factor. Rows that fill up the last block are 0. `row`
// is scratch for one row.
HWY_INLINE void PackQueries(const WindowAttention& args, const RowBatch& batch,
                            float factor, float* HWY_RESTRICT row,
                            float* HWY_RESTRICT packed) {
  const size_t n_rows = batch.size();
  const size_t dim = args.head_dim;
  for (size_t r = 0; r < n_rows; ++r) {
    LoadQuery(args, batch, r, row);
    float* to =
        packed + r / kRowsPerBlock * dim * kRowsPerBlock + r % kRowsPerBlock;
    for (size_t d = 0; d < dim; ++d) to[d * kRowsPerBlock] = row[d] * factor;
  }
  for (size_t r = n_rows; r % kRowsPerBlock != 0; ++r) {
    float* to =
        packed + r / kRowsPerBlock * dim * kRowsPerBlock + r % kRowsPerBlock;
    for (size_t d = 0; d < dim; ++d) to[d * kRowsPerBlock] = 0.0f;
  }
}

#if !HWY_HAVE_SCALABLE && HWY_TARGET != HWY_SCALAR
// Loads four floats of every fourth row, one 16-byte block per row.
template <class D>
HWY_INLINE hn::VFromD<D> LoadEveryFourthRow(D d, const float* from,
                                            size_t row_stride) {
  if constexpr (hn::MaxLanes(d) == 4) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> dh;
    return hn::Combine(
        d,
        LoadEveryFourthRow(dh, from + hn::MaxLanes(dh) * row_stride,
                           row_stride),
        LoadEveryFourthRow(dh, from, row_stride));
  }
}
#endif

// Transposes rows[Lanes(d), dim] to to[dim, to_stride]: one vector per element
// of the rows. Both sides have whole groups of four elements.
HWY_INLINE void Transpose(const float* HWY_RESTRICT rows, size_t row_stride,
                          size_t dim, float* HWY_RESTRICT to,
                          size_t to_stride) {
  const RowTag d;
#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR
  for (size_t i = 0; i < dim; ++i) {
    for (size_t r = 0; r < hn::Lanes(d); ++r) {
      to[i * to_stride + r] = rows[r * row_stride + i];
    }
  }
#else
  // 4 x 4 transposes inside the 16-byte blocks. Block b of v_j is from row 4 b
  // + j, so the results are in row order without shuffles across blocks.
  const hn::Repartition<uint64_t, RowTag> d64;
  for (size_t i = 0; i < dim; i += 4) {
    const auto v0 = LoadEveryFourthRow(d, rows + i, row_stride);
    const auto v1 = LoadEveryFourthRow(d, rows + row_stride + i, row_stride);
    const auto v2 =
        LoadEveryFourthRow(d, rows + 2 * row_stride + i, row_stride);
    const auto v3 =
        LoadEveryFourthRow(d, rows + 3 * row_stride + i, row_stride);
    const auto v01_lo = hn::BitCast(d64, hn::InterleaveLower(d, v0, v1));
    const auto v01_hi = hn::BitCast(d64, hn::InterleaveUpper(d, v0, v1));
    const auto v23_lo = hn::BitCast(d64, hn::InterleaveLower(d, v2, v3));
    const auto v23_hi = hn::BitCast(d64, hn::InterleaveUpper(d, v2, v3));
    float* out = to + i * to_stride;
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, v01_lo, v23_lo)), d,
               out);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, v01_lo, v23_lo)), d,
               out + to_stride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, v01_hi, v23_hi)), d,
               out + 2 * to_stride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, v01_hi, v23_hi)), d,
               out + 3 * to_stride);
  }
#endif
}

// Packs keys [first, first + kTileKeys) to [panel, PaddedRow(head_dim),
// KeysPerPanel()]. Keys from n_tokens on are 0. `rows` is scratch for kRowPad
// rows of StagedRowStride(): rows of a cache are often a multiple of 4 KiB
// apart and would evict each other from the L1 cache if transposed in place.
HWY_INLINE void PackKeys(const RowSource& keys, uint32_t first,
                         uint32_t n_tokens, size_t dim,
                         float* HWY_RESTRICT rows, float* HWY_RESTRICT panels) {
  const size_t lanes = hn::Lanes(RowTag());
  const size_t panel_keys = KeysPerPanel();
  const size_t stride = StagedRowStride(dim);
  const size_t n_keys = std::min<size_t>(kTileKeys, n_tokens - first);
  for (size_t key = 0; key < kTileKeys; key += lanes) {
    for (size_t r = 0; r < lanes; ++r) {
      float* row = rows + r * stride;
      if (key + r < n_keys) {
        LoadRow(keys, first + static_cast<uint32_t>(key + r), 0, dim, row);
      } else {
        std::fill_n(row, PaddedRow(dim), 0.0f);
      }
    }
    Transpose(rows, stride, dim,
              panels + key / panel_keys * PaddedRow(dim) * panel_keys +
                  key % panel_keys,
              panel_keys);
  }
}

// to[r * to_stride + i] = sum over n steps d of a[r * a_row + d * a_step] * b[d
// * b_step + i], for kRowsPerBlock rows and KeysPerPanel() i. With kAdds it is
// added to the present content. Added up in ascending order of d on every
// target. Per step two loads and kRowsPerBlock broadcasts feed twice as many
// multiply-adds, which are enough to hide their latency.
template <bool kAdds>
HWY_INLINE void MultiplyRows(const float* HWY_RESTRICT a, size_t a_row,
                             size_t a_step, const float* HWY_RESTRICT b,
                             size_t b_step, size_t n, float* HWY_RESTRICT to,
                             size_t to_stride) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
#define KV_BEGIN(r)                                       \
  auto sum##r##a = hn::Zero(d), sum##r##b = sum##r##a;    \
  if constexpr (kAdds) {                                  \
    sum##r##a = hn::LoadU(d, to + (r)*to_stride);         \
    sum##r##b = hn::LoadU(d, to + (r)*to_stride + lanes); \
  }
  KV_EACH_ROW(KV_BEGIN)
#undef KV_BEGIN
  for (size_t i = 0; i < n; ++i) {
    const auto b0 = hn::LoadU(d, b);
    const auto b1 = hn::LoadU(d, b + lanes);
#define KV_MULTIPLY_ADD(r)                         \
  {                                                \
    const auto factor = hn::Set(d, a[(r)*a_row]);  \
    sum##r##a = hn::MulAdd(factor, b0, sum##r##a); \
    sum##r##b = hn::MulAdd(factor, b1, sum##r##b); \
  }
    KV_EACH_ROW(KV_MULTIPLY_ADD)
#undef KV_MULTIPLY_ADD
    b += b_step;
    a += a_step;
  }
#define KV_STORE(r)                             \
  hn::StoreU(sum##r##a, d, to + (r)*to_stride); \
  hn::StoreU(sum##r##b, d, to + (r)*to_stride + lanes);
  KV_EACH_ROW(KV_STORE)
#undef KV_STORE
}

// The same for queries [dim, kRowsPerBlock] and a panel of keys [dim,
// KeysPerPanel()].
HWY_INLINE void MultiplyBlock(const float* HWY_RESTRICT queries,
                              const float* HWY_RESTRICT panel, size_t dim,
                              float* HWY_RESTRICT to, size_t to_stride) {
  MultiplyRows<false>(queries, 1, kRowsPerBlock, panel, KeysPerPanel(), dim, to,
                      to_stride);
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#undef KV_EACH_ROW

#endif  // per-target include guard
