#include "core/kernels/query_sums.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/query_sums.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// These must follow foreach_target.h, which includes this file once per target.
#include "core/dtypes/load-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// The numbers of one row, turned back.
void LoadTurned(const QuerySums& args, uint32_t r, float* loaded, double* out) {
  LoadRow(args.rows, r, 0, args.head_dim, loaded);
  std::copy_n(loaded, args.head_dim, out);
  const Complex* const turns = args.turns + size_t{r} * args.n_pairs;
  const uint32_t step = args.is_interleaved ? 2 : 1;
  const uint32_t apart = args.is_interleaved ? 1 : args.n_pairs;
  for (uint32_t f = 0; f < args.n_pairs; ++f) {
    double& x = out[f * step];
    double& y = out[f * step + apart];
    const double re = x * turns[f].re - y * turns[f].im;
    y = x * turns[f].im + y * turns[f].re;
    x = re;
    args.lengths[f] += std::sqrt(x * x + y * y);
  }
  for (uint32_t i = 0; i < args.head_dim; ++i) args.elements[i] += out[i];
}

// out[0, n) += the products of each row's number x with n numbers of the row.
template <uint32_t kRows>
HWY_INLINE void AddProducts(const double* const* rows, uint32_t i, size_t n,
                            double* HWY_RESTRICT out) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<double> d;
  size_t j = 0;
  const hn::CappedTag<double, 1> one;
  const auto add = [&](auto d) HWY_ATTR {
    auto sum = hn::LoadU(d, out + j);
    for (uint32_t r = 0; r < kRows; ++r) {
      sum = hn::MulAdd(hn::Set(d, rows[r][i]), hn::LoadU(d, rows[r] + i + j),
                       sum);
    }
    hn::StoreU(sum, d, out + j);
  };
  for (; j + hn::Lanes(d) <= n; j += hn::Lanes(d)) add(d);
  for (; j < n; ++j) add(one);
}

template <uint32_t kRows>
HWY_INLINE void AddAllProducts(const QuerySums& args,
                               const double* const* rows) {
  double* out = args.products;
  for (uint32_t i = 0; i < args.head_dim; ++i) {
    AddProducts<kRows>(rows, i, args.head_dim - i, out);
    out += args.head_dim - i;
  }
}

void AddRows(const QuerySums& args) {
  auto* const loaded = reinterpret_cast<float*>(
      args.scratch + size_t{kQueriesTogether} * args.head_dim);
  const double* rows[kQueriesTogether];
  for (uint32_t r = 0; r < args.n_rows; r += kQueriesTogether) {
    const uint32_t n = std::min(kQueriesTogether, args.n_rows - r);
    for (uint32_t i = 0; i < n; ++i) {
      double* const row = args.scratch + size_t{i} * args.head_dim;
      LoadTurned(args, r + i, loaded, row);
      rows[i] = row;
    }
    if (args.products == nullptr) continue;
    if (n == kQueriesTogether) {
      AddAllProducts<kQueriesTogether>(args, rows);
    } else {
      for (uint32_t i = 0; i < n; ++i) AddAllProducts<1>(args, rows + i);
    }
  }
}

bool HasFiniteRows(const QuerySums& args) {
  auto* const loaded = reinterpret_cast<float*>(args.scratch);
  for (uint32_t r = 0; r < args.n_rows; ++r) {
    LoadRow(args.rows, r, 0, args.head_dim, loaded);
    // 0 for numbers, else NaN.
    float rest = 0.0f;
    for (uint32_t i = 0; i < args.head_dim; ++i) rest += loaded[i] * 0.0f;
    if (rest != 0.0f) return false;
  }
  return true;
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(AddRows);
HWY_EXPORT(HasFiniteRows);

size_t QuerySumsScratch(uint32_t head_dim) {
  return (size_t{kQueriesTogether} + 1) * head_dim + 64;
}

void AddQueryRows(SimdTarget simd, const QuerySums& args) {
  KV_DISPATCH(simd, AddRows)(args);
}

bool AreFinite(SimdTarget simd, const QuerySums& args) {
  return KV_DISPATCH(simd, HasFiniteRows)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
