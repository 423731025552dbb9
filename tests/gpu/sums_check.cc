// Attention sums that sequences add up, and scores that they keep, on the GPU and
// on the CPU.
#include <fmt/format.h>

#include <memory>
#include <random>
#include <utility>

#include "kvevict/batch.h"
#include "kvevict/edit.h"
#include "kvevict/experimental.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/evictable.h"
#include "tests/gpu/model.h"
#include "tests/gpu/random_model.h"

namespace kvevict::gpu {
namespace {

constexpr uint32_t kPrompt = 90;
constexpr uint32_t kSumSteps = 20;
constexpr uint32_t kCallSteps = 30;

// Rows of a layer that an attention kernel, or a gate, writes to their own place.
class Attention {
 public:
  // are_scores: rows are scores of KV heads.
  Attention(const Gpu& gpu, const Shape& shape, uint32_t n_rows, uint64_t seed,
            bool are_scores = false)
      : shape_(shape),
        n_rows_(n_rows),
        are_scores_(are_scores),
        stride_(shape.n_tokens + kRoomForDecoding),
        random_(seed),
        host_(size_t{shape.n_layers} * n_rows * stride_),
        device_(gpu, host_.size() * sizeof(float)) {}

  void Draw() {
    for (float& weight : host_) {
      weight = static_cast<float>(random_() % 1000) / 1024.0f;
    }
    device_.Write(host_.data(), device_.n_bytes());
  }

  // Observes it as the attention of n_rows queries from a position on.
  kvevict_status Observe(const Side& side, bool on_gpu, uint32_t n_rows,
                         uint32_t first_position) const {
    const uint64_t base =
        on_gpu ? device_.address() : reinterpret_cast<uintptr_t>(host_.data());
    std::vector<kvevict_plane> planes(shape_.n_layers);
    std::vector<kvevict_signal_inputs> inputs(shape_.n_layers);
    std::vector<kvevict_observation> shown(shape_.n_layers);
    for (uint32_t l = 0; l < shape_.n_layers; ++l) {
      planes[l] = KVEVICT_PLANE_INIT;
      planes[l].data = base + uint64_t{l} * n_rows_ * stride_ * sizeof(float);
      planes[l].dtype = KVEVICT_DTYPE_F32;
      planes[l].head_dim = 1;
      planes[l].head_stride_bytes =
          static_cast<int64_t>(stride_ * sizeof(float));
      inputs[l] = KVEVICT_SIGNAL_INPUTS_INIT;
      (are_scores_ ? inputs[l].scores : inputs[l].attention_sums) = &planes[l];
      inputs[l].n_sum_heads = n_rows_;
      shown[l] = {sizeof(kvevict_observation), l, &inputs[l]};
    }
    return kvevict_sequence_observe(side.sequence(), shown.data(), shown.size(),
                                    n_rows, first_position, side.stream());
  }

 private:
  const Shape shape_;
  const uint32_t n_rows_;
  const bool are_scores_;
  const uint32_t stride_;
  std::mt19937_64 random_;
  std::vector<float> host_;
  const Buffer device_;
};

kvevict_sequence_memory MemoryOf(const Side& side, uint32_t layer) {
  kvevict_sequence_memory memory{};
  memory.struct_size = sizeof(memory);
  Check(kvevict_sequence_memory_of(side.sequence(), layer, &memory));
  return memory;
}

// The positions of heads that may hold different numbers of tokens.
std::vector<int32_t> PositionsOf(const Side& side, uint32_t layer,
                                 uint32_t head) {
  uint32_t stored = 0;
  Check(kvevict_sequence_stored_length(side.sequence(), layer, head, &stored));
  std::vector<int32_t> positions(stored);
  size_t n = 0;
  Check(kvevict_sequence_keep_positions(side.sequence(), layer, head,
                                        positions.data(), stored, &n));
  return positions;
}

// Compares slots and their sums to the last bit.
void ExpectSame(const Gpu& gpu, const Side& cpu, const Side& side,
                const Shape& shape, Report* report) {
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    const kvevict_sequence_memory host = MemoryOf(cpu, l);
    const kvevict_sequence_memory device = MemoryOf(side, l);
    const auto* const expected = reinterpret_cast<const float*>(host.sums);
    std::vector<float> sums(host.n_sum_heads * host.sum_stride);
    for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
      report->FailIf(PositionsOf(cpu, l, h) != PositionsOf(side, l, h),
                     fmt::format("layer {}, head {}: other slots", l, h));
    }
    Check(gpu.driver(),
          gpu.driver().cuMemcpyDtoHAsync(sums.data(), device.sums,
                                         sums.size() * sizeof(float),
                                         gpu.stream()),
          "cuMemcpyDtoHAsync");
    gpu.Synchronize();
    for (uint32_t row = 0; row < host.n_sum_heads; ++row) {
      const uint32_t per_head =
          std::max(1u, host.n_sum_heads / shape.n_kv_heads);
      const size_t n = PositionsOf(cpu, l, row / per_head).size();
      const size_t first = row * host.sum_stride;
      report->FailIf(
          !std::equal(&sums[first], &sums[first] + n, expected + first),
          fmt::format("layer {}, row {}: other sums", l, row));
    }
  }
}

