// H2O from queries: attention sums over all query rows of a prompt, against the
// cost of the prompt's own causal attention, two products of half a square.
#include <fmt/format.h>

#include <vector>

#include "tests/bench/reference.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

// How the sums are made.
struct Way {
  const char* name;
  double scratch;  // from the least to the best
  bool knows_lse;
  // Relative to the time of two products at the FMA peak.
  Goal goal;
};
constexpr Way kWays[] = {{"best scratch", 1.0, false, {0.95, 1.3}},
                         {"least scratch", 0.0, false, {0.5, 0.7}},
                         {"log-sum-exps known", 0.0, true, {0.95, 1.4}}};

// A plain attention does the work of one query head; its time is scaled up to all.
double PlainAttentionSeconds(const AttentionData& data) {
  const Workload& w = data.workload();
  std::vector<float> out(size_t{w.window} * w.head_dim);
  const Timing timing = TimeCalls(
      [&] { RowDotAttention(data, KeyLayout::kTokenMajor, 0, out.data()); },
      5e-3);
  return timing.cpu * w.n_q_heads;
}

void BenchPrompt(Session& session, const Workload& w) {
  const std::string name = fmt::format("h2o f32 {}", w.name);
  if (!session.Begins(name)) return;
  AttentionData data(w, DType::kF32);
  struct OfWay {
    Row* row;
    Comparison* peak;
    Comparison* plain;
  };
  std::vector<OfWay> rows[2];  // by threads - 1
  for (uint32_t t : {0u, 1u}) {
    for (const Way& way : kWays) {
      Row& row = session.report.AddRow(fmt::format("{}, {}", name, way.name),
                                       t + 1, "flop/s");
      Comparison& peak = row.Against("causal attention at the f32 FMA peak",
                                     session.Aim(way.goal));
      rows[t].push_back(
          {&row, &peak, &row.Against("plain causal attention, 1 thread")});
    }
  }
  // Two products of half a square cost as much as one of a whole one.
  const double flops = w.flops();
  Repeat(session, [&](bool measured) {
    const double plain = PlainAttentionSeconds(data);
    for (uint32_t t : {0u, 1u}) {
      const double peak = session.limits.FmaFlops(session.simd, t + 1);
      for (size_t i = 0; i < rows[t].size(); ++i) {
        const Timing timing =
            data.Score(session.simd, KeyLayout::kTokenMajor, t + 1,
                       kWays[i].scratch, kWays[i].knows_lse);
        if (!measured) continue;
        rows[t][i].row->Add(timing, flops);
        rows[t][i].peak->ratio.Add(flops / timing.cpu / peak);
        rows[t][i].plain->ratio.Add(plain * (t + 1) / timing.cpu);
      }
    }
  });
}

}  // namespace

void BenchH2o(Session& session) {
  if (session.smoke) {
    BenchPrompt(session, {"smoke", 150, 6, 2, 40, 150, 50});
    return;
  }
  // Two KV heads are enough.
  BenchPrompt(session, {"16K, 2 KV heads", 16384, 8, 2, 128, 16384, 2048});
}

}  // namespace kvevict::bench
