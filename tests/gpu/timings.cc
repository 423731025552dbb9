#include "tests/gpu/timings.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "capi/guard.h"
#include "core/backend.h"
#include "core/plan.h"
#include "cuda/compact.h"
#include "tests/gpu/matrix_rate.h"
#include "tests/gpu/random_values.h"

namespace kvevict::gpu {
namespace {

// As Qwen3-8B: 36 layers, 32 query and 8 KV heads of 128.
struct Workload {
  uint32_t n_layers;
  uint32_t n_q_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t n_tokens;
  uint32_t window;
  uint32_t budget;
  kvevict_dtype dtype;

  uint64_t element() const { return dtype == KVEVICT_DTYPE_F32 ? 4 : 2; }
  uint64_t PlaneBytes() const {  // K of a layer
    return uint64_t{n_tokens} * n_kv_heads * head_dim * element();
  }
  uint64_t WindowBytes() const {
    return uint64_t{window} * n_q_heads * head_dim * element();
  }
};

// Keys, values and queries of all layers in device memory, and jobs over them.
class Bench {
 public:
  Bench(const Gpu& gpu, const Workload& w, uint32_t window, uint64_t seed);

  void Score() const;
  void Select() const;
  void Compact() const;
  void CompactIn(cuda::CompactForm form) const;
  void Reorder() const;  // every layer's kept rows, a ring from its middle on

  uint64_t score_bytes() const { return score_scratch_.n_bytes(); }

 private:
  const Context& context() const {
    return *reinterpret_cast<const Context*>(context_.get());
  }
  const Backend& backend() const { return context().backend(); }
  std::span<uint8_t> Scratch(const Buffer& buffer) const {
    return {buffer.pointer<uint8_t>(), buffer.n_bytes()};
  }