void CheckPolicy(const Gpu& gpu, const Effort& effort,
                 const std::string& policy, uint32_t n_rows, Report* report) {
  const Shape shape = SmallShape();
  Twin twin(gpu, shape, effort.seed);
  Side cpu(nullptr, &twin, policy);
  Side side(&gpu, &twin, policy);
  Attention attention(gpu, shape, n_rows, effort.seed);
  const auto compare = [&] {
    cpu.Evict();
    side.Evict();
    ExpectSame(gpu, cpu, side, shape, report);
  };
  // The prompt comes in chunks, and the first ones are not observed.
  for (uint32_t done = 0, n = 30; done < kPrompt; done += n) {
    const uint32_t n_observed = done == 0 ? 0 : done == 30 ? 7 : n;
    attention.Draw();
    for (Side* one : {&cpu, &side}) {
      if (n_observed > 0) {
        Check(attention.Observe(*one, one == &side, n_observed,
                                done + n - n_observed));
      }
      Check(kvevict_sequence_append(one->sequence(), n, one->stream()));
    }
  }
  compare();
  const Graph step(gpu, [&] {
    Check(attention.Observe(side, true, 1, KVEVICT_POSITION_NEXT));
    Check(kvevict_sequence_append(side.sequence(), 1, side.stream()));
  });
  for (uint32_t i = 0; i < kSumSteps; ++i) {
    attention.Draw();
    Check(attention.Observe(cpu, false, 1, KVEVICT_POSITION_NEXT));
    Check(kvevict_sequence_append(cpu.sequence(), 1, nullptr));
    if (i > 0) Check(kvevict_sequence_replayed(side.sequence(), 1));
    step.Launch();
    gpu.Synchronize();
    if (i % 3 == 2) compare();
  }
}

// Two sides that see the same calls and keep the same tokens.
class CallTwins {
 public:
  CallTwins(const Gpu& gpu, const Effort& effort, const std::string& policy,
            Report* report)
      : gpu_(gpu),
        twin_(gpu, SmallShape(), effort.seed),
        cpu_(nullptr, &twin_, policy),
        side_(&gpu, &twin_, policy),
        are_scores_(cpu_.policy().kind == ORACLE_CUSTOM),
        attention_(gpu, SmallShape(), 2, effort.seed, are_scores_),
        report_(report) {}

