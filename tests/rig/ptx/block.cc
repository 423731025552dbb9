#include "tests/rig/ptx/block.h"

#include <algorithm>

#include "tests/rig/ptx/error.h"

namespace kvevict::ptx {
namespace {

// After so many instructions another lane has its turn, so nobody spins forever.
constexpr uint32_t kTurn = 200000;
// A long turn counts as so many idle turns.
constexpr uint64_t kIdleTurnsOfLongOne = 1000;

Access KindOf(Space space, bool is_store) {
  if (space == Space::kShared) {
    return is_store ? Access::kSharedStore : Access::kSharedLoad;
  }
  return is_store ? Access::kGlobalStore : Access::kGlobalLoad;
}

bool Within(const Range& range, uint64_t address, uint64_t bytes) {
  return address >= range.begin && address <= range.end &&
         bytes <= range.end - address;
}

bool WithinAny(const std::vector<Range>& ranges, uint64_t address,
               uint64_t bytes) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) {
    return Within(range, address, bytes);
  });
}

}  // namespace

Block::Block(Grid& g) : grid(g), params_(g.params.begin(), g.params.end()) {
  const auto n_threads = static_cast<uint32_t>(grid.shape.block.count());
  const size_t n_registers = grid.kernel.registers.size();
  registers_.resize(n_threads * n_registers);
  awaited_.resize(n_threads * n_registers);
  shared_.resize(grid.kernel.dynamic_shared_begin +
                 grid.shape.dynamic_shared_bytes);
  lanes_.resize(n_threads);
  for (uint32_t t = 0; t < n_threads; ++t) {
    lanes_[t].block = this;
    lanes_[t].thread = t;
    lanes_[t].registers = &registers_[t * n_registers];
    lanes_[t].awaited = &awaited_[t * n_registers];
  }
  for (uint32_t t = 0; t < n_threads; t += 32) {
    Warp& warp = warps_.emplace_back();
    warp.block = this;
    warp.first = t;
    warp.n_lanes = std::min(32u, n_threads - t);
  }
}

void Block::Start(uint64_t index) {
  index_ = index;
  std::fill(shared_.begin(), shared_.end(), 0xFF);
  const std::vector<uint64_t>& initial = grid.kernel.registers;
  n_alive_ = static_cast<uint32_t>(lanes_.size());
  n_at_barrier_ = 0;
  generation_ = 0;
  known_.Clear();
  for (Warp& warp : warps_) warp.Start();
  for (Lane& lane : lanes_) {
    std::copy(initial.begin(), initial.end(), lane.registers);
    SetSpecials(lane);
    lane.pc = 0;
    lane.state = LaneState::kRunning;
    lane.local.assign(grid.kernel.local_bytes, 0xFF);
    lane.committed.clear();
    lane.issued.clear();
    lane.known.Clear();
    runnable_.push_back(lane.thread);
  }
}

void Block::SetSpecials(Lane& lane) {
  const Dimensions& block = grid.shape.block;
  const Dimensions& blocks = grid.shape.grid;
  const uint64_t values[] = {lane.thread % block.x,
                             lane.thread / block.x % block.y,
                             lane.thread / block.x / block.y,
                             block.x,
                             block.y,
                             block.z,
                             index_ % blocks.x,
                             index_ / blocks.x % blocks.y,
                             index_ / blocks.x / blocks.y,
                             blocks.x,
                             blocks.y,
                             blocks.z};
  for (const Kernel::SpecialSlot& special : grid.kernel.specials) {
    lane.registers[special.slot] = values[static_cast<size_t>(special.special)];
  }
}

bool Block::Step() {
  if (runnable_.empty()) Fail("no thread can run: all wait for each other");
  const size_t drawn = grid.random() % runnable_.size();
  Lane& lane = lanes_[runnable_[drawn]];
  lane.state = LaneState::kRunning;
  try {
    RunLane(lane);
    if (lane.state == LaneState::kYielded) {
      // Time passes for threads that wait.
      if (grid.random() % 8 == 0) grid.in_flight.PerformOne();
      return false;
    }
    runnable_[drawn] = runnable_.back();
    runnable_.pop_back();
    grid.idle_turns = 0;
    AfterStop(lane);
  } catch (const Error& error) {
    const uint64_t line = lane.pc == 0 ? 0 : grid.kernel.code[lane.pc - 1].line;
    Fail("kernel " + grid.kernel.name + ", line " + std::to_string(line) +
         ", block " + std::to_string(index_) + ", thread " +
         std::to_string(lane.thread) + ": " + error.what());
  }
  return true;
}

void Block::RunLane(Lane& lane) {
  const Instruction* const code = grid.kernel.code.data();
  uint64_t* const executed = grid.executed.data();
  for (uint32_t n = 0; n < kTurn; ++n) {
    const Instruction& i = code[lane.pc];
    ++executed[lane.pc];
    ++lane.pc;
    if (i.guard != kNoSlot && lane.GetPredicate(i.guard) == i.guard_negated) {
      continue;
    }
    if (lane.n_awaited != 0) grid.in_flight.Await(lane, i);
    i.run(lane, i);
    if (lane.state != LaneState::kRunning) return;
  }
  lane.state = LaneState::kYielded;
  grid.idle_turns += kIdleTurnsOfLongOne;
}

