#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string_view>
#include <utility>

#include "core/dtype.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/model.h"
#include "tests/gpu/score_error.h"

namespace kvevict::gpu {
namespace {

void CompareScores(const oracle_policy& policy, const std::vector<float>& got,
                   const std::vector<float>& expected, Report* report) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = ScoreError(policy, got[i], expected[i]);
    if (!(error <= 1.0)) {
      report->Fail(fmt::format("score {}: {} on the GPU, {} on the CPU", i,
                               got[i], expected[i]));
    }
    worst = std::max(worst, error);
  }
  report->Note("worst error of a score, of what is allowed", worst);
}

// Scores, selects and compacts a layer, and compares each step.
void CheckLayer(Side* gpu, Side* cpu, Twin* twin, uint32_t layer,
                uint32_t n_tokens, Report* report) {
  const std::vector<float> scores = gpu->Score(layer, n_tokens);
  CompareScores(gpu->policy(), scores, cpu->Score(layer, n_tokens), report);
  const std::vector<int32_t> protect = {5, 6, 40};
  const std::vector<int32_t> keep =
      gpu->Select(layer, scores, n_tokens, protect);
  report->FailIf(keep != cpu->Select(layer, scores, n_tokens, protect),
                 "keep lists of the same scores differ");
  const std::vector<int32_t> plain = gpu->Select(layer, scores, n_tokens, {});
  report->FailIf(plain != cpu->Select(layer, scores, n_tokens, {}),
                 "keep lists of the same scores differ, nothing protected");
  const uint32_t n_lists = LayerOf(gpu->plan(), layer).n_lists;
  for (const bool with_workspace : {false, true}) {
    twin->Restore();
    gpu->Compact(layer, n_tokens, keep, n_lists, with_workspace);
    cpu->Compact(layer, n_tokens, keep, n_lists, with_workspace);
    twin->Fetch(layer);
    report->Expect(twin->CompareWithHost(
        layer, static_cast<uint32_t>(keep.size() / n_lists)));
  }
}

std::string_view NameOf(kvevict_dtype dtype) {
  return InfoOf(static_cast<DType>(dtype)).name;
}

// B and W in a policy are the budget and the window.
struct DoorsCase {
  enum { kModel, kOf64, kOf80, kOf40, kOdd, kWide } heads;
  kvevict_dtype q_dtype;
  kvevict_dtype kv_dtype;
  Layout layout;
  const char* policy;
  float most_bias = 0.0f;
};

constexpr Layout kTokens = Layout::kTokenMajor;
constexpr Layout kHeads = Layout::kHeadMajor;
constexpr Layout kPages = Layout::kPaged;
constexpr Layout kRing = Layout::kWrappedRing;

