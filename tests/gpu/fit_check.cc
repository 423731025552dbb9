// Evictions that fit values, against double precision.
#include <fmt/format.h>

#include <cmath>
#include <deque>
#include <random>

#include "tests/gpu/checks.h"
#include "tests/gpu/evictable.h"
#include "tests/gpu/model.h"
#include "tests/oracle/fit.h"

namespace kvevict::gpu {
namespace {

float At(const kvevict_plane& plane, uint32_t row, uint32_t head, uint32_t e) {
  return reinterpret_cast<const float*>(
      plane.data + row * static_cast<uint64_t>(plane.token_stride_bytes) +
      head * static_cast<uint64_t>(plane.head_stride_bytes))[e];
}

// Rows of a head, packed.
void AddRows(const kvevict_plane& plane, uint32_t n, uint32_t head,
             std::vector<float>* out) {
  for (uint32_t r = 0; r < n; ++r) {
    for (uint32_t e = 0; e < plane.head_dim; ++e) {
      out->push_back(At(plane, r, head, e));
    }
  }
}

// The first rows of a layer's values, read back.
std::vector<float> FetchValues(const Gpu& gpu, const kvevict_plane& v,
                               uint32_t n) {
  std::vector<float> rows(n * static_cast<uint64_t>(v.token_stride_bytes) /
                          sizeof(float));
  Check(gpu.driver(),
        gpu.driver().cuMemcpyDtoHAsync(
            rows.data(), v.data, rows.size() * sizeof(float), gpu.stream()),
        "cuMemcpyDtoHAsync");
  gpu.Synchronize();
  return rows;
}

// Heads may have different numbers of them.
std::vector<int32_t> PositionsOf(const Side& side, uint32_t layer,
                                 uint32_t head) {
  uint32_t n = 0;
  Check(kvevict_sequence_stored_length(side.sequence(), layer, head, &n));
  std::vector<int32_t> positions(n);
  size_t count = 0;
  Check(kvevict_sequence_keep_positions(side.sequence(), layer, head,
                                        positions.data(), n, &count));
  return positions;
}

// A plane with a bias of each slot, that a layer's view gets.
struct Biased {
  std::vector<float> before;
  Buffer memory;
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  kvevict_view view;

  // Biases of up to `most` above and below 0.
  Biased(const Gpu& gpu, const kvevict_view& of, uint32_t n_tokens, float most,
         uint64_t seed)
      : before(size_t{n_tokens} * of.n_kv_heads),
        memory(gpu, before.size() * sizeof(float)),
        view(of) {
    std::mt19937_64 random(seed);
    for (float& bias : before) {
      bias = most * (static_cast<float>(random() % 4096) / 2048.0f - 1.0f);
    }
    memory.Write(before.data(), memory.n_bytes());
    plane.data = memory.address();
    plane.dtype = KVEVICT_DTYPE_F32;
    plane.head_dim = 1;
    plane.head_stride_bytes = sizeof(float);
    plane.token_stride_bytes = int64_t{of.n_kv_heads} * sizeof(float);
    plane.role = KVEVICT_ROLE_BIAS;
    view.companions = &plane;
    view.n_companions = 1;
  }
  Biased(const Biased&) = delete;

