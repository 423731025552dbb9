// Rotates keys in place beside a copy of their bytes, which reads and writes each
// once, both with cold caches.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "kvevict/edit.h"
#include "tests/bench/clocks.h"
#include "tests/bench/plans.h"
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
    view_.k =
        RowsOf(elements_.data(), KVEVICT_DTYPE_BF16, w.n_kv_heads, w.head_dim);
    FillGaussian(elements_);
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
      const double v = OfBf16(elements_[i]);
      sum += v * v;
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
  return CreatePlan(
      context, 1,
      LayerOf(w.n_q_heads, w.n_kv_heads, w.head_dim, KVEVICT_DTYPE_BF16),
      w.n_tokens, CreatePolicy("none").get(), inv_freq, layout);
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
