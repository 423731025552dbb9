// The cost of scoring quantized keys by kvevict_score(), against the same keys in f32.
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "tests/bench/handles.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

// Keys of a layer, [S, H, D], any numbers, and a scale for each row that needs one.
class Keys {
 public:
  Keys(const Workload& w, DType dtype)
      : w_(w),
        dtype_(dtype),
        rows_(size_t{w.n_tokens} * w.n_kv_heads * RowBytes()),
        scales_(size_t{w.n_tokens} * w.n_kv_heads) {
    std::minstd_rand random(1);
    // Whatever dtype reads the bytes, no number is NaN or far from 1.
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto bits = static_cast<uint8_t>(random() >> 8);
      rows_.data()[i] =
          static_cast<uint8_t>(i % 2 == 0 ? bits & 0xC0 : (bits & 0x80) | 0x3C);
    }
    std::fill_n(scales_.data(), scales_.size(), uint16_t{0x1C00});
    view_.n_kv_heads = w.n_kv_heads;
    view_.k = Plane(rows_.data(), static_cast<kvevict_dtype>(dtype), w.head_dim,
                    RowBytes());
    if (InfoOf(dtype).scale != Scale::kNeeded) return;
    scale_ = Plane(scales_.data(), KVEVICT_DTYPE_F16, 1, sizeof(uint16_t));
    scale_.role = KVEVICT_ROLE_KEY_SCALE;
    view_.companions = &scale_;
    view_.n_companions = 1;
  }
  Keys(const Keys&) = delete;

  const kvevict_view& view() const { return view_; }

 private:
  size_t RowBytes() const { return PackedBytes(dtype_, w_.head_dim); }
  kvevict_plane Plane(const void* data, kvevict_dtype dtype, uint32_t dim,
                      size_t row_bytes) const {
    kvevict_plane plane = KVEVICT_PLANE_INIT;
    plane.data = reinterpret_cast<uintptr_t>(data);
    plane.dtype = dtype;
    plane.head_dim = dim;
    plane.head_stride_bytes = static_cast<int64_t>(row_bytes);
    plane.token_stride_bytes = w_.n_kv_heads * plane.head_stride_bytes;
    return plane;
  }

  const Workload w_;
  const DType dtype_;
  HugeBuffer<uint8_t> rows_;
  HugeBuffer<uint16_t> scales_;
  kvevict_view view_ = KVEVICT_VIEW_INIT;
  kvevict_plane scale_ = KVEVICT_PLANE_INIT;
};

// A plan for keys of one dtype, and what a call needs.
class Scorer {
 public:
  Scorer(Session& session, const Workload& w, DType dtype, const char* policy)
      : keys_(w, dtype),
        queries_(size_t{w.n_q_heads} * w.window * w.head_dim),
        scores_(size_t{w.n_kv_heads} * w.n_tokens),
        context_(CreateContext(session.simd.name)) {
    std::fill_n(queries_.data(), queries_.size(), 0.25f);
    const PolicyHandle parsed =
        CreatePolicy(fmt::format("{}:budget={}", policy, w.budget));
    NarrowWindow(parsed.get(), w.window);
    kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
    layer.n_q_heads = w.n_q_heads;
    layer.n_kv_heads = w.n_kv_heads;
    layer.k_head_dim = w.head_dim;
    layer.k_dtype = static_cast<kvevict_dtype>(dtype);
    kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
    geometry.n_layers = 1;
    geometry.max_tokens = w.n_tokens;
    geometry.layers = &layer;
    geometry.layers_len = 1;
    kvevict_plan* made = nullptr;
    Check(kvevict_plan_create(context_.get(), &geometry, parsed.get(), nullptr,
                              &made));
    plan_.reset(made);
    kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
    Check(kvevict_plan_workspace(made, KVEVICT_OPERATION_SCORE, 0, &size));
    workspace_ = HugeBuffer<uint8_t>(std::max<size_t>(size.best_bytes, 64));
    rows_.data = reinterpret_cast<uintptr_t>(queries_.data());
    rows_.dtype = KVEVICT_DTYPE_F32;
    rows_.head_dim = w.head_dim;
    rows_.token_stride_bytes = int64_t{w.head_dim} * sizeof(float);
    rows_.head_stride_bytes = rows_.token_stride_bytes * w.window;
    inputs_.queries = &rows_;
    job_.n_tokens = w.n_tokens;
    job_.view = &keys_.view();
    job_.inputs = &inputs_;
    job_.scores = scores_.data();
    job_.scores_len = scores_.size();
  }
  Scorer(const Scorer&) = delete;

  Timing Score() {
    return TimeCalls([&] {
      Check(kvevict_score(plan_.get(), &job_, 1, workspace_.data(),
                          workspace_.size(), nullptr));
    });
  }

 private:
  const Keys keys_;
  HugeBuffer<float> queries_, scores_;
  HugeBuffer<uint8_t> workspace_{64};
  const ContextHandle context_;
  PlanHandle plan_;
  kvevict_plane rows_ = KVEVICT_PLANE_INIT;
  kvevict_signal_inputs inputs_ = KVEVICT_SIGNAL_INPUTS_INIT;
  kvevict_score_job job_ = KVEVICT_SCORE_JOB_INIT;
};

void BenchDType(Session& session, const Workload& w, const char* policy,
                DType dtype) {
  const std::string name =
      fmt::format("quantized {} {} {}", policy, InfoOf(dtype).name, w.name);
  if (!session.wants(name)) return;
  session.announce(name);
  Scorer plain(session, w, DType::kF32, policy);
  Scorer quantized(session, w, dtype, policy);
  Row& row = session.report.AddRow(name, 1, "token/s");
  Comparison& against = row.Against("f32 keys");
  Repeat(session, [&](bool measured) {
    session.limits.EvictCaches();
    const Timing of_plain = plain.Score();
    session.limits.EvictCaches();
    const Timing timing = quantized.Score();
    if (!measured) return;
    row.Add(timing, w.n_tokens);
    against.ratio.Add(of_plain.cpu / timing.cpu);
  });
}

}  // namespace

void BenchQuantized(Session& session) {
  const Workload w = session.smoke ? kC : kA;
  for (const char* policy : {"knorm", "snapkv"}) {
    for (DType dtype :
         {DType::kU8, DType::kU4, DType::kQ8_0, DType::kQ4_0, DType::kE4M3}) {
      BenchDType(session, w, policy, dtype);
    }
  }
}

}  // namespace kvevict::bench
