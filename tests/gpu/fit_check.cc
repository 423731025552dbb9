// Evictions that fit values, against double precision.
#include <fmt/format.h>

#include <cmath>

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

void CheckFit(const Gpu& gpu, const std::string& policy, const Effort& effort,
              Report* report) {
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
  const kvevict_evict_report done = device.Evict(&evict);
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
                             nullptr,
                             nullptr};
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

// A plane of zeros with the bias of each slot, that a layer's view gets.
struct Biased {
  Buffer memory;
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  kvevict_view view;

  Biased(const Gpu& gpu, const kvevict_view& of, uint32_t n_tokens)
      : memory(gpu, size_t{n_tokens} * of.n_kv_heads * sizeof(float)),
        view(of) {
    plane.data = memory.address();
    plane.dtype = KVEVICT_DTYPE_F32;
    plane.head_dim = 1;
    plane.head_stride_bytes = sizeof(float);
    plane.token_stride_bytes = int64_t{of.n_kv_heads} * sizeof(float);
    plane.role = KVEVICT_ROLE_BIAS;
    view.companions = &plane;
    view.n_companions = 1;
  }
};

// The device refuses to fit biases, or values with them, and changes nothing.
void CheckBiases(const Gpu& gpu, Report* report) {
  const auto refused = [&](kvevict_status status, const char* what) {
    ExpectFailure(status, KVEVICT_ERROR_UNSUPPORTED, {what, "CUDA"}, report);
  };
  for (const char* text : {"snapkv:budget=60,window=16",
                           "snapkv:budget=60,window=16,fit=values"}) {
    Evictable e(gpu, nullptr, text);
    e.side.Prefill(0, SmallShape().n_tokens, 64);
    std::vector<kvevict_view> views = e.twin.device_views();
    Biased biased(gpu, views[1], SmallShape().n_tokens);
    views[1] = biased.view;
    const kvevict_status status = kvevict_sequence_evict(
        e.side.sequence(), views.data(), views.size(), nullptr,
        e.workspace.pointer<void>(), e.workspace.n_bytes(), e.side.stream());
    if (std::string_view(text) == "snapkv:budget=60,window=16") {
      Check(status);
      continue;
    }
    refused(status, "role bias");
    report->Expect(e.side.Stored(1) == SmallShape().n_tokens ? ""
                                                             : "it evicted");
    kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
    layer.n_q_heads = layer.n_kv_heads = 1;
    layer.k_head_dim = layer.v_head_dim = 8;
    kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
    geometry.n_layers = 1;
    geometry.max_tokens = 64;
    geometry.layers = &layer;
    geometry.layers_len = 1;
    kvevict_policy* policy = nullptr;
    Check(kvevict_policy_create("snapkv:fit=bias-values", &policy));
    kvevict_plan* plan = nullptr;
    refused(kvevict_plan_create(e.side.context(), &geometry, policy, nullptr,
                                &plan),
            "bias-values");
    kvevict_policy_destroy(policy);
  }
}

}  // namespace

void CheckFits(const Gpu& gpu, const Effort& effort, Report* report) {
  // By the window, whose rows wrap around in their ring; by more queries than slots,
  // and by fewer; and by heads of different lengths.
  for (const char* policy :
       {"snapkv:budget=60,window=16,fit=values",
        "streaming-llm:budget=30,reference=40,fit=values",
        "random:sink=0,budget=70,reference=9,fit=values,fit_ridge=0.1",
        "random:sink=0,budget=60,heads=adaptive,reference=30,fit=values"}) {
    report->Check(std::string("fit: ") + policy,
                  [&] { CheckFit(gpu, policy, effort, report); });
  }
  report->Check("fit: biases", [&] { CheckBiases(gpu, report); });
}

}  // namespace kvevict::gpu
