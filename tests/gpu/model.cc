#include "tests/gpu/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kvevict/experimental.h"
#include "tests/gpu/doors.h"

namespace kvevict::gpu {

// Memory aligned to 256 as workspaces on the GPU are, filled with garbage.
class Side::Memory {
 public:
  Memory(const Gpu* gpu, size_t n_bytes) : n_bytes_(n_bytes) {
    if (n_bytes == 0) return;
    const std::vector<uint8_t> garbage(n_bytes, 0xA5);
    if (gpu != nullptr) {
      device_ = std::make_unique<Buffer>(*gpu, n_bytes);
      device_->Write(garbage.data(), n_bytes);
    } else {
      host_.reset(static_cast<uint8_t*>(
          std::aligned_alloc(256, (n_bytes + 511) / 256 * 256)));
      std::memcpy(host_.get(), garbage.data(), n_bytes);
    }
  }
  template <typename T>
  Memory(const Gpu* gpu, const std::vector<T>& values)
      : Memory(gpu, values.size() * sizeof(T)) {
    if (values.empty()) return;
    if (device_ != nullptr) {
      device_->Write(values.data(), n_bytes_);
    } else {
      std::memcpy(host_.get(), values.data(), n_bytes_);
    }
  }

  template <typename T>
  T* pointer() const {
    if (n_bytes_ == 0) return nullptr;
    return device_ != nullptr ? device_->pointer<T>()
                              : reinterpret_cast<T*>(host_.get());
  }
  size_t n_bytes() const { return n_bytes_; }

