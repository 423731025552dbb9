#include "tools/engine/matmul.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/engine/matmul.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "tools/engine/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::tools {
namespace HWY_NAMESPACE {

// Rows [begin, end) of c. A panel of b stays in L1 while the rows pass by.
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

// Rows per work item: a multiple of the block's rows, so that only the last item has
// an incomplete one.
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
