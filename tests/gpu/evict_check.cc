#include <fmt/format.h>

#include <numeric>
#include <stdexcept>

#include "tests/gpu/checks.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/model.h"

namespace kvevict::gpu {
namespace {

void ExpectSameReport(const kvevict_evict_report& a,
                      const kvevict_evict_report& b, Report* report) {
  report->FailIf(a.evicted != b.evicted || a.bytes_before != b.bytes_before ||
                     a.bytes_after != b.bytes_after ||
                     a.tokens_before != b.tokens_before ||
                     a.tokens_after != b.tokens_after ||
                     a.blocks_freed != b.blocks_freed,
                 "the reports of GPU and CPU differ");
}

// Scope HEAD and LAYER: an eviction keeps what the doors choose one after the
// other.
void ExpectWhatTheDoorsKeep(Side* gpu, Side* cpu, Twin* twin, uint32_t n_tokens,
                            Report* report) {
  for (uint32_t l = 0; l < twin->shape().n_layers; ++l) {
    const std::vector<int32_t> keep =
        cpu->Select(l, gpu->Score(l, n_tokens), n_tokens, {});
    const uint32_t n_keep = gpu->Stored(l);
    for (uint32_t h = 0; h < twin->shape().n_kv_heads; ++h) {
      const uint64_t list = LayerOf(gpu->plan(), l).n_lists == 1 ? 0 : h;
      const std::vector<int32_t> expected(keep.begin() + list * n_keep,
                                          keep.begin() + (list + 1) * n_keep);
      report->FailIf(gpu->Positions(l, h) != expected,
                     fmt::format("layer {}, head {}: kept others than the "
                                 "doors",
                                 l, h));
    }
  }
}

struct EvictionCase {
  const char* policy;
  kvevict_dtype q_dtype;
  kvevict_dtype kv_dtype;
  Layout layout;
  uint32_t chunk;
  bool by_attention;
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

void CheckEviction(const Gpu& gpu, const EvictionCase& c, const Effort& effort,
                   const kvevict_context_options* options, Report* report) {
  const Shape shape = ShapeOf(c, effort);
  Twin twin(gpu, shape, effort.seed);
  Side device(&gpu, &twin, c.policy, options);
  Side host(nullptr, &twin, c.policy);
  Check(kvevict_context_prepare(device.context(), device.plan()));
  device.Prefill(0, shape.n_tokens, c.chunk);
  host.Prefill(0, shape.n_tokens, shape.n_tokens);
  ExpectLengths(gpu, device, twin, report);

  kvevict_evict_options evict = KVEVICT_EVICT_OPTIONS_INIT;
  const std::vector<int32_t> protect = {9, 10, 77};
  if (!c.by_attention) {
    evict.protected_positions = protect.data();
    evict.protected_positions_len = protect.size();
  }
  const kvevict_evict_report on_device = device.Evict(&evict);
  ExpectSameReport(on_device, host.Evict(&evict), report);
  ExpectLengths(gpu, device, twin, report);
  ExpectRowsOfPositions(device, &twin, report);
  if (!c.by_attention) {
    ExpectSamePositions(device, host, twin, report);
    // Evicts again, with listed positions, after adding tokens.
    const uint32_t n_more = kRoomForDecoding / 2;
    device.Prefill(shape.n_tokens, n_more, 1);
    host.Prefill(shape.n_tokens, n_more, 1);
    ExpectSameReport(device.Evict(&evict), host.Evict(&evict), report);
    ExpectSamePositions(device, host, twin, report);
    ExpectLengths(gpu, device, twin, report);
  } else if (device.policy().scope != KVEVICT_SCOPE_MODEL) {
    twin.Restore();
    ExpectWhatTheDoorsKeep(&device, &host, &twin, shape.n_tokens, report);
  }
  Check(kvevict_sequence_reset(device.sequence(), device.stream()));
  ExpectLengths(gpu, device, twin, report);
}

// The caller's scores, with ties, NaN and infinities, are in device memory.
void CheckCallerScores(const Gpu& gpu, const Shape& shape, const Effort& effort,
                       Report* report) {
  constexpr char kPolicy[] =
      "custom:budget=50,sink=4,scope=head,split=geometric";
  Twin twin(gpu, shape, effort.seed);
  Side device(&gpu, &twin, kPolicy);
  Side host(nullptr, &twin, kPolicy);
  device.Prefill(0, shape.n_tokens, shape.n_tokens);
  host.Prefill(0, shape.n_tokens, shape.n_tokens);
  const uint64_t with_gaps = shape.n_tokens + 3;
  std::vector<float> scores(shape.n_layers * shape.n_kv_heads * with_gaps);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = static_cast<float>(i * 7919 % 23);
    if (i % 31 == 0) scores[i] = __builtin_nanf("");
    if (i % 37 == 0) scores[i] = __builtin_inff();
  }
  const Buffer on_device(gpu, scores.size() * sizeof(float));
  on_device.Write(scores.data(), on_device.n_bytes());
  // Rows have gaps first, then they are packed.
  for (const bool packed : {false, true}) {
    LayerInputs of_device;
    LayerInputs of_host;
    uint64_t first = 0;
    for (uint32_t l = 0; l < shape.n_layers; ++l) {
      const uint64_t stride = packed ? host.Stored(l) : with_gaps;
      of_device.AddScores(on_device.pointer<float>() + first, stride);
      of_host.AddScores(scores.data() + first, stride);
      first += stride * shape.n_kv_heads;
    }
    kvevict_evict_options evict = KVEVICT_EVICT_OPTIONS_INIT;
    of_device.Lend(&evict);
    device.Evict(&evict);
    of_host.Lend(&evict);
    host.Evict(&evict);
    ExpectSamePositions(device, host, twin, report);
    // The rows are the prompt's. Tokens added since have none.
    if (!packed) ExpectRowsOfPositions(device, &twin, report);
    for (Side* side : {&device, &host}) {
      side->Prefill(shape.n_tokens, kRoomForDecoding / 2, 1);
    }
  }
}

// The second eviction is told to keep more positions than its budget holds, most
// of them gone. Those that are held stay, as on the CPU.
void CheckProtected(const Gpu& gpu, const Effort& effort, Report* report) {
  const EvictionCase c = {"random:budget=50,sink=4,scope=layer",
                          KVEVICT_DTYPE_BF16,
                          KVEVICT_DTYPE_BF16,
                          Layout::kTokenMajor,
                          64,
                          false};
  const Shape shape = ShapeOf(c, effort);
  Twin twin(gpu, shape, effort.seed);
  Side device(&gpu, &twin, c.policy);
  Side host(nullptr, &twin, c.policy);
  std::vector<int32_t> protect(80);
  std::iota(protect.begin(), protect.end(), 20);
  kvevict_evict_options evict = KVEVICT_EVICT_OPTIONS_INIT;
  for (Side* side : {&device, &host}) {
    side->Prefill(0, shape.n_tokens, shape.n_tokens);
    side->Evict();
    side->Prefill(shape.n_tokens, kRoomForDecoding / 2, 8);
    evict.protected_positions = protect.data();
    evict.protected_positions_len = protect.size();
    side->Evict(&evict);
    // These are held, and too many.
    side->Prefill(shape.n_tokens + kRoomForDecoding / 2, 1, 1);
    const std::vector<int32_t> held = side->Positions(0, 0);
    evict.protected_positions = held.data();
    evict.protected_positions_len = held.size();
    try {
      side->Evict(&evict);
      report->Fail("more was protected than the budget holds");
    } catch (const std::runtime_error& e) {
      report->FailIf(
          std::string(e.what()).find("budget 50 < sink 4 + recent 0 + 47 "
                                     "protected") == std::string::npos,
          e.what());
    }
  }
  ExpectSamePositions(device, host, twin, report);
}

// All layers' weights decide what a layer keeps, on the GPU as on the CPU. At full
// size a number may round the other way.
void CheckSplitByScore(const Gpu& gpu, const EvictionCase& c,
                       const Effort& effort, Report* report) {
  const Shape shape = ShapeOf(c, effort);
  Twin twin(gpu, shape, effort.seed);
  Side device(&gpu, &twin, c.policy);
  Side host(nullptr, &twin, c.policy);
  Check(kvevict_context_prepare(device.context(), device.plan()));
  for (Side* side : {&device, &host}) {
    side->Prefill(0, shape.n_tokens, c.chunk);
    side->Evict();
  }
  ExpectLengths(gpu, device, twin, report);
  ExpectRowsOfPositions(device, &twin, report);
  if (!effort.full) return ExpectSamePositions(device, host, twin, report);
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    const int64_t apart = int64_t{device.Stored(l)} - host.Stored(l);
    report->FailIf(apart < -2 || apart > 2,
                   fmt::format("layer {}: {} tokens, not {}", l,
                               device.Stored(l), host.Stored(l)));
  }
}

// Caches are evicted by chunks, twice. At full size a number may round the other
// way.
void CheckChunks(const Gpu& gpu, const EvictionCase& c, const Effort& effort,
                 Report* report) {
  const Shape shape = ShapeOf(c, effort);
  Twin twin(gpu, shape, effort.seed);
  Side device(&gpu, &twin, c.policy);
  Side host(nullptr, &twin, c.policy);
  Check(kvevict_context_prepare(device.context(), device.plan()));
  uint32_t n_tokens = 0;
  for (const uint32_t n_more : {shape.n_tokens, kRoomForDecoding / 2}) {
    for (Side* side : {&device, &host}) {
      side->Prefill(n_tokens, n_more, c.chunk);
      report->FailIf(side->Evict().evicted == 0, "nothing was evicted");
    }
    n_tokens += n_more;
    ExpectLengths(gpu, device, twin, report);
    if (!effort.full) ExpectSamePositions(device, host, twin, report);
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
      "snapkv:budget=60,scope=head,window=16,keep_window=no,recent=14",
      KVEVICT_DTYPE_BF16,
      KVEVICT_DTYPE_BF16,
      Layout::kTokenMajor,
      64,
      true};
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
  const kvevict_dtype f32 = KVEVICT_DTYPE_F32;
  const kvevict_dtype f16 = KVEVICT_DTYPE_F16;
  const kvevict_dtype bf16 = KVEVICT_DTYPE_BF16;
  const EvictionCase cases[] = {
      {"snapkv:budget=60,scope=head,window=16", bf16, bf16, Layout::kTokenMajor,
       64, true},
      {"snapkv:budget=60,scope=layer,window=16", f32, f32, Layout::kTokenMajor,
       1000, true},
      {"pyramidkv:budget=60,scope=head,window=16", f16, f16, Layout::kPaged, 33,
       true},
      {"snapkv:budget=60,scope=model,window=16", bf16, bf16, Layout::kHeadMajor,
       64, true},
      {"streaming-llm:budget=50", bf16, bf16, Layout::kPaged, 64, false},
      {"streaming-llm:budget=50,split=geometric", bf16, bf16,
       Layout::kTokenMajor, 64, false},
      {"random:sink=0,budget=50,scope=head", f32, f16, Layout::kHeadMajor, 64,
       false},
      // Norms round otherwise on either side. All that stays is chosen before them.
      {"random:sink=0,budget=50,weight=norm,secure=1", f32, f32,
       Layout::kTokenMajor, 64, false},
      {"random:budget=50,sink=4,scope=layer", bf16, bf16, Layout::kTokenMajor,
       64, false},
      {"random:budget=0.4,sink=2,recent=20,chunk=48", f32, bf16, Layout::kPaged,
       64, false},
  };
  for (const EvictionCase& c : cases) {
    report->Check(std::string("evict: ") + c.policy,
                  [&] { CheckEviction(gpu, c, effort, nullptr, report); });
  }
  kvevict_context_options options = gpu.ContextOptions();
  options.select_on_host = 1;
  for (const EvictionCase& c :
       {cases[0], cases[5], cases[6], cases[7], cases[9]}) {
    report->Check(std::string("evict, selecting on the host: ") + c.policy,
                  [&] { CheckEviction(gpu, c, effort, &options, report); });
  }
  options.select_on_host = 0;
  options.debug = 1;
  report->Check(std::string("evict, debug: ") + cases[0].policy, [&] {
    CheckEviction(gpu, cases[0], effort, &options, report);
  });
  report->Check("evict: protected positions that are gone",
                [&] { CheckProtected(gpu, effort, report); });
  for (const EvictionCase& c : {cases[3], cases[4]}) {
    report->Check(std::string("evict, a shared companion: ") + c.policy,
                  [&] { CheckSharedCompanion(gpu, c, effort, report); });
  }
  const EvictionCase chunks[] = {
      {"knorm:sink=0,budget=0.4,chunk=64,pool=avg5", f32, f32, Layout::kPaged,
       64, false},
      {"keydiff:sink=0,budget=0.3,chunk=48,scope=layer", f32, f32,
       Layout::kHeadMajor, 64, false},
      {"keydiff:sink=0,budget=0.3,chunk=64,block=16", f32, bf16, Layout::kPaged,
       64, false},
      {"lagkv:budget=0.5,chunk=80,block=16,sink=3", f32, f16,
       Layout::kTokenMajor, 64, false},
      {"cur:budget=0.3,chunk=64,sink=2,recent=9,redundancy=0.2", f32, f32,
       Layout::kPaged, 64, false}};
  for (const EvictionCase& c : chunks) {
    report->Check(std::string("evict, chunk by chunk: ") + c.policy,
                  [&] { CheckChunks(gpu, c, effort, report); });
  }
  const EvictionCase by_score[] = {
      {"cake:budget=60,window=16", KVEVICT_DTYPE_BF16, KVEVICT_DTYPE_BF16,
       Layout::kTokenMajor, 64, true},
      {"cake:budget=50,window=8,scope=layer,group=max,tau1=2",
       KVEVICT_DTYPE_F32, KVEVICT_DTYPE_BF16, Layout::kPaged, 64, true},
      {"snapkv:budget=60,sink=4,recent=40,window=16,split=lazy,lazy=0.35",
       KVEVICT_DTYPE_F16, KVEVICT_DTYPE_F16, Layout::kHeadMajor, 64, true}};
  for (const EvictionCase& c : by_score) {
    report->Check(std::string("evict, layers by score: ") + c.policy,
                  [&] { CheckSplitByScore(gpu, c, effort, report); });
  }
  report->Check("evict: a window that is whole by chance",
                [&] { CheckWindowKeptByChance(gpu, effort, report); });
  report->Check("evict: custom scores", [&] {
    CheckCallerScores(gpu, ShapeOf(cases[0], effort), effort, report);
  });
  // One block cannot select from so many tokens.
  report->Check("evict: custom scores, 66,001 tokens", [&] {
    CheckCallerScores(gpu,
                      {"", 2, 2, 2, 8, 66001, bf16, bf16, Layout::kTokenMajor},
                      effort, report);
  });
}

void CheckDeterminism(const Gpu& gpu, const Effort& effort, Report* report) {
  report->Check("determinism", [&] {
    const EvictionCase c = {"snapkv:budget=60,scope=head,window=16",
                            KVEVICT_DTYPE_BF16,
                            KVEVICT_DTYPE_BF16,
                            Layout::kTokenMajor,
                            64,
                            true};
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
