#include "tools/recall/model.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "tools/engine/matmul.h"

namespace kvevict::tools {
namespace {

// out [n_rows, w.n_cols] = w.n_rows floats of each row, from `first`, times w.
void Project(const std::vector<float>& rows, uint32_t n_rows,
             uint32_t row_stride, uint32_t first, const Matrix& w,
             bool accumulate, std::vector<float>& out, ThreadPool& pool) {
  out.resize(size_t{n_rows} * w.n_cols);
  MatMul({.n_rows = n_rows,
          .n_inner = w.n_rows,
          .n_cols = w.n_cols,
          .a = rows.data() + first,
          .a_stride = row_stride,
          .b = w.values.data(),
          .b_stride = w.n_cols,
          .c = out.data(),
          .c_stride = w.n_cols,
          .accumulate = accumulate},
         pool);
}

}  // namespace

RecallModel::RecallModel(uint32_t n_positions, ThreadPool& pool,
                         const char* simd_target)
    : pool_(pool), attention_(pool, simd_target), weights_(MakeWeights()) {
  // In double, because f32 angles are off by 1e-3 at 16K.
  const std::vector<double> frequencies = RopeOfHeads().inv_freq;
  cos_.reserve(size_t{n_positions} * kRopePairs);
  sin_.reserve(size_t{n_positions} * kRopePairs);
  for (uint32_t position = 0; position < n_positions; ++position) {
    for (double frequency : frequencies) {
      const double angle = position * frequency;
      cos_.push_back(static_cast<float>(std::cos(angle)));
      sin_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

KvShape RecallModel::CacheShape(kvevict_dtype dtype, uint32_t n_slots) {
  return {.n_layers = kLayers,
          .n_kv_heads = kKvHeads,
          .k_head_dim = kHeadDim,
          .v_head_dim = kHeadDim,
          .dtype = dtype,
          .capacity = n_slots};
}

Rope RecallModel::RopeOfHeads() {
  Rope rope{.halves = true};
  for (uint32_t f = 0; f < kRopePairs; ++f) {
    rope.inv_freq.push_back(RopeFrequency(f));
  }
  return rope;
}

void RecallModel::Rotate(std::vector<float>& rows, uint32_t n_heads,
                         uint32_t first_position) const {
  const size_t row_len = size_t{n_heads} * kHeadDim;
  const size_t n_rows = rows.size() / row_len;
  for (size_t row = 0; row < n_rows; ++row) {
    const float* cos = cos_.data() + (first_position + row) * kRopePairs;
    const float* sin = sin_.data() + (first_position + row) * kRopePairs;
    for (uint32_t head = 0; head < n_heads; ++head) {
      float* x = rows.data() + row * row_len + head * kHeadDim;
      for (uint32_t f = 0; f < kRopePairs; ++f) {
        const float x1 = x[f];
        const float x2 = x[f + kRopePairs];
        x[f] = x1 * cos[f] - x2 * sin[f];
        x[f + kRopePairs] = x1 * sin[f] + x2 * cos[f];
      }
    }
  }
}

std::vector<int32_t> RecallModel::Predict(const std::vector<float>& x,
                                          uint32_t n_rows) {
  std::vector<float> logits;
  Project(x, n_rows, kModelDim, kOutDims, weights_.unembedding, false, logits,
          pool_);
  std::vector<int32_t> predictions;
  for (uint32_t row = 0; row < n_rows; ++row) {
    float* begin = logits.data() + size_t{row} * kVocabulary;
    begin[kUnknown] = kUnknownLogit;
    const float* best = std::max_element(begin, begin + kVocabulary);
    predictions.push_back(static_cast<int32_t>(best - begin));
  }
  return predictions;
}

std::vector<float> RecallModel::ProjectedNorms(uint32_t layer,
                                               const float* values,
                                               uint32_t n_rows) const {
  constexpr uint32_t kGroup = kQHeads / kKvHeads;
  const Matrix& wo = weights_.layers[layer].wo;
  std::vector<float> norms(size_t{n_rows} * kKvHeads);
  std::vector<float> products(size_t{n_rows} * kModelDim);
  for (uint32_t q = 0; q < kQHeads; ++q) {
    const uint32_t head = q / kGroup;
    MatMul({.n_rows = n_rows,
            .n_inner = kHeadDim,
            .n_cols = kModelDim,
            .a = values + size_t{head} * kHeadDim,
            .a_stride = kKvHeads * kHeadDim,
            .b = wo.row(q * kHeadDim),
            .b_stride = wo.n_cols,
            .c = products.data(),
            .c_stride = kModelDim,
            .accumulate = false},
           pool_);
    for (size_t row = 0; row < n_rows; ++row) {
      float sum = 0.0f;
      for (uint32_t i = 0; i < kModelDim; ++i) {
        sum += std::abs(products[row * kModelDim + i]);
      }
      norms[row * kKvHeads + head] += sum / kGroup;
    }
  }
  return norms;
}

std::vector<int32_t> RecallModel::Forward(std::span<const int32_t> tokens,
                                          uint32_t first_position,
                                          KvCache& cache,
                                          const QueryObserver& observe) {
  const uint32_t n_rows = static_cast<uint32_t>(tokens.size());
  std::vector<float> x;
  x.reserve(size_t{n_rows} * kModelDim);
  for (int32_t token : tokens) {
    const float* row = weights_.embeddings.row(static_cast<uint32_t>(token));
    x.insert(x.end(), row, row + kModelDim);
  }

  std::vector<float> q, k, v;
  std::vector<float> heads(size_t{n_rows} * kQHeads * kHeadDim);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const LayerWeights& w = weights_.layers[layer];
    Project(x, n_rows, kModelDim, 0, w.wq, false, q, pool_);
    Project(x, n_rows, kModelDim, 0, w.wk, false, k, pool_);
    Project(x, n_rows, kModelDim, 0, w.wv, false, v, pool_);
    Rotate(q, kQHeads, first_position);
    Rotate(k, kKvHeads, first_position);
    cache.Append(layer, n_rows, k.data(), w.wk.n_cols, v.data(), w.wv.n_cols);
    if (observe) observe(layer, q.data(), v.data(), n_rows);
    attention_.Attend({.cache = &cache,
                       .layer = layer,
                       .queries = q.data(),
                       .n_queries = n_rows,
                       .n_q_heads = kQHeads,
                       .out = heads.data()});
    Project(heads, n_rows, w.wo.n_rows, 0, w.wo, true, x, pool_);
  }
  return Predict(x, n_rows);
}

}  // namespace kvevict::tools
