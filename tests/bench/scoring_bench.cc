// Window attention of all KV heads: both layouts, one and two threads.
#include <fmt/format.h>

#include <cmath>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"
#include "tests/bench/reference.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

struct ScoringGoals {
  std::optional<Goal> peak[2];     // by threads - 1
  std::optional<Goal> row_dot[2];  // f32, against row-dot on one thread
  std::optional<Goal> layout;      // token-major time by head-major time
  std::optional<Goal> speed_up;    // wall, idle machine
};

// PERFORMANCE goals. Without a bf16 dot, bf16 is converted while packing and
// compared with the f32 peak; only workload A has a goal for it.
ScoringGoals GoalsOf(const Workload& w, DType dtype) {
  ScoringGoals goals;
  const std::string name = w.name;
  if (name != "A" && name != "B" && name != "C") return goals;
  goals.layout = Goal{1.15, 1.03, true};
  if (dtype != DType::kF32) {
    if (name == "A") goals.peak[0] = Goal{0.62, 0.77};
    return goals;
  }
  if (name == "A") {
    goals.peak[0] = Goal{0.62, 0.75};
    goals.peak[1] = Goal{0.60, 0.75};
    goals.row_dot[0] = Goal{14, 18};
    goals.row_dot[1] = Goal{25, 34};
    goals.speed_up = Goal{1.6, 1.9};
  } else if (name == "B") {
    goals.peak[0] = Goal{0.60, 0.72};
  } else {
    goals.peak[0] = Goal{0.45, 0.60};
    goals.row_dot[0] = Goal{3.5, 4.5};
  }
  return goals;
}

const char* LayoutText(KeyLayout layout) {
  return layout == KeyLayout::kTokenMajor ? "[S, H, D]" : "[H, S, D]";
}

// One call of the kernel, or as many as fill a few milliseconds.
Timing Score(SimdTarget simd, AttentionData& data, KeyLayout layout,
             uint32_t n_threads) {
  Timing total;
  uint32_t n = 0;
  do {
    const Timing timing = data.Score(simd, layout, n_threads);
    total.wall += timing.wall;
    total.cpu += timing.cpu;
    ++n;
  } while (total.cpu < 5e-3);
  return {total.wall / n, total.cpu / n};
}

// Row-dot does the work of one query head, and its time is scaled up to all.
class Reference {
 public:
  Reference(Session& session, const AttentionData& data, KeyLayout layout)
      : data_(data), layout_(layout), expected_(data.workload().n_tokens) {
    const Workload& w = data.workload();
    row_ = &session.report.AddRow(
        fmt::format("row-dot scoring f32 {} {}", w.name, LayoutText(layout)), 1,
        "flop/s");
    row_->note = fmt::format("1 of {0} query heads, times {0}", w.n_q_heads);
  }

  // Returns the seconds that all heads would take, after a look at the kernel's weights.
  double Measure(bool measured) {
    const uint32_t n = data_.workload().n_q_heads;
    Timing timing = TimeCalls(
        [&] { RowDotScores(data_, layout_, 0, expected_.data()); }, 5e-3);
    timing.wall *= n;
    timing.cpu *= n;
    for (uint32_t j = 0; j < data_.workload().n_tokens; ++j) {
      const float got = data_.weights()[j];
      if (!(std::abs(got - expected_[j]) <= 1e-3f * expected_[j])) {
        throw std::runtime_error(
            fmt::format("scoring {}: key {} weighs {}, row-dot says {}",
                        data_.workload().name, j, got, expected_[j]));
      }
    }
    if (measured) row_->Add(timing, data_.workload().flops());
    return timing.cpu;
  }

 private:
  const AttentionData& data_;
  const KeyLayout layout_;
  std::vector<float> expected_;
  Row* row_;
};

// The rows of one layout and number of threads.
struct ScoringRow {
  Row* row = nullptr;
  Comparison* peak = nullptr;
  Comparison* row_dot = nullptr;  // only f32
};

