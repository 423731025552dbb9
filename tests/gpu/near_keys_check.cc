// Keys whose cosines are hard to tell apart: tensor cores filter pairs of keys by
// products of f16 (near_cosines.cuh), and the results are the CPU's all the same.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/random_values.h"

namespace kvevict::gpu {
namespace {

constexpr uint32_t kWindow = 4;

class Draws {
 public:
  explicit Draws(uint64_t seed) : engine_(seed) {}
  uint32_t In(uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(engine_() % (uint64_t{high} - low + 1));
  }
  bool OneOf(uint32_t n) { return In(1, n) == 1; }
  template <typename T, size_t N>
  T Pick(const T (&values)[N]) {
    return values[In(0, N - 1)];
  }
  uint64_t Bits() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

// [n, dim] rows on both sides, perhaps with gaps.
struct Rows {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  std::vector<uint8_t> host;
  Buffer device;

  Rows(const Gpu& gpu, Draws* random, kvevict_dtype dtype, uint32_t n,
       uint32_t dim)
      : host((dim + (random->OneOf(2) ? 0 : 8)) *
             size_t{ElementBytes(static_cast<DType>(dtype))} * n),
        device(gpu, host.size()) {
    plane.dtype = dtype;
    plane.head_dim = dim;
    plane.token_stride_bytes = static_cast<int64_t>(host.size() / n);
    FillWithValues(random->Bits(), dtype, host.size() / element(), host.data());
  }

  size_t element() const {
    return ElementBytes(static_cast<DType>(plane.dtype));
  }
  uint8_t* At(uint32_t row, uint32_t e) {
    return &host[row * static_cast<size_t>(plane.token_stride_bytes) +
                 e * element()];
  }
  std::vector<float> Row(uint32_t row) {
    std::vector<float> out;
    for (uint32_t e = 0; e < plane.head_dim; ++e) {
      out.push_back(static_cast<float>(ValueAt(plane.dtype, At(row, e), 0)));
    }
    return out;
  }
  void Store(uint32_t row, const std::vector<float>& numbers) {
    for (uint32_t e = 0; e < numbers.size(); ++e) {
      StoreValue(plane.dtype, numbers[e], At(row, e));
    }
  }
  kvevict_plane On(bool on_device) const {
    kvevict_plane here = plane;
    here.data =
        on_device ? device.address() : reinterpret_cast<uintptr_t>(host.data());
    return here;
  }
};

// One head's keys and values.
struct NearKeys {
  kvevict_layer_geometry geometry = KVEVICT_LAYER_GEOMETRY_INIT;
  uint32_t n_tokens;
  Rows keys, values;

  NearKeys(const Gpu& gpu, Draws* random, bool merges)
      : geometry(DrawGeometry(random, merges)),
        n_tokens(random->In(8, random->OneOf(4) ? 600 : 200)),
        keys(gpu, random, geometry.k_dtype, n_tokens, geometry.k_head_dim),
        values(gpu, random, geometry.v_dtype, n_tokens, geometry.v_head_dim) {
    Change(random);
    keys.device.Write(keys.host.data(), keys.host.size());
    values.device.Write(values.host.data(), values.host.size());
  }

  static kvevict_layer_geometry DrawGeometry(Draws* random, bool merges) {
    kvevict_layer_geometry g = KVEVICT_LAYER_GEOMETRY_INIT;
    g.n_q_heads = g.n_kv_heads = 1;
    // With as many equal elements as the first four, 1 / sqrt(n) is almost halfway
    // between two numbers of f16: below (rounding cuts 0.96 and 0.84 of the most),
    // above (0.95, 0.95).
    g.k_head_dim = random->Pick({247u, 227u, 59u, 236u, 16u, 64u, 128u});
    g.v_head_dim = merges ? random->In(1, 40) : 1;
    g.q_dtype = g.k_dtype = g.v_dtype = random->Pick(
        {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16, KVEVICT_DTYPE_BF16});
    return g;
  }

  kvevict_view ViewOn(bool on_device) const {
    kvevict_view view = KVEVICT_VIEW_INIT;
    view.n_kv_heads = 1;
    view.k = keys.On(on_device);
    view.v = values.On(on_device);
    return view;
  }

