// The groups of rows.
#ifndef KVEVICT_TESTS_BENCH_SUITES_H_
#define KVEVICT_TESTS_BENCH_SUITES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/simd.h"
#include "tests/bench/limits.h"
#include "tests/bench/report.h"

namespace kvevict::bench {

struct Session {
  uint32_t repetitions = 5;           // after one that warms up
  bool smoke = false;                 // small shapes, no goals
  SimdTarget simd = SimdTargetAt(0);  // the target that runs
  // Whether the group of rows of this name is wanted.
  std::function<bool(const std::string&)> wants;
  // Says on stderr what is being measured.
  std::function<void(const std::string&)> announce;
  // Whether these rows are wanted; they are measured then.
  bool Begins(const std::string& name) const {
    if (!wants(name)) return false;
    announce(name);
    return true;
  }
  // Small shapes have no goals.
  std::optional<Goal> Aim(std::optional<Goal> goal) const {
    return smoke ? std::nullopt : goal;
  }
  Limits limits;
  Report report;
};

// Calls repetition(measured) once to warm up, with false, and then with true.
template <class Repetition>
void Repeat(const Session& session, const Repetition& repetition) {
  for (uint32_t i = 0; i <= session.repetitions; ++i) repetition(i > 0);
}

// Something else that is timed in each repetition, before a row's own work.
struct Reference {
  const char* what;
  std::optional<Goal> goal;
  std::function<Timing()> run;
  bool is_whole = false;  // the ratio is the row's share of its time
};

// Measures a row that has so many units beside a reference.
inline void MeasureBeside(Session& session, const std::string& name,
                          const char* unit, double units,
                          const Reference& reference,
                          const std::function<Timing()>& run) {
  Row& row = session.report.AddRow(name, 1, unit);
  Comparison& beside = row.Against(reference.what, reference.goal);
  Repeat(session, [&](bool measured) {
    const Timing other = reference.run();
    const Timing timing = run();
    if (!measured) return;
    row.Add(timing, units);
    beside.ratio.Add(reference.is_whole ? timing.cpu / other.cpu
                                        : other.cpu / timing.cpu);
  });
}

// They throw std::runtime_error if a kernel's result is wrong.
void BenchLimits(Session& session);
void BenchScoring(Session& session);
void BenchH2o(Session& session);
void BenchRedundancy(Session& session);
void BenchMerge(Session& session);
void BenchFit(Session& session);
void BenchSignals(Session& session);
void BenchQuantized(Session& session);
void BenchSelect(Session& session);
void BenchCompact(Session& session);
void BenchSequence(Session& session);
void BenchBatch(Session& session);
void BenchDecode(Session& session);
void BenchAttend(Session& session);
void BenchPaged(Session& session);
void BenchTables(Session& session);
void BenchRequantize(Session& session);

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_SUITES_H_
