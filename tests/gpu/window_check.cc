// Window attention over random layers against double precision, as exact as docs/cuda.md
// says.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "core/dtype.h"
#include "cuda/kernels/window_attention.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/numbers.h"
#include "tests/oracle/window_attention.h"
#include "tests/rig/tensor_core.h"

namespace kvevict::gpu {
namespace {

enum class RowsOfWindow {
  kWindow,
  kSums,   // of all queries, in parts
  kChunks  // whose rows see the keys of their chunk
};

struct WindowCase {
  kvevict_layer_geometry geometry = KVEVICT_LAYER_GEOMETRY_INIT;
  RowsOfWindow kind = RowsOfWindow::kWindow;
  std::string policy;
  uint32_t n_tokens = 0;
  uint32_t n_rows = 0;  // of queries
  uint32_t chunk = 0;
  bool is_wide = false;  // rows are loaded by 16 bytes
  bool groups = false;   // tokens share scales
  bool special = false;  // NaN and infinity are among the keys
  // Four elements of all queries and keys are far from 0, as in heads of real models:
  // dot products are about 1,000, and neither they nor their sums fit in f32.
  bool has_outliers = false;
  bool has_sinks = false;
  bool is_ragged = false;

  uint32_t group() const { return geometry.n_q_heads / geometry.n_kv_heads; }
};

// More tokens than one block of threads takes, of small rows, or more rows than a tile
// of tensor cores has.
WindowCase DrawWindow(Random* random, bool full) {
  WindowCase d;
  const bool is_long = random->OneOf(6);
  d.kind = random->Pick({RowsOfWindow::kWindow, RowsOfWindow::kWindow,
                         RowsOfWindow::kWindow, RowsOfWindow::kSums,
                         RowsOfWindow::kChunks});
  kvevict_layer_geometry& g = d.geometry;
  g.n_kv_heads = is_long ? 1 : random->In(1, 2);
  const uint32_t group =
      is_long ? random->In(1, 2) : random->Pick({1u, 2u, 3u, 4u, 5u, 6u, 8u});
  g.n_q_heads = g.n_kv_heads * group;
  g.k_head_dim = random->Pick(
      {3u, 8u, 16u, 32u, 36u, 41u, 64u, 80u, 96u, 128u, 144u, 160u, 256u});
  if (is_long && !full) g.k_head_dim = random->Pick({8u, 16u});
  g.v_head_dim = 1;
  g.k_dtype = AnyDType(random, g.k_head_dim);
  const bool is_plain = InfoOf(static_cast<DType>(g.k_dtype)).is_plain();
  g.q_dtype = is_plain && random->OneOf(2) ? g.k_dtype : RandomDType(random);
  d.groups =
      random->OneOf(3) && InfoOf(static_cast<DType>(g.k_dtype)).takes_minimum;
  d.is_wide = !d.groups && !random->OneOf(3);
  if (random->OneOf(3)) g.softmax_scale = random->OneOf(4) ? 0.25f : 1.0f;
  if (random->OneOf(3)) g.logit_softcap = 1.5f;
  d.has_sinks = random->OneOf(3) && d.kind != RowsOfWindow::kChunks;
  uint32_t window =
      is_long
          ? random->In(1, 8)
          : random->Pick({1u, 1u, 2u, 4u, 7u, 16u, 20u, 32u, 33u, 40u, 64u});
  if (!is_long && g.k_head_dim < 10 && group < 3) window = 300;
  d.n_tokens = is_long ? random->In(2048, 2300) : window + random->In(0, 300);
  if (full) d.n_tokens += 4000;
  const char* const of_group = random->Pick({"mean", "sum", "max"});
  const char* const of_rows = random->Pick({"mean", "sum", "max"});
  switch (d.kind) {
    case RowsOfWindow::kWindow:
      d.n_rows = window;
      d.policy = fmt::format(
          "snapkv:budget=0.5,keep_window=no,pool=none,window={},group={},"
          "rows={}",
          window, of_group, of_rows);
      if (random->OneOf(3)) {
        d.policy += ",row_weight=past";
      }
      if (random->OneOf(3)) d.policy += ",softmax=past";
      if (random->OneOf(5)) d.policy += ",order=reduce-logits,group=max";
      d.is_ragged = !d.groups && random->OneOf(3);
      break;
    case RowsOfWindow::kSums:
      d.n_rows = random->OneOf(3) ? random->In(1, 2)
                                  : random->In(1, std::min(d.n_tokens, 200u));
      d.policy = fmt::format(
          "h2o:budget=0.5,recent=1,pool=none,rows=sum,group={}", of_group);
      break;
    case RowsOfWindow::kChunks:
      d.n_tokens = std::min(d.n_tokens, full ? 2000u : 200u);
      d.n_rows = d.n_tokens;
      d.chunk = random->In(20, 150);
      d.policy = fmt::format(
          "non-causal:sink=0,budget=0.5,weight=none,pool=none,block={},"
          "group={}",
          d.chunk, of_group);
  }
  // Infinite keys and caps make NaN in different places.
  d.special = random->OneOf(5);
  d.has_outliers = is_plain && !d.special && d.kind != RowsOfWindow::kChunks &&
                   random->OneOf(3);
  if (d.has_outliers && g.logit_softcap != 0.0f) g.logit_softcap = 2048.0f;
  return d;
}

// The rows of a layer, and what they stand for.
struct WindowCache {
  RandomLayer layer;
  std::vector<float> keys = {};    // [head, slot, element]
  std::vector<float> biases = {};  // [head, slot], or none
};

// Elements far from 0. One of the four takes away from the others.
struct Outliers {
  uint32_t elements[4];
  float of_queries[4];
  float of_keys[4];