  // Those of a head's slots before.
  std::vector<float> Before(uint32_t head) const {
    std::vector<float> of_head;
    for (size_t i = head; i < before.size(); i += view.n_kv_heads) {
      of_head.push_back(before[i]);
    }
    return of_head;
  }
  // Those of its first n slots now.
  std::vector<float> Now(uint32_t head, uint32_t n) const {
    const std::vector<float> all = memory.ReadAll<float>();
    std::vector<float> of_head;
    for (size_t i = 0; i < n; ++i) {
      of_head.push_back(all[i * view.n_kv_heads + head]);
    }
    return of_head;
  }
};

// Fails unless biases are at the minimum within their limits, where every slope is 0
// or points beyond the limit that the bias is at.
void CheckBiasesOf(const oracle_fit& in, bool are_fitted, Report* report) {
  std::vector<double> pulls(in.n_keep), bounds(in.n_keep);
  oracle_fit_bias_pulls(&in, pulls.data(), bounds.data());
  for (uint32_t i = 0; i < in.n_keep; ++i) {
    const float now = in.fitted_biases[i];
    const double change = double{now} - in.biases[in.keep[i]];
    const double rounding = 0x1p-23 * std::abs(now);
    const bool is_least = change <= rounding - 3.0;
    const bool is_most = change >= 3.0 - rounding;
    report->FailIf(
        are_fitted ? !(std::abs(change) <= 3.0 + rounding) ||
                         !(is_least || pulls[i] <= bounds[i]) ||
                         !(is_most || pulls[i] >= -bounds[i])
                   : change != 0.0,
        fmt::format("bias {} changes by {}, and is pulled by {}, bound {}", i,
                    change, pulls[i], bounds[i]));
  }
}

// Slots have biases up to `most_bias` above and below 0; 0: none.
void CheckFit(const Gpu& gpu, const std::string& policy, float most_bias,
              const Effort& effort, Report* report) {
  const Shape shape = {"",
                       2,
                       4,
                       2,
                       32,
                       200,
                       KVEVICT_DTYPE_F32,
                       KVEVICT_DTYPE_F32,
                       Layout::kTokenMajor};
  Twin twin(gpu, shape, effort.seed);
  Side device(&gpu, &twin, policy);
  Check(kvevict_context_prepare(device.context(), device.plan()));
  device.Prefill(0, shape.n_tokens, 64);
  const oracle_policy& p = device.policy();
  const uint32_t n_rows = p.reference > 0 ? p.reference : p.window;
  const uint32_t first = p.reference > 0 ? 0 : shape.n_tokens - n_rows;
  std::vector<kvevict_plane> planes;
  std::vector<kvevict_signal_inputs> inputs(shape.n_layers,
                                            KVEVICT_SIGNAL_INPUTS_INIT);
  kvevict_evict_options evict = KVEVICT_EVICT_OPTIONS_INIT;
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    planes.push_back(twin.DeviceQueries(l, first));
  }
  for (uint32_t l = 0; l < shape.n_layers && p.reference > 0; ++l) {
    inputs[l].n_reference_rows = n_rows;
    inputs[l].reference_queries = &planes[l];
    evict.inputs = inputs.data();
    evict.inputs_len = inputs.size();
  }
  const uint32_t group = shape.n_q_heads / shape.n_kv_heads;
  uint32_t n_weak = 0;
  double most = 0.0;
  std::deque<Biased> biases;
  const bool fits_biases = policy.find("bias-values") != std::string::npos;
  std::vector<kvevict_view> views = twin.device_views();
  for (uint32_t l = 0; l < shape.n_layers && most_bias > 0.0f; ++l) {
    biases.emplace_back(gpu, views[l], shape.n_tokens, most_bias,
                        effort.seed + l);
    views[l] = biases.back().view;
  }
  const Buffer workspace(
      gpu, WorkspaceBytes(device.plan(), KVEVICT_OPERATION_EVICT));
  Check(kvevict_sequence_evict(device.sequence(), views.data(), views.size(),
                               &evict, workspace.pointer<void>(),
                               workspace.n_bytes(), device.stream()));
  gpu.Synchronize();
  const kvevict_evict_report done = ReportOf(device.sequence());
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    const kvevict_view& before = twin.host_views()[l];
    const kvevict_plane queries = twin.HostQueries(l, first);
    for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
      const std::vector<int32_t> kept = PositionsOf(device, l, h);
      const auto n_keep = static_cast<uint32_t>(kept.size());
      n_weak += n_rows * group < 2 * n_keep;
      std::vector<float> q, k, v;
      for (uint32_t g = 0; g < group; ++g) {
        AddRows(queries, n_rows, h * group + g, &q);
      }
      AddRows(before.k, shape.n_tokens, h, &k);
      AddRows(before.v, shape.n_tokens, h, &v);
      std::vector<double> want(size_t{n_keep} * shape.head_dim),
          bounds(want.size());
      std::vector<float> old_biases, new_biases;
      if (!biases.empty()) {
        old_biases = biases[l].Before(h);
        new_biases = biases[l].Now(h, n_keep);
      }
      const oracle_fit in = {q.data(),
                             nullptr,
                             k.data(),
                             v.data(),
                             n_rows * group,
                             shape.n_tokens,
                             shape.head_dim,
                             shape.head_dim,
                             1.0 / std::sqrt(double{1} * shape.head_dim),
                             0.0,
                             kept.data(),
                             n_keep,
                             p.fit_ridge,
                             biases.empty() ? nullptr : old_biases.data(),
                             biases.empty() ? nullptr : new_biases.data()};
      if (!biases.empty()) CheckBiasesOf(in, fits_biases, report);
      (void)oracle_fit_values(&in, want.data(), bounds.data());
      kvevict_plane got = twin.device_views()[l].v;
      const std::vector<float> rows = FetchValues(gpu, got, n_keep);
      got.data = reinterpret_cast<uintptr_t>(rows.data());
      for (size_t i = 0; i < want.size(); ++i) {
        const auto slot = static_cast<uint32_t>(i / shape.head_dim);
        const auto e = static_cast<uint32_t>(i % shape.head_dim);
        const double bound = bounds[i] + std::abs(want[i]) * 0x1p-24;
        const float x = At(got, slot, h, e);
        report->FailIf(
            !(std::abs(x - want[i]) <= bound),
            fmt::format("layer {}, head {}, slot {}, element {} is {}, not {} "
                        "to {}",
                        l, h, slot, e, x, want[i], bound));
        const float old = v[size_t(kept[slot]) * shape.head_dim + e];
        most = std::max(most, std::abs(want[i] - old) / bound);
      }
    }
  }
  report->FailIf(most < 10.0, fmt::format("changes are {} bounds", most));
  report->FailIf(done.n_weak_fits != n_weak,
                 fmt::format("{} weak fits, not {}", done.n_weak_fits, n_weak));
}

