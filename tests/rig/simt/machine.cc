#include "tests/rig/simt/machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

namespace kvevict::simt {
namespace {

Machine* current;

constexpr size_t kStackBytes = 256 << 10;

std::deque<std::unique_ptr<Fiber>>& IdleFibers() {
  static auto& fibers = *new std::deque<std::unique_ptr<Fiber>>;
  return fibers;
}

std::unique_ptr<Fiber> TakeFiber() {
  auto& idle = IdleFibers();
  if (idle.empty()) return std::make_unique<Fiber>(kStackBytes);
  auto fiber = std::move(idle.front());
  idle.pop_front();
  return fiber;
}

// A launch counts as stuck after looking so often at a flag per thread.
constexpr uint64_t kVainLooks = 2000;

// Threads that gave way come after all others, the last one at the end.
constexpr uint64_t kEager = uint64_t{1} << 63;

unsigned Count(Dim3 d) { return d.x * d.y * d.z; }

Dim3 IndexOf(unsigned linear, Dim3 size) {
  return {linear % size.x, linear / size.x % size.y,
          linear / (size.x * size.y)};
}

}  // namespace

Machine& machine() { return *current; }

std::string LaunchErased(void (*call)(const void* context), const void* context,
                         Dim3 grid, Dim3 block, size_t dynamic_shared_bytes,
                         const Options& options) {
  if (Count(block) == 0 || Count(block) % kWarpSize != 0 ||
      Count(block) > 1024) {
    return "a block of " + std::to_string(Count(block)) +
           " threads: not 1 to 32 whole warps";
  }
  if (Count(grid) == 0) return "a grid without blocks";
  if (grid.y > 65535 || grid.z > 65535) return "a grid above 65535 in y or z";
  if (options.resident_blocks == 0) return "no resident blocks";
  Machine machine(call, context, grid, block, dynamic_shared_bytes, options);
  return machine.Run();
}

Machine::Machine(void (*call)(const void*), const void* context, Dim3 grid,
                 Dim3 block, size_t dynamic_shared_bytes,
                 const Options& options)
    : call_(call),
      context_(context),
      grid_(grid),
      block_(block),
      dynamic_shared_bytes_(dynamic_shared_bytes),
      options_(options),
      random_{options.seed},
      blocks_to_come_(Count(grid)),
      last_patience_(kEager) {
  for (unsigned i = 0; i < blocks_to_come_.size(); ++i) blocks_to_come_[i] = i;
  std::shuffle(blocks_to_come_.begin(), blocks_to_come_.end(), random_);
  current = this;
}

Machine::~Machine() { current = nullptr; }

std::string Machine::Run() {
  StartBlocks();
  while (error_.empty() && !ready_.empty()) {
    running_ = ready_.top().thread;
    ready_.pop();
    running_->waits_at = nullptr;
    program_.SwitchTo(*running_->fiber);
    Block& block = *running_->block;
    running_ = nullptr;
    if (block.n_returned == block.threads.size()) {
      EndBlock(block);
      StartBlocks();
    }
  }
  if (error_.empty() && !blocks_.empty()) {
    error_ = "deadlock: " + DescribeWaiting();
  }
  AbandonAll();
  return std::move(error_);
}

// ---- Blocks ----

void* AddShared(Block& block, const void* id, size_t n_bytes) {
  auto* const bytes = static_cast<char*>(std::malloc(n_bytes));
  if (n_bytes != 0) std::memset(bytes, 0xff, n_bytes);
  block.shared.push_back({id, bytes, n_bytes});
  return bytes;
}

void Machine::StartBlocks() {
  while (blocks_.size() < options_.resident_blocks &&
         !blocks_to_come_.empty()) {
    const unsigned linear = blocks_to_come_.back();
    blocks_to_come_.pop_back();
    StartBlock(linear);
  }
}

void Machine::StartBlock(unsigned linear_index) {
  blocks_.push_back(std::make_unique<Block>());
  Block& block = *blocks_.back();
  const unsigned n_threads = Count(block_);
  block.index = IndexOf(linear_index, grid_);
  AddShared(block, nullptr, dynamic_shared_bytes_);
  block.warps = std::vector<Warp>(n_threads / kWarpSize);
  for (Warp& warp : block.warps) {
    warp.rendezvous.slots.resize(kWarpSize);
  }
  block.threads = std::vector<Thread>(n_threads);
  block.rendezvous.slots.resize(n_threads);
  for (unsigned i = 0; i < n_threads; ++i) {
    Thread& thread = block.threads[i];
    thread.block = &block;
    thread.warp = &block.warps[i / kWarpSize];
    thread.index = IndexOf(i, block_);
    thread.linear = i;
    block.rendezvous.members.push_back(&thread);
    thread.warp->rendezvous.members.push_back(&thread);
    thread.fiber = TakeFiber();
    thread.fiber->Start(&ThreadMain);
    MakeReady(thread);
  }
}

void Machine::EndBlock(Block& block) {
  for (Thread& thread : block.threads) {
    IdleFibers().push_back(std::move(thread.fiber));
  }
  for (const SharedArea& shared : block.shared) std::free(shared.bytes);
  std::erase_if(blocks_, [&](const auto& b) { return b.get() == &block; });
}

void Machine::AbandonAll() {
  for (const auto& block : blocks_) {
    for (const SharedArea& shared : block->shared) std::free(shared.bytes);
  }
  blocks_.clear();
}

// ---- Threads ----

void Machine::ThreadMain() { current->CallKernel(); }

void Machine::CallKernel() {
  call_(context_);
  Thread& self = *running_;
  NoteReturn(self.warp->rendezvous, self);
  NoteReturn(self.block->rendezvous, self);
  self.returned = true;
  ++self.block->n_returned;
  NoteProgress();
  self.fiber->SwitchTo(program_);
}

void Machine::NoteReturn(Rendezvous& rendezvous, const Thread& thread) {
  ++rendezvous.n_returned;
  if (rendezvous.n_waiting == 0) return;
  set_error(Describe(thread) + " returned while others wait in " +
            Describe(rendezvous.what, rendezvous.site));
  Stop();
}

void Machine::MakeReady(Thread& thread) {
  ready_.push({kEager | random_(), &thread});
}

void Machine::Suspend() { running_->fiber->SwitchTo(program_); }

void Machine::GiveWay(const char* what, const Site& site) {
  running_->waits_at = what;
  running_->site = site;
  size_t n_threads = blocks_.size() * Count(block_);
  if (++n_vain_looks_ > kVainLooks * n_threads) {
    set_error("threads look in vain: " + DescribeWaiting());
    Stop();
  }
  ready_.push({--last_patience_, running_});
  Suspend();
}

// ---- Errors ----

void Machine::Stop() {
  Suspend();
  std::abort();
}

std::string Describe(const Thread& thread) {
  const Dim3& b = thread.block->index;
  return "block (" + std::to_string(b.x) + "," + std::to_string(b.y) + "," +
         std::to_string(b.z) + ") thread " + std::to_string(thread.linear);
}

std::string Describe(const char* what, const Site& site) {
  return std::string(what) + " at " + site.file + ":" +
         std::to_string(site.line);
}

std::string Machine::DescribeWaiting() const {
  std::map<std::string, std::pair<unsigned, const Thread*>> places;
  for (const auto& block : blocks_) {
    for (const Thread& thread : block->threads) {
      if (thread.returned) continue;
      auto& place = places[thread.waits_at == nullptr
                               ? "no barrier"
                               : Describe(thread.waits_at, thread.site)];
      if (place.first++ == 0) place.second = &thread;
    }
  }
  std::string text;
  for (const auto& [where, who] : places) {
    if (!text.empty()) text += "; ";
    text += std::to_string(who.first) + " in " + where + ", such as " +
            Describe(*who.second);
  }
  return text;
}

}  // namespace kvevict::simt
