// Keys whose cosines are hard to tell apart: tensor cores filter pairs of keys by
// products of f16 (near_cosines.cuh), and the results are the CPU's all the same.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "tests/gpu/checks.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/numbers.h"
#include "tests/gpu/random_model.h"
#include "tests/gpu/score_error.h"

namespace kvevict::gpu {
namespace {

constexpr uint32_t kWindow = 4;

// Keys of one head in random strides.
class NearKeys {
 public:
  NearKeys(const Gpu& gpu, Random* random, bool merges)
      : n_tokens_(random->In(8, random->OneOf(4) ? 600 : 200)) {
    kvevict_layer_geometry& g = geometry_;
    g.n_q_heads = g.n_kv_heads = 1;
    // With as many equal elements as the first four, 1 / sqrt(n) is almost halfway
    // between two numbers of f16: below (rounding cuts 0.96 and 0.84 of the most),
    // above (0.95, 0.95).
    g.k_head_dim = random->Pick({247u, 227u, 59u, 236u, 16u, 64u, 128u});
    g.v_head_dim = merges ? random->In(1, 40) : 1;
    g.q_dtype = g.k_dtype = g.v_dtype = RandomDType(random);
    layer_ = std::make_unique<RandomLayer>(gpu, random, g, n_tokens_, false, 0,
                                           false, random->OneOf(2));
    for (uint32_t t = 0; t < n_tokens_; ++t) {
      layer_->WriteRows(random, 0, t, false);
    }
    Change(random);
    layer_->Upload();
  }

  const kvevict_layer_geometry& geometry() const { return geometry_; }
  uint32_t n_tokens() const { return n_tokens_; }
  const RandomLayer& layer() const { return *layer_; }

  // A threshold at which the filter must be right: at the greatest cosine of some row
  // with a later one or next to it, or as far from it as the filter may be wrong.
  float DrawThreshold(Random* random) const {
    float most = 0.0f;
    for (uint32_t n = random->OneOf(2) ? 1 : 10; n > 0; --n) {
      const uint32_t row = random->In(0, n_tokens_ - 2);
      for (uint32_t t = row + 1; t < n_tokens_; ++t) {
        most = std::max(most, CosineOf(row, t));
      }
    }
    // docs/cuda.md: how pairs of keys are compared.
    const uint32_t padded = (geometry_.k_head_dim + 15) / 16 * 16;
    const float error = 0x1p-10f + 0x1p-22f * static_cast<float>(padded + 1);
    const float at = random->Pick(
        {most, std::nextafter(most, 2.0f), most - error, most + error,
         std::nextafter(most, -2.0f), std::nextafter(most, -2.0f)});
    return std::clamp(at, 0.0f, 1.0f);
  }

 private:
  std::vector<float> Row(uint32_t slot) const {
    std::vector<float> row;
    for (uint32_t e = 0; e < geometry_.k_head_dim; ++e) {
      row.push_back(static_cast<float>(
          ValueAt(geometry_.k_dtype, layer_->ElementAt(false, 0, slot, e), 0)));
    }
    return row;
  }
  void Store(uint32_t slot, const std::vector<float>& row) {
    for (uint32_t e = 0; e < row.size(); ++e) {
      StoreValue(geometry_.k_dtype, row[e],
                 layer_->ElementAt(false, 0, slot, e));
    }
  }

  // Some rows become
  //   all 1 and -1, with few of one sign, so that all errors add up
  //   like an earlier row but for the sign of one element, or just like it, and
  //     sometimes nearly all of them
  //   0, or of extreme size
  void Change(Random* random) {
    const uint32_t dim = geometry_.k_head_dim;
    const bool one_sign = random->OneOf(4);
    const bool repeats = random->OneOf(3);
    for (uint32_t t = 0; t < n_tokens_; ++t) {
      if (repeats && t > 0 && !random->OneOf(20)) {
        Store(t, Row(random->In(0, t - 1)));
        continue;
      }
      std::vector<float> row = Row(t);
      switch (random->In(0, one_sign ? 5 : 11)) {
        case 0:
        case 1:
        case 2:
          std::ranges::fill(row, 1.0f);
          for (uint32_t k = random->In(0, 3); k > 0; --k) {
            row[random->In(0, dim - 1)] = -1.0f;
          }
          break;
        case 3:
        case 4:
          if (t == 0) break;
          row = Row(random->In(0, t - 1));
          if (!random->OneOf(3)) {
            float& element = row[random->In(0, dim - 1)];
            element = -element;
          }
          break;
        case 5: {
          // Squares below f32, subnormal ones, and too large ones; in f16 the least
          // and largest elements.
          const int power = random->OneOf(3) ? -1000
                            : geometry_.k_dtype == KVEVICT_DTYPE_F16
                                ? random->Pick({-6, 13})
                                : random->Pick({-100, -70, 55, 62});
          for (float& v : row) v = power == -1000 ? 0.0f : std::ldexp(v, power);
          break;
        }
        default:
          break;
      }
      Store(t, row);
    }
  }

  // As kernels compute it. Infinite norms have 0.
  float CosineOf(uint32_t a, uint32_t b) const {
    const std::vector<float> rows[2] = {Row(a), Row(b)};
    float scales[2];
    for (int i = 0; i < 2; ++i) {
      float square = 0.0f;
      for (const float v : rows[i]) square = std::fma(v, v, square);
      const float norm = std::sqrt(square);
      scales[i] = std::isfinite(norm) ? 1.0f / (norm + 1e-8f) : 0.0f;
    }
    float cosine = 0.0f;
    for (size_t e = 0; e < rows[0].size(); ++e) {
      cosine = std::fma(rows[0][e] * scales[0], rows[1][e] * scales[1], cosine);
    }
    return cosine;
  }

