#include "tests/cuda/gates/occupancy.h"

#include <algorithm>
#include <iterator>

#include "tests/cuda/gates/machines.h"

namespace kvevict::cuda {
namespace {

constexpr uint32_t kRegisters = 65536;

uint32_t RoundUp(uint32_t n, uint32_t unit) {
  return (n + unit - 1) / unit * unit;
}

const MultiprocessorLimits& LimitsOf(int sm) {
  const MultiprocessorLimits* found = std::begin(kLimits);
  for (const MultiprocessorLimits& limits : kLimits) {
    if (limits.sm <= sm) found = &limits;
  }
  return *found;
}

}  // namespace

// A warp gets registers 256 at a time, four warps together. From sm_80 on the
// system takes 1 KB of shared memory for every block.
uint32_t BlocksPerMultiprocessor(const BlockNeeds& needs, int sm) {
  const MultiprocessorLimits& limits = LimitsOf(sm);
  const uint32_t n_warps = (needs.n_threads + 31) / 32;
  const uint32_t of_warp = RoundUp(std::max(needs.n_registers, 1u) * 32, 256);
  const uint32_t by_registers = kRegisters / of_warp / 4 * 4 / n_warps;
  const uint32_t shared =
      RoundUp(needs.shared_bytes, sm < 80 ? 256 : 128) + (sm < 80 ? 0 : 1024);
  const uint32_t by_shared = limits.shared_bytes / std::max(shared, 1u);
  return std::min(
      {limits.n_blocks, limits.n_warps / n_warps, by_registers, by_shared});
}

}  // namespace kvevict::cuda