// Rows that a paged cache appends would need biases of 0.
void CheckPagedBiases(const Gpu& gpu, Report* report) {
  const ContextHandle context = CreateContext(gpu.ContextOptions());
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = layer.n_kv_heads = 1;
  layer.k_head_dim = layer.v_head_dim = 8;
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = 1;
  geometry.max_tokens = 64;
  geometry.layers = &layer;
  geometry.layers_len = 1;
  kvevict_policy* policy = nullptr;
  Check(kvevict_policy_create("keydiff:reference=4,fit=bias-values", &policy));
  kvevict_plan* plan = nullptr;
  Check(kvevict_plan_create(context.get(), &geometry, policy, nullptr, &plan));
  kvevict_policy_destroy(policy);
  kvevict_paged_cache_options options = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  options.n_blocks = 8;
  options.block_size = 8;
  size_t n_bytes = 0;
  kvevict_paged_cache* cache = nullptr;
  for (const kvevict_status status :
       {kvevict_paged_cache_bytes(plan, &options, &n_bytes),
        kvevict_paged_cache_create(plan, &options, &cache)}) {
    ExpectFailure(status, KVEVICT_ERROR_UNSUPPORTED,
                  {"bias-values", "CUDA", "paged"}, report);
  }
  kvevict_plan_destroy(plan);
}

}  // namespace

void CheckFits(const Gpu& gpu, const Effort& effort, Report* report) {
  // By the window, whose rows wrap around in their ring; by more queries than slots,
  // and by fewer; and by heads of different lengths.
  struct Case {
    const char* policy;
    float most_bias;
  };
  for (const auto& [policy, most_bias] : {
           Case{"snapkv:budget=60,window=16,fit=values", 0.0f},
           Case{"streaming-llm:budget=30,reference=40,fit=values", 0.0f},
           Case{"random:sink=0,budget=70,reference=9,fit=values,fit_ridge=0.1",
                0.0f},
           Case{
               "random:sink=0,budget=60,heads=adaptive,reference=30,fit=values",
               0.0f},
           Case{"streaming-llm:budget=30,reference=40,fit=values", 1.5f},
           Case{"snapkv:budget=60,window=16,fit=bias-values", 1.5f},
           Case{"streaming-llm:budget=30,reference=40,fit=bias-values", 1e-3f},
           Case{"streaming-llm:budget=30,reference=40,fit=bias-values", 1.5f},
           Case{"random:sink=0,budget=70,reference=9,fit=bias-values,"
                "fit_ridge=0.1",
                1.5f},
           Case{"random:sink=0,budget=60,heads=adaptive,reference=30,"
                "fit=bias-values",
                0.5f},
       }) {
    report->Check(fmt::format("fit: {}, biases to {}", policy, most_bias),
                  [&] { CheckFit(gpu, policy, most_bias, effort, report); });
  }
  report->Check("fit: biases of paged caches",
                [&] { CheckPagedBiases(gpu, report); });
}

}  // namespace kvevict::gpu
