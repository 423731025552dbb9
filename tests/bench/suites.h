// The groups of rows.
#ifndef KVEVICT_TESTS_BENCH_SUITES_H_
#define KVEVICT_TESTS_BENCH_SUITES_H_

#include <cstdint>
#include <functional>
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
  Limits limits;
  Report report;
};

// Calls repetition(measured) once to warm up, with false, and then with true.
template <class Repetition>
void Repeat(const Session& session, const Repetition& repetition) {
  for (uint32_t i = 0; i <= session.repetitions; ++i) repetition(i > 0);
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
void BenchTail(Session& session);
void BenchRotate(Session& session);
void BenchSequence(Session& session);
void BenchBatch(Session& session);
void BenchDecode(Session& session);
void BenchAttend(Session& session);
void BenchPaged(Session& session);
void BenchTables(Session& session);
void BenchRequantize(Session& session);

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_SUITES_H_
