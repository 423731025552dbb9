// Window attention of all KV heads: both layouts, one and two threads.
#include <fmt/format.h>

#include <cmath>
#include <stdexcept>

#include "core/dtype.h"
#include "hwy/targets.h"
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
// held to the f32 peak; only workload A has a goal for it.
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

// The weights of query head 0 against a reference that is no more exact.
void CheckResult(const AttentionData& data, const float* expected,
                 const char* reference) {
  for (uint32_t j = 0; j < data.workload().n_tokens; ++j) {
    const float got = data.weights()[j];
    if (!(std::abs(got - expected[j]) <= 1e-3f * expected[j])) {
      throw std::runtime_error(
          fmt::format("scoring {}: key {} weighs {}, {} scoring says {}",
                      data.workload().name, j, got, reference, expected[j]));
    }
  }
}

// A call of the kernel, or as many as fill a few milliseconds.
Timing Score(AttentionData& data, KeyLayout layout, uint32_t n_threads) {
  Timing total;
  uint32_t n = 0;
  do {
    const Timing timing = data.Score(layout, n_threads);
    total.wall += timing.wall;
    total.cpu += timing.cpu;
    ++n;
  } while (total.cpu < 5e-3);
  return {total.wall / n, total.cpu / n};
}

// Row-dot and naive scoring take 1/n_q_heads of the work and are scaled up.
class References {
 public:
  References(const AttentionData& data, Report& report)
      : data_(data), expected_(data.workload().n_tokens) {
    const std::string name = data.workload().name;
    const std::string note =
        fmt::format("1 of {} query heads, times {}", data.workload().n_q_heads,
                    data.workload().n_q_heads);
    row_dot_ = &report.AddRow("row-dot scoring f32 " + name, 1, "flop/s");
    naive_ = &report.AddRow("naive scoring f32 " + name, 1, "flop/s");
    row_dot_->note = note;
    naive_->note = note;
  }

  // Returns the seconds that row-dot and naive scoring would take.
  std::pair<double, double> Measure(bool measured) {
    return {Measure(RowDotScores, "row-dot", *row_dot_, measured),
            Measure(NaiveScores, "naive", *naive_, measured)};
  }

 private:
  template <class Reference>
  double Measure(const Reference& reference, const char* name, Row& row,
                 bool measured) {
    const uint32_t n = data_.workload().n_q_heads;
    Timing timing = TimeCalls(
        [&] { reference(data_, KeyLayout::kHeadMajor, 0, expected_.data()); },
        5e-3);
    timing.wall *= n;
    timing.cpu *= n;
    CheckResult(data_, expected_.data(), name);
    if (measured) row.Add(timing, data_.workload().flops());
    return timing.cpu;
  }

  const AttentionData& data_;
  std::vector<float> expected_;
  Row* row_dot_;
  Row* naive_;
};

void BenchWorkload(Session& session, const Workload& w, DType dtype) {
  const std::string name = fmt::format(
      "scoring {} {}", ElementBytes(dtype) == 4 ? "f32" : "bf16", w.name);
  if (!session.wants(name)) return;
  session.announce(name);
  AttentionData data(w, dtype);
  const ScoringGoals goals = GoalsOf(w, dtype);
  // Naive scoring of B takes seconds per head, and tells nothing new.
  const bool has_references = dtype == DType::kF32 && w.n_tokens <= 16384;
  std::optional<References> references;

  struct PerThreads {
    Row* token_major;
    Row* head_major;
    Comparison* peak[2];
    Comparison* layout;
    Comparison* row_dot;
    Comparison* naive;
  } rows[2];
  for (uint32_t threads : {1u, 2u}) {
    PerThreads& r = rows[threads - 1];
    r.token_major =
        &session.report.AddRow(name + " [S, H, D]", threads, "flop/s");
    r.head_major =
        &session.report.AddRow(name + " [H, S, D]", threads, "flop/s");
    r.peak[0] =
        &r.token_major->Against("f32 FMA peak", goals.peak[threads - 1]);
    r.peak[1] = &r.head_major->Against("f32 FMA peak", goals.peak[threads - 1]);
    r.layout = &r.token_major->Against("time of [H, S, D]", goals.layout);
    if (has_references) {
      r.row_dot = &r.head_major->Against("row-dot scoring, 1 thread",
                                         goals.row_dot[threads - 1]);
      r.naive = &r.head_major->Against("naive scoring, 1 thread");
    }
  }
  Comparison& speed_up = rows[1].head_major->Against("1 thread, wall");
  if (has_references) references.emplace(data, session.report);

  bool idle = true;
  Repeat(session, [&](bool measured) {
    Timing head_major[2];
    for (uint32_t threads : {1u, 2u}) {
      PerThreads& r = rows[threads - 1];
      const double peak = session.limits.FmaFlops(threads);
      const Timing token = Score(data, KeyLayout::kTokenMajor, threads);
      const Timing head = Score(data, KeyLayout::kHeadMajor, threads);
      head_major[threads - 1] = head;
      if (!measured) continue;
      r.token_major->Add(token, w.flops());
      r.head_major->Add(head, w.flops());
      r.peak[0]->ratio.Add(w.flops() / token.cpu / peak);
      r.peak[1]->ratio.Add(w.flops() / head.cpu / peak);
      r.layout->ratio.Add(token.cpu / head.cpu);
      if (head.wall > 1.05 * head.cpu / threads) idle = false;
    }
    if (measured) speed_up.ratio.Add(head_major[0].wall / head_major[1].wall);
    if (!has_references) return;
    const auto [row_dot, naive] = references->Measure(measured);
    if (!measured) return;
    for (uint32_t threads : {1u, 2u}) {
      const double seconds = head_major[threads - 1].cpu / threads;
      rows[threads - 1].row_dot->ratio.Add(row_dot / seconds);
      rows[threads - 1].naive->ratio.Add(naive / seconds);
    }
  });
  if (idle) {
    speed_up.goal = goals.speed_up;
  } else if (goals.speed_up) {
    rows[1].head_major->note =
        "speed-up not judged: the machine is busy, wall exceeds CPU time";
  }
}

// The same data with the dispatch held back to AVX2, against what AVX2 can do.
void BenchAvx2(Session& session) {
#if defined(HWY_AVX2)
  const std::string name = "scoring f32 A, AVX2 only";
  const int64_t targets = hwy::SupportedTargets();
  if (!session.wants(name) || (targets & HWY_AVX2) == 0) return;
  session.announce(name);
  AttentionData data(kA, DType::kF32);
  Row& row = session.report.AddRow(name, 1, "flop/s");
  Comparison& peak = row.Against("256-bit f32 FMA peak", Goal{0.50, 0.73});
  hwy::SetSupportedTargetsForTest(targets & ~(HWY_AVX2 - 1));
  Repeat(session, [&](bool measured) {
    const double limit = session.limits.FmaFlops(1);
    const Timing timing = Score(data, KeyLayout::kTokenMajor, 1);
    if (!measured) return;
    row.Add(timing, kA.flops());
    peak.ratio.Add(kA.flops() / timing.cpu / limit);
  });
  hwy::SetSupportedTargetsForTest(0);
#endif
}

}  // namespace

void BenchScoring(Session& session) {
  if (session.smoke) {
    BenchWorkload(session, kSmoke, DType::kF32);
    BenchWorkload(session, kSmoke, DType::kBF16);
    return;
  }
  for (const Workload& w : {kA, kB, kC, kOdd}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      BenchWorkload(session, w, dtype);
    }
  }
  BenchAvx2(session);
}

}  // namespace kvevict::bench