void Block::AfterStop(Lane& lane) {
  Warp& warp = warps_[lane.warp()];
  warp.Note(lane);
  if (lane.state == LaneState::kAtWarp) {
    warp.TryCollective(lane);
    return;
  }
  if (lane.state == LaneState::kExited) {
    --n_alive_;
    if (lane.n_awaited != 0) grid.in_flight.Abandon(lane);
    if (done()) {
      grid.in_flight.CompleteWithin(shared_.data(), shared_.size());
    }
    if (warp.Alive() == 0) warp.traffic.Flush(grid.counters);
  } else {
    ++n_at_barrier_;
  }
  // Others may have waited for only this one.
  for (uint32_t k = 0; k < warp.n_lanes && warp.at_collective != 0; ++k) {
    if ((warp.at_collective >> k & 1) != 0) warp.TryCollective(warp.lane(k));
  }
  TryBarrier();
}

void Block::TryBarrier() {
  if (n_at_barrier_ == 0 || n_at_barrier_ < n_alive_) return;
  const Lane* first = nullptr;
  for (const Lane& lane : lanes_) {
    if (lane.state == LaneState::kExited) {
      Fail("divergent barrier: thread " + std::to_string(lane.thread) +
           " has ended, others wait in bar.sync");
    }
    if (first == nullptr) first = &lane;
    if (lane.pc != first->pc) FailDivergent(*first, lane);
  }
  n_at_barrier_ = 0;
  ++generation_;
  for (Lane& lane : lanes_) {
    known_.Add(lane.known);
    lane.known.Clear();
  }
  for (Warp& warp : warps_) warp.traffic.Flush(grid.counters);
  if (const Instruction& i = grid.kernel.code[first->pc - 1]; i.flag) {
    bool any = false;
    for (const Lane& lane : lanes_) {
      any |= lane.GetPredicate(i.slots[2]) != i.source_negated;
    }
    for (Lane& lane : lanes_) lane.Set<uint8_t>(i.slots[0], any);
  }
  for (Lane& lane : lanes_) Resume(lane);
}

void Block::Resume(Lane& lane) {
  lane.state = LaneState::kRunning;
  warps_[lane.warp()].Note(lane);
  runnable_.push_back(lane.thread);
}

void Block::FailDivergent(const Lane& a, const Lane& b) const {
  const auto where = [this](const Lane& lane) {
    return "thread " + std::to_string(lane.thread) + " waits at line " +
           std::to_string(grid.kernel.code[lane.pc - 1].line) + " (" +
           grid.kernel.opcodes[lane.pc - 1] + ")";
  };
  Fail("divergent barrier: " + where(a) + ", " + where(b));
}

uint8_t* Block::Find(const Lane& lane, Space space, uint64_t address,
                     uint32_t bytes) {
  const Kernel& kernel = grid.kernel;
  switch (space) {
    case Space::kShared: {
      const uint64_t dynamic = kernel.dynamic_shared_begin;
      if (WithinAny(kernel.shared, address, bytes) ||
          Within({dynamic, shared_.size()}, address, bytes)) {
        return &shared_[address];
      }
      Fail("out of bounds of shared memory: " + std::to_string(bytes) +
           " bytes at " + Hex(address));
    }
    case Space::kLocal:
      if (!Within({0, lane.local.size()}, address, bytes)) {
        Fail("out of bounds of local memory at " + Hex(address));
      }
      return const_cast<uint8_t*>(&lane.local[address]);
    case Space::kParam:
      if (!WithinAny(kernel.params, address, bytes)) {
        Fail("out of bounds of the parameters at " + Hex(address));
      }
      return &params_[address];
    default:
      return grid.memory.At(address, bytes);
  }
}

Place Block::Touch(const Lane& lane, const Instruction& i, Space space,
                   uint64_t address, uint32_t bytes, bool is_store) {
  if (address % bytes != 0) {
    Fail("misaligned: " + std::to_string(bytes) + " bytes at " + Hex(address));
  }
  uint8_t* found = Find(lane, space, address, bytes);
  if (is_store) {
    if (space == Space::kParam) Fail("store to a parameter");
    grid.idle_turns = 0;
  }
  if (grid.options.count_traffic &&
      (space == Space::kGlobal || space == Space::kShared)) {
    const auto instruction =
        static_cast<uint32_t>(&i - grid.kernel.code.data());
    warps_[lane.warp()].traffic.Note(instruction, lane.index(),
                                     KindOf(space, is_store), address, bytes);
  }
  if (InFlight::Has(space)) {
    grid.in_flight.Settle(lane, found, bytes, is_store);
    if (grid.options.find_races) {
      grid.races.Note(lane, grid.in_flight.MarkOf(lane), i, found, bytes,
                      is_store, space == Space::kShared);
    }
  }
  return {found, space};
}

bool Lane::ComesAfter(const Mark& access) const {
  return access.block == block->index()
             ? access.generation < block->generation() ||
                   access.thread == thread || known.Has(access)
             : known.Has(access) || block->known().Has(access);
}

Place Lane::Load(const Instruction& i, Space space, uint64_t address,
                 uint32_t bytes) {
  return block->Touch(*this, i, space, address, bytes, false);
}

Place Lane::Store(const Instruction& i, Space space, uint64_t address,
                  uint32_t bytes) {
  return block->Touch(*this, i, space, address, bytes, true);
}

}  // namespace kvevict::ptx
