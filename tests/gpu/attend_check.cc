// Attention on the GPU against the CPU.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kvevict/attention.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/twin.h"

namespace kvevict::gpu {
namespace {

struct Case {
  Shape shape;
  uint32_t n_queries;
  uint32_t window;
  float softcap;
  bool has_sinks;
  bool is_ragged;
};

std::vector<Case> Cases(const Effort& effort) {
  const kvevict_dtype f32 = KVEVICT_DTYPE_F32;
  const kvevict_dtype f16 = KVEVICT_DTYPE_F16;
  const kvevict_dtype bf16 = KVEVICT_DTYPE_BF16;
  const uint32_t n = effort.full ? 5000 : 150;
  const uint32_t wide = effort.full ? 128 : 32;
  const auto shape = [&](const char* name, uint32_t q_heads, uint32_t kv_heads,
                         uint32_t dim, kvevict_dtype q, kvevict_dtype kv,
                         Layout layout, float most_bias = 0.0f) {
    return Shape{name, 2, q_heads, kv_heads, dim, n, q, kv, layout, most_bias};
  };
  return {
      {shape("bf16, token-major, decode", 8, 2, wide, bf16, bf16,
             Layout::kTokenMajor),
       1, 0, 0.0f, false, false},
      {shape("f32, head-major, decode", 4, 4, wide, f32, f32,
             Layout::kHeadMajor),
       1, 0, 0.0f, true, true},
      {shape("f16, paged, speculation", 6, 2, 80, f16, f16, Layout::kPaged), 5,
       0, 30.0f, false, true},
      {shape("bf16, ring, window", 4, 1, 64, f32, bf16, Layout::kWrappedRing),
       16, n / 3, 0.0f, true, false},
      {shape("bf16, paged, prefill", 8, 2, wide, bf16, bf16, Layout::kPaged),
       effort.full ? 300u : 40u, 0, 0.0f, false, false},
      {shape("f32, token-major, prefill", 4, 2, 24, f32, f32,
             Layout::kTokenMajor),
       effort.full ? 200u : 33u, n / 2, 20.0f, true, true},
      // Each form reads biases.
      {shape("f32, head-major, decode, biases", 4, 4, wide, f32, f32,
             Layout::kHeadMajor, 1.0f),
       1, 0, 30.0f, true, true},
      {shape("bf16, paged, prefill, biases", 8, 2, wide, bf16, bf16,
             Layout::kPaged, 1.0f),
       effort.full ? 300u : 40u, 0, 0.0f, false, true},
      {shape("f32, ring, prefill, biases", 4, 2, 24, f32, f32,
             Layout::kWrappedRing, 1.0f),
       effort.full ? 200u : 33u, n / 2, 20.0f, true, false},
  };
}

// The outputs of a call, one layer after the other.
struct Outputs {
  std::vector<float> out;   // [layer, q_head, query, element]
  std::vector<float> lse;   // [layer, q_head, query]
  std::vector<float> sums;  // [layer, kv_head, slot]
};

kvevict_plane Floats(uint64_t address, uint64_t row, uint64_t head,
                     uint32_t head_dim) {
  kvevict_plane plane{};
  plane.data = address;
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = head_dim;
  plane.token_stride_bytes = static_cast<int64_t>(row * sizeof(float));
  plane.head_stride_bytes = static_cast<int64_t>(head * sizeof(float));
  return plane;
}

// All layers in one call on the GPU, or on the CPU if it is null.
class Caller {
 public:
  Caller(const Gpu* gpu, const ContextHandle& context, const Twin& twin,
         const Case& c, uint64_t seed)
      : gpu_(gpu), context_(context), twin_(twin), c_(c) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    const Shape& s = c.shape;
    std::uniform_real_distribution<float> logit(-3.0f, 3.0f);
    for (uint32_t h = 0; h < s.n_q_heads; ++h) sinks_.push_back(logit(random));
    for (uint32_t h = 0; h < s.n_kv_heads; ++h) {
      counts_.push_back(s.n_tokens - random() % (s.n_tokens / 2));
    }
  }

