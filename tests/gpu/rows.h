// Timings as a table: what a first hour on a GPU decides, a row for each question.
#ifndef KVEVICT_TESTS_GPU_ROWS_H_
#define KVEVICT_TESTS_GPU_ROWS_H_

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/gpu/checks.h"
#include "tests/gpu/library.h"
#include "tests/gpu/rows_cache.h"
#include "tests/gpu/stopwatch.h"

namespace kvevict::gpu::rows {

// What a row's work is made with.
struct Bed {
  const Gpu& gpu;
  const Library& library;
  std::shared_ptr<kvevict_context> context;
  uint64_t seed;
};

// A plan for caches of a shape, with frequencies of RoPE if there are any.
std::shared_ptr<kvevict_plan> PlanOf(
    const Bed& bed, const CacheShape& shape, kvevict_dtype q_dtype,
    const std::string& policy, const std::vector<float>& frequencies = {});

// A row's work, with all that it needs.
struct Work {
  std::function<void()> run;
  std::function<void()> prepare = [] {};  // before each run, not timed
  uint64_t bytes = 0;                     // read and written
  uint64_t flops = 0;
};

enum class By {
  kGraph,  // launches of a graph that was captured once
  kQueue   // calls, whose host time counts as well
};

struct Row {
  std::string
      group;  // machine, attention, scores, evictions, observations, moves or green
  std::string name;
  By by;
  uint64_t memory;  // bytes of the GPU that the work needs, about
  std::function<Work(const Bed&)> make;
  uint32_t multiprocessors = 0;  // in a green context of so many; 0: in none
};

// Models and lengths as they are, or tiny with the same heads and dtypes.
struct Scale {
  bool full;

  Model Of(Model model) const;
  uint32_t Tokens(uint32_t n) const;
  uint32_t Sequences(uint32_t n) const { return full ? n : 3; }
};

inline constexpr Model k128 = {"36 layers of 128, group 4", 36, 32, 8, 128};
inline constexpr Model k256Group6 = {"16 layers of 256, group 6", 16, 24, 4,
                                     256};
inline constexpr Model k256Group8 = {"16 layers of 256, group 8", 16, 16, 2,
                                     256};

std::vector<Row> MachineRows(const Scale& scale);
std::vector<Row> AttentionRows(const Scale& scale);
std::vector<Row> ScoreRows(const Scale& scale);
std::vector<Row> EvictionRows(const Scale& scale);
std::vector<Row> ObservationRows(const Scale& scale);
std::vector<Row> MoveRows(const Scale& scale);
// All of them, those first that decide most.
std::vector<Row> AllRows(const Scale& scale);

struct RowOptions {
  std::string named;    // only rows with this in their group or name
  std::string against;  // a libkvevict.so to compare with
  double seconds;       // no row begins later; 0: no limit
};

// Adds to *out for each row its milliseconds, or why there are none: "skipped" or
// "failed". With `against` the two libraries take turns, and a row has the ratio of
// this program's time to the other's. Calls `save` after each row. Returns how many
// failed.
int TimeRows(const Gpu& gpu, const Effort& effort, const RowOptions& options,
             const Limits& limits, const std::function<void()>& save,
             nlohmann::json* out);

}  // namespace kvevict::gpu::rows

#endif  // KVEVICT_TESTS_GPU_ROWS_H_