  Outliers(Random* random, uint32_t head_dim) {
    for (uint32_t i = 0; i < 4; ++i) {
      elements[i] = random->In(0, head_dim - 1);
      of_queries[i] = random->OneOf(2) ? 20.0f : -20.0f;
      of_keys[i] = (i == 3 ? -1.2f : 1.2f) * of_queries[i];
    }
  }
};

WindowCache MakeWindowCache(const Gpu& gpu, const kvevict_context* host,
                            const WindowCase& d, const Outliers& outliers,
                            Random* random) {
  const kvevict_layer_geometry& g = d.geometry;
  WindowCache c = {
      RandomLayer(gpu, random, g, d.n_tokens, d.groups, 0, false, d.is_wide)};
  for (uint32_t h = 0; h < g.n_kv_heads; ++h) {
    for (uint32_t t = 0; t < d.n_tokens; ++t) {
      c.layer.WriteRows(random, h, t, d.special && random->OneOf(30));
      for (uint32_t i = 0; i < 4 && d.has_outliers; ++i) {
        StoreValue(g.k_dtype,
                   outliers.of_keys[i] + static_cast<float>(random->In(0, 3)),
                   c.layer.ElementAt(false, h, t, outliers.elements[i]));
      }
      const float* const bias = c.layer.BiasAt(h, t);
      if (bias != nullptr) c.biases.push_back(*bias);
    }
  }
  c.layer.Upload();
  c.keys = Decode(host, c.layer, false, d.n_tokens);
  return c;
}

// A layer of a call.
struct WindowLayer {
  StridedRows rows;
  std::vector<float> queries;  // [head, row, element]
  std::vector<float> sinks;
  std::vector<uint32_t> counts;  // of each head
  Buffer counts_there;
  Buffer scores;
};

std::unique_ptr<WindowLayer> MakeWindowLayer(const Gpu& gpu,
                                             const WindowCase& d,
                                             const RandomPlane& strides,
                                             const Outliers& outliers,
                                             Random* random) {
  const kvevict_layer_geometry& g = d.geometry;
  auto layer = std::unique_ptr<WindowLayer>(new WindowLayer{
      StridedRows(gpu, strides),
      {},
      {},
      {},
      Buffer(gpu, g.n_kv_heads * sizeof(uint32_t)),
      Buffer(gpu, size_t{g.n_kv_heads} * d.n_tokens * sizeof(float))});
  layer->queries =
      FillQueries(random, &layer->rows, g.n_q_heads, d.n_rows, g.k_head_dim);
  for (uint32_t row = 0; row < g.n_q_heads * d.n_rows && d.has_outliers;
       ++row) {
    for (uint32_t i = 0; i < 4; ++i) {
      const float number =
          outliers.of_queries[i] + static_cast<float>(random->In(0, 3));
      StoreValue(
          g.q_dtype, number,
          layer->rows.At(row / d.n_rows, row % d.n_rows, outliers.elements[i]));
      layer->queries[size_t{row} * g.k_head_dim + outliers.elements[i]] =
          number;
    }
  }
  layer->rows.Upload();
  for (uint32_t h = 0; h < g.n_q_heads && d.has_sinks; ++h) {
    layer->sinks.push_back(static_cast<float>(random->In(0, 80)) / 8.0f - 5.0f);
  }
  for (uint32_t h = 0; h < g.n_kv_heads; ++h) {
    layer->counts.push_back(d.is_ragged ? random->In(d.n_rows, d.n_tokens)
                                        : d.n_tokens);
  }
  layer->counts_there.Write(layer->counts.data(),
                            layer->counts_there.n_bytes());
  return layer;
}

// The scores of a head and their tolerances.
struct ExpectedScores {
  std::vector<double> scores, tolerances;
};

oracle::WindowAttentionInput InputOf(const Gpu& gpu, const WindowCase& d,
                                     const oracle_policy& policy,
                                     const WindowLayer& layer,
                                     const WindowCache& cache, uint32_t head) {
  const kvevict_layer_geometry& g = d.geometry;
  const auto sm = static_cast<uint32_t>(gpu.sm());
  const bool of_logits = policy.order == ORACLE_ORDER_REDUCE_LOGITS;
  oracle::WindowAttentionInput in;
  in.n_tokens = layer.counts[head];
  in.window = d.n_rows;
  in.group = of_logits ? 1 : d.group();
  in.logit_heads = of_logits ? d.group() : 1;
  in.past_only = policy.softmax == ORACLE_SOFTMAX_PAST;
  in.weigh_by_past = policy.row_weight == ORACLE_ROW_WEIGHT_PAST;
  in.max_of_rows = policy.rows == KVEVICT_REDUCE_MAX;
  in.chunk = d.chunk;
  in.head_dim = g.k_head_dim;
  in.scale = d.chunk > 0 ? 1.0f
             : g.softmax_scale != 0.0f
                 ? g.softmax_scale
                 : 1.0f / std::sqrt(static_cast<float>(g.k_head_dim));
  in.softcap = d.chunk > 0 ? 0.0f : g.logit_softcap;
  const auto slice = [](const std::vector<float>& all, size_t begin, size_t n) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
    return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(n));
  };
  const size_t first = size_t{head} * d.n_tokens;
  in.keys = slice(cache.keys, first * g.k_head_dim,
                  size_t{in.n_tokens} * g.k_head_dim);
  if (!cache.biases.empty()) {
    in.biases = slice(cache.biases, first, in.n_tokens);
  }
  if (d.has_sinks) {
    in.sinks = slice(layer.sinks, size_t{head} * d.group(), d.group());
  }
  const size_t n_of_head = size_t{d.group()} * d.n_rows * g.k_head_dim;
  in.queries = slice(layer.queries, head * n_of_head, n_of_head);
  const uint32_t most_rows =
      cuda::PartRows(static_cast<uint32_t>(g.q_dtype),
                     static_cast<uint32_t>(g.k_dtype), g.k_head_dim);
  if (!of_logits &&
      cuda::CanUseMma(static_cast<uint32_t>(g.q_dtype),
                      static_cast<uint32_t>(g.k_dtype), g.k_head_dim,
                      std::min(d.n_rows, most_rows), sm)) {
    in.dot_error = rig::kAmpere.DotError(g.k_head_dim);  // the least exact
    if (g.q_dtype == KVEVICT_DTYPE_F32) {
      in.query_error = g.k_dtype == KVEVICT_DTYPE_F16 ? 0x1p-23 : 0x1p-17;
    }
  } else if (d.has_outliers) {
    in.dot_error = g.k_head_dim;
  }
  return in;
}

