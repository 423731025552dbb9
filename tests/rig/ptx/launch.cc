#include "tests/rig/ptx/launch.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <vector>

#include "tests/rig/ptx/block.h"
#include "tests/rig/ptx/error.h"

namespace kvevict::ptx {
namespace {

// A block has so many turns in a row: switching between blocks empties caches.
constexpr int kTurnsPerBlock = 64;

void CheckShape(const Kernel& kernel, const LaunchShape& shape,
                std::span<const uint8_t> params) {
  const uint64_t threads = shape.block.count();
  if (shape.grid.count() == 0 || threads == 0) Fail("an empty launch");
  if (threads > kernel.max_threads || threads > 1024) {
    Fail(std::to_string(threads) + " threads per block, declared are " +
         std::to_string(kernel.max_threads));
  }
  if (params.size() != kernel.param_bytes) {
    Fail(std::to_string(params.size()) + " bytes of parameters, declared are " +
         std::to_string(kernel.param_bytes));
  }
}

}  // namespace

void Launch(const Kernel& kernel, const LaunchShape& shape,
            std::span<const uint8_t> params, Memory& memory,
            const LaunchOptions& options, Counters& counters) {
  CheckShape(kernel, shape, params);
  Grid grid = {kernel,
               shape,
               params,
               memory,
               options,
               counters,
               std::vector<uint64_t>(kernel.code.size()),
               std::mt19937_64(options.seed)};
  std::vector<uint64_t> waiting(shape.grid.count());
  std::iota(waiting.begin(), waiting.end(), uint64_t{0});
  std::shuffle(waiting.begin(), waiting.end(), grid.random);

  std::deque<Block> blocks;  // lanes point to their block
  std::vector<Block*> resident;
  const auto start_next = [&](Block& block) {
    if (waiting.empty()) return false;
    block.Start(waiting.back());
    waiting.pop_back();
    return true;
  };
  while (!waiting.empty() && blocks.size() < options.resident_blocks) {
    start_next(blocks.emplace_back(grid));
    resident.push_back(&blocks.back());
  }

  while (!resident.empty()) {
    const size_t drawn = grid.random() % resident.size();
    Block& block = *resident[drawn];
    for (int turn = 0; turn < kTurnsPerBlock && !block.done(); ++turn) {
      if (block.Step()) continue;
      if (++grid.idle_turns > options.max_idle_turns &&
          !grid.in_flight.PerformAll()) {
        Fail("kernel " + kernel.name + ": threads spin and nobody else runs");
      }
      break;
    }
    if (block.done() && !start_next(block)) {
      resident.erase(resident.begin() + static_cast<ptrdiff_t>(drawn));
    }
  }

  grid.in_flight.PerformAll();
  ++counters.launches;
  for (size_t k = 0; k < kernel.code.size(); ++k) {
    if (grid.executed[k] != 0) {
      counters.instructions[kernel.opcodes[k]] += grid.executed[k];
    }
  }
}

}  // namespace kvevict::ptx