  void Reset() {
    for (const Side* one : {&cpu_, &side_}) {
      Check(kvevict_sequence_reset(one->sequence(), one->stream()));
    }
  }
  void Append(uint32_t n) {
    for (const Side* one : {&cpu_, &side_}) {
      Check(kvevict_sequence_append(one->sequence(), n, one->stream()));
    }
  }
  void Show(uint32_t n) {
    attention_.Draw();
    for (const Side* one : {&cpu_, &side_}) {
      Check(Observe(*one, n));
      Check(kvevict_sequence_append(one->sequence(), n, one->stream()));
    }
    gpu_.Synchronize();
  }
  // Records a step, which counts as run.
  void Record() {
    step_ = std::make_unique<Graph>(gpu_, [&] {
      Check(Observe(side_, 1));
      Check(kvevict_sequence_append(side_.sequence(), 1, side_.stream()));
    });
    is_counted_ = true;
  }
  void Step() {
    attention_.Draw();
    Check(Observe(cpu_, 1));
    Check(kvevict_sequence_append(cpu_.sequence(), 1, nullptr));
    if (!std::exchange(is_counted_, false)) {
      Check(kvevict_sequence_replayed(side_.sequence(), 1));
    }
    step_->Launch();
    gpu_.Synchronize();
  }
  void Trim(uint32_t n) {
    for (const Side* one : {&cpu_, &side_}) {
      Check(kvevict_sequence_trim_to(one->sequence(), one->Logical() - n,
                                     one->stream()));
    }
    gpu_.Synchronize();
  }
  // Returns whether tokens went.
  bool Evict(const kvevict_evict_options* on_cpu = nullptr,
             const kvevict_evict_options* on_gpu = nullptr) {
    const uint32_t n = cpu_.Stored(0);
    cpu_.Evict(on_cpu);
    side_.Evict(on_gpu);
    Compare();
    return cpu_.Stored(0) < n;
  }
  // Returns whether there was an eviction to take back, after so many calls of a token.
  bool EvictAndUndo(uint32_t n_calls) {
    size_t n = 0;
    size_t n_host = 0;
    const std::vector<kvevict_view>& views = twin_.device_views();
    const std::vector<kvevict_view>& host_views = twin_.host_views();
    Check(kvevict_sequence_undo_bytes(side_.sequence(), views.data(),
                                      views.size(), &n));
    Check(kvevict_sequence_undo_bytes(cpu_.sequence(), host_views.data(),
                                      host_views.size(), &n_host));
    report_->FailIf(n != n_host,
                    fmt::format("{} bytes to undo, not {}", n, n_host));
    if (n == 0) return false;
    const Buffer undo(gpu_, n);
    const HostWorkspace host_undo(n);
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.undo_bytes = n;
    kvevict_evict_options on_gpu = options;
    options.undo = host_undo.memory();
    on_gpu.undo = undo.pointer<void>();
    if (!Evict(&options, &on_gpu)) return false;
    for (uint32_t i = 0; i < n_calls; ++i) Step();
    Check(kvevict_sequence_undo(side_.sequence(), views.data(), views.size(),
                                on_gpu.undo, n, side_.stream()));
    Check(kvevict_sequence_undo(cpu_.sequence(), host_views.data(),
                                host_views.size(), options.undo, n, nullptr));
    gpu_.Synchronize();
    Compare();
    return true;
  }
  // Each side goes on with what the other saved.
  void Load() {
    const std::vector<uint8_t> saved = Save(cpu_);
    const std::vector<uint8_t> of_gpu = Save(side_);
    report_->FailIf(saved != of_gpu, "the sides save different bytes");
    for (const Side* one : {&cpu_, &side_}) {
      const std::vector<uint8_t>& other = one == &cpu_ ? of_gpu : saved;
      Check(kvevict_sequence_load(one->sequence(), other.data(), other.size(),
                                  one->stream()));
    }
    Compare();
  }
  bool are_scores() const { return are_scores_; }
  uint32_t Stored() const { return cpu_.Stored(0); }

 private:
  static std::vector<uint8_t> Save(const Side& side) {
    size_t n = 0;
    Check(kvevict_sequence_save(side.sequence(), nullptr, 0, &n));
    std::vector<uint8_t> data(n);
    Check(kvevict_sequence_save(side.sequence(), data.data(), n, nullptr));
    return data;
  }

  kvevict_status Observe(const Side& one, uint32_t n) const {
    return attention_.Observe(one, &one == &side_, n, KVEVICT_POSITION_NEXT);
  }
  void Compare() {
    if (are_scores_) {  // heads may hold different numbers
      ExpectSame(gpu_, cpu_, side_, SmallShape(), report_);
      return;
    }
    ExpectSamePositions(cpu_, side_, twin_, report_);
    ExpectLengths(gpu_, side_, twin_, report_);
  }

  const Gpu& gpu_;
  Twin twin_;
  Side cpu_;
  Side side_;
  const bool are_scores_;
  Attention attention_;
  Report* report_;
  std::unique_ptr<Graph> step_;
  bool is_counted_ = false;
};