void BenchWorkload(Session& session, const Workload& w, DType dtype) {
  const std::string name = fmt::format(
      "scoring {} {}", dtype == DType::kF32 ? "f32" : "bf16", w.name);
  if (!session.Begins(name)) return;
  AttentionData data(w, dtype);
  const ScoringGoals goals = GoalsOf(w, dtype);
  // B's reference takes long and adds nothing.
  const bool has_references = dtype == DType::kF32 && w.n_tokens <= 16384;

  constexpr KeyLayout kLayouts[] = {KeyLayout::kTokenMajor,
                                    KeyLayout::kHeadMajor};
  ScoringRow rows[2][2];  // by threads - 1 and layout
  Comparison* layout_ratio[2];
  for (uint32_t t : {0u, 1u}) {
    for (uint32_t l : {0u, 1u}) {
      ScoringRow& r = rows[t][l];
      r.row = &session.report.AddRow(
          fmt::format("{} {}", name, LayoutText(kLayouts[l])), t + 1, "flop/s");
      r.peak = &r.row->Against("f32 FMA peak", goals.peak[t]);
      if (!has_references) continue;
      // The goal is about rows far apart, as in the prototypes' references;
      // rows in sequence are easier for them.
      r.row_dot = &r.row->Against("row-dot scoring of this layout, 1 thread",
                                  l == 0 ? goals.row_dot[t] : std::nullopt);
    }
    layout_ratio[t] = &rows[t][0].row->Against(
        "time of [H, S, D]", t == 0 ? goals.layout : std::nullopt);
  }
  Comparison& speed_up = rows[1][1].row->Against("1 thread, wall");
  std::deque<Reference> row_dot;
  if (has_references) {
    for (KeyLayout layout : kLayouts) {
      row_dot.emplace_back(session, data, layout);
    }
  }

  bool idle = true;
  Samples peak_by_row_dot;  // what no kernel could exceed
  Repeat(session, [&](bool measured) {
    Timing timings[2][2];
    double peaks[2];
    for (uint32_t t : {0u, 1u}) {
      peaks[t] = session.limits.FmaFlops(session.simd, t + 1);
      for (uint32_t l : {0u, 1u}) {
        const Timing timing = Score(session.simd, data, kLayouts[l], t + 1);
        timings[t][l] = timing;
        if (!measured) continue;
        rows[t][l].row->Add(timing, w.flops());
        rows[t][l].peak->ratio.Add(w.flops() / timing.cpu / peaks[t]);
        if (timing.wall > 1.05 * timing.cpu / (t + 1)) idle = false;
      }
      if (measured) {
        layout_ratio[t]->ratio.Add(timings[t][0].cpu / timings[t][1].cpu);
      }
    }
    if (measured) speed_up.ratio.Add(timings[0][1].wall / timings[1][1].wall);
    for (uint32_t l = 0; l < row_dot.size(); ++l) {
      const double seconds = row_dot[l].Measure(measured);
      if (measured && l == 0) {
        peak_by_row_dot.Add(peaks[0] * seconds / w.flops());
      }
      for (uint32_t t = 0; measured && t < 2; ++t) {
        rows[t][l].row_dot->ratio.Add(seconds * (t + 1) / timings[t][l].cpu);
      }
    }
  });
  // A floor above the FMA peak itself depends on the machine (little arithmetic
  // beside its caches), not on the kernel. Only then it is not judged.
  for (uint32_t t = 0; has_references && t < 2; ++t) {
    std::optional<Goal>& goal = rows[t][0].row_dot->goal;
    const double reachable = (t + 1) * peak_by_row_dot.Median();
    if (!goal || reachable >= goal->floor) continue;
    rows[t][0].row->note = fmt::format(
        "row-dot floor {:.3g} not judged: the FMA peak is {:.3g} x row-dot "
        "here",
        goal->floor, reachable);
    goal.reset();
  }
  if (idle) {
    speed_up.goal = goals.speed_up;
  } else if (goals.speed_up) {
    rows[1][1].row->note =
        "speed-up not judged: the machine is busy, wall exceeds CPU time";
  }
}

