// A sequence used on several streams, as by an engine that evicts beside its own
// work.
#include <functional>
#include <vector>

#include "kvevict/experimental.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/model.h"

namespace kvevict::gpu {
namespace {

constexpr char kKeep40[] = "snapkv:budget=40,scope=head,window=8";
constexpr uint32_t kLives = 6;
constexpr uint32_t kRounds = 2;
constexpr uint32_t kDecoded = 12;  // in each round

// Every call asks for its stream, and tells when it is queued there.
struct Calls {
  std::function<kvevict_stream()> stream;
  std::function<void()> queued;
};

void ShowAndAppend(const Side& side, const Twin& twin, uint32_t first,
                   uint32_t n, const Calls& calls) {
  std::vector<kvevict_plane> queries;
  std::vector<Shown> shown;
  for (uint32_t l = 0; l < twin.shape().n_layers; ++l) {
    queries.push_back(twin.DeviceQueries(l, first));
  }
  for (uint32_t l = 0; l < queries.size(); ++l)
    shown.push_back({l, &queries[l]});
  Check(Observe(side.sequence(), shown, n, KVEVICT_POSITION_NEXT,
                calls.stream()));
  Check(kvevict_sequence_append(side.sequence(), n, calls.stream()));
  calls.queued();
}

// Evicts in rounds, takes tokens back in each, and begins anew by a reset.
void Serve(const Side& side, const Twin& twin, const Buffer& workspace,
           const Calls& calls) {
  const uint32_t n = twin.shape().n_tokens;
  for (uint32_t life = 0; life < kLives; ++life) {
    ShowAndAppend(side, twin, 0, n, calls);
    for (uint32_t round = 0; round < kRounds; ++round) {
      Check(kvevict_sequence_evict(side.sequence(), twin.device_views().data(),
                                   twin.shape().n_layers, nullptr,
                                   workspace.pointer<void>(),
                                   workspace.n_bytes(), calls.stream()));
      calls.queued();
      const uint32_t first = n + round * kDecoded;
      ShowAndAppend(side, twin, first, 16, calls);
      Check(
          kvevict_sequence_trim_to(side.sequence(), first + 1, calls.stream()));
      calls.queued();
      for (uint32_t i = 1; i < kDecoded; ++i) {
        ShowAndAppend(side, twin, first + i, 1, calls);
      }
    }
    if (life == kLives - 1) break;
    Check(kvevict_sequence_reset(side.sequence(), calls.stream()));
    calls.queued();
  }
}

// Nothing waits on the host. Every call has another stream than the one before,
// with an event between. Its work goes to its stream: the next work there finds its
// lengths. With two streams, work on the wrong one would be in order.
void CheckStreamPerCall(const Gpu& gpu, const Effort& effort, Report* report) {
  const Shape shape = {"",
                       2,
                       4,
                       2,
                       32,
                       effort.full ? 4096u : 120u,
                       KVEVICT_DTYPE_BF16,
                       KVEVICT_DTYPE_BF16,
                       Layout::kTokenMajor};
  Twin twin(gpu, shape, effort.seed);
  Side alone(&gpu, &twin, kKeep40);
  Side side(&gpu, &twin, kKeep40);
  Check(kvevict_context_prepare(side.context(), side.plan()));
  const Buffer workspace(gpu,
                         WorkspaceBytes(side.plan(), KVEVICT_OPERATION_EVICT));
  Serve(alone, twin, workspace, {[&] { return gpu.stream(); }, [] {}});
  twin.Restore();

  const OtherStream second(gpu);
  const OtherStream third(gpu);
  const cuda::CUstream streams[] = {gpu.stream(), second.get(), third.get()};
  size_t n_calls = 0;
  const auto stream = [&] { return streams[n_calls % 3]; };
  const auto next = [&] {
    const cuda::CUstream last = stream();
    ++n_calls;
    Order(gpu, last, stream());
    return stream();
  };
  kvevict_sequence_memory memory{};
  memory.struct_size = sizeof(memory);
  Check(kvevict_sequence_memory_of(side.sequence(), 0, &memory));
  const Buffer seen(gpu, 8192);
  std::vector<uint32_t> expected;  // stored and logical length after each call
  const auto look = [&] {
    Check(gpu.driver(),
          gpu.driver().cuMemcpyDtoDAsync(seen.address() + 4 * expected.size(),
                                         memory.lengths, 8, stream()),
          "cuMemcpyDtoDAsync");
    expected.insert(expected.end(), {side.Stored(0), side.Logical()});
  };
  Serve(side, twin, workspace, {next, look});
  while (stream() != gpu.stream()) next();
  std::vector<uint32_t> got = seen.ReadAll<uint32_t>();
  got.resize(expected.size());
  report->FailIf(got != expected, "a call's work is not on its stream");
  ExpectLengths(gpu, side, twin, report);
  ExpectSamePositions(side, alone, twin, report);
}

}  // namespace

void CheckStreams(const Gpu& gpu, const Effort& effort, Report* report) {
  report->Check("streams: one per call, with events between",
                [&] { CheckStreamPerCall(gpu, effort, report); });
}

}  // namespace kvevict::gpu
