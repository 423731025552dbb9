// Compaction in place beside a memcpy of the kept bytes, both with cold caches.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "tests/bench/clocks.h"
#include "tests/bench/handles.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/suites.h"

namespace kvevict::bench {
namespace {

// n_tokens / 8 slots, ascending: single ones, or runs of 16 on average.
std::vector<int32_t> KeepList(uint32_t n_tokens, bool clustered) {
  std::mt19937_64 engine(3);
  const uint32_t n_keep = n_tokens / 8;
  std::vector<bool> kept(n_tokens);
  for (uint32_t n = 0; n < n_keep;) {
    const uint32_t length = clustered ? 1 + engine() % 31 : 1;
    const uint32_t begin = static_cast<uint32_t>(engine() % n_tokens);
    for (uint32_t i = begin; i < std::min(begin + length, n_tokens); ++i) {
      if (n < n_keep && !kept[i]) {
        kept[i] = true;
        ++n;
      }
    }
  }
  std::vector<int32_t> keep;
  for (uint32_t i = 0; i < n_tokens; ++i) {
    if (kept[i]) keep.push_back(static_cast<int32_t>(i));
  }
  return keep;
}

class Cache {
 public:
  Cache(size_t bytes, uint32_t row_bytes)
      : n_tokens_(static_cast<uint32_t>(bytes / row_bytes)), memory_(bytes) {
    view_.n_kv_heads = 1;
    view_.k.data = reinterpret_cast<uintptr_t>(memory_.data());
    view_.k.token_stride_bytes = row_bytes;
    view_.k.row_bytes = row_bytes;
  }

  uint32_t n_tokens() const { return n_tokens_; }
  const kvevict_view& view() const { return view_; }

 private:
  uint32_t n_tokens_;
  HugeBuffer<uint8_t> memory_;
  kvevict_view view_ = KVEVICT_VIEW_INIT;
};

std::optional<Goal> GoalOf(uint32_t row_bytes, bool clustered) {
  if (row_bytes <= 512) return Goal{0.58, 0.75};
  if (row_bytes < 2048) return std::nullopt;
  return clustered ? Goal{0.75, 0.95} : Goal{0.65, 0.80};
}

void BenchRows(Session& session, size_t cache_bytes, uint32_t row_bytes,
               bool clustered) {
  const std::string name = fmt::format("compact rows of {} B, {}", row_bytes,
                                       clustered ? "clustered" : "random");
  if (!session.Begins(name)) return;
  const ContextHandle context = CreateContext(session.simd.name);
  Cache cache(cache_bytes, row_bytes);
  const std::vector<int32_t> keep = KeepList(cache.n_tokens(), clustered);
  const size_t kept_bytes = keep.size() * row_bytes;
  HugeBuffer<uint8_t> from(kept_bytes);
  HugeBuffer<uint8_t> to(kept_bytes);

  Row& row = session.report.AddRow(name, 1, "byte/s");
  Comparison& copy = row.Against("memcpy of the kept bytes, cold",
                                 session.Aim(GoalOf(row_bytes, clustered)));
  Comparison& row_copy = row.Against("row-by-row memcpy, cold");
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
  lists.n_lists = 1;
  lists.slots = const_cast<int32_t*>(keep.data());
  lists.slots_len = keep.size();
  lists.count = static_cast<uint32_t>(keep.size());
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = cache.n_tokens();
  move.view = &cache.view();
  move.keep = &lists;
  Repeat(session, [&](bool measured) {
    session.limits.MemcpyBytes(1);
    session.limits.ReadBytes(1);
    session.limits.EvictCaches();
    const Timing memcpy_timing =
        TimeCalls([&] { std::memcpy(to.data(), from.data(), kept_bytes); });
    session.limits.EvictCaches();
    const Timing row_timing = TimeCalls([&] {
      uint8_t* rows = reinterpret_cast<uint8_t*>(cache.view().k.data);
      for (size_t i = 0; i < keep.size(); ++i) {
        std::memmove(rows + i * row_bytes, rows + size_t(keep[i]) * row_bytes,
                     row_bytes);
      }
    });
    session.limits.EvictCaches();
    const Timing timing = TimeCalls([&] {
      Check(kvevict_compact(context.get(), &move, 1, nullptr, 0, nullptr));
    });
    if (!measured) return;
    row.Add(timing, static_cast<double>(kept_bytes));
    copy.ratio.Add(memcpy_timing.cpu / timing.cpu);
    row_copy.ratio.Add(row_timing.cpu / timing.cpu);
  });
}

}  // namespace

void BenchCompact(Session& session) {
  if (session.smoke) {
    BenchRows(session, 1 << 16, 256, false);
    BenchRows(session, 1 << 16, 2048, true);
    return;
  }
  for (uint32_t row_bytes : {256u, 512u, 1024u, 2048u, 4096u}) {
    for (bool clustered : {true, false}) {
      BenchRows(session, size_t{64} << 20, row_bytes, clustered);
    }
  }
}

}  // namespace kvevict::bench