// Runs the code for AVX2 on the same data, against what AVX2 can do.
void BenchAvx2(Session& session) {
  const std::string name = "scoring f32 A, AVX2 only";
  SimdTarget avx2;
  if (!session.wants(name) || !FindSimdTarget("AVX2", &avx2).ok()) return;
  session.announce(name);
  AttentionData data(kA, DType::kF32);
  Row& row = session.report.AddRow(name, 1, "flop/s");
  Comparison& peak = row.Against("256-bit f32 FMA peak", Goal{0.50, 0.73});
  Repeat(session, [&](bool measured) {
    const double limit = session.limits.FmaFlops(avx2, 1);
    const Timing timing = Score(avx2, data, KeyLayout::kTokenMajor, 1);
    if (!measured) return;
    row.Add(timing, kA.flops());
    peak.ratio.Add(kA.flops() / timing.cpu / limit);
  });
}

// Measures the cost of less scratch.
void BenchScratch(Session& session, const Workload& w) {
  const std::string name = fmt::format("scoring f32 {}, scratch", w.name);
  if (!session.Begins(name)) return;
  AttentionData data(w, DType::kF32);
  constexpr double kShares[] = {0.0, 0.25, 0.5};
  std::vector<Row*> rows;
  std::vector<Comparison*> costs;
  for (double share : kShares) {
    rows.push_back(&session.report.AddRow(
        fmt::format("{}: least + {:.0f} %", name, 100 * share), 1, "flop/s"));
    costs.push_back(&rows.back()->Against("time with the best size"));
  }
  Repeat(session, [&](bool measured) {
    const Timing best =
        data.Score(session.simd, KeyLayout::kTokenMajor, 1, 1.0);
    for (size_t i = 0; i < rows.size(); ++i) {
      const Timing timing =
          data.Score(session.simd, KeyLayout::kTokenMajor, 1, kShares[i]);
      if (!measured) continue;
      rows[i]->Add(timing, w.flops());
      costs[i]->ratio.Add(timing.cpu / best.cpu);
    }
  });
}

// Measures the cost of the variance of rows, and of a split's measures.
void BenchSpread(Session& session, const Workload& w) {
  const std::string name = fmt::format("scoring f32 {}, spread", w.name);
  if (!session.Begins(name)) return;
  AttentionData data(w, DType::kF32);
  struct Way {
    const char* name;
    float spread;
    bool measures;
    Row* row = nullptr;
    Comparison* cost = nullptr;
  };
  Way ways[] = {{"variance", 200.0f, false},
                {"variance, entropy measured", 200.0f, true}};
  for (Way& way : ways) {
    way.row = &session.report.AddRow(fmt::format("{}: {}", name, way.name), 1,
                                     "flop/s");
    way.cost = &way.row->Against("time of plain scoring");
  }
  Repeat(session, [&](bool measured) {
    const Timing plain = data.Score(session.simd, KeyLayout::kTokenMajor, 1);
    for (Way& way : ways) {
      const Timing timing = data.Score(session.simd, KeyLayout::kTokenMajor, 1,
                                       1.0, false, way.spread, way.measures);
      if (!measured) continue;
      way.row->Add(timing, w.flops());
      way.cost->ratio.Add(timing.cpu / plain.cpu);
    }
  });
}

}  // namespace

void BenchScoring(Session& session) {
  if (session.smoke) {
    BenchWorkload(session, kSmoke, DType::kF32);
    BenchWorkload(session, kSmoke, DType::kBF16);
    BenchScratch(session, kSmoke);
    BenchSpread(session, kSmoke);
    return;
  }
  for (const Workload& w : {kA, kB, kC, kOdd}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      BenchWorkload(session, w, dtype);
    }
  }
  BenchAvx2(session);
  for (const Workload& w : {kA, kB, kC, kG, kM}) BenchScratch(session, w);
  BenchSpread(session, kA);
}

}  // namespace kvevict::bench