ExpectedScores ExpectedOf(const oracle::WindowAttentionInput& in,
                          const oracle_policy& policy) {
  const oracle::WindowAttentionResult r = oracle::WindowAttention(in);
  double scale = 1.0;
  if (policy.rows == KVEVICT_REDUCE_MEAN && in.chunk == 0) scale /= in.window;
  if (policy.group == KVEVICT_REDUCE_MEAN) scale /= in.group;
  ExpectedScores e;
  for (uint32_t j = 0; j < in.n_tokens; ++j) {
    double score = 0.0, tolerance = 0.0;
    for (uint32_t g = 0; g < in.group; ++g) {
      const double weight = r.weights[size_t{g} * in.n_tokens + j];
      const double error = r.tolerance[size_t{g} * in.n_tokens + j];
      if (policy.group == KVEVICT_REDUCE_MAX) {
        score = std::isnan(weight) || weight > score ? weight : score;
        tolerance = std::max(tolerance, error);
      } else {
        score += weight;
        tolerance += error;
      }
    }
    tolerance += score * (in.group + 2) * 0x1p-24;
    e.scores.push_back(score * scale);
    e.tolerances.push_back(tolerance * scale);
  }
  return e;
}

// Layers of one call, which go together, once and again.
void CheckWindowCall(const Gpu& gpu, const WindowCase& d, Random* random,
                     Report* report) {
  const kvevict_layer_geometry& g = d.geometry;
  const oracle_policy policy = ParsePolicy(d.policy);
  const ContextHandle context = CreateContext(gpu.ContextOptions());
  const ContextHandle host = CreateContext(KVEVICT_CONTEXT_OPTIONS_INIT);
  const Outliers outliers(random, g.k_head_dim);
  const WindowCache cache =
      MakeWindowCache(gpu, host.get(), d, outliers, random);
  const RandomPlane strides = d.is_wide && random->OneOf(2)
                                  ? PackedPlane(g, d.n_rows)
                                  : DrawPlane(random, g.q_dtype, g.k_head_dim,
                                              g.n_q_heads, d.n_rows, 1);
  std::vector<std::unique_ptr<WindowLayer>> layers;
  std::vector<float> sinks;
  for (uint32_t l = random->In(1, 3); l > 0; --l) {
    layers.push_back(MakeWindowLayer(gpu, d, strides, outliers, random));
    const std::vector<float>& of_layer = layers.back()->sinks;
    sinks.insert(sinks.end(), of_layer.begin(), of_layer.end());
  }
  const Geometry all = {static_cast<uint32_t>(layers.size()), d.n_tokens, {g}};
  kvevict_geometry geometry = all.Borrowed();
  geometry.sink_logits = sinks.empty() ? nullptr : sinks.data();
  geometry.sink_logits_len = sinks.size();
  kvevict_plan* made = nullptr;
  Check(kvevict_plan_create(context.get(), &geometry, HandleOf(policy).get(),
                            nullptr, &made));
  const PlanHandle plan(made);
  std::vector<kvevict_signal_inputs> inputs(layers.size(),
                                            KVEVICT_SIGNAL_INPUTS_INIT);
  std::vector<kvevict_score_job> jobs;
  for (uint32_t l = 0; l < layers.size(); ++l) {
    WindowLayer& layer = *layers[l];
    inputs[l].queries = layer.rows.OnDevice();
    if (d.kind == RowsOfWindow::kSums) inputs[l].n_query_rows = d.n_rows;
    kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
    job.layer = l;
    job.n_tokens = d.n_tokens;
    if (d.is_ragged) job.token_counts = layer.counts_there.pointer<uint32_t>();
    job.view = &cache.layer.device_view();
    job.inputs = &inputs[l];
    job.scores = layer.scores.pointer<float>();
    job.scores_len = size_t{g.n_kv_heads} * d.n_tokens;
    jobs.push_back(job);
  }
  const kvevict_workspace sizes =
      WorkspaceOf(plan.get(), KVEVICT_OPERATION_SCORE);
  const Buffer workspace(
      gpu, random->OneOf(2) ? sizes.least_bytes : sizes.best_bytes);
  std::vector<std::vector<float>> scores[2];
  for (auto& run : scores) {
    Check(kvevict_score(plan.get(), jobs.data(), jobs.size(),
                        workspace.pointer<void>(), workspace.n_bytes(),
                        gpu.stream()));
    gpu.Synchronize();
    for (const auto& layer : layers) {
      run.push_back(layer->scores.ReadAll<float>());
    }
  }
  double worst = 0.0;
  for (size_t l = 0; l < layers.size(); ++l) {
    for (uint32_t h = 0; h < g.n_kv_heads; ++h) {
      const ExpectedScores e =
          ExpectedOf(InputOf(gpu, d, policy, *layers[l], cache, h), policy);
      for (size_t j = 0; j < e.scores.size(); ++j) {
        const size_t at = size_t{h} * d.n_tokens + j;
        const double got = scores[0][l][at];
        report->FailIf(std::memcmp(&scores[0][l][at], &scores[1][l][at],
                                   sizeof(float)) != 0,
                       "another run gives other bits");
        if (std::isnan(got) && std::isnan(e.scores[j])) continue;
        const double error = std::abs(got - e.scores[j]) / e.tolerances[j];
        worst = std::max(worst, error);
        if (error <= 1.0) continue;
        report->Fail(fmt::format("layer {}, head {}, key {}: {}, not {} by {}",
                                 l, h, j, got, e.scores[j], e.tolerances[j]));
      }
    }
  }
  report->Note("worst error of a score, of what is allowed", worst);
}

}  // namespace

void CheckWindows(const Gpu& gpu, const Effort& effort, Report* report) {
  for (uint32_t i = 0; i < 8 * effort.times; ++i) {
    Random random(1000 * effort.seed + i);
    const WindowCase d = DrawWindow(&random, effort.full);
    const auto name = [](kvevict_dtype dtype) {
      return InfoOf(static_cast<DType>(dtype)).name;
    };
    report->Check(
        fmt::format("window attention {}: {} x {} by {} x {}, {} tokens, {}", i,
                    name(d.geometry.k_dtype), d.geometry.k_head_dim,
                    name(d.geometry.q_dtype), d.group(), d.n_tokens, d.policy),
        [&] { CheckWindowCall(gpu, d, &random, report); });
  }
}

}  // namespace kvevict::gpu