constexpr DoorsCase kDoorsCases[] = {
    {DoorsCase::kModel, kBf16, kBf16, kTokens,
     "snapkv:budget=B,scope=layer,window=W"},
    // Chunks: more are kept than a GPU runs at a time.
    {DoorsCase::kModel, kBf16, kBf16, kTokens,
     "snapkv:budget=0.9,scope=head,window=W"},
    {DoorsCase::kModel, kBf16, kBf16, kHeads,
     "snapkv:budget=B,scope=head,pool=max5,window=W"},
    {DoorsCase::kModel, kF16, kF16, kPages,
     "snapkv:budget=B,scope=head,window=20"},
    {DoorsCase::kModel, kBf16, kBf16, kRing,
     "snapkv:budget=B,scope=layer,window=W"},
    {DoorsCase::kModel, kF32, kF32, kTokens,
     "snapkv:budget=B,scope=layer,window=W"},
    {DoorsCase::kOf80, kF32, kBf16, kPages,
     "snapkv:budget=B,scope=head,window=7,group=max"},
    {DoorsCase::kOf40, kF16, kF32, kHeads,
     "snapkv:budget=0.25,scope=layer,window=8,pool=none"},
    // Biases of slots, by tensor cores and by plain multiply-adds, for few rows,
    // in parts and in chunks.
    {DoorsCase::kModel, kBf16, kBf16, kPages,
     "snapkv:budget=B,scope=head,window=W", 1.0f},
    {DoorsCase::kModel, kF32, kF32, kHeads,
     "snapkv:budget=B,scope=layer,window=W", 1.0f},
    {DoorsCase::kOf64, kBf16, kBf16, kTokens, "tova:budget=B", 1.0f},
    {DoorsCase::kModel, kBf16, kBf16, kRing, "h2o:budget=B,rows=mean", 1.0f},
    {DoorsCase::kModel, kBf16, kBf16, kPages,
     "non-causal:sink=5,recent=3,ends=out,weight=none,budget=B", 1.0f},
    // Few rows, whose keys are read once.
    {DoorsCase::kOf64, kBf16, kBf16, kPages, "tova:budget=B"},
    {DoorsCase::kModel, kF32, kF32, kTokens, "tova:scope=head,budget=B"},
    {DoorsCase::kOf80, kF32, kF16, kRing,
     "snapkv:budget=B,scope=head,group=max,window=2"},
    {DoorsCase::kModel, kF32, kF32, kHeads,
     "snapkv:budget=B,rows=max,row_weight=past,window=4"},
    // Other reductions of rows.
    {DoorsCase::kModel, kBf16, kBf16, kTokens,
     "snapkv:budget=B,rows=max,row_weight=past,window=W"},
    {DoorsCase::kModel, kF16, kF16, kPages,
     "snapkv:budget=B,window=8,group=max,order=reduce-logits,softmax=past"},
    // Rows that are pooled by themselves.
    {DoorsCase::kModel, kBf16, kBf16, kTokens,
     "snapkv:budget=B,pool=avg5,edge=mass,rows=max,group=max,order=pool-rows,"
     "prior=mean,window=W"},
    {DoorsCase::kOf80, kF32, kF32, kPages,
     "snapkv:budget=B,pool=max3,order=pool-rows,keep_window=no,window=7"},
    // Sums made of all queries, in parts.
    {DoorsCase::kModel, kBf16, kBf16, kPages, "h2o:budget=B,rows=mean"},
    {DoorsCase::kOdd, kF32, kF32, kHeads, "h2o:budget=B,group=max"},
    // Queries of a chunk come at once and in parts.
    {DoorsCase::kModel, kBf16, kBf16, kPages,
     "non-causal:sink=0,budget=B,weight=none"},
    {DoorsCase::kWide, kF16, kF16, kTokens,
     "non-causal:sink=0,budget=B,weight=none"},
    {DoorsCase::kOdd, kF32, kF32, kHeads,
     "non-causal:sink=0,budget=B,group=max,block=40,weight=none"},
    // Chunks begin behind the sinks; leverage of keys before RoPE.
    {DoorsCase::kModel, kBf16, kBf16, kPages,
     "non-causal:sink=5,recent=3,ends=out,standardize=yes,leverage=1,"
     "leverage_scale=evicted,weight=none,budget=B"},
    {DoorsCase::kOdd, kF32, kF32, kHeads,
     "non-causal:sink=9,recent=40,ends=out,group=max,block=40,weight=none,"
     "budget=B"},
    {DoorsCase::kModel, kF16, kF16, kRing, "leverage:sink=3,recent=2,budget=B"},
    // Codes hold their scales or need none.
    {DoorsCase::kModel, kBf16, KVEVICT_DTYPE_FP8_E4M3, kPages,
     "snapkv:budget=B,scope=head,window=W"},
    {DoorsCase::kModel, kF16, KVEVICT_DTYPE_Q8_0, kTokens,
     "snapkv:budget=B,scope=layer,window=W"},
    {DoorsCase::kModel, kBf16, KVEVICT_DTYPE_FP8_E5M2, kHeads,
     "keydiff:budget=B"},
    {DoorsCase::kModel, kBf16, KVEVICT_DTYPE_Q4_0, kRing, "knorm:budget=B"},
    {DoorsCase::kModel, kBf16, kBf16, kPages,
     "keydiff:sink=0,budget=B,block=16"},
};

