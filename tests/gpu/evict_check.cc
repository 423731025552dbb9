// Evictions whose policies the CPU's sequence follows by itself, where random lives lend
// it the GPU's scores.
#include <fmt/format.h>

#include "tests/gpu/checks.h"
#include "tests/gpu/model.h"

namespace kvevict::gpu {
namespace {

struct EvictionCase {
  const char* policy;
  kvevict_dtype q_dtype = kBf16;
  kvevict_dtype kv_dtype = kBf16;
  Layout layout = Layout::kTokenMajor;
};

constexpr EvictionCase kCases[] = {
    // All layers' weights decide what a layer keeps.
    {"cake:budget=60,window=16"},
    {"cake:budget=50,window=8,scope=layer,group=max,tau1=2", kF32, kBf16,
     Layout::kPaged},
    {"snapkv:budget=60,sink=4,recent=40,window=16,split=lazy,lazy=0.2", kF16,
     kF16, Layout::kHeadMajor},
    // Norms round otherwise on either side. All that stays is chosen before them.
    {"random:sink=0,budget=50,weight=norm,secure=1", kF32, kF32},
    // Chunk by chunk.
    {"knorm:sink=0,budget=0.4,chunk=64,pool=avg5", kF32, kF32, Layout::kPaged},
    {"keydiff:sink=0,budget=0.3,chunk=48,scope=layer", kF32, kF32,
     Layout::kHeadMajor},
    {"keydiff:sink=0,budget=0.3,chunk=64,block=16", kF32, kBf16,
     Layout::kPaged},
    {"lagkv:budget=0.5,chunk=80,block=16,sink=3", kF32, kF16},
    {"cur:budget=0.3,chunk=64,sink=2,recent=9,redundancy=0.2", kF32, kF32,
     Layout::kPaged},
};

Shape ShapeOf(const EvictionCase& c, const Effort& effort) {
  return {"",
          effort.full ? 4u : 2u,
          effort.full ? 32u : 4u,
          effort.full ? 8u : 2u,
          effort.full ? 128u : 32u,
          effort.full ? 8192u : 200u,
          c.q_dtype,
          c.kv_dtype,
          c.layout};
}

// Evicts twice. At full size a number may round the other way.
void CheckEviction(const Gpu& gpu, const EvictionCase& c, const Effort& effort,
                   Report* report) {
  const Shape shape = ShapeOf(c, effort);
  Twin twin(gpu, shape, effort.seed);
  Side device(&gpu, &twin, c.policy);
  Side host(nullptr, &twin, c.policy);
  Check(kvevict_context_prepare(device.context(), device.plan()));
  uint32_t n_tokens = 0;
  for (const uint32_t n_more : {shape.n_tokens, kRoomForDecoding / 2}) {
    for (Side* side : {&device, &host}) {
      side->Prefill(n_tokens, n_more, 64);
      report->FailIf(side->Evict().evicted == 0, "nothing was evicted");
    }
    n_tokens += n_more;
    ExpectLengths(gpu, device, twin, report);
    if (!effort.full) ExpectSamePositions(device, host, twin, report);
    for (uint32_t l = 0; l < shape.n_layers; ++l) {
      const int64_t apart = int64_t{device.Stored(l)} - host.Stored(l);
      report->FailIf(apart < -2 || apart > 2,
                     fmt::format("layer {}: {} tokens, not {}", l,
                                 device.Stored(l), host.Stored(l)));
    }
    if (n_more == shape.n_tokens) ExpectRowsOfPositions(device, &twin, report);
  }
}

// All layers have the first one's companion, which moves once.
void CheckSharedCompanion(const Gpu& gpu, const EvictionCase& c,
                          const Effort& effort, Report* report) {
  const Shape shape = ShapeOf(c, effort);
  Twin twin(gpu, shape, effort.seed);
  Side side(&gpu, &twin, c.policy);
  side.Prefill(0, shape.n_tokens, shape.n_tokens);
  std::vector<kvevict_view> views = twin.device_views();
  for (kvevict_view& view : views) view.companions = views[0].companions;
  const Buffer workspace(gpu,
                         WorkspaceBytes(side.plan(), KVEVICT_OPERATION_EVICT));
  Check(kvevict_sequence_evict(side.sequence(), views.data(), views.size(),
                               nullptr, workspace.pointer<void>(),
                               workspace.n_bytes(), side.stream()));
  gpu.Synchronize();
  twin.Fetch(0);
  for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
    report->Expect(twin.CompareWithPositions(0, h, side.Positions(0, h)));
  }
}

// The policy keeps less of a window than it scores by. The window is whole all
// the same if its first token was protected.
void CheckWindowKeptByChance(const Gpu& gpu, const Effort& effort,
                             Report* report) {
  const EvictionCase c = {
      "snapkv:budget=60,scope=head,window=16,keep_window=no,recent=14"};
  const Shape shape = ShapeOf(c, effort);
  Twin twin(gpu, shape, effort.seed);
  Side device(&gpu, &twin, c.policy);
  Side host(nullptr, &twin, c.policy);
  const auto first = static_cast<int32_t>(shape.n_tokens - 15);
  kvevict_evict_options evict = KVEVICT_EVICT_OPTIONS_INIT;
  evict.protected_positions = &first;
  evict.protected_positions_len = 1;
  for (Side* side : {&device, &host}) {
    side->Prefill(0, shape.n_tokens, shape.n_tokens);
    side->Evict(&evict);
    side->Prefill(shape.n_tokens, 1, 1);
    report->FailIf(side->Evict().evicted == 0, "nothing was evicted");
  }
}

}  // namespace

void CheckEvictions(const Gpu& gpu, const Effort& effort, Report* report) {
  for (const EvictionCase& c : kCases) {
    report->Check(std::string("evict: ") + c.policy,
                  [&] { CheckEviction(gpu, c, effort, report); });
  }
  for (const EvictionCase& c :
       {EvictionCase{"snapkv:budget=60,scope=model,window=16", kBf16, kBf16,
                     Layout::kHeadMajor},
        EvictionCase{"streaming-llm:budget=50", kBf16, kBf16,
                     Layout::kPaged}}) {
    report->Check(std::string("evict, a shared companion: ") + c.policy,
                  [&] { CheckSharedCompanion(gpu, c, effort, report); });
  }
  report->Check("evict: a window that is whole by chance",
                [&] { CheckWindowKeptByChance(gpu, effort, report); });
}

void CheckDeterminism(const Gpu& gpu, const Effort& effort, Report* report) {
  report->Check("determinism", [&] {
    const EvictionCase c = {"snapkv:budget=60,scope=head,window=16"};
    const Shape shape = ShapeOf(c, effort);
    Twin twin(gpu, shape, effort.seed);
    Side side(&gpu, &twin, c.policy);
    const std::vector<float> scores = side.Score(0, shape.n_tokens);
    std::vector<int32_t> positions;
    for (uint32_t run = 0; run < effort.n_equal_runs; ++run) {
      report->FailIf(side.Score(0, shape.n_tokens) != scores,
                     fmt::format("run {}: other scores", run));
      Check(kvevict_sequence_reset(side.sequence(), side.stream()));
      side.Prefill(0, shape.n_tokens, 50 + run);
      side.Evict();
      if (run == 0) positions = side.Positions(0, 0);
      report->FailIf(side.Positions(0, 0) != positions,
                     fmt::format("run {}: other survivors", run));
      twin.Restore();
    }
    report->Note("runs", effort.n_equal_runs);
  });
}

}  // namespace kvevict::gpu