  // Some rows become
  //   all 1 and -1, with few of one sign, so that all errors add up
  //   like an earlier row but for the sign of one element, or just like it, and
  //     sometimes nearly all of them
  //   0, or of extreme size
  void Change(Draws* random) {
    const uint32_t dim = geometry.k_head_dim;
    const bool one_sign = random->OneOf(4);
    const bool repeats = random->OneOf(3);
    for (uint32_t t = 0; t < n_tokens; ++t) {
      if (repeats && t > 0 && !random->OneOf(20)) {
        keys.Store(t, keys.Row(random->In(0, t - 1)));
        continue;
      }
      std::vector<float> row = keys.Row(t);
      const uint32_t kind = random->In(0, one_sign ? 5 : 11);
      if (kind < 3) {
        std::ranges::fill(row, 1.0f);
        for (uint32_t k = random->In(0, 3); k > 0; --k) {
          row[random->In(0, dim - 1)] = -1.0f;
        }
      } else if (kind < 5 && t > 0) {
        row = keys.Row(random->In(0, t - 1));
        float& element = row[random->In(0, dim - 1)];
        if (!random->OneOf(3)) element = -element;
      } else if (kind == 5) {
        // Squares below f32, subnormal ones, and too large ones; in f16 the least
        // and largest elements.
        const int power = random->OneOf(3) ? -1000
                          : geometry.k_dtype == KVEVICT_DTYPE_F16
                              ? random->Pick({-6, 13})
                              : random->Pick({-100, -70, 55, 62});
        for (float& v : row) v = power == -1000 ? 0.0f : std::ldexp(v, power);
      }
      keys.Store(t, row);
    }
  }

  // As kernels compute it. Infinite norms have 0.
  float CosineOf(uint32_t a, uint32_t b) {
    const std::vector<float> rows[2] = {keys.Row(a), keys.Row(b)};
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

  // A threshold at which the filter must be right: at the greatest cosine of some row
  // with a later one or next to it, or as far from it as the filter may be wrong.
  float DrawThreshold(Draws* random) {
    float most = 0.0f;
    for (uint32_t n = random->OneOf(2) ? 1 : 10; n > 0; --n) {
      const uint32_t row = random->In(0, n_tokens - 2);
      for (uint32_t t = row + 1; t < n_tokens; ++t) {
        most = std::max(most, CosineOf(row, t));
      }
    }
    // docs/cuda.md: how pairs of keys are compared.
    const uint32_t padded = (geometry.k_head_dim + 15) / 16 * 16;
    const float error = 0x1p-10f + 0x1p-22f * static_cast<float>(padded + 1);
    const float at = random->Pick(
        {most, std::nextafter(most, 2.0f), most - error, most + error,
         std::nextafter(most, -2.0f), std::nextafter(most, -2.0f)});
    return std::clamp(at, 0.0f, 1.0f);
  }
};

ContextHandle ContextOn(const Gpu& gpu, bool on_device) {
  return CreateContext(
      on_device ? gpu.ContextOptions()
                : kvevict_context_options KVEVICT_CONTEXT_OPTIONS_INIT);
}

// Aligned memory of the host, or the device's.
struct Workspace {
  std::vector<uint8_t> host;
  Buffer device;

