// A paged cache of the library: the cost of storing a token's rows, and of
// gathering rows from blocks that lie anywhere.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kvevict/paged.h"
#include "tests/bench/clocks.h"
#include "tests/bench/handles.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/plans.h"
#include "tests/bench/suites.h"

namespace kvevict::bench {
namespace {

constexpr uint32_t kHeads = 8;
constexpr uint32_t kHeadDim = 128;
constexpr uint32_t kBlockSize = 16;
constexpr size_t kRow =
    size_t{kHeads} * kHeadDim;  // elements of a token's keys
constexpr double kMicrosecondsGoal = 0.5;

struct DestroyPaged {
  void operator()(kvevict_paged_cache* p) const {
    kvevict_paged_cache_destroy(p);
  }
  void operator()(kvevict_paged_sequence* p) const {
    kvevict_paged_sequence_destroy(p);
  }
};
using CacheHandle = std::unique_ptr<kvevict_paged_cache, DestroyPaged>;
using PagedHandle = std::unique_ptr<kvevict_paged_sequence, DestroyPaged>;

// One sequence of one layer, in blocks in no order.
class Paged {
 public:
  Paged(const char* simd_target, uint32_t n_tokens)
      : n_tokens_(n_tokens),
        context_(CreateContext(simd_target)),
        plan_(CreatePlan(context_.get(), 1, LayerOf(kHeads, kHeads, kHeadDim),
                         n_tokens, "none")) {
    kvevict_paged_cache_options options = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
    options.n_blocks = n_tokens / kBlockSize;
    options.block_size = kBlockSize;
    options.layout = KVEVICT_BLOCK_LAYOUT_TOKEN_MAJOR;
    kvevict_paged_cache* cache = nullptr;
    Check(kvevict_paged_cache_create(plan_.get(), &options, &cache));
    cache_.reset(cache);
    ShuffleBlocks(options.n_blocks);
    kvevict_paged_sequence* sequence = nullptr;
    Check(kvevict_paged_sequence_create(cache, &sequence));
    sequence_.reset(sequence);
  }

  kvevict_paged_sequence* sequence() const { return sequence_.get(); }
  kvevict_paged_rows Rows(uint32_t first, uint32_t n, float* k,
                          float* v) const {
    kvevict_paged_rows rows = KVEVICT_PAGED_ROWS_INIT;
    rows.first_slot = first;
    rows.n_tokens = n;
    rows.k = RowsOf(k, kHeads, kHeadDim);
    rows.v = RowsOf(v, kHeads, kHeadDim);
    return rows;
  }

  // Appends token after token, from none to all.
  void Append(float* k, float* v) const {
    Check(kvevict_paged_sequence_truncate(sequence(), 0));
    for (uint32_t t = 0; t < n_tokens_; ++t) {
      Check(kvevict_paged_sequence_append(sequence(), 1, nullptr));
      const kvevict_paged_rows rows = Rows(t, 1, k + t * kRow, v + t * kRow);
      Check(kvevict_paged_sequence_write(sequence(), &rows, 1, nullptr));
    }
  }
  void Gather(float* k, float* v) const {
    const kvevict_paged_rows rows = Rows(0, n_tokens_, k, v);
    Check(kvevict_paged_sequence_read(sequence(), &rows, 1, nullptr));
  }

 private:
  // Blocks become free in the order in which sequences of one block go.
  void ShuffleBlocks(uint32_t n_blocks) const {
    std::vector<PagedHandle> owners;
    for (uint32_t b = 0; b < n_blocks; ++b) {
      kvevict_paged_sequence* one = nullptr;
      Check(kvevict_paged_sequence_create(cache_.get(), &one));
      owners.emplace_back(one);
      Check(kvevict_paged_sequence_append(one, kBlockSize, nullptr));
    }
    std::shuffle(owners.begin(), owners.end(), std::mt19937_64(1));
  }

  const uint32_t n_tokens_;
  const ContextHandle context_;
  PlanHandle plan_;
  CacheHandle cache_;
  PagedHandle sequence_;
};

void BenchAppend(Session& session) {
  const std::string name = "paged append of a token, 8 heads x 128 f32";
  if (!session.Begins(name)) return;
  const uint32_t n_tokens = 256;  // fits a processor's cache
  const Paged paged(session.simd.name, n_tokens);
  HugeBuffer<float> k(n_tokens * kRow), v(n_tokens * kRow);
  std::fill_n(k.data(), k.size(), 1.0f);
  std::fill_n(v.data(), v.size(), 2.0f);
  Row& row = session.report.AddRow(name, 1, "token/s");
  Comparison& half =
      row.Against("half a microsecond", session.Aim(Goal{2.0, 1.0, true}));
  Comparison& copy = row.Against("memcpy of the same bytes");
  HugeBuffer<float> to(2 * n_tokens * kRow);
  Repeat(session, [&](bool measured) {
    const Timing plain = TimeCalls(
        [&] {
          for (uint32_t t = 0; t < n_tokens; ++t) {
            std::memcpy(to.data() + 2 * t * kRow, k.data() + t * kRow,
                        kRow * sizeof(float));
            std::memcpy(to.data() + (2 * t + 1) * kRow, v.data() + t * kRow,
                        kRow * sizeof(float));
          }
        },
        0.02);
    Timing timing = TimeCalls([&] { paged.Append(k.data(), v.data()); }, 0.05);
    timing.wall /= n_tokens;
    timing.cpu /= n_tokens;
    if (!measured) return;
    row.Add(timing, 1);
    half.ratio.Add(timing.cpu * 1e6 / kMicrosecondsGoal);
    copy.ratio.Add(timing.cpu * n_tokens / plain.cpu);
  });
}

void BenchGather(Session& session) {
  const std::string name = "paged gather, 16-token blocks, random table";
  if (!session.Begins(name)) return;
  const uint32_t n_tokens = session.smoke ? 64 : 8192;
  const Paged paged(session.simd.name, n_tokens);
  HugeBuffer<float> k(n_tokens * kRow), v(n_tokens * kRow);
  HugeBuffer<float> k_out(k.size()), v_out(v.size());
  std::iota(k.data(), k.data() + k.size(), 0.0f);
  std::iota(v.data(), v.data() + v.size(), 1.0f);
  paged.Append(k.data(), v.data());
  const double n_bytes = 2.0 * static_cast<double>(k.size()) * sizeof(float);
  const auto copy = [&] {
    std::memcpy(k_out.data(), k.data(), k.size() * sizeof(float));
    std::memcpy(v_out.data(), v.data(), v.size() * sizeof(float));
  };
  MeasureBeside(session, name, "byte/s", n_bytes,
                {"memcpy of the same bytes", session.Aim(Goal{0.80, 0.95}),
                 [&] { return TimeCalls(copy, 0.05); }},
                [&] {
                  return TimeCalls(
                      [&] { paged.Gather(k_out.data(), v_out.data()); }, 0.05);
                });
}

}  // namespace

void BenchPaged(Session& session) {
  BenchAppend(session);
  BenchGather(session);
}

}  // namespace kvevict::bench
