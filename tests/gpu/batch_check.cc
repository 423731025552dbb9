// Many sequences in one call, and sequences that go on under another plan, on the
// GPU and on the CPU.
#include <fmt/format.h>

#include <deque>

#include "kvevict/batch.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/evictable.h"

namespace kvevict::gpu {
namespace {

// These keep sets do not depend on how a device rounds. All but the last one evict,
// and then go on under the policy beside it.
constexpr struct {
  const char* policy;
  const char* next;
  uint32_t n_tokens;
} kRequests[] = {
    {"streaming-llm:budget=60,sink=4", "random:budget=30,scope=head,seed=3",
     110},
    {"random:budget=50,scope=head", "random:budget=20,scope=head,seed=9", 93},
    {"random:budget=40,scope=layer", "streaming-llm:budget=25,sink=2", 61},
    {"random:budget=44,scope=model", "random:budget=30,scope=layer,seed=4", 77},
    {"random:budget=40,margin=90", "none", 120},
};

// The sequences of one device, with caches in their twins.
class Engine {
 public:
  Engine(const Gpu* gpu, std::deque<Twin>* twins) : gpu_(gpu), twins_(*twins) {
    kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
    if (gpu != nullptr) options = gpu->ContextOptions();
    context_ = CreateContext(options);
    for (size_t i = 0; i < twins_.size(); ++i) {
      plans_.push_back(Plan(kRequests[i].policy));
      sequences_.push_back(CreateSequence(plans_.back().get()));
    }
    size_t n_bytes = 0;
    for (const PlanHandle& plan : plans_) {
      Check(kvevict_context_prepare(context_.get(), plan.get()));
      n_bytes = std::max(n_bytes,
                         WorkspaceBytes(plan.get(), KVEVICT_OPERATION_EVICT));
    }
    host_workspace_.resize(n_bytes + 64);
    if (gpu != nullptr)
      device_workspace_ = std::make_unique<Buffer>(*gpu, n_bytes);
    n_bytes_ = n_bytes;
  }

  kvevict_sequence* sequence(size_t i) const { return sequences_[i].get(); }

  void Append(const std::vector<uint32_t>& n) const {
    std::vector<kvevict_sequence_tokens> items;
    for (size_t i = 0; i < n.size(); ++i) {
      items.push_back({sizeof(kvevict_sequence_tokens), n[i], sequence(i)});
    }
    Check(kvevict_sequences_append(items.data(), items.size(), stream()));
  }

  kvevict_status Evict() const {
    std::vector<kvevict_sequence_eviction> items;
    for (size_t i = 0; i < twins_.size(); ++i) {
      const std::vector<kvevict_view>& views =
          gpu_ == nullptr ? twins_[i].host_views() : twins_[i].device_views();
      items.push_back({sizeof(kvevict_sequence_eviction), 0, sequence(i),
                       views.data(), views.size(), nullptr});
    }
    void* const workspace = gpu_ == nullptr
                                ? AlignedHostWorkspace()
                                : device_workspace_->pointer<void>();
    return kvevict_sequences_evict(items.data(), items.size(), workspace,
                                   n_bytes_, stream());
  }

  // Every sequence goes on under its next policy.
  void GoOn() {
    for (size_t i = 0; i < sequences_.size(); ++i) {
      PlanHandle plan = Plan(kRequests[i].next);
      kvevict_fork_options options = KVEVICT_FORK_OPTIONS_INIT;
      options.plan = plan.get();
      kvevict_sequence* fork = nullptr;
      Check(kvevict_sequence_fork(sequence(i), &options, &fork, stream()));
      if (gpu_ != nullptr) gpu_->Synchronize();  // the first one goes
      sequences_[i] = SequenceHandle(fork);
      plans_[i] = std::move(plan);
    }
  }

 private:
  PlanHandle Plan(const char* policy) const {
    return CreatePlan(context_.get(), GeometryOf(SmallShape()),
                      ParsePolicy(policy));
  }
  kvevict_stream stream() const {
    return gpu_ == nullptr ? nullptr : gpu_->stream();
  }
  void* AlignedHostWorkspace() const {
    const auto address = reinterpret_cast<uintptr_t>(host_workspace_.data());
    return reinterpret_cast<void*>((address + 63) / 64 * 64);
  }

  const Gpu* const gpu_;
  std::deque<Twin>& twins_;
  ContextHandle context_;
  std::vector<PlanHandle> plans_;
  std::vector<SequenceHandle> sequences_;
  std::vector<uint8_t> host_workspace_;
  std::unique_ptr<Buffer> device_workspace_;
  size_t n_bytes_ = 0;
};

std::vector<int32_t> PositionsOf(const kvevict_sequence* sequence,
                                 uint32_t layer, uint32_t head) {
  uint32_t stored = 0;
  Check(kvevict_sequence_stored_length(sequence, layer, head, &stored));
  std::vector<int32_t> positions(stored);
  size_t n = 0;
  Check(kvevict_sequence_keep_positions(sequence, layer, head, positions.data(),
                                        stored, &n));
  return positions;
}

void ExpectSame(const Engine& cpu, const Engine& gpu, std::deque<Twin>* twins,
                const char* when, Report* report) {
  const Shape shape = SmallShape();
  for (size_t i = 0; i < twins->size(); ++i) {
    Twin& twin = (*twins)[i];
    for (uint32_t l = 0; l < shape.n_layers; ++l) {
      uint32_t most = 0;
      for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
        const std::vector<int32_t> expected =
            PositionsOf(cpu.sequence(i), l, h);
        most = static_cast<uint32_t>(expected.size());
        report->FailIf(expected != PositionsOf(gpu.sequence(i), l, h),
                       fmt::format("{}: items[{}], layer {}, head {}: other "
                                   "positions",
                                   when, i, l, h));
      }
      twin.Fetch(l);
      const std::string difference = twin.CompareWithHost(l, most);
      report->FailIf(!difference.empty(),
                     fmt::format("{}: items[{}]: {}", when, i, difference));
    }
  }
}

void CheckLife(const Gpu& gpu, const Effort& effort, bool captured,
               Report* report) {
  std::deque<Twin> twins;
  std::vector<uint32_t> lengths;
  for (const auto& request : kRequests) {
    twins.emplace_back(gpu, SmallShape(), effort.seed + lengths.size());
    lengths.push_back(request.n_tokens);
  }
  Engine cpu(nullptr, &twins);
  Engine device(&gpu, &twins);
  cpu.Append(lengths);
  Check(cpu.Evict());
  const auto work = [&] {
    device.Append(lengths);
    Check(device.Evict());
  };
  if (captured) {
    const Graph graph(gpu, work);
    graph.Launch();
    gpu.Synchronize();
  } else {
    work();
  }
  ExpectSame(cpu, device, &twins, "evicted", report);
  cpu.GoOn();
  device.GoOn();
  ExpectSame(cpu, device, &twins, "under another plan", report);
  Check(cpu.Evict());
  Check(device.Evict());
  ExpectSame(cpu, device, &twins, "and evicted", report);
  gpu.Synchronize();
}

}  // namespace

void CheckBatches(const Gpu& gpu, const Effort& effort, Report* report) {
  for (const bool captured : {false, true}) {
    report->Check(captured ? "batches: captured" : "batches",
                  [&] { CheckLife(gpu, effort, captured, report); });
  }
}

}  // namespace kvevict::gpu
