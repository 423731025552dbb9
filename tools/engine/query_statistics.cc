#include "tools/engine/query_statistics.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kvevict/experimental.h"
#include "tools/engine/kvevict_error.h"
#include "tools/engine/matmul.h"
#include "tools/engine/policies.h"

namespace kvevict::tools {
namespace {

// Positions over which the rotation of future queries is averaged, as in the
// paper on expected attention (arXiv:2510.00636).
constexpr uint32_t kFuturePositions = 512;

// More than enough for any direction that stands out.
constexpr int kPowerIterations = 64;

bool AnyNeeds(std::span<const Policy> policies, kvevict_input input) {
  return std::any_of(policies.begin(), policies.end(),
                     [&](const Policy& policy) {
                       return policy.Need(input) != KVEVICT_NEED_NONE;
                     });
}

// f32 [n_heads, n_rows, n], packed.
kvevict_plane Packed(const std::vector<float>& numbers, uint32_t n_rows,
                     uint32_t n) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = reinterpret_cast<uintptr_t>(numbers.data());
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = n;
  plane.token_stride_bytes = int64_t{n} * sizeof(float);
  plane.head_stride_bytes = plane.token_stride_bytes * n_rows;
  return plane;
}

double Norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double element : x) sum += element * element;
  return std::sqrt(sum);
}

}  // namespace

QueryStatistics::QueryStatistics(const KvShape& cache,
                                 const QueryShape& queries, Rope rope,
                                 std::span<const Policy> policies,
                                 ThreadPool& pool, const char* simd_target)
    : n_q_heads_(queries.n_q_heads),
      n_kv_heads_(cache.n_kv_heads),
      head_dim_(cache.k_head_dim),
      n_pairs_(rope.n_pairs()),
      wants_expected_(AnyNeeds(policies, KVEVICT_INPUT_QUERY_MEAN)),
      wants_filter_(AnyNeeds(policies, KVEVICT_INPUT_KEY_FILTER)),
      wants_centers_(AnyNeeds(policies, KVEVICT_INPUT_QUERY_CENTERS)),
      wants_queries_(
          std::any_of(policies.begin(), policies.end(), WantsAllQueries)),
      pool_(pool),
      layers_(cache.n_layers),
      inputs_(cache.n_layers) {
  const Moments none{std::vector<double>(head_dim_),
                     std::vector<float>(size_t{head_dim_} * head_dim_)};
  for (Layer& layer : layers_) {
    if (wants_filter_) layer.after_rope.assign(n_q_heads_, none);
  }
  if (wants_expected_ || wants_centers_) {
    CreateCalibration(cache.n_layers, rope, simd_target);
  }
  if (AnyNeeds(policies, KVEVICT_INPUT_ATTENTION_SUMS)) {
    attention_ = std::make_unique<Evictor>(
        cache, queries, ParsePolicy("h2o:recent=0,rows=sum,group=mean", 1.0),
        pool, simd_target);
    for (Layer& layer : layers_) {
      layer.sums.resize(size_t{n_kv_heads_} * cache.capacity);
    }
  }
}

void QueryStatistics::CreateCalibration(uint32_t n_layers, const Rope& rope,
                                        const char* simd_target) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = n_q_heads_;
  layer.n_kv_heads = n_kv_heads_;
  layer.k_head_dim = layer.v_head_dim = head_dim_;
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = n_layers;
  geometry.max_tokens = 1;  // no sequence is made
  geometry.layers = &layer;
  geometry.layers_len = 1;
  const std::vector<float> inv_freq(rope.inv_freq.begin(), rope.inv_freq.end());
  geometry.rope_inv_freq = inv_freq.data();
  geometry.rope_inv_freq_len = inv_freq.size();
  geometry.rope_layout =
      rope.halves ? KVEVICT_ROPE_LAYOUT_HALF : KVEVICT_ROPE_LAYOUT_INTERLEAVED;
  context_ = CreateContext(pool_, simd_target);
  const Policy none("none");
  kvevict_plan* plan = nullptr;
  Check(kvevict_plan_create(context_.get(), &geometry, none.get(), nullptr,
                            &plan));
  kvevict_calibration* calibration = nullptr;
  const kvevict_status status =
      kvevict_calibration_create(plan, wants_expected_ ? 1 : 0, &calibration);
  kvevict_plan_destroy(plan);
  Check(status);
  calibration_.reset(calibration);
}

void QueryStatistics::Moments::Add(const std::vector<float>& rows,
                                   uint32_t n_rows, ThreadPool& pool) {
  const uint32_t dim = static_cast<uint32_t>(sum.size());
  std::vector<float> transposed(rows.size());
  for (uint32_t r = 0; r < n_rows; ++r) {
    for (uint32_t i = 0; i < dim; ++i) {
      const float x = rows[size_t{r} * dim + i];
      transposed[size_t{i} * n_rows + r] = x;
      sum[i] += x;
    }
  }
  MatMul({.n_rows = dim,
          .n_inner = n_rows,
          .n_cols = dim,
          .a = transposed.data(),
          .a_stride = n_rows,
          .b = rows.data(),
          .b_stride = dim,
          .c = products.data(),
          .c_stride = dim,
          .accumulate = true},
         pool);
}

