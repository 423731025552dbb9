#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

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

struct DoorsCase {
  Shape shape;
  std::string policy;
};

std::vector<DoorsCase> DoorsCases(const Effort& effort) {
  const uint32_t n = effort.full ? 16384 : 331;
  const std::string budget = effort.full ? "2048" : "60";
  const auto shape = [&](const char* name, uint32_t q_heads, uint32_t kv_heads,
                         uint32_t dim, kvevict_dtype q, kvevict_dtype kv,
                         Layout layout, float most_bias = 0.0f) {
    return Shape{name, 1, q_heads, kv_heads, dim, n, q, kv, layout, most_bias};
  };
  const kvevict_dtype f32 = KVEVICT_DTYPE_F32;
  const kvevict_dtype f16 = KVEVICT_DTYPE_F16;
  const kvevict_dtype bf16 = KVEVICT_DTYPE_BF16;
  const uint32_t wide = effort.full ? 128 : 32;
  const uint32_t heads = effort.full ? 32 : 4;
  const uint32_t kv_heads = effort.full ? 8 : 2;
  const std::string window = effort.full ? "64" : "16";
  return {
      {shape("bf16, token-major", heads, kv_heads, wide, bf16, bf16,
             Layout::kTokenMajor),
       "snapkv:budget=" + budget + ",scope=layer,window=" + window},
      // Chunks: more are kept than a GPU runs at a time.
      {shape("bf16, token-major, few are lost", heads, kv_heads, wide, bf16,
             bf16, Layout::kTokenMajor),
       "snapkv:budget=0.9,scope=head,window=" + window},
      {shape("bf16, head-major", heads, kv_heads, wide, bf16, bf16,
             Layout::kHeadMajor),
       "snapkv:budget=" + budget + ",scope=head,pool=max5,window=" + window},
      {shape("f16, paged", heads, kv_heads, wide, f16, f16, Layout::kPaged),
       "snapkv:budget=" + budget + ",scope=head,window=20"},
      {shape("bf16, a ring that has wrapped", heads, kv_heads, wide, bf16, bf16,
             Layout::kWrappedRing),
       "snapkv:budget=" + budget + ",scope=layer,window=" + window},
      {shape("f32, token-major", heads, kv_heads, wide, f32, f32,
             Layout::kTokenMajor),
       "snapkv:budget=" + budget + ",scope=layer,window=" + window},
      {shape("f32 queries, bf16 keys, paged, head size 80", 6, 2, 80, f32, bf16,
             Layout::kPaged),
       "snapkv:budget=" + budget + ",scope=head,window=7,group=max"},
      {shape("f16 queries, f32 keys, head-major", 8, 8, 40, f16, f32,
             Layout::kHeadMajor),
       "snapkv:budget=0.25,scope=layer,window=8,pool=none"},
      // Biases of slots, by tensor cores and by plain multiply-adds, for few rows,
      // in parts and in chunks.
      {shape("bf16, paged, biases", heads, kv_heads, wide, bf16, bf16,
             Layout::kPaged, 1.0f),
       "snapkv:budget=" + budget + ",scope=head,window=" + window},
      {shape("f32, head-major, biases", heads, kv_heads, wide, f32, f32,
             Layout::kHeadMajor, 1.0f),
       "snapkv:budget=" + budget + ",scope=layer,window=" + window},
      {shape("bf16, token-major, biases", heads, kv_heads, 64, bf16, bf16,
             Layout::kTokenMajor, 1.0f),
       "tova:budget=" + budget},
      {shape("bf16, a ring that has wrapped, biases", heads, kv_heads, wide,
             bf16, bf16, Layout::kWrappedRing, 1.0f),
       "h2o:budget=" + budget + ",rows=mean"},
      {shape("bf16, paged, biases", heads, kv_heads, wide, bf16, bf16,
             Layout::kPaged, 1.0f),
       "non-causal:sink=5,recent=3,ends=out,weight=none,budget=" + budget},
      // Few rows, whose keys are read once.
      {shape("bf16, paged, head size 64", heads, kv_heads, 64, bf16, bf16,
             Layout::kPaged),
       "tova:budget=" + budget},
      {shape("f32, token-major", heads, kv_heads, wide, f32, f32,
             Layout::kTokenMajor),
       "tova:scope=head,budget=" + budget},
      {shape("f32 queries, f16 keys, a ring that has wrapped, head size 80", 6,
             2, 80, f32, f16, Layout::kWrappedRing),
       "snapkv:budget=" + budget + ",scope=head,group=max,window=2"},
      {shape("f32, head-major", heads, kv_heads, wide, f32, f32,
             Layout::kHeadMajor),
       "snapkv:budget=" + budget + ",rows=max,row_weight=past,window=4"},
      // Other layouts and dtypes of rows.
      {shape("bf16, token-major", heads, kv_heads, wide, bf16, bf16,
             Layout::kTokenMajor),
       "snapkv:budget=" + budget +
           ",rows=max,row_weight=past,window=" + window},
      {shape("f16, paged", heads, kv_heads, wide, f16, f16, Layout::kPaged),
       "snapkv:budget=" + budget +
           ",window=8,group=max,order=reduce-logits,softmax=past"},
      // Rows that are pooled by themselves.
      {shape("bf16, token-major", heads, kv_heads, wide, bf16, bf16,
             Layout::kTokenMajor),
       "snapkv:budget=" + budget +
           ",pool=avg5,edge=mass,rows=max,group=max,order=pool-rows,prior=mean,"
           "window=" +
           window},
      {shape("f32, paged, head size 80", 6, 2, 80, f32, f32, Layout::kPaged),
       "snapkv:budget=" + budget +
           ",pool=max3,order=pool-rows,keep_window=no,window=7"},
      // Sums made of all queries, in parts.
      {shape("bf16, paged", heads, kv_heads, wide, bf16, bf16, Layout::kPaged),
       "h2o:budget=" + budget + ",rows=mean"},
      {shape("f32, head-major", 3, 1, 24, f32, f32, Layout::kHeadMajor),
       "h2o:budget=" + budget + ",group=max"},
      // Queries of a chunk come at once and in parts.
      {shape("bf16, paged", heads, kv_heads, wide, bf16, bf16, Layout::kPaged),
       "non-causal:sink=0,budget=" + budget + ",weight=none"},
      {shape("f16, token-major", 4, 2, 144, f16, f16, Layout::kTokenMajor),
       "non-causal:sink=0,budget=" + budget + ",weight=none"},
      {shape("f32, head-major", 3, 1, 24, f32, f32, Layout::kHeadMajor),
       "non-causal:sink=0,budget=" + budget +
           ",group=max,block=40,weight=none"},
      // Chunks begin behind the sinks; leverage of keys before RoPE.
      {shape("bf16, paged", heads, kv_heads, wide, bf16, bf16, Layout::kPaged),
       "non-causal:sink=5,recent=3,ends=out,standardize=yes,leverage=1,"
       "leverage_scale=evicted,weight=none,budget=" +
           budget},
      {shape("f32, head-major", 3, 1, 24, f32, f32, Layout::kHeadMajor),
       "non-causal:sink=9,recent=40,ends=out,group=max,block=40,weight=none,"
       "budget=" +
           budget},
      {shape("f16, a ring that has wrapped", heads, kv_heads, wide, f16, f16,
             Layout::kWrappedRing),
       "leverage:sink=3,recent=2,budget=" + budget},
      // Codes hold their scales or need none.
      {shape("bf16 queries, fp8, paged", heads, kv_heads, wide, bf16,
             KVEVICT_DTYPE_FP8_E4M3, Layout::kPaged),
       "snapkv:budget=" + budget + ",scope=head,window=" + window},
      {shape("f16 queries, q8_0, token-major", heads, kv_heads, wide, f16,
             KVEVICT_DTYPE_Q8_0, Layout::kTokenMajor),
       "snapkv:budget=" + budget + ",scope=layer,window=" + window},
      {shape("fp8, head-major", heads, kv_heads, wide, bf16,
             KVEVICT_DTYPE_FP8_E5M2, Layout::kHeadMajor),
       "keydiff:budget=" + budget},
      {shape("q4_0, a ring that has wrapped", heads, kv_heads, wide, bf16,
             KVEVICT_DTYPE_Q4_0, Layout::kWrappedRing),
       "knorm:budget=" + budget},
      {shape("bf16, keys by blocks", heads, kv_heads, wide, bf16, bf16,
             Layout::kPaged),
       "keydiff:sink=0,budget=" + budget + ",block=16"},
  };
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

// The slots of n_lists lists get the rows that they list on both sides; all
// others stay.
void CheckReordered(Side* gpu, Side* cpu, Twin* twin,
                    const std::vector<int32_t>& slots, uint32_t n_lists,
                    Report* report) {
  const uint32_t n_tokens = twin->shape().n_tokens;
  twin->Restore();
  gpu->Reorder(0, n_tokens, slots, n_lists);
  cpu->Reorder(0, n_tokens, slots, n_lists);
  twin->Fetch(0);
  report->Expect(twin->CompareWithHost(0, n_tokens));
  const auto n = static_cast<std::ptrdiff_t>(slots.size() / n_lists);
  for (uint32_t h = 0; h < twin->shape().n_kv_heads; ++h) {
    std::vector<int32_t> positions(n_tokens);
    std::iota(positions.begin(), positions.end(), 0);
    std::copy_n(slots.begin() + (n_lists == 1 ? 0 : h * n), n,
                positions.begin());
    report->Expect(twin->CompareWithPositions(0, h, positions));
  }
}

// A ring that began in the middle begins at slot 0 again, whole and with every
// third token. Then any slots follow, with repeats, per head.
void CheckReorder(const Gpu& gpu, const Effort& effort, Layout layout,
                  kvevict_dtype dtype, Report* report) {
  const uint32_t n = effort.full ? 16384 : 331;
  const Shape shape = {"",    1,     8,     effort.full ? 8u : 2u, 64, n,
                       dtype, dtype, layout};
  Twin twin(gpu, shape, effort.seed);
  Side device(&gpu, &twin, "streaming-llm:budget=60");
  Side host(nullptr, &twin, "streaming-llm:budget=60");
  std::vector<int32_t> ring(n), thinned;
  std::iota(ring.begin(), ring.end(), 0);
  std::rotate(ring.begin(), ring.begin() + n / 3, ring.end());
  CheckReordered(&device, &host, &twin, ring, 1, report);
  for (uint32_t i = 0; i < n; i += 3) thinned.push_back(ring[i]);
  CheckReordered(&device, &host, &twin, thinned, 1, report);
  std::mt19937 random(static_cast<uint32_t>(effort.seed));
  std::vector<int32_t> any(shape.n_kv_heads * (n - 20));
  for (int32_t& slot : any) slot = static_cast<int32_t>(random() % n);
  CheckReordered(&device, &host, &twin, any, shape.n_kv_heads, report);
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
  for (const DoorsCase& c : DoorsCases(effort)) {
    report->Check("doors: " + c.shape.name + ", " + c.policy, [&] {
      Twin twin(gpu, c.shape, effort.seed);
      Side device(&gpu, &twin, c.policy);
      Side host(nullptr, &twin, c.policy);
      CheckLayer(&device, &host, &twin, 0, c.shape.n_tokens, report);
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
  report->Check("doors: reorder, bf16, token-major", [&] {
    CheckReorder(gpu, effort, Layout::kTokenMajor, KVEVICT_DTYPE_BF16, report);
  });
  report->Check("doors: reorder, f32, head-major", [&] {
    CheckReorder(gpu, effort, Layout::kHeadMajor, KVEVICT_DTYPE_F32, report);
  });
  report->Check("doors: reorder, f16, paged", [&] {
    CheckReorder(gpu, effort, Layout::kPaged, KVEVICT_DTYPE_F16, report);
  });
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
