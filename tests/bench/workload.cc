#include "tests/bench/workload.h"

#include <cmath>
#include <cstring>
#include <random>

#include "core/dtype.h"

namespace kvevict::bench {
namespace {

// Gaussian rows cut from a table at random places: 500 MB of new ones would cost a second.
class GaussianRows {
 public:
  GaussianRows() {
    std::normal_distribution<float> gaussian;
    for (float& value : table_) value = gaussian(engine_);
  }

  void Fill(float* row, uint32_t n) {
    std::memcpy(row, &table_[engine_() % (table_.size() - n)],
                n * sizeof(float));
  }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(engine_() % n); }

 private:
  std::mt19937_64 engine_{1};
  std::vector<float> table_ = std::vector<float>(1 << 20);
};

void StoreRow(const float* row, uint32_t n, DType dtype, uint8_t* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, row, n * sizeof(float));
    return;
  }
  for (uint32_t i = 0; i < n; ++i) {  // bf16, rounded towards zero
    uint32_t bits;
    std::memcpy(&bits, row + i, sizeof(bits));
    const uint16_t half = static_cast<uint16_t>(bits >> 16);
    std::memcpy(to + i * sizeof(half), &half, sizeof(half));
  }
}

}  // namespace

AttentionData::AttentionData(const Workload& w, DType dtype)
    : workload_(w),
      dtype_(dtype),
      queries_(size_t{w.n_q_heads} * w.window * w.head_dim *
               ElementBytes(dtype)),
      token_major_(size_t{w.n_tokens} * w.n_kv_heads * w.head_dim *
                   ElementBytes(dtype)),
      head_major_(token_major_.size()),
      weights_(size_t{w.n_q_heads} * w.n_tokens),
      scratch_size_(WindowAttentionScratchBytes(w.n_tokens, w.window, w.group(),
                                                w.head_dim)) {
  GaussianRows gaussian;
  const uint32_t n_rows = w.n_q_heads * w.window;
  std::vector<float> queries(size_t{n_rows} * w.head_dim);
  const size_t row_bytes = size_t{w.head_dim} * ElementBytes(dtype);
  for (uint32_t r = 0; r < n_rows; ++r) {
    float* row = &queries[size_t{r} * w.head_dim];
    gaussian.Fill(row, w.head_dim);
    StoreRow(row, w.head_dim, dtype, queries_.data() + r * row_bytes);
  }
  std::vector<float> key(w.head_dim);
  for (uint32_t token = 0; token < w.n_tokens; ++token) {
    const bool important = gaussian.Below(50) == 0;
    for (uint32_t head = 0; head < w.n_kv_heads; ++head) {
      gaussian.Fill(key.data(), w.head_dim);
      if (important) {
        const uint32_t n_group_rows = w.group() * w.window;
        const size_t row = head * n_group_rows + gaussian.Below(n_group_rows);
        for (uint32_t d = 0; d < w.head_dim; ++d) {
          key[d] += 0.5f * queries[row * w.head_dim + d];
        }
      }
      StoreRow(
          key.data(), w.head_dim, dtype,
          const_cast<uint8_t*>(Keys(KeyLayout::kTokenMajor, head).Row(token)));
      StoreRow(
          key.data(), w.head_dim, dtype,
          const_cast<uint8_t*>(Keys(KeyLayout::kHeadMajor, head).Row(token)));
    }
  }
}

RowSource AttentionData::Queries(uint32_t q_head) const {
  const int64_t element = ElementBytes(dtype_);
  RowSource rows;
  rows.dtype = dtype_;
  rows.element_stride = element;
  rows.row_stride = workload_.head_dim * element;
  rows.base = queries_.data() + q_head * workload_.window * rows.row_stride;
  return rows;
}

RowSource AttentionData::Keys(KeyLayout layout, uint32_t kv_head) const {
  const int64_t element = ElementBytes(dtype_);
  const int64_t row_bytes = workload_.head_dim * element;
  RowSource rows;
  rows.dtype = dtype_;
  rows.element_stride = element;
  if (layout == KeyLayout::kTokenMajor) {
    rows.row_stride = workload_.n_kv_heads * row_bytes;
    rows.base = token_major_.data() + kv_head * row_bytes;
  } else {
    rows.row_stride = row_bytes;
    rows.base = head_major_.data() + kv_head * workload_.n_tokens * row_bytes;
  }
  return rows;
}

Timing AttentionData::Score(SimdTarget simd, KeyLayout layout,
                            uint32_t n_threads, double scratch, bool knows_lse,
                            float spread, bool measures) {
  const float lse = 9.0f;
  while (scratch_.size() < n_threads) {
    scratch_.emplace_back(scratch_size_.best);
  }
  const Workload& w = workload_;
  const auto score = [&](uint32_t head, uint32_t worker) {
    WindowAttention args;
    args.queries = Queries(head * w.group());
    args.query_head_stride = args.queries.row_stride * w.window;
    args.keys = Keys(layout, head);
    args.n_tokens = w.n_tokens;
    args.window = w.window;
    args.group = w.group();
    args.head_dim = w.head_dim;
    args.scale = 1.0f / std::sqrt(static_cast<float>(w.head_dim));
    args.out = weights_.data() + size_t{head} * w.group() * w.n_tokens;
    args.out_stride = w.n_tokens;
    if (knows_lse) args.lse = &lse;  // with strides of 0
    args.rows.spread = spread;
    WindowMeasure measure;
    if (measures) args.measure = &measure;
    args.scratch = scratch_[worker].data();
    args.scratch_bytes =
        scratch_size_.least +
        static_cast<size_t>(scratch * static_cast<double>(scratch_size_.best -
                                                          scratch_size_.least));
    ComputeWindowAttention(simd, args);
  };
  return TimeItems(n_threads, w.n_kv_heads, score);
}

}  // namespace kvevict::bench
