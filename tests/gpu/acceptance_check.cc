#include <fmt/format.h>

#include "tests/gpu/checks.h"
#include "tests/gpu/model.h"

namespace kvevict::gpu {
namespace {

// 16,384 tokens to 2,048; at a small size the same factor.
void CheckRing(const Gpu& gpu, const Effort& effort, kvevict_dtype dtype,
               Report* report) {
  const uint32_t n_tokens = effort.full ? 16384 : 256;
  const uint32_t budget = n_tokens / 8;
  const Shape shape = {"ring",
                       effort.full ? 4u : 2u,
                       effort.full ? 32u : 4u,
                       effort.full ? 8u : 2u,
                       effort.full ? 128u : 32u,
                       n_tokens,
                       dtype,
                       dtype,
                       Layout::kTokenMajor};
  Twin twin(gpu, shape, effort.seed);
  const std::string window = effort.full ? "64" : "16";
  Side side(&gpu, &twin,
            fmt::format("snapkv:budget={},window={}", budget, window));
  side.Prefill(0, n_tokens, n_tokens / 4 + 1);
  const kvevict_evict_report evicted = side.Evict();
  report->FailIf(evicted.bytes_before != twin.CacheBytes(n_tokens) ||
                     evicted.bytes_after * 8 != evicted.bytes_before,
                 fmt::format("{} bytes became {}", evicted.bytes_before,
                             evicted.bytes_after));
  ExpectRowsOfPositions(side, &twin, report);
  report->Note("bytes before", static_cast<double>(evicted.bytes_before));
  report->Note("bytes after", static_cast<double>(evicted.bytes_after));

  // Decoding goes on at slot 2,048 with position 16,384.
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    report->FailIf(side.Stored(l) != budget, "the next slot is wrong");
  }
  report->FailIf(side.Logical() != n_tokens, "the next position is wrong");
  ExpectLengths(gpu, side, twin, report);
  side.Prefill(n_tokens, 5, 1);
  ExpectLengths(gpu, side, twin, report);
  Check(kvevict_sequence_trim(side.sequence(), n_tokens + 3));
  report->FailIf(side.Stored(0) != budget + 3, "decoding does not count");
  int32_t slot = 0;
  Check(kvevict_sequence_slot_of_position(side.sequence(), 0, 0, n_tokens + 2,
                                          &slot));
  report->FailIf(slot != static_cast<int32_t>(budget + 2),
                 "a decoded token is in the wrong slot");
}

void CheckDisabled(const Gpu& gpu, const Effort& effort, kvevict_dtype dtype,
                   Report* report) {
  const Shape shape = {"ring", 2,     4,
                       2,      64,    effort.full ? 16384u : 256u,
                       dtype,  dtype, Layout::kTokenMajor};
  Twin twin(gpu, shape, effort.seed);
  Side side(&gpu, &twin, "none");
  side.Prefill(0, shape.n_tokens, shape.n_tokens);
  const kvevict_evict_report evicted = side.Evict();
  report->FailIf(evicted.evicted != 0, "the report speaks of an eviction");
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    twin.Fetch(l);
    report->FailIf(!twin.IsUntouched(l), "a byte changed");
  }
}

}  // namespace

void CheckAcceptance(const Gpu& gpu, const Effort& effort, Report* report) {
  report->Check("acceptance: bf16 ring shrinks by 8",
                [&] { CheckRing(gpu, effort, KVEVICT_DTYPE_BF16, report); });
  report->Check("acceptance: f32 ring shrinks by 8",
                [&] { CheckRing(gpu, effort, KVEVICT_DTYPE_F32, report); });
  report->Check("acceptance: policy none touches nothing", [&] {
    CheckDisabled(gpu, effort, KVEVICT_DTYPE_BF16, report);
    CheckDisabled(gpu, effort, KVEVICT_DTYPE_F32, report);
  });
}

}  // namespace kvevict::gpu
