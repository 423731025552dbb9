#include "tests/cuda/window_attention/launch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "cuda/kernels/window_attention.h"
#include "cuda/kernels/window_attention_few.h"
#include "tests/cuda/window_attention/stored.h"

namespace kvevict::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// A mean over the window needs it, and it is no power of two.
float WeightScale(const AttentionVariant& v) {
  if ((v.rows & (kPart | kChunks)) != 0) return 1.0f;
  return 1.0f / static_cast<float>(v.window);
}

// The ends that are measured.
constexpr uint32_t kFirst = 4;
uint32_t Last(const AttentionVariant& v) { return v.window + 21; }

bool Measures(const AttentionVariant& v) {
  return (v.rows & (kMeasureDynamics | kMeasureEnds)) != 0;
}

// Natural logarithms, [n_q_heads, rows] with a gap, rows in ring order.
constexpr uint32_t kLseGap = 1;
std::vector<float> RowLse(const AttentionVariant& v,
                          const AttentionLayer& layer,
                          const AttentionLayout& layout) {
  const auto n_heads = static_cast<uint32_t>(layer.size()) * v.group;
  const uint32_t n_rows = QueryRows(v);
  const uint32_t n_stored = n_rows + layout.n_spare;
  std::vector<float> lse(n_heads * (n_stored + kLseGap), kNan);
  for (uint32_t head = 0; head < n_heads; ++head) {
    const oracle::WindowAttentionInput& in = layer[head / v.group];
    for (uint32_t w = 0; w < n_rows; ++w) {
      const uint32_t n_visible =
          in.n_tokens - n_rows + ((v.rows & kSoftmaxPast) != 0 ? 0 : w + 1);
      std::vector<double> logits(n_visible);
      for (uint32_t j = 0; j < n_visible; ++j) {
        for (uint32_t h = 0; h < v.logit_heads; ++h) {
          const uint32_t row =
              (head % v.group * v.logit_heads + h) * n_rows + w;
          const float* q = &in.queries[size_t{row} * v.head_dim];
          double dot = 0.0;
          for (uint32_t d = 0; d < v.head_dim; ++d) {
            dot +=
                static_cast<double>(q[d]) * in.keys[size_t{j} * v.head_dim + d];
          }
          const double logit = dot * in.scale;
          logits[j] = h == 0 ? logit : std::max(logits[j], logit);
        }
        if (in.softcap != 0.0f) {
          logits[j] = in.softcap * std::tanh(logits[j] / in.softcap);
        }
        if (!in.biases.empty()) logits[j] += in.biases[j];
      }
      const double highest =
          logits.empty() ? -std::numeric_limits<double>::infinity()
                         : *std::max_element(logits.begin(), logits.end());
      double sum = 0.0;
      for (double logit : logits) sum += std::exp(logit - highest);
      const uint32_t stored = (layout.first_row + w) % n_stored;
      lse[head * (n_stored + kLseGap) + stored] = static_cast<float>(
          std::isinf(highest) ? highest : highest + std::log(sum));
    }
  }
  return lse;
}

template <class T>
uint64_t AddressOf(const std::vector<T>& v) {
  return reinterpret_cast<uint64_t>(v.data());
}

void Check(const AttentionVariant& v, const char* pass,
           const std::string& error) {
  if (error.empty()) return;
  std::fprintf(stderr, "%s, %s: %s\n", v.name, pass, error.c_str());
  std::exit(1);
}

}  // namespace