  Workspace(const Gpu& gpu, size_t n_bytes)
      : host(n_bytes + 64), device(gpu, n_bytes) {}
  void* On(bool on_device) {
    void* at = host.data();
    size_t space = host.size();
    return on_device ? device.pointer<void>()
                     : std::align(64, host.size() - 64, at, space);
  }
};

// Scores of R-KV, most of which is redundancy.
void CheckRedundancy(const Gpu& gpu, Draws* random, Report* report) {
  NearKeys near(gpu, random, /*merges=*/false);
  oracle_policy policy = ParsePolicy(fmt::format(
      "r-kv:budget=0.5,keep_window=no,pool=none,redundancy=0.9,window={}",
      kWindow));
  policy.similarity = near.DrawThreshold(random);
  // Queries are 0: only then do keys of extreme size have equal logits on both sides.
  Rows queries(gpu, random, near.geometry.q_dtype, kWindow,
               near.geometry.k_head_dim);
  std::ranges::fill(queries.host, uint8_t{0});
  queries.device.Write(queries.host.data(), queries.host.size());
  std::vector<float> scores[2];
  for (const bool on_device : {false, true}) {
    const ContextHandle context = ContextOn(gpu, on_device);
    const PlanHandle plan =
        CreatePlan(context.get(), {1, near.n_tokens, {near.geometry}}, policy);
    const size_t n_bytes = WorkspaceBytes(plan.get(), KVEVICT_OPERATION_SCORE);
    Workspace workspace(gpu, n_bytes);
    std::vector<float>& out = scores[on_device];
    out.resize(near.n_tokens);
    const Buffer device(gpu, out.size() * sizeof(float));
    const kvevict_view view = near.ViewOn(on_device);
    const kvevict_plane rows = queries.On(on_device);
    Check(Score({plan.get(), 0, near.n_tokens, &view, &rows},
                on_device ? device.pointer<float>() : out.data(), out.size(),
                {workspace.On(on_device), n_bytes,
                 on_device ? gpu.stream() : nullptr}));
    if (on_device) out = device.ReadAll<float>();
  }
  for (size_t i = 0; i < scores[0].size(); ++i) {
    const float expected = scores[0][i], got = scores[1][i];
    if (got == expected || (std::isnan(got) && std::isnan(expected))) continue;
    // Sums are in another order, and cosines may be next to 0.
    report->FailIf(
        !(std::abs(got - expected) <= 1e-4f * std::abs(expected) + 1e-5f),
        fmt::format("threshold {}, score {}: {} on the GPU, {} on the CPU",
                    policy.similarity, i, got, expected));
  }
}

// Rows that go are merged into rows that stay: the same bytes.
void CheckMerge(const Gpu& gpu, Draws* random, Report* report) {
  NearKeys near(gpu, random, /*merges=*/true);
  oracle_policy policy = ParsePolicy(
      fmt::format("random:sink=0,budget={}", random->In(1, near.n_tokens - 1)));
  policy.merge = random->Pick(
      {KVEVICT_MERGE_VALUES, KVEVICT_MERGE_PIVOT, KVEVICT_MERGE_WEIGHTED});
  policy.merge_threshold = random->In(0, 1) * 0.5;
  policy.merge_fraction = random->Pick({1.0, 0.75, 0.4, 0.05});
  policy.seed = random->Bits();
  uint32_t n_kept = 0;
  for (const bool on_device : {false, true}) {
    const ContextHandle context = ContextOn(gpu, on_device);
    const PlanHandle plan =
        CreatePlan(context.get(), {1, near.n_tokens, {near.geometry}}, policy);
    const SequenceHandle sequence = CreateSequence(plan.get());
    const kvevict_stream stream = on_device ? gpu.stream() : nullptr;
    Check(kvevict_sequence_append(sequence.get(), near.n_tokens, stream));
    const size_t n_bytes = WorkspaceBytes(plan.get(), KVEVICT_OPERATION_EVICT);
    Workspace workspace(gpu, n_bytes);
    const kvevict_view view = near.ViewOn(on_device);
    Check(kvevict_sequence_evict(sequence.get(), &view, 1, nullptr,
                                 workspace.On(on_device), n_bytes, stream));
    if (on_device) gpu.Synchronize();
    Check(kvevict_sequence_stored_length(sequence.get(), 0, 0, &n_kept));
  }
  for (const Rows* rows : {&near.keys, &near.values}) {
    const std::vector<uint8_t> got = rows->device.ReadAll<uint8_t>();
    const auto end = static_cast<std::ptrdiff_t>(
        n_kept * static_cast<size_t>(rows->plane.token_stride_bytes));
    report->FailIf(
        !std::equal(got.begin(), got.begin() + end, rows->host.begin()),
        "other rows than on the CPU");
  }
}

}  // namespace

void CheckNearKeys(const Gpu& gpu, const Effort& effort, Report* report) {
  for (uint32_t i = 0; i < 4 * effort.times; ++i) {
    Draws random(1000 * effort.seed + i);
    report->Check(fmt::format("near keys, redundancy {}", i),
                  [&] { CheckRedundancy(gpu, &random, report); });
    report->Check(fmt::format("near keys, merged {}", i),
                  [&] { CheckMerge(gpu, &random, report); });
  }
}

}  // namespace kvevict::gpu
