// Attention over random layers against double precision, as exact as docs/cuda.md says.
#include "kvevict/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "core/dtype.h"
#include "cuda/kernels/attention_mma.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/numbers.h"
#include "tests/gpu/random_values.h"
#include "tests/oracle/attention.h"
#include "tests/rig/tensor_core.h"

namespace kvevict::gpu {
namespace {

// A layer and what its rows stand for.
struct AttendedCache {
  RandomLayer layer;
  std::vector<float> keys = {};    // [head, slot, element]
  std::vector<float> values = {};  // likewise
  std::vector<float> biases = {};  // [head, slot], or none
};

// ---- A call ----

struct AttendCase {
  kvevict_layer_geometry geometry = KVEVICT_LAYER_GEOMETRY_INIT;
  uint32_t n_most = 0;      // slots of a cache
  bool is_wide = false;     // rows are loaded by 16 bytes
  bool groups = false;      // tokens share scales
  bool special = false;     // NaN and infinity are among the rows
  bool shares_row = false;  // values are the first elements of keys
  kvevict_attention_job job = KVEVICT_ATTENTION_JOB_INIT;  // its numbers
  bool has_sinks = false;
  bool is_ragged = false;
  bool has_lse = false;
  bool has_sums = false;

  uint32_t v_dim() const { return job.v_head_dim; }
};

bool TakesMinimum(kvevict_dtype dtype) {
  return InfoOf(static_cast<DType>(dtype)).takes_minimum;
}

// Long calls have a few rows and more slots than go into shared memory at a time.
AttendCase DrawAttention(Random* random, bool full) {
  AttendCase d;
  const bool is_long = random->OneOf(5);
  const auto dim = [&] {
    if (is_long && !full) return 32u;
    return random->Pick({1u, 8u, 24u, 32u, 40u, 64u, 65u, 96u, 128u, 256u});
  };
  kvevict_layer_geometry& g = d.geometry;
  g.n_kv_heads = is_long ? 1 : random->In(1, 2);
  const uint32_t group = random->Pick({1u, 2u, 3u, 4u, 6u, 8u});
  g.n_q_heads = g.n_kv_heads * group;
  g.k_head_dim = dim();
  g.v_head_dim = random->OneOf(2) ? g.k_head_dim : dim();
  g.q_dtype = RandomDType(random);
  g.k_dtype = AnyDType(random, g.k_head_dim);
  g.v_dtype = g.k_dtype;
  if (random->OneOf(3) || g.v_head_dim % 32 != 0) {
    g.v_dtype = AnyDType(random, g.v_head_dim);
  }
  d.groups =
      random->OneOf(3) && TakesMinimum(g.k_dtype) && TakesMinimum(g.v_dtype);
  d.is_wide = !d.groups && random->OneOf(2);
  d.special = random->OneOf(4);
  d.shares_row = !d.groups && random->OneOf(6);
  d.n_most = is_long            ? cuda::kFewSlots + random->In(20, 90)
             : random->OneOf(4) ? random->In(1, 70)
                                : random->In(100, 340);
  if (full) d.n_most *= 10;
  d.job.n_q_heads = g.n_q_heads;
  d.job.v_head_dim = d.shares_row ? random->In(1, g.k_head_dim) : g.v_head_dim;
  d.job.n_queries = is_long || random->OneOf(3)
                        ? random->In(1, 2)
                        : random->In(1, full ? 200 : 96 / group);
  if (random->OneOf(3)) d.job.window = random->In(1, d.n_most);
  d.job.non_causal = random->OneOf(4);
  if (random->OneOf(3)) d.job.softmax_scale = 0.3f;
  if (random->OneOf(3)) d.job.logit_softcap = 6.0f;
  d.job.n_sum_heads = random->OneOf(2) ? g.n_q_heads : g.n_kv_heads;
  d.has_sinks = random->OneOf(2);
  d.is_ragged = !d.groups && random->OneOf(2);
  d.has_lse = !random->OneOf(3);
  d.has_sums = !random->OneOf(3);
  return d;
}

AttendedCache MakeAttendedCache(const Gpu& gpu, const kvevict_context* host,
                                const AttendCase& d, Random* random) {
  const kvevict_layer_geometry& g = d.geometry;
  AttendedCache c = {
      RandomLayer(gpu, random, g, d.n_most, d.groups, 0, false, d.is_wide)};
  for (uint32_t h = 0; h < g.n_kv_heads; ++h) {
    for (uint32_t t = 0; t < d.n_most; ++t) {
      c.layer.WriteRows(random, h, t, d.special && random->OneOf(8));
      float* const bias = c.layer.BiasAt(h, t);
      if (bias == nullptr) continue;
      if (random->OneOf(8)) *bias = -INFINITY;  // hidden
      c.biases.push_back(*bias);
    }
  }
  c.layer.Upload();
  c.keys = Decode(host, c.layer, false, d.n_most);
  if (!d.shares_row) c.values = Decode(host, c.layer, true, d.n_most);
  return c;
}

// A layer of a call.
struct AttendedLayer {
  const AttendedCache* cache;
  uint32_t n_tokens;
  std::vector<uint32_t> counts;  // of each head
  std::vector<float> queries;    // [head, query, element]
  std::vector<float> sinks;
  StridedRows rows;
  StridedRows out;
  StridedRows lse;
  StridedRows sums;
  Buffer there;  // sinks, then counts
};

// The strides of a call's layers.
struct AttendStrides {
  RandomPlane rows, out, lse, sums;
};

std::unique_ptr<AttendedLayer> MakeAttendedLayer(const Gpu& gpu,
                                                 const AttendCase& d,
                                                 const AttendStrides& s,
                                                 const AttendedCache& cache,
                                                 Random* random) {
  const kvevict_layer_geometry& g = d.geometry;
  auto layer = std::unique_ptr<AttendedLayer>(new AttendedLayer{
      &cache,
      random->OneOf(8) ? 0 : random->In(1, d.n_most),
      {},
      {},
      {},
      StridedRows(gpu, s.rows),
      StridedRows(gpu, s.out),
      StridedRows(gpu, s.lse),
      StridedRows(gpu, s.sums),
      Buffer(gpu, (g.n_q_heads + g.n_kv_heads) * sizeof(float))});
  for (uint32_t h = 0; h < g.n_kv_heads; ++h) {
    layer->counts.push_back(d.is_ragged ? random->In(0, layer->n_tokens)
                                        : layer->n_tokens);
  }
  for (uint32_t h = 0; h < g.n_q_heads; ++h) {
    layer->sinks.push_back(static_cast<float>(random->In(0, 80)) / 8.0f - 5.0f);
  }
  layer->queries = FillQueries(random, &layer->rows, g.n_q_heads,
                               d.job.n_queries, g.k_head_dim);
  layer->there.Write(layer->sinks.data(), g.n_q_heads * sizeof(float));
  layer->there.Write(layer->counts.data(), g.n_kv_heads * sizeof(uint32_t),
                     g.n_q_heads * sizeof(float));
  return layer;
}

// What a part loses, see cuda/kernels/parts.cuh.
void SetErrors(const Gpu& gpu, const AttendCase& d, oracle_query* in,
               double* lost_weight) {
  const int q = d.geometry.q_dtype;
  const int k = d.geometry.k_dtype;
  const int v = d.shares_row ? k : static_cast<int>(d.geometry.v_dtype);
  if (!cuda::CanAttendMma(k, v, d.geometry.k_head_dim, d.v_dim(),
                          static_cast<uint32_t>(gpu.sm()))) {
    return;
  }
  const int element = cuda::AttendElement(k);
  const uint32_t q_parts = cuda::AttendParts(q, element);
  const uint32_t k_parts = cuda::AttendParts(k, element);
  const uint32_t v_parts = cuda::AttendParts(v, cuda::AttendElement(v));
  const bool is_f16 = cuda::AttendElement(v) == cuda::kF16;
  const rig::TensorCore& core = rig::kAmpere;  // the least exact
  in->dot_error =
      (q_parts == 1            ? 0.0
       : element == cuda::kF16 ? 0x1p-22
                               : 0x1p-17) +
      (k_parts == 1 ? 0.0 : 0x1p-16) +
      core.DotError(d.geometry.k_head_dim * q_parts * k_parts) * 0x1p-24;
  in->value_error =
      (is_f16 ? 0x1p-22 : 0x1p-16) + (v_parts == 1 ? 0.0 : 0x1p-16) +
      core.DotError(d.n_most * cuda::kWeightParts * v_parts) * 0x1p-24;
  // A weight of f16 is at most 2^15, and off by 2^-25 at least.
  *lost_weight = is_f16 ? 0x1p-40 : 0.0;
}

// Infinite values whose weights round to either sign give either.
bool IsNear(double got, double want, double tolerance) {
  if (!std::isfinite(want)) return got == want || !std::isfinite(got);
  return std::abs(got - want) <= tolerance;
}

void ExpectNear(const char* what, double got, double want, double tolerance,
                Report* report) {
  if (got == want || IsNear(got, want, tolerance)) return;
  report->Fail(fmt::format("{}: {}, not {} by {}", what, got, want, tolerance));
}

void CompareAttended(const Gpu& gpu, const AttendCase& d,
                     kvevict_dtype out_dtype, AttendedLayer* layer,
                     Report* report) {
  const kvevict_layer_geometry& g = d.geometry;
  const uint32_t group = g.n_q_heads / g.n_kv_heads;
  const uint32_t n = layer->n_tokens;
  const uint32_t n_stored = d.n_most;
  oracle_query in = {};
  double lost_weight = 0.0;
  SetErrors(gpu, d, &in, &lost_weight);
  in.k_dim = g.k_head_dim;
  in.v_dim = d.v_dim();
  in.value_stride = d.shares_row ? g.k_head_dim : g.v_head_dim;
  in.window = d.job.window;
  in.non_causal = d.job.non_causal != 0;
  in.scale = d.job.softmax_scale != 0.0f
                 ? d.job.softmax_scale
                 : 1.0f / std::sqrt(static_cast<float>(g.k_head_dim));
  in.softcap = d.job.logit_softcap;
  std::vector<double> sums(n), errors(n);
  for (uint32_t q_head = 0; q_head < g.n_q_heads; ++q_head) {
    const uint32_t head = q_head / group;
    const size_t first = size_t{head} * n_stored;
    in.keys = &layer->cache->keys[first * g.k_head_dim];
    in.values =
        d.shares_row ? in.keys : &layer->cache->values[first * g.v_head_dim];
    if (!layer->cache->biases.empty()) in.biases = &layer->cache->biases[first];
    in.n_tokens = layer->counts[head];
    in.sink = d.has_sinks ? &layer->sinks[q_head] : nullptr;
    for (uint32_t q = 0; q < d.job.n_queries; ++q) {
      in.query =
          &layer
               ->queries[(size_t{q_head} * d.job.n_queries + q) * g.k_head_dim];
      in.slot = int64_t{in.n_tokens} - d.job.n_queries + q;
      std::vector<double> out(in.v_dim), off(in.v_dim), weights(n),
          of_weight(n);
      oracle_attended want = {out.data(), off.data(),     0.0,
                              0.0,        weights.data(), of_weight.data()};
      oracle_attend(&in, &want);
      // The device's 2^x and logarithm are off by 2 ulp. Values are at most 4.
      for (uint32_t e = 0; e < in.v_dim; ++e) {
        ExpectNear("out", layer->out.Take(q_head, q, e), out[e],
                   2.0 * off[e] + lost_weight * in.n_tokens * 4.0 +
                       StoredError(out_dtype, out[e]),
                   report);
      }
      if (d.has_lse) {
        ExpectNear("lse", layer->lse.Take(q_head, q), want.lse,
                   want.lse_tolerance + 1e-6, report);
      }
      for (uint32_t t = 0; t < in.n_tokens; ++t) {
        sums[t] += weights[t];
        errors[t] += 2.0 * of_weight[t] + 2e-6 * weights[t];
      }
    }
    const bool adds = d.job.n_sum_heads != g.n_q_heads;
    if (!d.has_sums || (adds && (q_head + 1) % group != 0)) continue;
    for (uint32_t t = 0; t < n; ++t) {
      ExpectNear("sum", layer->sums.Take(adds ? head : q_head, t), sums[t],
                 errors[t] + 1e-6 * sums[t], report);
    }
    std::ranges::fill(sums, 0.0);
    std::ranges::fill(errors, 0.0);
  }
  report->FailIf(!layer->out.AllIsGuarded() || !layer->lse.AllIsGuarded() ||
                     !layer->sums.AllIsGuarded(),
                 "written beside the rows");
}

// Layers of one call, which may go together, once and again.
void CheckAttendCall(const Gpu& gpu, const AttendCase& d, Random* random,
                     Report* report) {
  const kvevict_layer_geometry& g = d.geometry;
  const ContextHandle context = CreateContext(gpu.ContextOptions());
  const ContextHandle host = CreateContext(KVEVICT_CONTEXT_OPTIONS_INIT);
  const AttendedCache cache = MakeAttendedCache(gpu, host.get(), d, random);
  const kvevict_dtype out_dtype =
      random->OneOf(3) ? RandomDType(random) : KVEVICT_DTYPE_F32;
  const uint32_t n_queries = d.job.n_queries;
  const auto plane = [&](kvevict_dtype dtype, uint32_t dim, uint32_t n_heads,
                         uint32_t n_rows) {
    return DrawPlane(random, dtype, dim, n_heads, n_rows, 1);
  };
  const AttendStrides strides = {
      plane(g.q_dtype, g.k_head_dim, g.n_q_heads, n_queries),
      plane(out_dtype, d.v_dim(), g.n_q_heads, n_queries),
      plane(KVEVICT_DTYPE_F32, 1, g.n_q_heads, n_queries),
      plane(KVEVICT_DTYPE_F32, 1, d.job.n_sum_heads, d.n_most)};
  kvevict_view view = cache.layer.device_view();
  std::vector<kvevict_plane> companions;
  if (d.shares_row) {  // nor do values have scales
    view.v = KVEVICT_PLANE_INIT;
    for (uint32_t i = 0; i < view.n_companions; ++i) {
      const kvevict_plane& plane = view.companions[i];
      if (plane.role == KVEVICT_ROLE_VALUE_SCALE ||
          plane.role == KVEVICT_ROLE_VALUE_MINIMUM) {
        continue;
      }
      companions.push_back(plane);
    }
    view.companions = companions.data();
    view.n_companions = static_cast<uint32_t>(companions.size());
  }
  std::vector<std::unique_ptr<AttendedLayer>> layers;
  std::vector<kvevict_attention_job> jobs;
  for (uint32_t l = random->In(1, 3); l > 0; --l) {
    layers.push_back(MakeAttendedLayer(gpu, d, strides, cache, random));
    AttendedLayer& layer = *layers.back();
    kvevict_attention_job job = d.job;
    job.view = &view;
    job.n_tokens = layer.n_tokens;
    job.queries = layer.rows.OnDevice();
    job.out = layer.out.OnDevice();
    if (d.has_lse) job.row_lse = layer.lse.OnDevice();
    if (d.has_sums) job.attention_sums = layer.sums.OnDevice();
    if (d.has_sinks) {
      job.sink_logits = layer.there.pointer<float>();
      job.sink_logits_len = g.n_q_heads;
    }
    if (d.is_ragged) {
      job.token_counts = layer.there.pointer<uint32_t>() + g.n_q_heads;
    }
    jobs.push_back(job);
  }
  kvevict_workspace sizes = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_attend_workspace(context.get(), jobs.data(), jobs.size(),
                                 &sizes));
  const Buffer workspace(
      gpu, random->OneOf(2) ? sizes.least_bytes : sizes.best_bytes);
  for (const bool again : {false, true}) {
    Check(kvevict_attend(context.get(), jobs.data(), jobs.size(),
                         workspace.pointer<void>(), workspace.n_bytes(),
                         gpu.stream()));
    gpu.Synchronize();
    for (const auto& layer : layers) {
      const bool same_out = layer->out.Fetch();
      const bool same_lse = layer->lse.Fetch();
      const bool same_sums = layer->sums.Fetch();
      const bool is_same = same_out && same_lse && same_sums;
      report->FailIf(again && !is_same, "another run gives other bits");
    }
  }
  for (const auto& layer : layers) {
    CompareAttended(gpu, d, out_dtype, layer.get(), report);
  }
}

}  // namespace

void CheckAttention(const Gpu& gpu, const Effort& effort, Report* report) {
  for (uint32_t i = 0; i < 8 * effort.times; ++i) {
    Random random(1000 * effort.seed + i);
    const AttendCase d = DrawAttention(&random, effort.full);
    const auto name = [](kvevict_dtype dtype) {
      return InfoOf(static_cast<DType>(dtype)).name;
    };
    report->Check(
        fmt::format("attention {}: {} queries of {} by {}, {} x {} and {} x {}",
                    i, d.job.n_queries, name(d.geometry.q_dtype),
                    d.geometry.n_q_heads, name(d.geometry.k_dtype),
                    d.geometry.k_head_dim, name(d.geometry.v_dtype), d.v_dim()),
        [&] { CheckAttendCall(gpu, d, &random, report); });
  }
}

}  // namespace kvevict::gpu
