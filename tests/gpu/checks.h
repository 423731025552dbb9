// Everything the library does on a GPU, compared with the CPU.
#ifndef KVEVICT_TESTS_GPU_CHECKS_H_
#define KVEVICT_TESTS_GPU_CHECKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/gpu/report.h"
#include "tests/gpu/twin.h"

namespace kvevict::gpu {

// How much to try: little for an interpreter of kernels, everything for a GPU.
struct Effort {
  bool full;
  uint64_t seed;
  uint32_t n_equal_runs;  // for determinism
  uint32_t times;         // as many random cases, and long lives
};

// Random cases of tests/capi, against the oracle or a naive loop, in the process's own
// memory. A GPU that cannot read it runs none and says so.
void CheckScores(const Gpu& gpu, const Effort& effort, Report* report);
void CheckAttention(const Gpu& gpu, const Effort& effort, Report* report);
void CheckMoves(const Gpu& gpu, const Effort& effort, Report* report);
void CheckLives(const Gpu& gpu, const Effort& effort, Report* report);
void CheckPages(const Gpu& gpu, const Effort& effort, Report* report);
void CheckEvictions(const Gpu& gpu, const Effort& effort, Report* report);
// Several runs give the same bytes.
void CheckDeterminism(const Gpu& gpu, const Effort& effort, Report* report);
// Many sequences in one call, and then each under another plan.
void CheckBatches(const Gpu& gpu, const Effort& effort, Report* report);
// Redundancy and merging, where cosines are next to thresholds.
void CheckNearKeys(const Gpu& gpu, const Effort& effort, Report* report);
// Rows whose elements, scales or minima kernels cannot load.
void CheckAlignment(const Gpu& gpu, const Effort& effort, Report* report);
// One sequence on several streams.
void CheckStreams(const Gpu& gpu, const Effort& effort, Report* report);
// A plan can do what it says, for odd shapes and layouts too.
void CheckCapabilities(const Gpu& gpu, const Effort& effort, Report* report);
// Statistics of queries that lie on the device.
void CheckCalibration(const Gpu& gpu, const Effort& effort, Report* report);
// The first user's prompt: token-major rings shrink by a factor of 8, decoding
// goes on at the right slot and position, and policy none changes nothing.
void CheckAcceptance(const Gpu& gpu, const Effort& effort, Report* report);
// The last part of CheckAcceptance().
void CheckPolicyNone(const Gpu& gpu, const Effort& effort, Report* report);

struct Part {
  const char* name;
  void (*run)(const Gpu&, const Effort&, Report*);
};

inline constexpr Part kParts[] = {
    {"scores", CheckScores},
    {"attention", CheckAttention},
    {"moves", CheckMoves},
    {"lives", CheckLives},
    {"pages", CheckPages},
    {"near_keys", CheckNearKeys},
    {"alignment", CheckAlignment},
    {"capabilities", CheckCapabilities},
    {"calibration", CheckCalibration},
    {"evictions", CheckEvictions},
    {"determinism", CheckDeterminism},
    {"acceptance", CheckAcceptance},
    {"streams", CheckStreams},
    {"batches", CheckBatches},
};

inline std::vector<std::string> PartNames() {
  std::vector<std::string> names;
  for (const Part& part : kParts) names.emplace_back(part.name);
  return names;
}

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_CHECKS_H_
