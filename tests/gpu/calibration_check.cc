#include <fmt/format.h>

#include "kvevict/calibration.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/random_case.h"

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

// Rows of any layout in device memory make the same sums as on the CPU.
void CheckCase(const Gpu& gpu, Random* random, Report* report) {
  Geometry geometry = RandomCase(random, "snapkv").geometry;
  geometry.n_layers = std::min(geometry.n_layers, 4u);
  if (geometry.layers.size() > 1) geometry.layers.resize(geometry.n_layers);
  const ContextHandle host_context =
      CreateContext(kvevict_context_options KVEVICT_CONTEXT_OPTIONS_INIT);
  const ContextHandle context = CreateContext(gpu.ContextOptions());
  const oracle_policy none = ParsePolicy("none");
  const PlanHandle host_plan = CreatePlan(host_context.get(), geometry, none);
  const PlanHandle plan = CreatePlan(context.get(), geometry, none);
  const CalibrationHandle expected = Create(host_plan.get());
  const CalibrationHandle got = Create(plan.get());
  for (uint32_t position = 0; position < 100;) {
    const uint32_t n_rows = random->In(1, 40);
    for (uint32_t l = 0; l < geometry.n_layers; ++l) {
      if (!geometry.IsFull(l)) continue;
      const kvevict_layer_geometry& g = geometry.layer(l);
      const kvevict_dtype dtype =
          random->OneOf(3) ? KVEVICT_DTYPE_F32 : g.q_dtype;
      const RandomPlane drawn =
          DrawPlane(random, dtype, g.k_head_dim, g.n_q_heads, n_rows, 1);
      std::vector<uint8_t> rows(drawn.n_bytes);
      const uint32_t element = ElementBytesOf(dtype);
      for (size_t at = 0; at + element <= rows.size(); at += element) {
        WriteRandomElement(random, dtype, false, &rows[at]);
      }
      const Buffer memory(gpu, rows.size());
      memory.Write(rows.data(), rows.size());
      kvevict_plane queries = drawn.plane;
      queries.data += reinterpret_cast<uintptr_t>(rows.data());
      Check(kvevict_calibration_observe(expected.get(), l, &queries, position,
                                        n_rows, nullptr));
      queries.data = drawn.plane.data + memory.address();
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
    report->Check(fmt::format("calibration {}", i), [&] {
      Random random(effort.seed + i);
      CheckCase(gpu, &random, report);
    });
  }
}

}  // namespace kvevict::gpu