Shape ShapeOf(const DoorsCase& c, const Effort& effort) {
  constexpr uint32_t kSizes[][3] = {{4, 2, 32}, {4, 2, 64}, {6, 2, 80},
                                    {8, 8, 40}, {3, 1, 24}, {4, 2, 144}};
  uint32_t q_heads = kSizes[c.heads][0];
  uint32_t kv_heads = kSizes[c.heads][1];
  uint32_t dim = kSizes[c.heads][2];
  if (effort.full && c.heads <= DoorsCase::kOf64) {
    q_heads = 32;
    kv_heads = 8;
    if (c.heads == DoorsCase::kModel) dim = 128;
  }
  return {"",         1,          q_heads,
          kv_heads,   dim,        effort.full ? 16384u : 331u,
          c.q_dtype,  c.kv_dtype, c.layout,
          c.most_bias};
}

std::string PolicyOf(const DoorsCase& c, const Effort& effort) {
  std::string policy = c.policy;
  for (const auto& [word, number] :
       {std::pair("=B", effort.full ? "=2048" : "=60"),
        std::pair("=W", effort.full ? "=64" : "=16")}) {
    const size_t at = policy.find(word);
    if (at != std::string::npos) policy.replace(at, 2, number);
  }
  return policy;
}

// Sums of a decoded token's attention, whose keys are read once, and of two.
void CheckSumsOfStep(const Gpu& gpu, const Effort& effort, kvevict_dtype dtype,
                     Report* report) {
  const Shape shape = {"",    1,     8,
                       2,     64,    effort.full ? 16384u : 331u,
                       dtype, dtype, Layout::kPaged};
  Twin twin(gpu, shape, effort.seed);
  Side device(&gpu, &twin, "h2o:budget=60");
  Side host(nullptr, &twin, "h2o:budget=60");
  for (const uint32_t n_rows : {1u, 2u}) {
    CompareScores(device.policy(),
                  device.Score(0, shape.n_tokens, nullptr, 0, n_rows),
                  host.Score(0, shape.n_tokens, nullptr, 0, n_rows), report);
  }
}

// Given log-sum-exps replace the first pass.
void CheckRowLse(const Gpu& gpu, const Effort& effort, kvevict_dtype dtype,
                 Report* report) {
  const Shape shape = {"",    1,     4,
                       2,     64,    effort.full ? 2000u : 300u,
                       dtype, dtype, Layout::kTokenMajor};
  Twin twin(gpu, shape, effort.seed);
  Side side(&gpu, &twin, "snapkv:budget=60,scope=head,window=16");
  const uint32_t window = side.obs_window();
  const std::vector<float> lse = twin.RowLse(0, shape.n_tokens, window);
  const Buffer on_device(gpu, lse.size() * sizeof(float));
  on_device.Write(lse.data(), on_device.n_bytes());
  kvevict_plane plane{};
  plane.data = on_device.address();
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = 1;
  plane.token_stride_bytes = sizeof(float);
  plane.head_stride_bytes = static_cast<int64_t>(window * sizeof(float));
  const std::vector<float> scores = side.Score(0, shape.n_tokens, &plane);
  CompareScores(side.policy(), scores, side.Score(0, shape.n_tokens), report);

  // A sequence's ring gives the same, chunk by chunk.
  Side keeper(&gpu, &twin, "snapkv:budget=60,scope=head,window=16");
  keeper.Prefill(0, shape.n_tokens, 100);
  const uint32_t first = shape.n_tokens - window;
  for (uint32_t done = 0; done < window; done += 5) {
    kvevict_plane rows = plane;
    rows.data += done * sizeof(float);
    Check(Observe(keeper.sequence(), {0, nullptr, &rows},
                  std::min(5u, window - done), first + done, keeper.stream()));
  }
  keeper.Evict();
  // They are handed over at the eviction.
  twin.Restore();
  Check(
      kvevict_sequence_append(side.sequence(), shape.n_tokens, side.stream()));
  LayerInputs window_rows;
  window_rows.AddWindow(twin.DeviceQueries(0, first), &plane);
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  window_rows.Lend(&options);
  side.Evict(&options);
  const std::vector<int32_t> keep = side.Select(0, scores, shape.n_tokens, {});
  for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
    const std::vector<int32_t> expected(keep.begin() + h * 60,
                                        keep.begin() + (h + 1) * 60);
    for (const Side* evicted : {&keeper, &side}) {
      report->FailIf(evicted->Positions(0, h) != expected,
                     fmt::format("head {}: kept others than the doors", h));
    }
  }
}

