// Merges rows of a layer that go into rows that stay: every one of the former meets
// every one of the latter.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/kernels/merge.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

// One layer's keys and values, bf16 [n_kv_heads, n_tokens, head_dim]; one token in
// n_tokens / n_keep stays.
class MergeData {
 public:
  MergeData(const Workload& workload, uint32_t n_keep)
      : w_(workload),
        keys_(size_t{w_.n_kv_heads} * w_.n_tokens * w_.head_dim),
        values_(size_t{w_.n_kv_heads} * w_.n_tokens * w_.head_dim),
        keep_(n_keep),
        scratch_(MergeScratchBytes(w_.n_tokens, w_.head_dim, w_.head_dim)) {
    std::mt19937_64 engine(1);
    Draw(engine, keys_);
    Draw(engine, values_);
    for (uint32_t i = 0; i < n_keep; ++i) {
      keep_[i] = static_cast<int32_t>(uint64_t{i} * w_.n_tokens / n_keep);
    }
    sum_ = Sum();
  }

  Timing Merge(SimdTarget simd) {
    return TimeItems(1, w_.n_kv_heads, [&](uint32_t head, uint32_t) {
      MergeRowsArgs args;
      args.keys = RowsOf(keys_, head);
      args.values = RowsOf(values_, head);
      args.n_tokens = w_.n_tokens;
      args.key_dim = args.value_dim = w_.head_dim;
      args.keep = keep_.data();
      args.n_keep = static_cast<uint32_t>(keep_.size());
      args.scratch = scratch_.data();
      MergeRows(simd, args);
    });
  }

  // Means are smaller than their terms.
  void Check() const {
    const double sum = Sum();
    if (!(sum > 0.1 * sum_ && sum < 0.9 * sum_)) {
      throw std::runtime_error(
          fmt::format("merge: values of {}, before {}", sum, sum_));
    }
  }

 private:
  static void Draw(std::mt19937_64& engine, HugeBuffer<uint16_t>& rows) {
    std::normal_distribution<float> gaussian;
    for (size_t i = 0; i < rows.size(); ++i) {
      const float v = gaussian(engine);
      uint32_t bits;
      std::memcpy(&bits, &v, sizeof(bits));
      rows[i] = static_cast<uint16_t>(bits >> 16);
    }
  }
  RowSource RowsOf(HugeBuffer<uint16_t>& rows, uint32_t head) const {
    RowSource source;
    source.base = reinterpret_cast<const uint8_t*>(
        rows.data() + size_t{head} * w_.n_tokens * w_.head_dim);
    source.row_stride = int64_t{2} * w_.head_dim;
    source.element_stride = 2;
    source.dtype = DType::kBF16;
    return source;
  }
  // The sum of the sizes of values that stay.
  double Sum() const {
    double sum = 0.0;
    for (const int32_t slot : keep_) {
      for (uint32_t i = 0; i < w_.head_dim; ++i) {
        const uint32_t bits = uint32_t{values_[size_t(slot) * w_.head_dim + i]}
                              << 16;
        float v;
        std::memcpy(&v, &bits, sizeof(v));
        sum += std::abs(v);
      }
    }
    return sum;
  }

  const Workload w_;
  HugeBuffer<uint16_t> keys_;
  HugeBuffer<uint16_t> values_;
  std::vector<int32_t> keep_;
  HugeBuffer<uint8_t> scratch_;
  double sum_ = 0.0;
};

}  // namespace

void BenchMerge(Session& session) {
  Workload w = session.smoke ? kSmoke : kA;
  if (!session.smoke) w.n_tokens = 8192;
  const uint32_t n_keep = w.n_tokens / 8;
  const std::string name =
      fmt::format("merge bf16 S={} -> {}, values", w.n_tokens, n_keep);
  if (!session.wants(name)) return;
  session.announce(name);
  MergeData data(w, n_keep);
  Row& row = session.report.AddRow(name, 1, "flop/s");
  const double flops =
      2.0 * n_keep * (w.n_tokens - n_keep) * w.head_dim * w.n_kv_heads;
  Comparison& peak =
      row.Against("f32 FMA peak",
                  session.smoke ? std::nullopt : std::optional(Goal{0.5, 0.7}));
  Repeat(session, [&](bool measured) {
    const double limit = session.limits.FmaFlops(session.simd, 1);
    const Timing timing = data.Merge(session.simd);
    data.Check();
    if (!measured) return;
    row.Add(timing, flops);
    peak.ratio.Add(flops / timing.cpu / limit);
  });
}

}  // namespace kvevict::bench
