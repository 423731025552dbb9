// Sums of attention that sequences add up, on the GPU as on the CPU.
#include <fmt/format.h>

#include <random>

#include "tests/gpu/checks.h"
#include "tests/gpu/evictable.h"
#include "tests/gpu/model.h"

namespace kvevict::gpu {
namespace {

constexpr uint32_t kPrompt = 90;
constexpr uint32_t kSumSteps = 20;

// Rows of a layer that an attention kernel writes, in a place of their own.
class Attention {
 public:
  Attention(const Gpu& gpu, const Shape& shape, uint32_t n_rows, uint64_t seed)
      : shape_(shape),
        n_rows_(n_rows),
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

  // As that of n_rows queries from a position on.
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
      inputs[l].attention_sums = &planes[l];
      inputs[l].n_sum_heads = n_rows_;
      shown[l] = {sizeof(kvevict_observation), l, &inputs[l]};
    }
    return kvevict_sequence_observe(side.sequence(), shown.data(), shown.size(),
                                    n_rows, first_position, side.stream());
  }

 private:
  const Shape shape_;
  const uint32_t n_rows_;
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

// Of heads that may hold different numbers.
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

// Slots, and their sums to the last bit.
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
  // The prompt in chunks, the first of which are not observed.
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

// Calls by themselves, which no graph holds, and blocks that stay by their keys.
void CheckCalls(const Gpu& gpu, const Effort& effort, const std::string& policy,
                Report* report) {
  const Shape shape = SmallShape();
  Twin twin(gpu, shape, effort.seed);
  Side cpu(nullptr, &twin, policy);
  Side side(&gpu, &twin, policy);
  Attention attention(gpu, shape, 2, effort.seed);
  for (uint32_t i = 0, n = kPrompt; i < kSumSteps; ++i, n = 8) {
    attention.Draw();
    for (Side* one : {&cpu, &side}) {
      Check(attention.Observe(*one, one == &side, n, KVEVICT_POSITION_NEXT));
      Check(kvevict_sequence_append(one->sequence(), n, one->stream()));
      one->Evict();
    }
    gpu.Synchronize();
    for (uint32_t l = 0; l < shape.n_layers; ++l) {
      for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
        report->FailIf(
            PositionsOf(cpu, l, h) != PositionsOf(side, l, h),
            fmt::format("step {}, layer {}, head {}: other slots", i, l, h));
      }
    }
    report->FailIf(PositionsOf(cpu, 0, 0).size() >= kPrompt, "nothing went");
  }
  const Graph graph(gpu, [&] {
    ExpectFailure(attention.Observe(side, true, 1, KVEVICT_POSITION_NEXT),
                  KVEVICT_ERROR_UNSUPPORTED, {"sum_last", "captured"}, report);
    Check(kvevict_sequence_append(side.sequence(), 1, side.stream()));
  });
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
  for (const char* const mass : {"0.9", "0.2"}) {
    const std::string policy = fmt::format(
        "openvino-genai-adaptive-r-kv:budget=47,sink=8,recent=8,select_block=8,"
        "prompt=inside,diverse_mass={}",
        mass);
    report->Check(fmt::format("sums: {}", policy),
                  [&] { CheckCalls(gpu, effort, policy, report); });
  }
  report->Check("sums: the first ones are not captured",
                [&] { CheckBegin(gpu, report); });
}

}  // namespace kvevict::gpu
