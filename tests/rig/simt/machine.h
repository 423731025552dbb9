// The state of a launch: blocks, warps, threads, and who may run.
//
// All of it belongs to one thread of the operating system; fibers take turns.
#ifndef KVEVICT_TESTS_RIG_SIMT_MACHINE_H_
#define KVEVICT_TESTS_RIG_SIMT_MACHINE_H_

#include <cstdint>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/rig/simt/fiber.h"
#include "tests/rig/simt/simt.h"
#include "tests/rig/simt/thread.h"

namespace kvevict::simt {

inline constexpr unsigned kWarpSize = 32;

struct Thread;
struct Block;

// The threads of a block or a warp wait here until all are there.
struct Rendezvous {
  std::vector<Thread*> members;
  std::vector<void*> slots;  // what each member brought
  unsigned n_waiting = 0;
  unsigned n_returned = 0;
  const char* what = nullptr;  // of those who wait
  Site site;
};

struct Warp {
  Rendezvous rendezvous;
};

struct Thread {
  Block* block = nullptr;
  Warp* warp = nullptr;
  Dim3 index;
  unsigned linear = 0;  // in its block
  std::unique_ptr<Fiber> fiber;
  bool returned = false;
  const char* waits_at = nullptr;  // nullptr: ready or running
  Site site;
  std::vector<Copy> copies;  // in order
  unsigned n_groups = 0;     // committed
};

// An array of shared memory.
struct SharedArea {
  const void* id;  // nullptr: the dynamic one
  char* bytes;
  size_t n_bytes;
};

struct Block {
  Dim3 index;
  Rendezvous rendezvous;
  std::vector<Warp> warps;
  std::vector<Thread> threads;
  std::vector<SharedArea> shared;
  unsigned n_returned = 0;
};

// The new area's bytes, all 0xFF.
void* AddShared(Block& block, const void* id, size_t n_bytes);

struct ReadyThread {
  uint64_t urgency;
  Thread* thread;
  bool operator<(const ReadyThread& other) const {
    return urgency < other.urgency;
  }
};

struct Generator {
  using result_type = uint64_t;
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }

  uint64_t operator()() {  // splitmix64
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  uint64_t state;
};

class Machine {
 public:
  Machine(void (*call)(const void*), const void* context, Dim3 grid, Dim3 block,
          size_t dynamic_shared_bytes, const Options& options);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  std::string Run();

  // The rest is for the running thread.

  void MakeReady(Thread& thread);
  // Runs others until somebody makes this thread ready.
  void Suspend();
  // Runs others first; `what` is Thread::waits_at if nobody ever gets on.
  void GiveWay(const char* what, const Site& site);
  void NoteProgress() { n_vain_looks_ = 0; }
  bool Chance(unsigned one_in) { return random_() % one_in == 0; }
  void set_error(std::string text) { error_ = std::move(text); }
  // Ends the launch; call set_error first. Objects on this thread's stack are
  // never destroyed, so they may not own memory.
  [[noreturn]] void Stop();

  Thread* running() const { return running_; }
  const Dim3& grid() const { return grid_; }
  const Dim3& block() const { return block_; }
  const Options& options() const { return options_; }

 private:
  static void ThreadMain();
  void StartBlocks();
  void StartBlock(unsigned linear_index);
  void EndBlock(Block& block);
  void AbandonAll();
  void CallKernel();
  void NoteReturn(Rendezvous& rendezvous, const Thread& thread);
  std::string DescribeWaiting() const;

  void (*const call_)(const void*);
  const void* const context_;
  const Dim3 grid_;
  const Dim3 block_;
  const size_t dynamic_shared_bytes_;
  const Options options_;

  Fiber program_;
  Generator random_;
  std::vector<unsigned> blocks_to_come_;
  std::vector<std::unique_ptr<Block>> blocks_;  // resident
  std::priority_queue<ReadyThread> ready_;
  Thread* running_ = nullptr;
  uint64_t last_patience_;  // given to one that gave way
  uint64_t n_vain_looks_ = 0;
  std::string error_;
};

// The launch that runs; kernels run nowhere else.
Machine& machine();

// "block (1,0,0) thread 3"
std::string Describe(const Thread& thread);
// "BlockSync at topk.cu:12"
std::string Describe(const char* what, const Site& site);

}  // namespace kvevict::simt

#endif  // KVEVICT_TESTS_RIG_SIMT_MACHINE_H_
