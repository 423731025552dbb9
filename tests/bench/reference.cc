#include "tests/bench/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/reference.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernels/exp2-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 8>;  // 256 bits

float Dot(const float* a, const float* b, size_t n) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
    sum1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes),
                      sum1);
    sum2 = hn::MulAdd(hn::LoadU(d, a + i + 2 * lanes),
                      hn::LoadU(d, b + i + 2 * lanes), sum2);
    sum3 = hn::MulAdd(hn::LoadU(d, a + i + 3 * lanes),
                      hn::LoadU(d, b + i + 3 * lanes), sum3);
  }
  for (; i < n; i += lanes) {
    const size_t rest = std::min(lanes, n - i);
    sum0 =
        hn::MulAdd(hn::LoadN(d, a + i, rest), hn::LoadN(d, b + i, rest), sum0);
  }
  return hn::ReduceSum(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)));
}

// weights += softmax(logits); logits are in base 2 and padded to whole vectors.
void AddSoftmax(float* logits, size_t n, float* weights) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  float highest = logits[0];
  for (size_t i = 1; i < n; ++i) highest = std::max(highest, logits[i]);
  auto sums = hn::Zero(d);
  for (size_t i = 0; i < n; i += lanes) {
    const auto x = hn::Sub(hn::LoadU(d, logits + i), hn::Set(d, highest));
    const auto e = hn::IfThenElseZero(hn::FirstN(d, n - i),
                                      kvevict::HWY_NAMESPACE::Exp2(d, x));
    sums = hn::Add(sums, e);
    hn::StoreU(e, d, logits + i);
  }
  const auto factor = hn::Set(d, 1.0f / hn::ReduceSum(d, sums));
  for (size_t i = 0; i < n; i += lanes) {
    hn::StoreU(
        hn::MulAdd(hn::LoadU(d, logits + i), factor, hn::LoadU(d, weights + i)),
        d, weights + i);
  }
}

// out[0, n) = sum over j of weights[j] times row j of the values.
void WeighRows(const RowSource& values, const float* weights, uint32_t n_rows,
               size_t n, float* out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  std::fill_n(out, n, 0.0f);
  for (uint32_t j = 0; j < n_rows; ++j) {
    const float* v = reinterpret_cast<const float*>(values.Row(j));
    const auto weight = hn::Set(d, weights[j]);
    for (size_t i = 0; i < n; i += lanes) {
      const size_t rest = std::min(lanes, n - i);
      hn::StoreN(hn::MulAdd(weight, hn::LoadN(d, v + i, rest),
                            hn::LoadN(d, out + i, rest)),
                 d, out + i, rest);
    }
  }
}

// Adds the softmax of each row to weights, which are padded to whole vectors; with an
// output, weighs the rows of keys by them instead.
void RowDot(const Workload& w, const RowSource& queries, const RowSource& keys,
            float* logits, float* weights, float* out) {
  const float factor = static_cast<float>(
      1.4426950408889634 / std::sqrt(static_cast<double>(w.head_dim)));
  for (uint32_t row = 0; row < w.window; ++row) {
    const float* q = reinterpret_cast<const float*>(queries.Row(row));
    const uint32_t n_visible = w.n_tokens - w.window + row + 1;
    for (uint32_t j = 0; j < n_visible; ++j) {
      const float* k = reinterpret_cast<const float*>(keys.Row(j));
      logits[j] = factor * Dot(q, k, w.head_dim);
    }
    if (out != nullptr) std::fill_n(weights, n_visible, 0.0f);
    AddSoftmax(logits, n_visible, weights);
    if (out == nullptr) continue;
    WeighRows(keys, weights, n_visible, w.head_dim,
              out + size_t{row} * w.head_dim);
  }
}

}  // namespace kvevict::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict::bench {
namespace {

HWY_EXPORT(RowDot);

// Indices by descending score, ties to the lower one.
struct HigherFirst {
  const float* scores;
  bool operator()(int32_t a, int32_t b) const {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  }
};

}  // namespace

void RowDotScores(const AttentionData& data, KeyLayout layout, uint32_t q_head,
                  float* weights) {
  const Workload& w = data.workload();
  std::vector<float> logits(w.n_tokens + 8);
  std::vector<float> sums(w.n_tokens + 8);
  HWY_DYNAMIC_DISPATCH(RowDot)
  (w, data.Queries(q_head), data.Keys(layout, q_head / w.group()),
   logits.data(), sums.data(), nullptr);
  std::copy_n(sums.data(), w.n_tokens, weights);
}

void RowDotAttention(const AttentionData& data, KeyLayout layout,
                     uint32_t q_head, float* out) {
  const Workload& w = data.workload();
  std::vector<float> logits(w.n_tokens + 8);
  std::vector<float> weights(w.n_tokens + 8);
  HWY_DYNAMIC_DISPATCH(RowDot)
  (w, data.Queries(q_head), data.Keys(layout, q_head / w.group()),
   logits.data(), weights.data(), out);
}

void NthElementSelect(const float* scores, uint32_t n, uint32_t k,
                      int32_t* places) {
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::nth_element(order.begin(), order.begin() + k, order.end(),
                   HigherFirst{scores});
  std::sort(order.begin(), order.begin() + k);
  std::copy_n(order.begin(), k, places);
}

}  // namespace kvevict::bench
#endif  // HWY_ONCE