// Offsets are one list or one per head. One slot in three stays where it is.
void CheckRotate(const Gpu& gpu, const Effort& effort, Layout layout,
                 kvevict_dtype dtype, Report* report) {
  const uint32_t n = effort.full ? 16384 : 331;
  const Shape shape = {"",    1,     8,     effort.full ? 8u : 2u, 80, n,
                       dtype, dtype, layout};
  Twin twin(gpu, shape, effort.seed);
  Side device(&gpu, &twin, "none");
  Side host(nullptr, &twin, "none");
  std::mt19937 random(static_cast<uint32_t>(effort.seed));
  for (const uint32_t n_lists : {1u, shape.n_kv_heads}) {
    std::vector<int32_t> offsets(size_t{n_lists} * n);
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (i % 3 != 0) offsets[i] = static_cast<int32_t>(random() % 2001) - 1000;
    }
    twin.Restore();
    device.Rotate(0, n, offsets, n_lists);
    host.Rotate(0, n, offsets, n_lists);
    twin.Fetch(0);
    report->FailIf(twin.IsUntouched(0), "nothing turned");
    report->Expect(twin.CompareWithHost(0, n));
  }
}

}  // namespace

void CheckDoors(const Gpu& gpu, const Effort& effort, Report* report) {
  for (const DoorsCase& c : kDoorsCases) {
    const Shape shape = ShapeOf(c, effort);
    const std::string policy = PolicyOf(c, effort);
    constexpr const char* kLayouts[] = {"token-major", "head-major", "paged",
                                        "a ring that has wrapped"};
    const std::string name =
        fmt::format("doors: {} queries, {}, {}{}, {}", NameOf(c.q_dtype),
                    NameOf(c.kv_dtype), kLayouts[static_cast<int>(c.layout)],
                    c.most_bias > 0.0f ? ", biases" : "", policy);
    report->Check(name, [&] {
      Twin twin(gpu, shape, effort.seed);
      Side device(&gpu, &twin, policy);
      Side host(nullptr, &twin, policy);
      CheckLayer(&device, &host, &twin, 0, shape.n_tokens, report);
    });
  }
  report->Check("doors: attention of a step, bf16, paged", [&] {
    CheckSumsOfStep(gpu, effort, KVEVICT_DTYPE_BF16, report);
  });
  report->Check("doors: attention of a step, f32, paged", [&] {
    CheckSumsOfStep(gpu, effort, KVEVICT_DTYPE_F32, report);
  });
  report->Check("doors: log-sum-exps given, bf16",
                [&] { CheckRowLse(gpu, effort, KVEVICT_DTYPE_BF16, report); });
  report->Check("doors: log-sum-exps given, f32",
                [&] { CheckRowLse(gpu, effort, KVEVICT_DTYPE_F32, report); });
  report->Check("doors: rotate, bf16, token-major", [&] {
    CheckRotate(gpu, effort, Layout::kTokenMajor, KVEVICT_DTYPE_BF16, report);
  });
  report->Check("doors: rotate, f32, head-major", [&] {
    CheckRotate(gpu, effort, Layout::kHeadMajor, KVEVICT_DTYPE_F32, report);
  });
  report->Check("doors: rotate, f16, paged", [&] {
    CheckRotate(gpu, effort, Layout::kPaged, KVEVICT_DTYPE_F16, report);
  });
}

}  // namespace kvevict::gpu