  Outputs Run() const {
    const Shape& s = c_.shape;
    const uint64_t n_rows = uint64_t{s.n_q_heads} * c_.n_queries;
    Outputs o;
    o.out.assign(s.n_layers * n_rows * s.head_dim, NAN);
    o.lse.assign(s.n_layers * n_rows, NAN);
    o.sums.assign(uint64_t{s.n_layers} * s.n_kv_heads * s.n_tokens, NAN);
    const Memory out(gpu_, &o.out);
    const Memory lse(gpu_, &o.lse);
    const Memory sums(gpu_, &o.sums);
    std::vector<float> sink_values = sinks_;
    std::vector<uint32_t> count_values = counts_;
    const Memory sinks(gpu_, &sink_values);
    const Memory counts(gpu_, &count_values);

    std::vector<kvevict_plane> planes;
    planes.reserve(4 * s.n_layers);  // stay where they are
    std::vector<kvevict_attention_job> jobs(s.n_layers,
                                            KVEVICT_ATTENTION_JOB_INIT);
    const auto add = [&](const kvevict_plane& plane) {
      planes.push_back(plane);
      return &planes.back();
    };
    for (uint32_t l = 0; l < s.n_layers; ++l) {
      const uint32_t first = s.n_tokens - c_.n_queries;
      kvevict_attention_job& job = jobs[l];
      job.n_tokens = s.n_tokens;
      if (c_.is_ragged) job.token_counts = counts.pointer<uint32_t>();
      job.view =
          gpu_ != nullptr ? &twin_.device_views()[l] : &twin_.host_views()[l];
      job.queries = add(gpu_ != nullptr ? twin_.DeviceQueries(l, first)
                                        : twin_.HostQueries(l, first));
      job.out =
          add(Floats(out.address() + l * n_rows * s.head_dim * 4, s.head_dim,
                     uint64_t{c_.n_queries} * s.head_dim, s.head_dim));
      job.row_lse =
          add(Floats(lse.address() + l * n_rows * 4, 1, c_.n_queries, 1));
      const uint64_t n_sums = uint64_t{s.n_kv_heads} * s.n_tokens;
      job.attention_sums =
          add(Floats(sums.address() + l * n_sums * 4, 1, s.n_tokens, 1));
      job.n_sum_heads = s.n_kv_heads;
      job.n_q_heads = s.n_q_heads;
      job.n_queries = c_.n_queries;
      job.window = c_.window;
      job.logit_softcap = c_.softcap;
      if (!c_.has_sinks) continue;
      job.sink_logits = sinks.pointer<float>();
      job.sink_logits_len = sinks_.size();
    }
    kvevict_workspace bytes = KVEVICT_WORKSPACE_INIT;
    Check(kvevict_attend_workspace(context_.get(), jobs.data(), jobs.size(),
                                   &bytes));
    std::vector<float> garbage(bytes.best_bytes / sizeof(float) + 64, NAN);
    const Memory workspace(gpu_, &garbage);
    const uint64_t aligned = (workspace.address() + 255) / 256 * 256;
    Check(kvevict_attend(context_.get(), jobs.data(), jobs.size(),
                         reinterpret_cast<void*>(aligned), bytes.best_bytes,
                         gpu_ != nullptr ? gpu_->stream() : nullptr));
    if (gpu_ != nullptr) gpu_->Synchronize();
    out.Fetch();
    lse.Fetch();
    sums.Fetch();
    return o;
  }

 private:
  // The memory of a vector, or a copy of it on the GPU.
  class Memory {
   public:
    template <typename T>
    Memory(const Gpu* gpu, std::vector<T>* values)
        : host_(values->data()), n_bytes_(values->size() * sizeof(T)) {
      if (gpu == nullptr) return;
      device_ = std::make_unique<Buffer>(*gpu, n_bytes_);
      device_->Write(host_, n_bytes_);
    }
    uint64_t address() const {
      return device_ != nullptr ? device_->address()
                                : reinterpret_cast<uintptr_t>(host_);
    }
    template <typename T>
    T* pointer() const {
      return reinterpret_cast<T*>(address());
    }
    void Fetch() const {
      if (device_ != nullptr) device_->Read(host_, n_bytes_);
    }

   private:
    void* const host_;
    const size_t n_bytes_;
    std::unique_ptr<Buffer> device_;
  };

  const Gpu* const gpu_;
  const ContextHandle& context_;
  const Twin& twin_;
  const Case& c_;
  std::vector<float> sinks_;
  std::vector<uint32_t> counts_;
};

// The error is relative to the largest value, since parts are sums in which others cancel.
void ExpectClose(const char* what, const std::vector<float>& got,
                 const std::vector<float>& expected, Report* report) {
  constexpr double kMostError = 2e-5;
  double largest = 0.0;
  for (const float v : expected) {
    largest = std::max(largest, std::abs(double{v}));
  }
  double worst = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    const double error = std::abs(double{got[i]} - expected[i]) / largest;
    if (!(error <= kMostError)) {
      report->Fail(fmt::format("{} {}: {} on the GPU, {} on the CPU", what, i,
                               got[i], expected[i]));
    }
    worst = std::max(worst, error);
  }
  report->Note(fmt::format("worst error of {}", what), worst);
}

}  // namespace

void CheckAttention(const Gpu& gpu, const Effort& effort, Report* report) {
  const ContextHandle device = CreateContext(gpu.ContextOptions());
  const ContextHandle host =
      CreateContext(kvevict_context_options KVEVICT_CONTEXT_OPTIONS_INIT);
  for (const Case& c : Cases(effort)) {
    report->Check("attention: " + c.shape.name, [&] {
      const Twin twin(gpu, c.shape, effort.seed);
      const Outputs got = Caller(&gpu, device, twin, c, effort.seed).Run();
      const Outputs expected =
          Caller(nullptr, host, twin, c, effort.seed).Run();
      ExpectClose("out", got.out, expected.out, report);
      ExpectClose("lse", got.lse, expected.lse, report);
      ExpectClose("sums", got.sums, expected.sums, report);
      const Outputs again = Caller(&gpu, device, twin, c, effort.seed).Run();
      report->FailIf(again.out != got.out || again.lse != got.lse ||
                         again.sums != got.sums,
                     "another run gives other bits");
    });
  }
}

}  // namespace kvevict::gpu