  kvevict_layer_geometry geometry_ = KVEVICT_LAYER_GEOMETRY_INIT;
  uint32_t n_tokens_;
  std::unique_ptr<RandomLayer> layer_;
};

// Scores of R-KV, most of which is redundancy.
void CheckRedundancy(const Gpu& gpu, Random* random, Report* report) {
  const NearKeys keys(gpu, random, /*merges=*/false);
  oracle_policy policy = ParsePolicy(fmt::format(
      "r-kv:budget=0.5,keep_window=no,pool=none,redundancy=0.9,window={}",
      kWindow));
  policy.similarity = keys.DrawThreshold(random);
  StridedRows queries(gpu,
                      DrawPlane(random, keys.geometry().q_dtype,
                                keys.geometry().k_head_dim, 1, kWindow, 1));
  // Queries are 0: only then do keys of extreme size have equal logits on both sides.
  for (uint32_t i = 0; i < kWindow * keys.geometry().k_head_dim; ++i) {
    StoreValue(queries.dtype(), 0.0f, queries.At(0, i % kWindow, i / kWindow));
  }
  queries.Upload();
  // Both sides read the same bytes.
  kvevict_plane on_host = *queries.OnDevice();
  on_host.data = reinterpret_cast<uintptr_t>(queries.At(0, 0));
  std::vector<float> scores[2];
  for (const bool on_device : {false, true}) {
    const ContextHandle context = CreateContext(
        on_device ? gpu.ContextOptions()
                  : kvevict_context_options KVEVICT_CONTEXT_OPTIONS_INIT);
    const PlanHandle plan = CreatePlan(
        context.get(), {1, keys.n_tokens(), {keys.geometry()}}, policy);
    const size_t n_bytes = WorkspaceBytes(plan.get(), KVEVICT_OPERATION_SCORE);
    const HostWorkspace host(n_bytes);
    const Buffer there(gpu, n_bytes);
    std::vector<float>& out = scores[on_device];
    out.resize(keys.n_tokens());
    const Buffer device(gpu, out.size() * sizeof(float));
    const ScoreCall call = {
        plan.get(), 0, keys.n_tokens(),
        on_device ? &keys.layer().device_view() : &keys.layer().host_view(),
        on_device ? queries.OnDevice() : &on_host};
    Check(Score(
        call, on_device ? device.pointer<float>() : out.data(), out.size(),
        on_device ? Scratch{there.pointer<void>(), n_bytes, gpu.stream()}
                  : Scratch{host.memory(), n_bytes}));
    if (on_device) out = device.ReadAll<float>();
  }
  for (size_t i = 0; i < scores[0].size(); ++i) {
    report->FailIf(
        !(ScoreError(policy, scores[1][i], scores[0][i]) <= 1.0),
        fmt::format("threshold {}, score {}: {} on the GPU, {} on the CPU",
                    policy.similarity, i, scores[1][i], scores[0][i]));
  }
}

// Rows that go are merged into rows that stay.
void CheckMerge(const Gpu& gpu, Random* random, Report* report) {
  const NearKeys keys(gpu, random, /*merges=*/true);
  oracle_policy policy = ParsePolicy(fmt::format(
      "random:sink=0,budget={}", random->In(1, keys.n_tokens() - 1)));
  policy.merge = random->Pick(
      {KVEVICT_MERGE_VALUES, KVEVICT_MERGE_PIVOT, KVEVICT_MERGE_WEIGHTED});
  policy.merge_threshold = random->In(0, 1) * 0.5;
  policy.merge_fraction = random->Pick({1.0, 0.75, 0.4, 0.05});
  policy.seed = random->Bits();
  uint32_t n_kept = 0;
  for (const bool on_device : {false, true}) {
    const ContextHandle context = CreateContext(
        on_device ? gpu.ContextOptions()
                  : kvevict_context_options KVEVICT_CONTEXT_OPTIONS_INIT);
    const PlanHandle plan = CreatePlan(
        context.get(), {1, keys.n_tokens(), {keys.geometry()}}, policy);
    const SequenceHandle sequence = CreateSequence(plan.get());
    const kvevict_stream stream = on_device ? gpu.stream() : nullptr;
    Check(kvevict_sequence_append(sequence.get(), keys.n_tokens(), stream));
    const size_t n_bytes = WorkspaceBytes(plan.get(), KVEVICT_OPERATION_EVICT);
    const HostWorkspace host(n_bytes);
    const Buffer there(gpu, n_bytes);
    Check(kvevict_sequence_evict(
        sequence.get(),
        on_device ? &keys.layer().device_view() : &keys.layer().host_view(), 1,
        nullptr, on_device ? there.pointer<void>() : host.memory(), n_bytes,
        stream));
    if (on_device) gpu.Synchronize();
    Check(kvevict_sequence_stored_length(sequence.get(), 0, 0, &n_kept));
  }
  report->Expect(keys.layer().Compare(n_kept));
}

}  // namespace

void CheckNearKeys(const Gpu& gpu, const Effort& effort, Report* report) {
  for (uint32_t i = 0; i < 4 * effort.times; ++i) {
    Random random(1000 * effort.seed + i);
    report->Check(fmt::format("near keys, redundancy {}", i),
                  [&] { CheckRedundancy(gpu, &random, report); });
    report->Check(fmt::format("near keys, merged {}", i),
                  [&] { CheckMerge(gpu, &random, report); });
  }
}

}  // namespace kvevict::gpu
