// Products against sums in double precision on every target. Rows do not depend on their
// neighbours.
#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/tools/engine_test_util.h"
#include "tools/engine/matmul.h"

namespace kvevict::tools {
namespace {

struct Size {
  uint32_t n_rows, n_inner, n_cols;
};

// Sizes lie around the block of 4 rows, the 8 to 32 columns of a panel and the 64
// rows of an item.
constexpr Size kSizes[] = {{1, 1, 1},    {3, 7, 5},     {4, 32, 32},
                           {5, 33, 31},  {64, 16, 33},  {65, 192, 48},
                           {130, 5, 65}, {1, 192, 320}, {6, 0, 3}};

constexpr float kUntouched = 77.0f;
constexpr size_t kPadding = 3;  // after each row

void ExpectProduct(const Size& size, bool accumulate, const char* target) {
  const size_t a_stride = size.n_inner + kPadding;
  const size_t b_stride = size.n_cols + kPadding;
  const size_t c_stride = size.n_cols + kPadding;
  const std::vector<float> a = RandomFloats(size.n_rows * a_stride, 1);
  const std::vector<float> b = RandomFloats((size.n_inner + 1) * b_stride, 2);
  std::vector<float> before = RandomFloats(size.n_rows * c_stride, 3);
  for (size_t i = 0; i < before.size(); ++i) {
    if (i % c_stride >= size.n_cols) before[i] = kUntouched;
  }
  std::vector<float> c = before;
  ThreadPool pool(2);
  MatMul({.n_rows = size.n_rows,
          .n_inner = size.n_inner,
          .n_cols = size.n_cols,
          .a = a.data(),
          .a_stride = a_stride,
          .b = b.data(),
          .b_stride = b_stride,
          .c = c.data(),
          .c_stride = c_stride,
          .accumulate = accumulate},
         pool);
  for (size_t i = 0; i < c.size(); ++i) {
    const size_t row = i / c_stride;
    const size_t col = i % c_stride;
    if (col >= size.n_cols) {
      cr_assert(c[i] == kUntouched, "%s wrote past a row", target);
      continue;
    }
    double sum = accumulate ? static_cast<double>(before[i]) : 0.0;
    double magnitude = std::fabs(sum);
    for (size_t k = 0; k < size.n_inner; ++k) {
      const double term =
          double{a[row * a_stride + k]} * double{b[k * b_stride + col]};
      sum += term;
      magnitude += std::fabs(term);
    }
    // Each of the additions and products rounds once.
    const double tolerance = (size.n_inner + 1) * kRoundoff * magnitude;
    cr_assert(std::fabs(double{c[i]} - sum) <= tolerance,
              "%s, %u x %u x %u at %zu, %zu: %g, not %g", target, size.n_rows,
              size.n_inner, size.n_cols, row, col, double{c[i]}, sum);
  }
}

Test(engine_matmul, equals_the_oracle_on_every_target) {
  ForEachTarget([](const char* target) {
    for (const Size& size : kSizes) {
      ExpectProduct(size, false, target);
      ExpectProduct(size, true, target);
    }
  });
}

Test(engine_matmul, a_row_alone_gives_the_same_bytes) {
  constexpr uint32_t kRows = 70, kInner = 50, kCols = 70;
  const std::vector<float> a = RandomFloats(kRows * kInner, 4);
  const std::vector<float> b = RandomFloats(kInner * kCols, 5);
  std::vector<float> all(kRows * kCols), alone(kRows * kCols);
  ThreadPool pool(3);
  const auto multiply = [&](uint32_t first, uint32_t n, float* c) {
    MatMul({.n_rows = n,
            .n_inner = kInner,
            .n_cols = kCols,
            .a = a.data() + first * kInner,
            .a_stride = kInner,
            .b = b.data(),
            .b_stride = kCols,
            .c = c + first * kCols,
            .c_stride = kCols},
           pool);
  };
  multiply(0, kRows, all.data());
  for (uint32_t row = 0; row < kRows; ++row) multiply(row, 1, alone.data());
  cr_expect(std::memcmp(all.data(), alone.data(), 4 * all.size()) == 0);
}

}  // namespace
}  // namespace kvevict::tools