// Calls by themselves, and blocks kept by diversity, or scores. A graph recorded once
// runs between chunks, trims, evictions, and evictions that are taken back.
void CheckCalls(const Gpu& gpu, const Effort& effort, const std::string& policy,
                bool shows_prompt, Report* report) {
  CallTwins calls(gpu, effort, policy, report);
  std::mt19937_64 random(effort.seed);
  if (shows_prompt) {
    calls.Show(kPrompt);
    calls.Evict();
  } else {
    calls.Show(2);  // compiles kernels
    calls.Reset();
    calls.Append(kPrompt);
  }
  calls.Record();
  uint32_t n_evicted = 0;
  uint32_t n_undone = 0;
  for (uint32_t i = 0; i < kCallSteps; ++i) {
    calls.Step();
    switch (random() % 8) {
      case 0:
        calls.Show(1 + random() % 5);
        break;
      case 1:
        calls.Show(3);
        calls.Trim(1 + random() % 3);
        calls.Step();
        break;
      case 2:
        n_undone += calls.EvictAndUndo(random() % 4);
        break;
      case 3:
      case 4:
        n_evicted += calls.Evict();
        break;
      case 5:
        if (calls.are_scores()) calls.Load();
        break;
      default:
        break;
    }
    if (calls.Stored() > kPrompt + 40) n_evicted += calls.Evict();
  }
  // Chance may have taken nothing back so far.
  for (uint32_t i = 0; i < kCallSteps && n_undone == 0; ++i) {
    calls.Step();
    n_undone += calls.EvictAndUndo(1);
  }
  report->FailIf(
      n_evicted < 3 || n_undone < 1,
      fmt::format("{} evictions, {} taken back", n_evicted, n_undone));
}

void CheckBegin(const Gpu& gpu, Report* report) {
  Evictable e(gpu, nullptr, "h2o:budget=20,recent=4");
  Attention attention(gpu, SmallShape(), 2, 1);
  attention.Draw();
  Check(kvevict_sequence_append(e.side.sequence(), 10, gpu.stream()));
  const Graph graph(gpu, [&] {
    ExpectFailure(attention.Observe(e.side, true, 1, 10),
                  KVEVICT_ERROR_UNSUPPORTED, {"attention_sums", "captured"},
                  report);
    Check(kvevict_sequence_append(e.side.sequence(), 1, gpu.stream()));
  });
  graph.Launch();
  gpu.Synchronize();
  Check(attention.Observe(e.side, true, 1, 10));
  ExpectFailure(attention.Observe(e.side, true, 1, 10),
                KVEVICT_ERROR_INVALID_ARGUMENT, {"[10, 11)", "do not follow"},
                report);
  gpu.Synchronize();
}

}  // namespace

void CheckSums(const Gpu& gpu, const Effort& effort, Report* report) {
  const struct {
    const char* policy;
    uint32_t n_rows;
  } cases[] = {
      {"h2o:budget=40,recent=0,heads=adaptive,rows=mean,group=max,sums=query",
       4},
      {"openvino-genai:budget=39,sink=8,recent=8,select_block=8,prompt=inside,"
       "rescue=2,anchor=random,seed=7",
       4},
  };
  for (const auto& c : cases) {
    report->Check(fmt::format("sums: {}, {} rows", c.policy, c.n_rows), [&] {
      CheckPolicy(gpu, effort, c.policy, c.n_rows, report);
    });
  }
  for (const char* const rest :
       {"diverse_mass=0.9", "diverse_mass=0.2,sum_last=3"}) {
    const std::string policy = fmt::format(
        "openvino-genai-adaptive-r-kv:budget=47,sink=8,recent=8,select_block=8,"
        "prompt=inside,{}",
        rest);
    for (const bool shows_prompt : {true, false}) {
      report->Check(
          fmt::format("sums: {}{}", policy,
                      shows_prompt ? "" : ", begun in a graph"),
          [&] { CheckCalls(gpu, effort, policy, shows_prompt, report); });
    }
  }
  for (const char* const policy :
       {"custom:budget=40,sink=1,recent=4,half_life=30",
        "custom:sink=1,recent=6,heads=threshold,threshold=0.6",
        "custom:budget=0.4,sink=2,scope=layer,over=max"}) {
    report->Check(fmt::format("sums: scores given once, {}", policy),
                  [&] { CheckCalls(gpu, effort, policy, true, report); });
  }
  report->Check("sums: the first ones are not captured",
                [&] { CheckBegin(gpu, report); });
}

}  // namespace kvevict::gpu
