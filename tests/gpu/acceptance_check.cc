#include <fmt/format.h>

#include "kvevict/experimental.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/model.h"

namespace kvevict::gpu {
namespace {

// 16,384 tokens shrink to 2,048, or a small number by the same factor.
Shape RingOf(bool full, kvevict_dtype dtype) {
  return {"ring",
          full ? 4u : 2u,
          full ? 32u : 4u,
          full ? 8u : 2u,
          full ? 128u : 32u,
          full ? 16384u : 256u,
          dtype,
          dtype,
          Layout::kTokenMajor};
}

uint32_t BudgetOf(const Shape& ring) { return ring.n_tokens / 8; }

const char* PolicyOf(bool full) {
  return full ? "snapkv:budget=2048,window=64" : "snapkv:budget=32,window=16";
}

// The prompt comes by chunks, its last tokens one by one.
void PrefillRing(const Shape& ring, Side* side) {
  constexpr uint32_t kSingle = 3;
  const uint32_t n = ring.n_tokens - kSingle;
  side->Prefill(0, n, ring.n_tokens / 4 + 1);
  side->Prefill(n, kSingle, 1);
}

void CheckRing(const Gpu& gpu, const Effort& effort, kvevict_dtype dtype,
               Report* report) {
  const Shape shape = RingOf(effort.full, dtype);
  const uint32_t n_tokens = shape.n_tokens;
  const uint32_t budget = BudgetOf(shape);
  Twin twin(gpu, shape, effort.seed);
  Side side(&gpu, &twin, PolicyOf(effort.full));
  PrefillRing(shape, &side);
  const kvevict_evict_report evicted = side.Evict();
  report->FailIf(evicted.bytes_before != twin.CacheBytes(n_tokens) ||
                     evicted.bytes_after * 8 != evicted.bytes_before,
                 fmt::format("{} bytes became {}", evicted.bytes_before,
                             evicted.bytes_after));
  report->Note("bytes before", static_cast<double>(evicted.bytes_before));
  report->Note("bytes after", static_cast<double>(evicted.bytes_after));

  // Decoding goes on at slot 2,048 with position 16,384.
  ExpectLengths(gpu, side, twin, report);
  ExpectRowsOfPositions(side, &twin, report);
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    report->FailIf(side.Stored(l) != budget, "the next slot is wrong");
    report->FailIf(!twin.IsUntouched(l, budget), "a free slot changed");
  }
  report->FailIf(side.Logical() != n_tokens, "the next position is wrong");
  side.Prefill(n_tokens, 5, 1);
  ExpectLengths(gpu, side, twin, report);
  Check(kvevict_sequence_trim_to(side.sequence(), n_tokens + 3, side.stream()));
  report->FailIf(side.Stored(0) != budget + 3, "decoding does not count");
  int32_t slot = 0;
  Check(kvevict_sequence_slot_of_position(side.sequence(), 0, 0, n_tokens + 2,
                                          &slot));
  report->FailIf(slot != static_cast<int32_t>(budget + 2),
                 "a decoded token is in the wrong slot");

  // What had been kept first goes, but for one token that is protected.
  side.Prefill(n_tokens + 3, side.obs_window(), 1);
  const int32_t kept = side.Positions(0, 0)[budget - 1];
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.protected_positions = &kept;
  options.protected_positions_len = 1;
  report->FailIf(side.Evict(&options).evicted == 0, "nothing was evicted");
  ExpectLengths(gpu, side, twin, report);
  Check(kvevict_sequence_slot_of_position(side.sequence(), 0, 0, kept, &slot));
  report->FailIf(slot < 0, "a protected token went");
}

}  // namespace

void CheckPolicyNone(const Gpu& gpu, const Effort& effort, Report* report) {
  report->Check("acceptance: policy none touches nothing", [&] {
    for (const kvevict_dtype dtype : {KVEVICT_DTYPE_BF16, KVEVICT_DTYPE_F32}) {
      const Shape shape = RingOf(effort.full, dtype);
      Twin twin(gpu, shape, effort.seed);
      Side side(&gpu, &twin, "none");
      PrefillRing(shape, &side);
      const kvevict_evict_report evicted = side.Evict();
      report->FailIf(evicted.evicted != 0, "the report speaks of an eviction");
      for (uint32_t l = 0; l < shape.n_layers; ++l) {
        twin.Fetch(l);
        report->FailIf(!twin.IsUntouched(l), "a byte changed");
      }
    }
  });
}

void CheckAcceptance(const Gpu& gpu, const Effort& effort, Report* report) {
  report->Check("acceptance: bf16 ring shrinks by 8",
                [&] { CheckRing(gpu, effort, KVEVICT_DTYPE_BF16, report); });
  report->Check("acceptance: f32 ring shrinks by 8",
                [&] { CheckRing(gpu, effort, KVEVICT_DTYPE_F32, report); });
  CheckPolicyNone(gpu, effort, report);
}

}  // namespace kvevict::gpu
