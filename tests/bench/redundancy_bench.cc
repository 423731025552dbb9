// Redundancy of a layer's keys: keys in all directions, of which no two are similar
// and every pair is compared, and keys around a mean, as caches have. Similarity of
// blocks of keys, for which every pair is compared.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/kernels/redundancy.h"
#include "core/kernels/similarity.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

constexpr float kThreshold = 0.5f;

// One layer's keys, bf16 [n_kv_heads, n_tokens, head_dim], and scores of 0.
class RedundancyData {
 public:
  RedundancyData(const Workload& workload, float mean)
      : w_(workload),
        keys_(size_t{w_.n_kv_heads} * w_.n_tokens * w_.head_dim),
        scores_(size_t{w_.n_kv_heads} * w_.n_tokens),
        scratch_(RedundancyScratchBytes(w_.n_tokens, w_.head_dim)) {
    std::mt19937_64 engine(1);
    std::normal_distribution<float> gaussian;
    for (size_t i = 0; i < keys_.size(); ++i) {
      const float v = gaussian(engine) + mean;
      uint32_t bits;
      std::memcpy(&bits, &v, sizeof(bits));
      keys_[i] = static_cast<uint16_t>(bits >> 16);
    }
  }

  Timing Subtract(SimdTarget simd) {
    std::fill_n(scores_.data(), scores_.size(), 0.0f);
    return TimeItems(1, w_.n_kv_heads, [&](uint32_t head, uint32_t) {
      SubtractRedundancy(
          simd, {KeysOf(head), w_.n_tokens, w_.head_dim, kThreshold, 1.0f, 1.0f,
                 scores_.data() + size_t{head} * w_.n_tokens, scratch_.data()});
    });
  }

  RowSource KeysOf(uint32_t head) const {
    RowSource keys;
    keys.base = reinterpret_cast<const uint8_t*>(
        keys_.data() + size_t{head} * w_.n_tokens * w_.head_dim);
    keys.row_stride = int64_t{2} * w_.head_dim;
    keys.element_stride = 2;
    keys.dtype = DType::kBF16;
    return keys;
  }

  // They are the result of a softmax.
  void Check() const {
    for (uint32_t head = 0; head < w_.n_kv_heads; ++head) {
      double sum = 0.0;
      for (uint32_t t = 0; t < w_.n_tokens; ++t) {
        sum -= scores_[size_t{head} * w_.n_tokens + t];
      }
      if (!(std::abs(sum - 1.0) < 1e-4)) {
        throw std::runtime_error(
            fmt::format("redundancy: head {} has {} of it", head, sum));
      }
    }
  }

 private:
  const Workload w_;
  HugeBuffer<uint16_t> keys_;
  HugeBuffer<float> scores_;
  HugeBuffer<uint8_t> scratch_;
};

void BenchKeys(Session& session, const Workload& w, const char* kind,
               float mean, bool meets_all) {
  const std::string name =
      fmt::format("redundancy bf16 S={}, {}", w.n_tokens, kind);
  if (!session.wants(name)) return;
  session.announce(name);
  RedundancyData data(w, mean);
  Row& row = session.report.AddRow(name, 1, meets_all ? "flop/s" : "keys/s");
  const double n = w.n_tokens;
  // A pair's cosine is the same both ways.
  const double flops = n * n * w.head_dim * w.n_kv_heads;
  Comparison* peak = nullptr;
  if (meets_all) {
    peak = &row.Against("f32 FMA peak", session.smoke
                                            ? std::nullopt
                                            : std::optional(Goal{0.55, 0.75}));
  }
  Repeat(session, [&](bool measured) {
    const double limit = session.limits.FmaFlops(session.simd, 1);
    const Timing timing = data.Subtract(session.simd);
    data.Check();
    if (!measured) return;
    row.Add(timing, meets_all ? flops : n * w.n_kv_heads);
    if (peak != nullptr) peak->ratio.Add(flops / timing.cpu / limit);
  });
}

// All blocks of one layer, of 16 tokens each.
void BenchBlocks(Session& session, const Workload& w) {
  constexpr uint32_t kBlock = 16;
  const std::string name =
      fmt::format("redundancy of blocks, bf16 S={}", w.n_tokens);
  if (!session.wants(name)) return;
  session.announce(name);
  const RedundancyData data(w, 0.0f);
  HugeBuffer<uint8_t> scratch(SimilarityScratchBytes(w.n_tokens, w.head_dim));
  std::vector<uint32_t> blocks(w.n_tokens / kBlock);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<int64_t> sums(blocks.size());
  Row& row = session.report.AddRow(name, 1, "flop/s");
  const double n = w.n_tokens;
  // A pair's cosine is the same both ways.
  const double flops = n * n * w.head_dim * w.n_kv_heads;
  Comparison& peak = row.Against(
      "f32 FMA peak",
      session.smoke ? std::nullopt : std::optional(Goal{0.55, 0.7}));
  Repeat(session, [&](bool measured) {
    const double limit = session.limits.FmaFlops(session.simd, 1);
    const Timing timing =
        TimeItems(1, w.n_kv_heads, [&](uint32_t head, uint32_t) {
          SumSimilarity(session.simd,
                        {data.KeysOf(head), 0, w.n_tokens, w.head_dim, kBlock,
                         blocks.data(), static_cast<uint32_t>(blocks.size()),
                         sums.data(), scratch.data()});
          // Half of random cosines count, all of which are above 0.
          if (!(*std::min_element(sums.begin(), sums.end()) > 0)) {
            throw std::runtime_error("a block is like no other");
          }
        });
    if (!measured) return;
    row.Add(timing, flops);
    peak.ratio.Add(flops / timing.cpu / limit);
  });
}

}  // namespace

void BenchRedundancy(Session& session) {
  Workload w = session.smoke ? kSmoke : kA;
  if (!session.smoke) w.n_tokens = 16128;
  BenchKeys(session, w, "no two similar", 0.0f, true);
  BenchKeys(session, w, "around a mean", 1.5f, false);
  if (!session.smoke) w.n_tokens = 4096;
  BenchBlocks(session, w);
}

}  // namespace kvevict::bench
