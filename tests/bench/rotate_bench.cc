// Rotates keys in place beside a copy of their bytes, which reads and writes each
// once, both with cold caches.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "kvevict/edit.h"
#include "tests/bench/clocks.h"
#include "tests/bench/handles.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

// bf16 keys [n_tokens, n_kv_heads, head_dim] of a layer.
class Keys {
 public:
  explicit Keys(const Workload& w)
      : w_(w), elements_(size_t{w.n_tokens} * w.n_kv_heads * w.head_dim) {
    view_.n_kv_heads = w.n_kv_heads;
    view_.k.data = reinterpret_cast<uintptr_t>(elements_.data());
    view_.k.dtype = KVEVICT_DTYPE_BF16;
    view_.k.head_dim = w.head_dim;
    view_.k.head_stride_bytes = int64_t{2} * w.head_dim;
    view_.k.token_stride_bytes = int64_t{2} * w.n_kv_heads * w.head_dim;
    std::mt19937_64 engine(1);
    std::normal_distribution<float> gaussian;
    for (size_t i = 0; i < elements_.size(); ++i) {
      const float v = gaussian(engine);
      uint32_t bits;
      std::memcpy(&bits, &v, sizeof(bits));
      elements_[i] = static_cast<uint16_t>(bits >> 16);
    }
    square_ = Square();
  }

  const kvevict_view& view() const { return view_; }
  const uint16_t* data() const { return elements_.data(); }
  size_t bytes() const { return elements_.size() * sizeof(uint16_t); }

  // Rotation keeps lengths except for rounding.
  void Check() const {
    const double square = Square();
    if (!(std::abs(square / square_ - 1.0) < 0.01)) {
      throw std::runtime_error(
          fmt::format("rotate: squares of {}, before {}", square, square_));
    }
  }

 private:
  double Square() const {
    double sum = 0.0;
    for (size_t i = 0; i < elements_.size(); ++i) {
      const uint32_t bits = uint32_t{elements_[i]} << 16;
      float v;
      std::memcpy(&v, &bits, sizeof(v));
      sum += double{v} * v;
    }
    return sum;
  }

  const Workload w_;
  HugeBuffer<uint16_t> elements_;
  kvevict_view view_ = KVEVICT_VIEW_INIT;
  double square_ = 0.0;
};

PlanHandle PlanOf(const kvevict_context* context, const Workload& w,
                  kvevict_rope_layout layout) {
  std::vector<float> inv_freq(w.head_dim / 2);
  for (size_t f = 0; f < inv_freq.size(); ++f) {
    inv_freq[f] = std::pow(10000.0f, -static_cast<float>(2 * f) / w.head_dim);
  }
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = w.n_q_heads;
  layer.n_kv_heads = w.n_kv_heads;
  layer.k_head_dim = layer.v_head_dim = w.head_dim;
  layer.q_dtype = layer.k_dtype = layer.v_dtype = KVEVICT_DTYPE_BF16;
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = 1;
  geometry.max_tokens = w.n_tokens;
  geometry.layers = &layer;
  geometry.layers_len = 1;
  geometry.rope_layout = layout;
  geometry.rope_inv_freq = inv_freq.data();
  geometry.rope_inv_freq_len = static_cast<uint32_t>(inv_freq.size());
  kvevict_plan* plan = nullptr;
  Check(kvevict_plan_create(context, &geometry, CreatePolicy("none").get(),
                            nullptr, &plan));
  return PlanHandle(plan);
}

void BenchLayout(Session& session, const Workload& w,
                 kvevict_rope_layout layout, const char* name_of_layout) {
  const std::string name =
      fmt::format("rotate bf16 [{}, {}, {}], {}", w.n_tokens, w.n_kv_heads,
                  w.head_dim, name_of_layout);
  if (!session.wants(name)) return;
  session.announce(name);
  const ContextHandle context = CreateContext(session.simd.name);
  const PlanHandle plan = PlanOf(context.get(), w, layout);
  Keys keys(w);
  HugeBuffer<uint16_t> copy(keys.bytes() / sizeof(uint16_t));
  // No two neighbours move alike, which is the slowest case.
  std::vector<int32_t> offsets(w.n_tokens);
  for (uint32_t i = 0; i < w.n_tokens; ++i) {
    offsets[i] = -7 * static_cast<int32_t>(i) - 1;
  }
  kvevict_rotation rotation = KVEVICT_ROTATION_INIT;
  rotation.n_tokens = w.n_tokens;
  rotation.view = &keys.view();
  rotation.offsets = offsets.data();
  rotation.offsets_len = offsets.size();

  Row& row = session.report.AddRow(name, 1, "byte/s");
  Comparison& once = row.Against("memcpy of the keys, cold");
  Repeat(session, [&](bool measured) {
    session.limits.EvictCaches();
    const Timing memcpy_timing =
        TimeCalls([&] { std::memcpy(copy.data(), keys.data(), keys.bytes()); });
    session.limits.EvictCaches();
    const Timing timing = TimeCalls(
        [&] { Check(kvevict_rotate(plan.get(), &rotation, 1, nullptr)); });
    keys.Check();
    if (!measured) return;
    row.Add(timing, static_cast<double>(keys.bytes()));
    once.ratio.Add(memcpy_timing.cpu / timing.cpu);
  });
}

}  // namespace

void BenchRotate(Session& session) {
  Workload w = session.smoke ? kSmoke : kA;
  if (!session.smoke) w.n_tokens = 2048;
  BenchLayout(session, w, KVEVICT_ROPE_LAYOUT_HALF, "halves");
  BenchLayout(session, w, KVEVICT_ROPE_LAYOUT_INTERLEAVED, "interleaved");
}

}  // namespace kvevict::bench
