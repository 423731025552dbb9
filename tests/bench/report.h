// Rows of results, judged, as a table or as JSON.
#ifndef KVEVICT_TESTS_BENCH_REPORT_H_
#define KVEVICT_TESTS_BENCH_REPORT_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "tests/bench/clocks.h"
#include "tests/bench/limits.h"
#include "tests/bench/machine.h"
#include "tests/bench/samples.h"

namespace kvevict::bench {

// `floor` must hold; `goal` is the aim.
struct Goal {
  double floor;
  double goal;
  bool at_most = false;  // small is good
};

// Ratios of a row to something else, each formed inside one repetition.
struct Comparison {
  std::string against;
  std::optional<Goal> goal;
  Samples ratio;
};

enum class Verdict { kNone, kFloorMissed, kFloor, kGoal };
Verdict Judge(const Comparison& comparison);
const char* VerdictText(Verdict verdict);

struct Row {
  std::string name;
  uint32_t n_threads = 1;
  std::string rate_unit;  // per second of CPU time of one thread
  Samples rate;
  Samples milliseconds;  // CPU time, all threads together
  Samples wall_milliseconds;
  std::string note;
  std::deque<Comparison> comparisons;  // references to them stay valid

  void Add(const Timing& timing, double units);
  Comparison& Against(const std::string& what,
                      std::optional<Goal> goal = std::nullopt);
};

class Report {
 public:
  // The reference stays valid.
  Row& AddRow(const std::string& name, uint32_t n_threads,
              const std::string& rate_unit);

  bool missed_a_floor() const;
  std::string Table(const Machine& machine, const Limits& limits) const;
  std::string Json(const Machine& machine, const Limits& limits) const;

 private:
  std::deque<Row> rows_;
};

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_REPORT_H_