  template <typename T>
  std::vector<T> Values(size_t n) const {
    std::vector<T> values(n);
    if (n == 0) return values;
    if (device_ != nullptr) {
      device_->Read(values.data(), n * sizeof(T));
    } else {
      std::memcpy(values.data(), host_.get(), n * sizeof(T));
    }
    return values;
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  size_t n_bytes_;
  std::unique_ptr<Buffer> device_;
  std::unique_ptr<uint8_t, Free> host_;
};

Side::Side(const Gpu* gpu, Twin* twin, const std::string& policy,
           const kvevict_context_options* options)
    : gpu_(gpu),
      twin_(twin),
      policy_(ParsePolicy(policy)),
      stream_(gpu == nullptr ? nullptr : gpu->stream()) {
  kvevict_context_options o = KVEVICT_CONTEXT_OPTIONS_INIT;
  if (options != nullptr) {
    o = *options;
  } else if (gpu != nullptr) {
    o = gpu->ContextOptions();
  }
  context_ = CreateContext(o);
  plan_ = CreatePlan(context(), GeometryOf(twin->shape()), policy_);
  sequence_ = CreateSequence(plan());
}

const kvevict_view& Side::View(uint32_t layer) const {
  return gpu_ == nullptr ? twin_->host_views()[layer]
                         : twin_->device_views()[layer];
}

std::vector<float> Side::Score(uint32_t layer, uint32_t n_tokens,
                               const kvevict_plane* row_lse) {
  const size_t n = size_t{twin_->shape().n_kv_heads} * n_tokens;
  // These rows are a window's, or all to make sums of.
  const bool of_all =
      policy_.kind == ORACLE_H2O || policy_.kind == ORACLE_NON_CAUSAL;
  const uint32_t n_rows = of_all ? n_tokens : obs_window();
  const uint32_t first = n_tokens - n_rows;
  const kvevict_plane queries = gpu_ == nullptr
                                    ? twin_->HostQueries(layer, first)
                                    : twin_->DeviceQueries(layer, first);
  const Memory scores(gpu_, n * sizeof(float));
  const Memory workspace(gpu_, WorkspaceBytes(plan(), KVEVICT_OPERATION_SCORE));
  Check(gpu::Score(
      {plan(), layer, n_tokens, &View(layer), &queries, row_lse, n_rows},
      scores.pointer<float>(), n,
      {workspace.pointer<void>(), workspace.n_bytes(), stream_}));
  return scores.Values<float>(n);
}

std::vector<int32_t> Side::Select(uint32_t layer,
                                  const std::vector<float>& scores,
                                  uint32_t n_tokens,
                                  const std::vector<int32_t>& protect) {
  const size_t capacity = size_t{twin_->shape().n_kv_heads} * n_tokens;
  const Memory in(gpu_, scores);
  const Memory keep(gpu_, capacity * sizeof(int32_t));
  const Memory workspace(
      gpu_, SelectBytes(context(), n_tokens, twin_->shape().n_kv_heads));
  uint32_t n_keep = 0;
  Check(gpu::Select({context(), plan(), layer, n_tokens, in.pointer<float>(),
                     scores.size(), protect},
                    keep.pointer<int32_t>(), capacity, &n_keep,
                    {workspace.pointer<void>(), workspace.n_bytes(), stream_}));
  const uint32_t n_lists = LayerOf(plan(), layer).n_lists;
  return keep.Values<int32_t>(size_t{n_lists} * n_keep);
}

void Side::Compact(uint32_t layer, uint32_t n_tokens,
                   const std::vector<int32_t>& keep, uint32_t n_lists,
                   bool with_workspace) {
  const Memory lists(gpu_, keep);
  const OneMove move(View(layer), n_tokens, lists.pointer<int32_t>(),
                     keep.size(), n_lists);
  const size_t bytes = with_workspace ? move.CompactBytes(context()) : 0;
  const Memory workspace(gpu_, bytes);
  Check(move.Compact(context(), {workspace.pointer<void>(), bytes, stream_}));
  if (gpu_ != nullptr) gpu_->Synchronize();  // the lists go
}

void Side::Reorder(uint32_t layer, uint32_t n_tokens,
                   const std::vector<int32_t>& slots, uint32_t n_lists) {
  const Memory lists(gpu_, slots);
  const OneMove move(View(layer), n_tokens, lists.pointer<int32_t>(),
                     slots.size(), n_lists);
  const size_t bytes = move.ReorderBytes(context());
  const Memory workspace(gpu_, bytes);
  Check(move.Reorder(context(), {workspace.pointer<void>(), bytes, stream_}));
  if (gpu_ != nullptr) gpu_->Synchronize();  // the lists go
}

void Side::Prefill(uint32_t first, uint32_t n, uint32_t chunk) {
  for (uint32_t done = 0; done < n; done += chunk) {
    Observe(first + done, std::min(chunk, n - done), first + done);
  }
}

void Side::Observe(uint32_t first, uint32_t rows, uint32_t position) {
  for (uint32_t l = 0; l < twin_->shape().n_layers; ++l) {
    const kvevict_plane queries = gpu_ == nullptr
                                      ? twin_->HostQueries(l, first)
                                      : twin_->DeviceQueries(l, first);
    Check(gpu::Observe(sequence(), {l, &queries}, rows, position, stream_));
  }
  Check(kvevict_sequence_append(sequence(), rows, stream_));
}

kvevict_evict_report Side::Evict(const kvevict_evict_options* options) {
  const std::vector<kvevict_view>& views =
      gpu_ == nullptr ? twin_->host_views() : twin_->device_views();
  // The best and the least size take turns, with the same results.
  const kvevict_workspace sizes = WorkspaceOf(plan(), KVEVICT_OPERATION_EVICT);
  const Memory workspace(
      gpu_, ++n_evictions_ % 2 == 0 ? sizes.least_bytes : sizes.best_bytes);
  Check(kvevict_sequence_evict(sequence(), views.data(), views.size(), options,
                               workspace.pointer<void>(), workspace.n_bytes(),
                               stream_));
  if (gpu_ != nullptr) gpu_->Synchronize();  // the workspace goes
  return ReportOf(sequence());
}

std::vector<int32_t> Side::Positions(uint32_t layer, uint32_t kv_head) const {
  std::vector<int32_t> positions(Stored(layer));
  size_t n = 0;
  Check(kvevict_sequence_keep_positions(
      sequence(), layer, kv_head, positions.data(), positions.size(), &n));
  return positions;
}

uint32_t Side::Stored(uint32_t layer) const {
  uint32_t n = 0;
  Check(kvevict_sequence_stored_length(sequence(), layer, 0, &n));
  return n;
}

uint32_t Side::Logical() const {
  uint32_t n = 0;
  Check(kvevict_sequence_logical_length(sequence(), &n));
  return n;
}

void ExpectSamePositions(const Side& a, const Side& b, const Twin& twin,
                         Report* report) {
  for (uint32_t l = 0; l < twin.shape().n_layers; ++l) {
    for (uint32_t h = 0; h < twin.shape().n_kv_heads; ++h) {
      report->FailIf(a.Positions(l, h) != b.Positions(l, h),
                     fmt::format("layer {}, head {}: positions differ", l, h));
    }
  }
}

void ExpectRowsOfPositions(const Side& side, Twin* twin, Report* report) {
  for (uint32_t l = 0; l < twin->shape().n_layers; ++l) {
    twin->Fetch(l);
    for (uint32_t h = 0; h < twin->shape().n_kv_heads; ++h) {
      report->Expect(twin->CompareWithPositions(l, h, side.Positions(l, h)));
    }
  }
}

void ExpectLengths(const Gpu& gpu, const Side& side, const Twin& twin,
                   Report* report) {
  kvevict_sequence_memory memory{};
  memory.struct_size = sizeof(memory);
  Check(kvevict_sequence_memory_of(side.sequence(), 0, &memory));
  std::vector<uint32_t> lengths(2 * twin.shape().n_layers * memory.n_lists);
  Check(gpu.driver(),
        gpu.driver().cuMemcpyDtoHAsync(lengths.data(), memory.lengths,
                                       lengths.size() * sizeof(uint32_t),
                                       gpu.stream()),
        "cuMemcpyDtoHAsync");
  gpu.Synchronize();
  for (size_t i = 0; i < lengths.size() / 2; ++i) {
    const auto l = static_cast<uint32_t>(i / memory.n_lists);
    report->FailIf(lengths[2 * i] != side.Stored(l) ||
                       lengths[2 * i + 1] != side.Logical(),
                   fmt::format("layer {}: lengths on the device are {}, {}", l,
                               lengths[2 * i], lengths[2 * i + 1]));
  }
}

}  // namespace kvevict::gpu