AttentionLayer RandomLayer(const AttentionVariant& v, uint32_t n_kv_heads,
                           uint32_t n_tokens, Random& random) {
  AttentionLayer layer(n_kv_heads);
  for (oracle::WindowAttentionInput& in : layer) {
    in.n_tokens = n_tokens;
    if (v.ragged && &in != &layer[0]) {
      in.n_tokens = QueryRows(v) + random.Below(n_tokens - QueryRows(v) + 1);
    }
    in.window = QueryRows(v, in.n_tokens);
    if ((v.rows & kChunks) != 0) in.chunk = QueryRows(v);
    in.group = v.group;
    in.logit_heads = v.logit_heads;
    in.past_only = (v.rows & kSoftmaxPast) != 0;
    in.weigh_by_past = (v.rows & kWeighByPast) != 0;
    in.max_of_rows = (v.rows & kMaxOfRows) != 0;
    in.spread = (v.rows & kSpread) != 0 ? 200.0f : 0.0f;
    in.n_first = kFirst;
    in.n_last = Last(v);
    in.head_dim = v.head_dim;
    if (SplitsQueries(v.use_mma, v.q_dtype)) {
      const bool is_f16 = MmaElement(v.q_dtype, v.k_dtype) == kF16;
      in.query_error = is_f16 ? 0x1p-23 : 0x1p-17;
    }
    in.scale = 1.0f / std::sqrt(static_cast<float>(v.head_dim));
    if ((v.rows & kSoftcap) != 0) in.softcap = 1.5f;
    if ((v.rows & kSinks) != 0) {
      in.sinks.resize(size_t{v.group} * v.logit_heads);
      for (float& sink : in.sinks) sink = 3.0f * random.Gaussian();
    }
    for (uint32_t j = 0; (v.rows & kBias) != 0 && j < in.n_tokens; ++j) {
      in.biases.push_back(2.0f * random.Gaussian());
    }
    const uint32_t n_query_rows = v.group * v.logit_heads * in.window;
    in.queries.resize(size_t{n_query_rows} * v.head_dim);
    in.keys.resize(size_t{in.n_tokens} * v.head_dim);
    for (float& q : in.queries) q = RoundTo(v.q_dtype, random.Gaussian());
    for (uint32_t j = 0; j < in.n_tokens; ++j) {
      const bool like_a_query = random.Below(50) == 0;
      const size_t row = random.Below(n_query_rows);
      for (uint32_t d = 0; d < v.head_dim; ++d) {
        float k = random.Gaussian();
        if (like_a_query) k += 0.5f * in.queries[row * v.head_dim + d];
        in.keys[size_t{j} * v.head_dim + d] = RoundTo(v.k_dtype, k);
      }
    }
  }
  return layer;
}

AttentionLayer OutlierLayer(const AttentionVariant& v, uint32_t n_kv_heads,
                            uint32_t n_tokens, Random& random) {
  constexpr float kQuery = 20.0f;
  constexpr float kKey = 24.0f;
  AttentionLayer layer = RandomLayer(v, n_kv_heads, n_tokens, random);
  const uint32_t n_channels = std::min(4u, v.head_dim);
  const auto shift = [&](std::vector<float>& rows, uint32_t dtype, uint32_t c,
                         float by) {
    for (size_t i = c; i < rows.size(); i += v.head_dim) {
      rows[i] = RoundTo(dtype, rows[i] + by);
    }
  };
  for (oracle::WindowAttentionInput& in : layer) {
    if (in.softcap != 0.0f)
      in.softcap = 2048.0f;  // otherwise all logits are as large
    const uint32_t first = random.Below(v.head_dim);
    for (uint32_t n = 0; n < n_channels; ++n) {
      const uint32_t c = (first + n * v.head_dim / n_channels) % v.head_dim;
      const float side = random.Below(2) == 0 ? 1.0f : -1.0f;
      shift(in.queries, v.q_dtype, c, side * kQuery);
      // One of the four takes away from the others.
      shift(in.keys, v.k_dtype, c, (n == 3 ? -side : side) * kKey);
    }
  }
  return layer;
}

