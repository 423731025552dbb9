// A resident block: its lanes, its shared memory, and who may run.
#ifndef KVEVICT_TESTS_RIG_PTX_BLOCK_H_
#define KVEVICT_TESTS_RIG_PTX_BLOCK_H_

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "tests/rig/ptx/in_flight.h"
#include "tests/rig/ptx/kernel.h"
#include "tests/rig/ptx/lane.h"
#include "tests/rig/ptx/launch.h"
#include "tests/rig/ptx/races.h"
#include "tests/rig/ptx/traffic.h"
#include "tests/rig/ptx/warp.h"

namespace kvevict::ptx {

// All blocks of a launch share these.
struct Grid {
  const Kernel& kernel;
  const LaunchShape& shape;
  std::span<const uint8_t> params;
  Memory& memory;
  const LaunchOptions& options;
  Counters& counters;
  std::vector<uint64_t> executed;  // executions, by instruction
  std::mt19937_64 random;
  InFlight in_flight{random};
  Races races{random};
  uint64_t idle_turns = 0;
};

class Block {
 public:
  explicit Block(Grid& grid);

  // Begins the block with this index. The one before must be done.
  void Start(uint64_t index);
  bool done() const { return n_alive_ == 0; }
  uint64_t index() const { return index_; }
  // The number of barriers that it has passed.
  uint32_t generation() const { return generation_; }
  // All threads know this since the last barrier.
  const Knowledge& known() const { return known_; }

  // Runs one lane until it waits, ends or yields; false if it yielded.
  bool Step();

  void Resume(Lane& lane);

  // The bytes of an access after its checks; it is counted. Throws Error.
  Place Touch(const Lane& lane, const Instruction& i, Space space,
              uint64_t address, uint32_t bytes, bool is_store);

  Grid& grid;

 private:
  friend class Warp;

  void SetSpecials(Lane& lane);
  void RunLane(Lane& lane);
  void AfterStop(Lane& lane);
  void TryBarrier();
  [[noreturn]] void FailDivergent(const Lane& a, const Lane& b) const;
  uint8_t* Find(const Lane& lane, Space space, uint64_t address,
                uint32_t bytes);

  uint64_t index_ = 0;
  std::vector<uint64_t> registers_;  // of all lanes
  std::vector<uint16_t> awaited_;    // of all lanes
  std::vector<uint8_t> shared_;
  std::vector<uint8_t> params_;
  std::vector<Lane> lanes_;
  std::vector<Warp> warps_;
  std::vector<uint32_t> runnable_;  // lanes, in no order
  uint32_t n_alive_ = 0;
  uint32_t n_at_barrier_ = 0;
  uint32_t generation_ = 0;
  Knowledge known_;
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_BLOCK_H_
