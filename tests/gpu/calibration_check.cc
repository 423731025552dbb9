#include <fmt/format.h>

#include <random>
#include "kvevict/calibration.h"

#include "core/dtype.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/random_values.h"

namespace kvevict::gpu {
namespace {

inline void Destroy(kvevict_calibration* c) { kvevict_calibration_destroy(c); }
using CalibrationHandle = Handle<kvevict_calibration, Destroy>;

CalibrationHandle Create(const kvevict_plan* plan) {
  kvevict_calibration* calibration = nullptr;
  Check(kvevict_calibration_create(plan, 1, &calibration));
  return CalibrationHandle(calibration);
}

std::vector<uint8_t> Save(const CalibrationHandle& calibration) {
  size_t n_bytes = 0;
  Check(kvevict_calibration_save(calibration.get(), nullptr, 0, &n_bytes));
  std::vector<uint8_t> bytes(n_bytes);
  Check(kvevict_calibration_save(calibration.get(), bytes.data(), n_bytes,
                                 nullptr));
  return bytes;
}

// Rows in device memory, with gaps, make the same sums as on the CPU.
void CheckCase(const Gpu& gpu, uint64_t seed, Report* report) {
  constexpr kvevict_dtype kDTypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                       KVEVICT_DTYPE_BF16};
  constexpr uint32_t kLayers = 2;
  std::mt19937_64 random(seed);
  const auto below = [&](uint32_t n) {
    return static_cast<uint32_t>(random() % n);
  };
  kvevict_layer_geometry g = KVEVICT_LAYER_GEOMETRY_INIT;
  g.n_kv_heads = 1 + below(3);
  g.n_q_heads = g.n_kv_heads * (1 + below(4));
  g.k_head_dim = g.v_head_dim = 1 + below(80);
  g.q_dtype = kDTypes[below(3)];
  const Geometry geometry = {kLayers, 100, {g}};
  const ContextHandle host_context =
      CreateContext(kvevict_context_options KVEVICT_CONTEXT_OPTIONS_INIT);
  const ContextHandle context = CreateContext(gpu.ContextOptions());
  const oracle_policy none = ParsePolicy("none");
  const PlanHandle host_plan = CreatePlan(host_context.get(), geometry, none);
  const PlanHandle plan = CreatePlan(context.get(), geometry, none);
  const CalibrationHandle expected = Create(host_plan.get());
  const CalibrationHandle got = Create(plan.get());
  for (uint32_t position = 0; position < 100;) {
    const uint32_t n_rows = 1 + below(40);
    for (uint32_t l = 0; l < kLayers; ++l) {
      kvevict_plane queries = KVEVICT_PLANE_INIT;
      queries.dtype = below(3) == 0 ? KVEVICT_DTYPE_F32 : g.q_dtype;
      queries.head_dim = g.k_head_dim;
      const uint32_t element = ElementBytes(static_cast<DType>(queries.dtype));
      const int64_t row = int64_t{g.k_head_dim + below(9)} * element;
      const bool heads_first = below(2) == 0;
      queries.head_stride_bytes = heads_first ? row * n_rows : row;
      queries.token_stride_bytes = heads_first ? row : row * g.n_q_heads;
      std::vector<uint8_t> rows(static_cast<size_t>(row) * n_rows *
                                g.n_q_heads);
      FillWithValues(random(), queries.dtype, rows.size() / element,
                     rows.data());
      const Buffer memory(gpu, rows.size());
      memory.Write(rows.data(), rows.size());
      queries.data = reinterpret_cast<uintptr_t>(rows.data());
      Check(kvevict_calibration_observe(expected.get(), l, &queries, position,
                                        n_rows, nullptr));
      queries.data = memory.address();
      Check(kvevict_calibration_observe(got.get(), l, &queries, position,
                                        n_rows, gpu.stream()));
    }
    position += n_rows;
  }
  report->FailIf(Save(got) != Save(expected), "the sums differ");
}

// A captured stream cannot be waited for, and nothing is queued on it.
void CheckCaptured(const Gpu& gpu, Report* report) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = layer.n_kv_heads = 1;
  layer.k_head_dim = layer.v_head_dim = 8;
  const ContextHandle context = CreateContext(gpu.ContextOptions());
  const PlanHandle plan =
      CreatePlan(context.get(), {1, 10, {layer}}, ParsePolicy("none"));
  const CalibrationHandle calibration = Create(plan.get());
  const std::vector<uint8_t> before = Save(calibration);
  const Buffer rows(gpu, 8 * sizeof(float));
  const std::vector<float> ones(8, 1.0f);
  rows.Write(ones.data(), rows.n_bytes());
  kvevict_plane queries{};
  queries.data = rows.address();
  queries.dtype = KVEVICT_DTYPE_F32;
  queries.head_dim = 8;
  kvevict_status status = KVEVICT_OK;
  const Graph graph(gpu, [&] {
    status = kvevict_calibration_observe(calibration.get(), 0, &queries, 0, 1,
                                         gpu.stream());
  });
  report->FailIf(status != KVEVICT_ERROR_UNSUPPORTED,
                 fmt::format("{}", kvevict_status_name(status)));
  graph.Launch();
  gpu.Synchronize();
  report->FailIf(Save(calibration) != before, "the sums have changed");
  Check(kvevict_calibration_observe(calibration.get(), 0, &queries, 0, 1,
                                    gpu.stream()));
}

}  // namespace

void CheckCalibration(const Gpu& gpu, const Effort& effort, Report* report) {
  report->Check("calibration on a captured stream",
                [&] { CheckCaptured(gpu, report); });
  const uint32_t n = effort.full ? 100 : 20;
  for (uint32_t i = 0; i < n; ++i) {
    report->Check(fmt::format("calibration {}", i),
                  [&] { CheckCase(gpu, effort.seed + i, report); });
  }
}

}  // namespace kvevict::gpu
