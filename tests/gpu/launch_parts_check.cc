// Launches that multiply all pairs of keys come in parts.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "tests/gpu/doors.h"
#include "tests/gpu/driver_use_check.h"
#include "tests/gpu/evictable.h"
#include "tests/gpu/other_context.h"
#include "tests/rig/mock/mock.h"

namespace kvevict::gpu {
namespace {

constexpr uint32_t kLayers = 2;
constexpr uint32_t kHeads = 8;
constexpr uint32_t kDim = 128;

// The launches of an eviction. The driver takes them; running them would take too
// long.
uint64_t LaunchesOf(const Gpu& gpu, const std::string& policy,
                    uint32_t n_tokens) {
  constexpr int kLaunchFailed = 719;
  const OtherContext other(gpu);
  const ContextHandle context = CreateContext(other.gpu().ContextOptions());
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = layer.n_kv_heads = kHeads;
  layer.k_head_dim = layer.v_head_dim = kDim;
  layer.k_dtype = layer.v_dtype = KVEVICT_DTYPE_BF16;
  const PlanHandle plan = CreatePlan(
      context.get(), {kLayers, n_tokens, {layer}}, ParsePolicy(policy));
  const SequenceHandle sequence = CreateSequence(plan.get());
  const Buffer workspace(other.gpu(),
                         WorkspaceBytes(plan.get(), KVEVICT_OPERATION_EVICT));
  // Nobody reads these rows.
  std::vector<kvevict_view> views(kLayers);
  uint64_t address = 256;
  for (kvevict_view& view : views) {
    view = KVEVICT_VIEW_INIT;
    view.n_kv_heads = kHeads;
    for (kvevict_plane* plane : {&view.k, &view.v}) {
      *plane = kvevict_plane_token_major(reinterpret_cast<void*>(address),
                                         KVEVICT_DTYPE_BF16, kHeads, kDim);
      address += uint64_t{kHeads} * kDim * 2 * n_tokens;
    }
  }
  const kvevict_plane query = kvevict_plane_token_major(
      reinterpret_cast<void*>(address), KVEVICT_DTYPE_F32, kHeads, kDim);
  LayerInputs inputs;
  for (uint32_t l = 0; l < kLayers; ++l) {
    if (ParsePolicy(policy).kind == ORACLE_TOVA) {
      inputs.AddWindow(query);
    } else {
      inputs.AddNothing();
    }
  }
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  inputs.Lend(&options);
  kvevict_stream const stream = other.gpu().stream();
  Check(kvevict_sequence_append(sequence.get(), n_tokens, stream));
  const uint64_t before = mock::Calls("cuLaunchKernel");
  Check(kvevict_sequence_evict(sequence.get(), views.data(), views.size(),
                               &options, workspace.pointer<void>(),
                               workspace.n_bytes(), stream));
  const uint64_t n = mock::Calls("cuLaunchKernel") - before;
  mock::FailKernel(1, kLaunchFailed);
  (void)other.gpu().driver().cuStreamSynchronize(other.gpu().stream());
  return n;
}

// A launch has at most 2^38 multiply-adds. With 65,536 tokens each of the two layers
// has 2^42 for all pairs of keys, in one batch; an eighth of the tokens stays, so that
// merging has 1.75 times 2^38, by itself for each layer.
void CheckParts(const Gpu& gpu, Report* report) {
  struct Case {
    const char* policy;
    uint32_t n_more;  // launches
  };
  constexpr Case kCases[] = {
      {"knorm:budget=0.125", 0},
      {"knorm:budget=0.125,redundancy=0.5", 31},
      {"tova:budget=0.125,select_block=16,diverse_mass=0.5", 31},
      {"knorm:budget=0.125,merge=values", 2},
  };
  for (const Case& c : kCases) {
    const uint64_t n_few = LaunchesOf(gpu, c.policy, 2048);
    const uint64_t n_many = LaunchesOf(gpu, c.policy, 65536);
    report->FailIf(
        n_many != n_few + c.n_more,
        fmt::format("{}: {} and {} launches", c.policy, n_few, n_many));
  }
}

}  // namespace

void CheckLaunchParts(const Gpu& gpu, const Effort&, Report* report) {
  report->Check("many products take several launches",
                [&] { CheckParts(gpu, report); });
}

}  // namespace kvevict::gpu
