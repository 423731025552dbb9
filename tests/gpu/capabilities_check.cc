#include <fmt/format.h>

#include "kvevict/experimental.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/twin.h"

namespace kvevict::gpu {
namespace {

struct AlignmentCase {
  const char* name;
  kvevict_dtype q_dtype;
  kvevict_dtype k_dtype;
  uint32_t head_dim;
  uint32_t group;
  const char* policy;
  uint32_t offset;  // of queries and keys from an aligned address
  kvevict_status status;
};

constexpr uint32_t kKvHeads = 2;
constexpr kvevict_dtype kOpaque = KVEVICT_DTYPE_OPAQUE;
constexpr kvevict_status kNo = KVEVICT_ERROR_UNSUPPORTED;

// Each of these might be too odd for some kernel.
constexpr AlignmentCase kAlignmentCases[] = {
    {"opaque keys", kF32, kOpaque, 0, 1, "snapkv:window=4", 0, kNo},
    {"opaque queries", kOpaque, kF32, 8, 1, "snapkv:window=4", 0, kNo},
    {"one element, one row, the widest pooling", kF32, kF32, 1, 1,
     "snapkv:window=1,pool=avg1023", 0, KVEVICT_OK},
    {"more elements than tensor cores take", kBf16, kBf16, 272, 2,
     "snapkv:window=3", 0, KVEVICT_OK},
    {"an odd size of mixed types", kF16, kF32, 7, 5,
     "snapkv:window=5,group=max,order=pool-reduce", 0, KVEVICT_OK},
    {"more rows than a block takes", kBf16, kBf16, 16, 2,
     "snapkv:window=257,group=max", 0, KVEVICT_OK},
    {"rows for no tensor core", kBf16, kBf16, 16, 1, "snapkv:window=3", 2,
     KVEVICT_OK},
    {"elements of 2 bytes astride", kBf16, kBf16, 16, 1, "snapkv:window=3", 1,
     kNo},
    {"elements of 4 bytes astride", kF32, kF32, 16, 1, "snapkv:window=3", 2,
     kNo},
};

uint32_t ElementBytes(kvevict_dtype dtype) {
  return dtype == kF32 ? 4 : dtype == kOpaque ? 1 : 2;
}

// [n_tokens, n_heads, head_dim] of small numbers.
kvevict_plane PlaneOf(uint64_t address, kvevict_dtype dtype, uint32_t head_dim,
                      uint32_t n_heads) {
  kvevict_plane plane{};
  plane.data = address;
  plane.dtype = dtype;
  plane.head_dim = head_dim;
  plane.row_bytes = dtype == kOpaque ? 12 : 0;
  plane.head_stride_bytes =
      dtype == kOpaque ? 12 : head_dim * ElementBytes(dtype);
  plane.token_stride_bytes = plane.head_stride_bytes * n_heads;
  return plane;
}

void CheckCase(const Gpu& gpu, const AlignmentCase& c, Report* report) {
  const oracle_policy policy = ParsePolicy(c.policy);
  const uint32_t n_tokens = policy.window + 9;
  kvevict_layer_geometry g = KVEVICT_LAYER_GEOMETRY_INIT;
  g.n_kv_heads = kKvHeads;
  g.n_q_heads = kKvHeads * c.group;
  g.q_dtype = c.q_dtype;
  g.k_dtype = c.k_dtype;
  g.k_head_dim = c.head_dim;
  const ContextHandle context = CreateContext(gpu.ContextOptions());
  const PlanHandle plan = CreatePlan(context.get(), {1, n_tokens, {g}}, policy);
  kvevict_capabilities can{};
  can.struct_size = sizeof(can);
  Check(kvevict_plan_capabilities(plan.get(), 0, &can));
  const bool by_types = c.q_dtype != kOpaque && c.k_dtype != kOpaque;
  report->FailIf(can.can_score != (by_types ? 1u : 0u),
                 fmt::format("can_score is {}: {}", can.can_score,
                             kvevict_reason_text(can.score_reason)));

  std::vector<uint8_t> values(64 + n_tokens * g.n_q_heads * 4096);
  const Buffer memory(gpu, values.size());
  memory.Write(values.data(), values.size());  // zeros: all rank alike
  const kvevict_plane queries =
      PlaneOf(memory.address() + c.offset, c.q_dtype, c.head_dim, g.n_q_heads);
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = kKvHeads;
  view.k =
      PlaneOf(memory.address() + c.offset, c.k_dtype, c.head_dim, kKvHeads);
  const Buffer scores(gpu, sizeof(float) * kKvHeads * n_tokens);
  const Buffer workspace(
      gpu, 256 + WorkspaceBytes(plan.get(), KVEVICT_OPERATION_SCORE));
  const kvevict_status status =
      Score({plan.get(), 0, n_tokens, &view, &queries}, scores.pointer<float>(),
            size_t{kKvHeads} * n_tokens,
            {workspace.pointer<void>(), workspace.n_bytes(), gpu.stream()});
  const std::string message =
      status == KVEVICT_OK ? "" : kvevict_last_error_message();
  report->FailIf(
      status != c.status,
      fmt::format("scoring is {}: {}", kvevict_status_name(status), message));
  gpu.Synchronize();  // no fault either

  // All rows can move, wherever they lie.
  const std::vector<int32_t> keep = {1, 4, 6};
  const Buffer lists(gpu, keep.size() * sizeof(int32_t));
  lists.Write(keep.data(), lists.n_bytes());
  report->FailIf(can.can_move != 1, "can_move is 0");
  const OneMove move(view, n_tokens, lists.pointer<int32_t>(), keep.size(), 1);
  Check(move.Compact(context.get(), {nullptr, 0, gpu.stream()}));
  gpu.Synchronize();
}

}  // namespace

void CheckCapabilities(const Gpu& gpu, const Effort&, Report* report) {
  for (const AlignmentCase& c : kAlignmentCases) {
    report->Check(fmt::format("capabilities: {}", c.name),
                  [&] { CheckCase(gpu, c, report); });
  }
}

}  // namespace kvevict::gpu