std::vector<std::vector<float>> RunAttention(
    const AttentionVariant& v, const std::vector<AttentionLayer>& layers,
    const AttentionLayout& layout, const simt::Options& options) {
  ScoreParams p = {};
  const auto n_kv_heads = static_cast<uint32_t>(layers[0].size());
  std::vector<Rows> queries;
  std::vector<Keys> keys;
  std::vector<std::vector<float>> lse, sinks, biases;
  std::vector<std::vector<float>> scores;
  std::vector<uint32_t> lengths;  // {stored, something else} per layer and head
  uint32_t longest = 0;
  Random random(layers[0][0].n_tokens);
  const KeyNumbers numbers = DrawKeyNumbers(v, n_kv_heads, random);
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const oracle::WindowAttentionInput& in : layers[i]) {
      lengths.push_back(in.n_tokens);
      lengths.push_back(0xDEAD);
    }
    queries.push_back(StoreQueries(v, layers[i], layout));
    keys.push_back(StoreKeys(v, layers[i], layout, numbers));
    const bool has_lse = layout.odd_layers_have_lse && i % 2 == 1 &&
                         (v.rows & (kChunks | kSinks)) == 0;
    sinks.emplace_back();
    for (const oracle::WindowAttentionInput& in : layers[i]) {
      sinks[i].insert(sinks[i].end(), in.sinks.begin(), in.sinks.end());
    }
    biases.push_back(StoreBiases(layers[i], keys[i], v.paged, layout));
    p.bias_bases[i] = AddressOf(biases[i]);
    lse.push_back(has_lse ? RowLse(v, layers[i], layout)
                          : std::vector<float>());
    const uint32_t n_tokens = layers[i][0].n_tokens;
    const size_t n_rows = n_kv_heads * (v.out == 2 ? v.group : 1);
    scores.emplace_back(n_rows * n_tokens, kNan);
    longest = std::max(longest, n_tokens);

    ScoreLayer& layer = p.layers[i];
    layer.queries = queries[i].base;
    layer.keys = keys[i].rows.base;
    layer.block_table = v.paged ? AddressOf(keys[i].table) : 0;
    layer.row_lse = has_lse ? AddressOf(lse[i]) : 0;
    if (!sinks[i].empty()) layer.row_lse = AddressOf(sinks[i]);
    layer.scores = AddressOf(scores[i]);
    layer.n_tokens = n_tokens;
    layer.first_count = static_cast<int32_t>(2 * n_kv_heads * i);
    // The launch has one set of strides, and these depend on the length.
    if (i > 0 && !v.paged &&
        (layout.keys == RowOrder::kHeadMajor ||
         layout.keys == RowOrder::kElementMajor)) {
      std::fprintf(stderr, "%s: one layer in this layout\n", v.name);
      std::exit(1);
    }
  }
  p.keys = {keys[0].rows.row_stride,         keys[0].rows.head_stride,
            keys[0].rows.element_stride,     v.paged ? keys[0].block_stride : 0,
            v.paged ? layout.block_size : 0, keys[0].table_head_stride};
  const int64_t bias_row = 4 * int64_t{n_kv_heads};
  p.biases = {bias_row,
              4,
              0,
              v.paged ? bias_row * layout.block_size : 0,
              p.keys.block_size,
              p.keys.table_head_stride};
  const uint32_t block = v.paged ? layout.block_size : longest;
  p.scale = BesideHeads(numbers.scales, block);
  p.minimum = BesideHeads(numbers.minima, block);
  p.first_row = layout.first_row;
  p.ring_rows = v.window + layout.n_spare;
  if (v.ragged) p.tokens = {AddressOf(lengths), 2, 0};
  p.query_row_stride = queries[0].row_stride;
  p.query_head_stride = queries[0].head_stride;
  p.query_element_stride = queries[0].element_stride;
  p.lse_row_stride = 4;
  p.lse_head_stride = 4 * (QueryRows(v) + layout.n_spare + kLseGap);
  const oracle::WindowAttentionInput& any = layers[0][0];
  p.scale_log2e = (any.softcap == 0.0f ? any.scale : any.softcap) * 1.44269504f;
  if (any.softcap != 0.0f) p.scale_by_cap = any.scale / any.softcap;
  p.weight_scale = WeightScale(v);
  p.n_kv_heads = n_kv_heads;
  p.keys_per_split = (v.rows & kChunks) != 0
                         ? QueryRows(v)
                         : layout.tiles_per_split * v.tile_keys;
  p.n_splits = CeilDiv(longest, p.keys_per_split);
  const auto n_layers = static_cast<uint32_t>(layers.size());
  const std::vector<float> partial_lse(
      PartialLseBytes(n_layers, n_kv_heads, p.n_splits, v.window, v.group) / 4,
      kNan);
  p.partial_lse = AddressOf(partial_lse);
  const std::vector<float> logits(
      v.few ? size_t{n_layers} * n_kv_heads * v.group * v.window * longest : 0,
      kNan);
  p.logits = AddressOf(logits);
  p.logit_stride = longest;
  p.spread = layers[0][0].spread * static_cast<float>(v.window);
  // The rig's doors leave slots at both ends out of chunks.
  p.n_first = (v.rows & kChunks) != 0 ? 0 : kFirst;
  p.n_last = (v.rows & kChunks) != 0 ? 0 : Last(v);
  const size_t n_parts = size_t{n_kv_heads} * p.n_splits;
  const std::vector<float> measures(Measures(v) ? 2 * n_parts * n_layers : 0,
                                    kNan);
  p.measures = AddressOf(measures);

  const WindowAttentionShape shape = ShapeWindowAttention(
      v.use_mma, v.q_dtype, v.head_dim, v.window, v.group, v.tile_keys);
  const simt::Dim3 grid = {p.n_splits, n_kv_heads, n_layers};
  const auto launch = [&](const char* pass,
                          void (*kernel)(const ScoreParams&)) {
    Check(v, pass,
          simt::Launch(
              kernel, grid, {v.few ? kFewRowThreads : shape.threads},
              SharedBytes(shape, StagedTiles(v), v.tile_keys, v.head_dim), p,
              options));
  };
  // One launch each, or one for each part, the last rows first.
  const ScoreParams whole = p;
  for (uint32_t n_after = 0; n_after < QueryRows(v); n_after += v.window) {
    const int64_t first_row = int64_t{QueryRows(v)} - n_after - v.window;
    p.n_after = n_after;
    p.n_absent = static_cast<uint32_t>(std::max<int64_t>(0, -first_row));
    p.adds = n_after > 0;
    if ((v.rows & kChunks) != 0) p.first_row = n_after;  // the first rows first
    for (size_t i = 0; i < layers.size() && (v.rows & kChunks) == 0; ++i) {
      const ScoreLayer& all = whole.layers[i];
      p.layers[i].queries =
          all.queries + static_cast<uint64_t>(first_row * p.query_row_stride);
      if (all.row_lse == 0 || (v.rows & kSinks) != 0) continue;
      p.layers[i].row_lse =
          all.row_lse + static_cast<uint64_t>(first_row * p.lse_row_stride);
    }
    launch("first pass", v.first_pass);
    launch("second pass", v.second_pass);
  }
  for (size_t i = 0; Measures(v) && i < layers.size(); ++i) {
    double sums[2] = {};
    for (size_t part = 0; part < 2 * n_parts; ++part) {
      sums[part % 2] += measures[2 * n_parts * i + part];
    }
    scores[i].push_back(static_cast<float>(sums[0]));
    scores[i].push_back(static_cast<float>(sums[1]));
  }
  return scores;
}