  const Gpu& gpu_;
  kvevict_geometry geometry_;
  kvevict_policy policy_;
  ContextHandle context_;
  Buffer keys_;
  Buffer values_;
  Buffer queries_;
  Buffer scores_;
  Buffer keep_;
  Buffer score_scratch_;
  Buffer select_scratch_;
  Buffer move_scratch_;
  Buffer ring_;
  std::vector<kvevict_view> views_;
  std::vector<LayerJob> jobs_;
};

kvevict_geometry GeometryOf(const Workload& w) {
  kvevict_geometry g = KVEVICT_GEOMETRY_INIT;
  g.n_layers = w.n_layers;
  g.n_q_heads = w.n_q_heads;
  g.n_kv_heads = w.n_kv_heads;
  g.k_head_dim = g.v_head_dim = w.head_dim;
  g.q_dtype = g.k_dtype = g.v_dtype = w.dtype;
  g.max_tokens = w.n_tokens;
  return g;
}

ContextHandle ContextOn(const Gpu& gpu) {
  return CreateContext(gpu.ContextOptions());
}

Bench::Bench(const Gpu& gpu, const Workload& w, uint32_t window, uint64_t seed)
    : gpu_(gpu),
      geometry_(GeometryOf(w)),
      policy_(ParsePolicy(fmt::format("snapkv:budget={},window={},scope=head",
                                      w.budget, window))),
      context_(ContextOn(gpu)),
      keys_(gpu, w.n_layers * w.PlaneBytes()),
      values_(gpu, w.n_layers * w.PlaneBytes()),
      queries_(gpu, w.n_layers * w.WindowBytes()),
      scores_(gpu, uint64_t{4} * w.n_layers * w.n_kv_heads * w.n_tokens),
      keep_(gpu, uint64_t{4} * w.n_layers * w.n_kv_heads * w.budget),
      score_scratch_(gpu, backend()
                              .score_scratch_bytes(context(), geometry_,
                                                   policy_, w.n_layers)
                              .value()),
      select_scratch_(gpu, backend()
                               .select_scratch_bytes(context(), geometry_,
                                                     policy_, w.n_layers)
                               .value()),
      move_scratch_(gpu, 2 * w.PlaneBytes()),  // more than any move needs
      ring_(gpu, uint64_t{4} * w.budget),
      views_(w.n_layers, KVEVICT_VIEW_INIT),
      jobs_(w.n_layers) {
  std::vector<uint8_t> host(std::max(w.PlaneBytes(), w.WindowBytes()));
  const int64_t row = static_cast<int64_t>(w.head_dim * w.element());
  for (uint32_t l = 0; l < w.n_layers; ++l) {
    FillWithValues(seed + l, w.dtype, host.size() / w.element(), host.data());
    keys_.Write(host.data(), w.PlaneBytes(), l * w.PlaneBytes());
    values_.Write(host.data(), w.PlaneBytes(), l * w.PlaneBytes());
    queries_.Write(host.data(), w.WindowBytes(), l * w.WindowBytes());
    kvevict_view& view = views_[l];
    view.n_kv_heads = w.n_kv_heads;
    view.k.token_stride_bytes = row * w.n_kv_heads;
    view.k.head_stride_bytes = row;
    view.k.dtype = w.dtype;
    view.k.head_dim = w.head_dim;
    view.v = view.k;
    view.k.data = keys_.address() + l * w.PlaneBytes();
    view.v.data = values_.address() + l * w.PlaneBytes();
    LayerJob& job = jobs_[l];
    job.view = &view;
    job.queries.base = queries_.pointer<uint8_t>() + l * w.WindowBytes();
    job.queries.row_stride = row * w.n_q_heads;
    job.queries.element_stride = static_cast<int64_t>(w.element());
    job.queries.dtype = static_cast<DType>(w.dtype);
    job.query_head_stride = row;
    job.layer = job.owner = l;
    job.n_tokens = w.n_tokens;
    job.n_keep = w.budget;
    job.scores =
        scores_.pointer<float>() + uint64_t{l} * w.n_kv_heads * w.n_tokens;
    job.keys = reinterpret_cast<uint32_t*>(job.scores);
    job.keep = keep_.pointer<int32_t>() + uint64_t{l} * w.n_kv_heads * w.budget;
  }
  std::vector<int32_t> ring(w.budget);
  std::iota(ring.begin(), ring.end(), 0);
  std::rotate(ring.begin(), ring.begin() + w.budget / 2, ring.end());
  ring_.Write(ring.data(), ring_.n_bytes());
  Check(backend().prepare(context(), &geometry_, &policy_).code());
}

void Bench::Score() const {
  Check(backend()
            .score_window(
                context(), gpu_.stream(),
                {geometry_, policy_, 0.088f, jobs_, Scratch(score_scratch_)})
            .code());
}

void Bench::Select() const {
  Check(backend()
            .select(context(), gpu_.stream(),
                    {geometry_,
                     policy_,
                     jobs_,
                     1,
                     {policy_.n_sink, policy_.obs_window, {}},
                     Scratch(select_scratch_),
                     geometry_.n_kv_heads})
            .code());
}

void Bench::Compact() const {
  Check(backend()
            .compact(context(), gpu_.stream(),
                     {jobs_, geometry_.n_kv_heads, Scratch(move_scratch_)})
            .code());
}

void Bench::CompactIn(cuda::CompactForm form) const {
  Check(cuda::CompactIn(form, context(), gpu_.stream(),
                        {jobs_, geometry_.n_kv_heads, Scratch(move_scratch_)})
            .code());
}

void Bench::Reorder() const {
  for (LayerJob job : jobs_) {
    job.keep = ring_.pointer<int32_t>();
    Check(
        backend()
            .reorder(context(), gpu_.stream(), {job, 1, Scratch(move_scratch_)})
            .code());
  }
}

struct Spread {
  double median;
  double least;
  double most;
};

// Of launches of a graph of `work`.
Spread Measure(const Gpu& gpu, const Effort& effort,
               const std::function<void()>& work) {
  const Graph graph(gpu, work);
  graph.Launch();
  std::vector<double> ms(effort.full ? 21 : 1);
  for (double& m : ms) m = gpu.Time([&] { graph.Launch(); });
  std::sort(ms.begin(), ms.end());
  return {ms[ms.size() / 2], ms.front(), ms.back()};
}

// What the machine reaches, measured just before.
struct Limits {
  double copy;    // bytes read and written per second, by the driver's own copy
  double matrix;  // bf16 FLOPs per second, by mma.sync
};

void AddRow(nlohmann::json* rows, const std::string& name, const Spread& ms,
            uint64_t bytes, uint64_t flops, const Limits& limits) {
  const double seconds = ms.median * 1e-3;
  const double rate = static_cast<double>(bytes) / seconds;
  const double flop_rate = static_cast<double>(flops) / seconds;
  rows->push_back({{"name", name},
                   {"ms", ms.median},
                   {"ms_least", ms.least},
                   {"ms_most", ms.most},
                   {"bytes", bytes},
                   {"bytes_per_s", rate},
                   {"of_copy_rate", rate / limits.copy},
                   {"flops", flops},
                   {"flops_per_s", flop_rate},
                   {"of_matrix_rate", flop_rate / limits.matrix}});
  fmt::print(
      "{:<44} {:9.4f} ms {:8.1f} GB/s ({:.2f} of copy) {:7.1f} TFLOP/s ({:.2f} "
      "of matrix)\n",
      name, ms.median, rate * 1e-9, rate / limits.copy, flop_rate * 1e-12,
      flop_rate / limits.matrix);
  std::fflush(stdout);
}

// Bytes read and written per second by the driver's own copy.
double CopyRate(const Gpu& gpu, const Effort& effort) {
  const size_t n_bytes = effort.full ? size_t{1} << 30 : size_t{1} << 16;
  const Buffer from(gpu, n_bytes);
  const Buffer to(gpu, n_bytes);
  const Spread ms = Measure(gpu, effort, [&] {
    Check(gpu.driver(),
          gpu.driver().cuMemcpyDtoDAsync(to.address(), from.address(), n_bytes,
                                         gpu.stream()),
          "cuMemcpyDtoDAsync");
  });
  return 2.0 * static_cast<double>(n_bytes) / (ms.median * 1e-3);
}

void TimeWorkload(const Gpu& gpu, const Effort& effort, const char* name,
                  const Workload& w, const Limits& limits,
                  nlohmann::json* rows) {
  const auto row = [&](const char* op) {
    return fmt::format("{}: {}", name, op);
  };
  const uint64_t k_bytes = w.n_layers * w.PlaneBytes();
  const uint64_t score_bytes =
      uint64_t{4} * w.n_layers * w.n_kv_heads * w.n_tokens;
  const uint64_t flops = uint64_t{2} * 2 * w.n_layers * w.n_q_heads * w.window *
                         w.n_tokens * w.head_dim;  // two passes
  double score_ms = 0;
  {
    const Bench bench(gpu, w, w.window, effort.seed);
    const Spread score = Measure(gpu, effort, [&] { bench.Score(); });
    score_ms = score.median;
    AddRow(rows, row("score_window, pooled"), score, 2 * k_bytes + score_bytes,
           flops, limits);
    AddRow(rows, row("select, scores in the L2 cache"),
           Measure(gpu, effort, [&] { bench.Select(); }), 4 * score_bytes, 0,
           limits);
    const uint64_t kept = uint64_t{2} * w.n_layers * w.n_kv_heads * w.budget *
                          w.head_dim * w.element();
    AddRow(rows, row("compact"), Measure(gpu, effort, [&] { bench.Compact(); }),
           2 * kept, 0, limits);
    rows->back()["score_workspace_of_k"] =
        static_cast<double>(bench.score_bytes() + score_bytes) /
        static_cast<double>(k_bytes);
    AddRow(rows, row("compact, by columns"),
           Measure(gpu, effort,
                   [&] { bench.CompactIn(cuda::CompactForm::kColumns); }),
           2 * kept, 0, limits);
    AddRow(rows, row("compact, by chunks"),
           Measure(gpu, effort,
                   [&] { bench.CompactIn(cuda::CompactForm::kChunks); }),
           2 * kept, 0, limits);
    AddRow(rows, row("reorder, layer by layer"),
           Measure(gpu, effort, [&] { bench.Reorder(); }), 4 * kept, 0, limits);
  }
  // What one launch per captured query and layer does: keys are read again for
  // every query of the window.
  const Bench one(gpu, w, 1, effort.seed);
  const Spread naive = Measure(gpu, effort, [&] {
    for (uint32_t query = 0; query < w.window; ++query) one.Score();
  });
  AddRow(rows, row("score_window, query by query"), naive,
         w.window * (2 * k_bytes + score_bytes), flops, limits);
  rows->back()["times_slower"] = naive.median / score_ms;
}

}  // namespace

nlohmann::json TimeKernels(const Gpu& gpu, const Effort& effort) {
  const Limits limits = {CopyRate(gpu, effort), MatrixRate(gpu, effort.full)};
  fmt::print("copy {:.1f} GB/s, read and written; mma.sync {:.1f} TFLOP/s\n",
             limits.copy * 1e-9, limits.matrix * 1e-12);
  nlohmann::json rows = nlohmann::json::array();
  if (!effort.full) {
    TimeWorkload(gpu, effort, "small",
                 {2, 4, 2, 32, 128, 16, 32, KVEVICT_DTYPE_BF16}, limits, &rows);
  } else {
    TimeWorkload(gpu, effort, "36 layers, bf16, W=64",
                 {36, 32, 8, 128, 16384, 64, 2048, KVEVICT_DTYPE_BF16}, limits,
                 &rows);
    TimeWorkload(gpu, effort, "36 layers, bf16, W=32",
                 {36, 32, 8, 128, 16384, 32, 2048, KVEVICT_DTYPE_BF16}, limits,
                 &rows);
    TimeWorkload(gpu, effort, "36 layers, f32, W=64",
                 {36, 32, 8, 128, 16384, 64, 2048, KVEVICT_DTYPE_F32}, limits,
                 &rows);
  }
  return {{"copy_bytes_per_s", limits.copy},
          {"matrix_flops_per_s", limits.matrix},
          {"rows", rows}};
}

}  // namespace kvevict::gpu
