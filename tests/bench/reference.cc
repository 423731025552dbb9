#include "tests/bench/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/reference.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernels/exp2-inl.h"
#include "hwy/cache_control.h"
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

// The distance at which rows are prefetched: they lie apart, so the hardware does not
// guess.
constexpr uint32_t kRowsAhead = 8;

void FetchRow(const float* row, uint32_t dim) {
  for (uint32_t i = 0; i < dim; i += 16) hwy::Prefetch(row + i);
}

// logits[g * stride] = q[g] . k for four query heads.
void DotFour(const float* q, const float* k, uint32_t dim, float factor,
             size_t stride, float* logits) {
  const D d;
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (uint32_t i = 0; i < dim; i += hn::Lanes(d)) {
    const auto key = hn::LoadU(d, k + i);
    s0 = hn::MulAdd(key, hn::LoadU(d, q + i), s0);
    s1 = hn::MulAdd(key, hn::LoadU(d, q + dim + i), s1);
    s2 = hn::MulAdd(key, hn::LoadU(d, q + 2 * dim + i), s2);
    s3 = hn::MulAdd(key, hn::LoadU(d, q + 3 * dim + i), s3);
  }
  logits[0] = factor * hn::ReduceSum(d, s0);
  logits[stride] = factor * hn::ReduceSum(d, s1);
  logits[2 * stride] = factor * hn::ReduceSum(d, s2);
  logits[3 * stride] = factor * hn::ReduceSum(d, s3);
}

// Adds weighed rows to a line of the sums of four query heads.
void WeighFour(const float* v, size_t row_stride, const float* weights,
               size_t stride, uint32_t n, uint32_t dim, float* sums) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  auto a0 = hn::LoadU(d, sums), a1 = hn::LoadU(d, sums + dim);
  auto a2 = hn::LoadU(d, sums + 2 * dim), a3 = hn::LoadU(d, sums + 3 * dim);
  auto b0 = hn::LoadU(d, sums + lanes), b1 = hn::LoadU(d, sums + dim + lanes);
  auto b2 = hn::LoadU(d, sums + 2 * dim + lanes);
  auto b3 = hn::LoadU(d, sums + 3 * dim + lanes);
  for (uint32_t j = 0; j < n; ++j) {
    const auto low = hn::LoadU(d, v + j * row_stride);
    const auto high = hn::LoadU(d, v + j * row_stride + lanes);
    const auto w0 = hn::Set(d, weights[j]);
    const auto w1 = hn::Set(d, weights[j + stride]);
    const auto w2 = hn::Set(d, weights[j + 2 * stride]);
    const auto w3 = hn::Set(d, weights[j + 3 * stride]);
    a0 = hn::MulAdd(w0, low, a0), b0 = hn::MulAdd(w0, high, b0);
    a1 = hn::MulAdd(w1, low, a1), b1 = hn::MulAdd(w1, high, b1);
    a2 = hn::MulAdd(w2, low, a2), b2 = hn::MulAdd(w2, high, b2);
    a3 = hn::MulAdd(w3, low, a3), b3 = hn::MulAdd(w3, high, b3);
  }
  hn::StoreU(a0, d, sums), hn::StoreU(b0, d, sums + lanes);
  hn::StoreU(a1, d, sums + dim), hn::StoreU(b1, d, sums + dim + lanes);
  hn::StoreU(a2, d, sums + 2 * dim), hn::StoreU(b2, d, sums + 2 * dim + lanes);
  hn::StoreU(a3, d, sums + 3 * dim), hn::StoreU(b3, d, sums + 3 * dim + lanes);
}

// The four query heads of a KV head; logits and weights [4, n_tokens + 8].
void AttendHead(const DecodeStep& s, uint32_t head, float* logits,
                float* weights, float* out) {
  constexpr uint32_t kBlock = 32;  // rows that stay in the first-level cache
  const uint32_t dim = s.head_dim;
  const size_t row = size_t{s.n_kv_heads} * dim;
  const float* const keys = s.keys + size_t{head} * dim;
  const float* const values = s.values + size_t{head} * dim;
  const float* const queries = s.queries + size_t{head} * 4 * dim;
  float* const sums = out + size_t{head} * 4 * dim;
  const size_t padded = s.n_tokens + 8;
  const float factor = static_cast<float>(1.4426950408889634 /
                                          std::sqrt(static_cast<double>(dim)));
  for (uint32_t j = 0; j < s.n_tokens; ++j) {
    if (j + kRowsAhead < s.n_tokens) {
      FetchRow(keys + (j + kRowsAhead) * row, dim);
    }
    DotFour(queries, keys + j * row, dim, factor, padded, logits + j);
  }
  std::fill_n(weights, 4 * padded, 0.0f);
  for (uint32_t g = 0; g < 4; ++g) {
    AddSoftmax(logits + g * padded, s.n_tokens, weights + g * padded);
  }
  std::fill_n(sums, 4 * dim, 0.0f);
  for (uint32_t j = 0; j < s.n_tokens; j += kBlock) {
    const uint32_t n = std::min(kBlock, s.n_tokens - j);
    for (uint32_t next = j + kBlock;
         next < std::min(s.n_tokens, j + 2 * kBlock); ++next) {
      FetchRow(values + next * row, dim);
    }
    for (uint32_t i = 0; i < dim; i += 2 * hn::Lanes(D())) {
      WeighFour(values + j * row + i, row, weights + j, padded, n, dim,
                sums + i);
    }
  }
}

}  // namespace kvevict::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict::bench {
namespace {

HWY_EXPORT(RowDot);
HWY_EXPORT(AttendHead);

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

void Attend(const DecodeStep& step, float* scratch, float* out) {
  const size_t padded = size_t{step.n_tokens} + 8;
  for (uint32_t head = 0; head < step.n_kv_heads; ++head) {
    HWY_DYNAMIC_DISPATCH(AttendHead)
    (step, head, scratch, scratch + 4 * padded, out);
  }
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