namespace {

// Compares a layer's measures with f32 sums of some thousand numbers.
std::string CompareMeasure(const AttentionVariant& v,
                           const AttentionLayer& layer, const float* got) {
  using Measure = oracle::WindowAttentionResult::Measure;
  Measure expected[2];
  for (const oracle::WindowAttentionInput& head : layer) {
    const oracle::WindowAttentionResult r = oracle::WindowAttention(head);
    const Measure of_head[2] = {
        (v.rows & kMeasureEnds) != 0 ? r.ends : r.entropy,
        (v.rows & kMeasureEnds) != 0 ? Measure() : r.variance};
    for (int i = 0; i < 2; ++i) {
      expected[i].value += of_head[i].value;
      expected[i].tolerance += of_head[i].tolerance;
    }
  }
  for (int i = 0; i < 2; ++i) {
    if (std::isnan(expected[i].value) && std::isnan(got[i])) continue;
    if (std::abs(got[i] - expected[i].value) <= expected[i].tolerance) continue;
    char text[200];
    std::snprintf(text, sizeof(text),
                  "%s: measure %d: %.9g, expected %.9g, tolerance %.3g", v.name,
                  i, double{got[i]}, expected[i].value, expected[i].tolerance);
    return text;
  }
  return "";
}

}  // namespace

Comparison CompareWithOracle(const AttentionVariant& v,
                             const AttentionLayer& layer,
                             const std::vector<float>& scores) {
  constexpr double kNextToNothing = 1e-20;
  const double scale = WeightScale(v);
  const uint32_t stride = layer[0].n_tokens;
  Comparison comparison;
  for (size_t head = 0; head < layer.size(); ++head) {
    const uint32_t n = layer[head].n_tokens;
    const oracle::WindowAttentionResult r =
        oracle::WindowAttention(layer[head]);
    const uint32_t n_rows = v.out == 2 ? v.group : 1;
    for (uint32_t row = 0; row < n_rows; ++row) {
      for (uint32_t j = 0; j < n; ++j) {
        double expected = 0.0;
        // The oracle's tolerance of one head's sum, and for scale and the sum
        // over heads half an ulp each and a bit.
        double tolerance = 0.0;
        for (uint32_t g = 0; g < v.group; ++g) {
          if (v.out == 2 && g != row) continue;
          const double weight = r.weights[size_t{g} * n + j];
          const double error = r.tolerance[size_t{g} * n + j];
          if (v.out == 1 || (v.rows & kMaxOfRows) != 0) {
            expected =
                std::isnan(weight) || weight > expected ? weight : expected;
            tolerance = std::max(tolerance, error);
          } else {
            expected += weight;
            tolerance += error;
          }
        }
        tolerance += expected * (v.group + 2) * std::ldexp(1.0, -24);
        const double got = scores[(head * n_rows + row) * stride + j];
        const double error = std::abs(got - expected * scale) / scale;
        if (expected > kNextToNothing) {
          comparison.relative_error =
              std::max(comparison.relative_error, error / expected);
          comparison.part_of_tolerance =
              std::max(comparison.part_of_tolerance, error / tolerance);
        }
        const bool same =
            std::isnan(expected) ? std::isnan(got) : error <= tolerance;
        if (same || !comparison.error.empty()) continue;
        char text[200];
        std::snprintf(
            text, sizeof(text),
            "%s: %u tokens, KV head %zu row %u key %u: %.9g, expected "
            "%.9g, tolerance %.3g",
            v.name, n, head, row, j, got, expected * scale, tolerance * scale);
        comparison.error = text;
      }
    }
  }
  if (Measures(v) && comparison.error.empty()) {
    comparison.error = CompareMeasure(v, layer, &scores[scores.size() - 2]);
  }
  return comparison;
}

}  // namespace kvevict::cuda
