#include "tools/engine/matmul.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/engine/matmul.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::tools {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

// ---- c[4, 2 vectors] (+)= a[4, n_inner] * b[n_inner, 2 vectors] ----

// Eight accumulators hide the latency of the FMAs and, with four broadcasts and
// two loads beside them, fit the 16 registers of AVX2.
constexpr size_t kGemmRows = 4;

HWY_INLINE size_t GemmCols() { return 2 * hn::Lanes(DF()); }

struct GemmBlock {
  const float* a;
  size_t a_stride;
  const float* b;
  size_t b_stride;
  float* c;
  size_t c_stride;
  size_t n_inner;
  size_t n_rows;  // 1 .. kGemmRows
  size_t n_cols;  // 1 .. GemmCols()
  bool accumulate;
};

// kFull: n_cols = GemmCols(). Missing rows are computed as copies of the last
// one.
template <bool kFull>
HWY_INLINE void MultiplyBlock(const GemmBlock& g) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t n0 = std::min(g.n_cols, lanes);
  const size_t n1 = g.n_cols - n0;
  const auto load = [&](const float* from, size_t n) HWY_ATTR {
    return kFull ? hn::LoadU(d, from) : hn::LoadN(d, from, n);
  };
  const size_t r1 = std::min<size_t>(1, g.n_rows - 1);
  const size_t r2 = std::min<size_t>(2, g.n_rows - 1);
  const size_t r3 = g.n_rows - 1;
  const float* HWY_RESTRICT a0 = g.a;
  const float* HWY_RESTRICT a1 = g.a + r1 * g.a_stride;
  const float* HWY_RESTRICT a2 = g.a + r2 * g.a_stride;
  const float* HWY_RESTRICT a3 = g.a + r3 * g.a_stride;
  float* c0 = g.c;
  float* c1 = g.c + r1 * g.c_stride;
  float* c2 = g.c + r2 * g.c_stride;
  float* c3 = g.c + r3 * g.c_stride;
  VF s00 = hn::Zero(d), s01 = s00, s10 = s00, s11 = s00;
  VF s20 = s00, s21 = s00, s30 = s00, s31 = s00;
  if (g.accumulate) {
    s00 = load(c0, n0), s01 = load(c0 + lanes, n1);
    s10 = load(c1, n0), s11 = load(c1 + lanes, n1);
    s20 = load(c2, n0), s21 = load(c2 + lanes, n1);
    s30 = load(c3, n0), s31 = load(c3 + lanes, n1);
  }
  const float* HWY_RESTRICT b = g.b;
  for (size_t k = 0; k < g.n_inner; ++k, b += g.b_stride) {
    const VF b0 = load(b, n0);
    const VF b1 = load(b + lanes, n1);
    const VF x0 = hn::Set(d, a0[k]);
    s00 = hn::MulAdd(x0, b0, s00), s01 = hn::MulAdd(x0, b1, s01);
    const VF x1 = hn::Set(d, a1[k]);
    s10 = hn::MulAdd(x1, b0, s10), s11 = hn::MulAdd(x1, b1, s11);
    const VF x2 = hn::Set(d, a2[k]);
    s20 = hn::MulAdd(x2, b0, s20), s21 = hn::MulAdd(x2, b1, s21);
    const VF x3 = hn::Set(d, a3[k]);
    s30 = hn::MulAdd(x3, b0, s30), s31 = hn::MulAdd(x3, b1, s31);
  }
  const auto store = [&](VF v0, VF v1, float* to) HWY_ATTR {
    if constexpr (kFull) {
      hn::StoreU(v0, d, to);
      hn::StoreU(v1, d, to + lanes);
    } else {
      hn::StoreN(v0, d, to, n0);
      hn::StoreN(v1, d, to + lanes, n1);
    }
  };
  store(s00, s01, c0);
  if (g.n_rows > 1) store(s10, s11, c1);
  if (g.n_rows > 2) store(s20, s21, c2);
  if (g.n_rows > 3) store(s30, s31, c3);
}

HWY_INLINE void Multiply(const GemmBlock& g) {
  if (g.n_cols == GemmCols()) {
    MultiplyBlock<true>(g);
  } else {
    MultiplyBlock<false>(g);
  }
}

// Computes rows [begin, end) of c. A panel of b stays in L1 while the rows pass
// by.
void MatMulRows(const MatMulArgs& args, size_t begin, size_t end) {
  const size_t panel = GemmCols();
  for (size_t col = 0; col < args.n_cols; col += panel) {
    for (size_t row = begin; row < end; row += kGemmRows) {
      Multiply({.a = args.a + row * args.a_stride,
                .a_stride = args.a_stride,
                .b = args.b + col,
                .b_stride = args.b_stride,
                .c = args.c + row * args.c_stride + col,
                .c_stride = args.c_stride,
                .n_inner = args.n_inner,
                .n_rows = std::min(kGemmRows, end - row),
                .n_cols = std::min<size_t>(panel, args.n_cols - col),
                .accumulate = args.accumulate});
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvevict::tools
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict::tools {
namespace {

HWY_EXPORT(MatMulRows);

// Rows per work item: a multiple of the block's rows, so that only the last
// item has an incomplete one.
constexpr uint32_t kItemRows = 64;

}  // namespace

void MatMul(const MatMulArgs& args, ThreadPool& pool) {
  const auto rows = HWY_DYNAMIC_POINTER(MatMulRows);
  const uint32_t n_items = (args.n_rows + kItemRows - 1) / kItemRows;
  pool.For(n_items, [&](uint32_t item, uint32_t) {
    const uint32_t begin = item * kItemRows;
    rows(args, begin, std::min(begin + kItemRows, args.n_rows));
  });
}

}  // namespace kvevict::tools
#endif  // HWY_ONCE