void QueryStatistics::Observe(uint32_t layer, KvCache& cache,
                              const float* queries, uint32_t n_rows,
                              uint32_t first_position) {
  n_seen_ = first_position + n_rows;
  layers_[layer].n_rows += n_rows;
  if (attention_ != nullptr) AddSums(layer, cache, queries, n_rows);
  if (wants_queries_) {
    std::vector<float>& all = layers_[layer].queries;
    all.insert(all.end(), queries,
               queries + size_t{n_rows} * n_q_heads_ * head_dim_);
  }
  if (calibration_ != nullptr) {
    kvevict_plane rows = KVEVICT_PLANE_INIT;
    rows.data = reinterpret_cast<uintptr_t>(queries);
    rows.dtype = KVEVICT_DTYPE_F32;
    rows.head_dim = head_dim_;
    rows.head_stride_bytes = int64_t{head_dim_} * sizeof(float);
    rows.token_stride_bytes = n_q_heads_ * rows.head_stride_bytes;
    Check(kvevict_calibration_observe(calibration_.get(), layer, &rows,
                                      first_position, n_rows, nullptr));
  }
  if (!wants_filter_) return;
  std::vector<float> rows(size_t{n_rows} * head_dim_);
  for (uint32_t head = 0; head < n_q_heads_; ++head) {
    for (uint32_t r = 0; r < n_rows; ++r) {
      const float* row = queries + (size_t{r} * n_q_heads_ + head) * head_dim_;
      std::copy_n(row, head_dim_, rows.begin() + size_t{r} * head_dim_);
    }
    layers_[layer].after_rope[head].Add(rows, n_rows, pool_);
  }
}

// The library computes the sums of a chunk's rows; they are added up here.
std::vector<float> QueryStatistics::SumsOf(uint32_t layer, KvCache& cache,
                                           const float* queries,
                                           uint32_t n_rows) const {
  std::vector<float> sums(size_t{n_kv_heads_} * cache.length(layer));
  attention_->Score(layer, cache, queries, n_rows, sums);
  return sums;
}

void QueryStatistics::AddSums(uint32_t layer, KvCache& cache,
                              const float* queries, uint32_t n_rows) {
  const uint32_t n_slots = cache.length(layer);
  std::vector<float>& of_rows = layers_[layer].last_sums;
  of_rows = SumsOf(layer, cache, queries, n_rows);
  const size_t capacity = layers_[layer].sums.size() / n_kv_heads_;
  for (size_t head = 0; head < n_kv_heads_; ++head) {
    float* const sums = &layers_[layer].sums[head * capacity];
    for (size_t t = 0; t < n_slots; ++t) sums[t] += of_rows[head * n_slots + t];
  }
}

void QueryStatistics::FindExpected(uint32_t l, Layer& layer) const {
  layer.mean.resize(size_t{n_q_heads_} * head_dim_);
  layer.covariance.resize(layer.mean.size() * head_dim_);
  Check(kvevict_calibration_query_mean(
      calibration_.get(), l, n_seen_, kFuturePositions, layer.mean.data(),
      layer.mean.size(), layer.covariance.data(), layer.covariance.size()));
}

// The first singular vector of a group's queries, by power iteration from their
// mean, pointing away from them.
void QueryStatistics::FindFilter(Layer& layer) const {
  const size_t dim = head_dim_;
  const size_t group = n_q_heads_ / n_kv_heads_;
  layer.filter.clear();
  for (size_t head = 0; head < n_q_heads_; head += group) {
    std::vector<double> mean(dim);
    std::vector<double> products(dim * dim);
    for (size_t g = head; g < head + group; ++g) {
      const Moments& moments = layer.after_rope[g];
      for (size_t i = 0; i < dim; ++i) mean[i] += moments.sum[i];
      for (size_t i = 0; i < dim * dim; ++i) products[i] += moments.products[i];
    }
    std::vector<double> direction(mean);
    for (int round = 0; round < kPowerIterations; ++round) {
      std::vector<double> next(dim);
      for (size_t i = 0; i < dim; ++i) {
        for (size_t j = 0; j < dim; ++j) {
          next[i] += products[i * dim + j] * direction[j];
        }
      }
      const double norm = Norm(next);
      if (norm == 0) break;
      for (double& element : next) element /= norm;
      direction = std::move(next);
    }
    for (const double element : direction) {
      layer.filter.push_back(static_cast<float>(-element));
    }
  }
}

std::span<const kvevict_signal_inputs> QueryStatistics::Inputs() {
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    kvevict_signal_inputs& inputs = inputs_[l];
    inputs = KVEVICT_SIGNAL_INPUTS_INIT;
    if (layer.n_rows == 0) continue;
    if (attention_ != nullptr) {
      layer.planes[4] =
          Packed(layer.sums,
                 static_cast<uint32_t>(layer.sums.size() / n_kv_heads_), 1);
      inputs.attention_sums = &layer.planes[4];
      inputs.n_sum_heads = n_kv_heads_;
    }
    if (wants_queries_) {
      kvevict_plane& rows = layer.planes[5];
      rows = Packed(layer.queries, 1, head_dim_);
      rows.token_stride_bytes = n_q_heads_ * rows.head_stride_bytes;
      inputs.queries = &rows;
    }
    if (wants_expected_) {
      FindExpected(static_cast<uint32_t>(l), layer);
      layer.planes[0] = Packed(layer.mean, 1, head_dim_);
      layer.planes[1] = Packed(layer.covariance, head_dim_, head_dim_);
      inputs.query_mean = &layer.planes[0];
      inputs.query_covariance = &layer.planes[1];
    }
    if (wants_filter_) {
      FindFilter(layer);
      layer.planes[2] = Packed(layer.filter, 1, head_dim_);
      inputs.key_filter = &layer.planes[2];
    }
    if (wants_centers_) {
      layer.centers.resize(n_q_heads_ * 3 * n_pairs_);
      Check(kvevict_calibration_query_centers(
          calibration_.get(), static_cast<uint32_t>(l), layer.centers.data(),
          layer.centers.size()));
      layer.planes[3] =
          Packed(layer.centers, 3, static_cast<uint32_t>(n_pairs_));
      inputs.query_centers = &layer.planes[3];
    }
  }
  return inputs_;
}

}  // namespace kvevict::tools
