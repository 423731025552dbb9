// Blocks run one after the other, and the threads of a block in turn: each until it waits
// for others.
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "tests/rig/simt/fiber.h"
#include "tests/rig/simt/thread.h"
#include "tests/rig/tensor_core.h"

namespace kvevict::simt {
namespace {

constexpr unsigned kWarpSize = 32;
constexpr size_t kStackBytes = 256 << 10;

struct Thread;

// The threads of a block or a warp wait here until all are there.
struct Rendezvous {
  std::vector<Thread*> members;
  std::vector<void*> slots;  // what each member brought
  unsigned n_waiting = 0;
};

struct Thread {
  Dim3 index;
  unsigned linear = 0;  // in its block
  Rendezvous* warp = nullptr;
  std::unique_ptr<Fiber> fiber;
};

struct alignas(16) Line {
  uint8_t bytes[16];
};

// An array of shared memory.
struct SharedArea {
  const void* id;  // nullptr: the dynamic one
  std::unique_ptr<Line[]> bytes;
};

Dim3 IndexOf(unsigned linear, Dim3 size) {
  return {linear % size.x, linear / size.x % size.y,
          linear / (size.x * size.y)};
}

// The launch that runs. All of it belongs to one thread of the operating system.
struct Machine {
  void (*call)(const void*);
  const void* context;
  Dim3 grid;
  Dim3 block;
  Fiber program;
  Dim3 block_index;
  std::vector<Thread> threads;
  std::vector<Rendezvous> warps;
  Rendezvous all;
  std::vector<SharedArea> shared;
  std::deque<Thread*> ready;
  Thread* running = nullptr;
  unsigned n_returned = 0;
};
Machine* machine = nullptr;

std::vector<std::unique_ptr<Fiber>>& IdleFibers() {
  static auto& fibers = *new std::vector<std::unique_ptr<Fiber>>;
  return fibers;
}

void Suspend() { machine->running->fiber->SwitchTo(machine->program); }

void ThreadMain() {
  machine->call(machine->context);
  ++machine->n_returned;
  Suspend();
}

void* AddShared(const void* id, size_t n_bytes) {
  const size_t n = n_bytes / sizeof(Line) + 1;
  machine->shared.push_back({id, std::make_unique<Line[]>(n)});
  void* const bytes = machine->shared.back().bytes.get();
  std::memset(bytes, 0xff, n * sizeof(Line));
  return bytes;
}

void StartBlock(unsigned linear_index, size_t dynamic_shared_bytes) {
  Machine& m = *machine;
  m.block_index = IndexOf(linear_index, m.grid);
  m.shared.clear();
  AddShared(nullptr, dynamic_shared_bytes);
  m.n_returned = 0;
  for (Thread& thread : m.threads) {
    if (IdleFibers().empty()) {
      thread.fiber = std::make_unique<Fiber>(kStackBytes);
    } else {
      thread.fiber = std::move(IdleFibers().back());
      IdleFibers().pop_back();
    }
    thread.fiber->Start(&ThreadMain);
    m.ready.push_back(&thread);
  }
}

// Returns whether all threads have returned.
bool RunBlock() {
  Machine& m = *machine;
  while (!m.ready.empty()) {
    m.running = m.ready.front();
    m.ready.pop_front();
    m.program.SwitchTo(*m.running->fiber);
  }
  for (Thread& thread : m.threads) {
    IdleFibers().push_back(std::move(thread.fiber));
  }
  return m.n_returned == m.threads.size();
}

// `join` computes from what all brought; `slot` is this thread's part.
template <class Join>
void Meet(Rendezvous& r, unsigned member, void* slot, Join join) {
  r.slots[member] = slot;
  if (++r.n_waiting == r.members.size()) {
    join(r.slots.data());
    r.n_waiting = 0;
    for (Thread* thread : r.members) machine->ready.push_back(thread);
  }
  Suspend();
}
template <class Join>
void MeetInWarp(void* slot, Join join) {
  Meet(*machine->running->warp, Lane(), slot, join);
}

void Nothing(void**) {}

struct Fragments {
  float (*to_float)(uint32_t bits);
  int least_exponent;
  float* c;
  const uint32_t* a;
  const uint32_t* b;
};

// Element i of the 16-bit elements in a lane's registers.
uint32_t Half(const uint32_t* registers, unsigned i) {
  return registers[i / 2] >> (i % 2 * 16) & 0xffff;
}

// The layouts of mma.m16n8k16: which lane holds row and column of which matrix.
unsigned LaneOfA(unsigned row, unsigned col) {
  return row % 8 * 4 + col % 8 / 2;
}
unsigned LaneOfB(unsigned row, unsigned col) { return col * 4 + row % 8 / 2; }
unsigned LaneOfC(unsigned row, unsigned col) { return row % 8 * 4 + col / 2; }

void Multiply(void* const* lanes) {
  const auto lane = [&](unsigned i) -> Fragments& {
    return *static_cast<Fragments*>(lanes[i]);
  };
  rig::Matrices m;
  const auto c_of = [&](unsigned row, unsigned col) -> float& {
    return lane(LaneOfC(row, col)).c[col % 2 + row / 8 * 2];
  };
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned col = 0; col < 16; ++col) {
      const Fragments& f = lane(LaneOfA(row, col));
      m.a[row][col] =
          f.to_float(Half(f.a, col % 2 + row / 8 * 2 + col / 8 * 4));
    }
    for (unsigned col = 0; col < 8; ++col) {
      const Fragments& f = lane(LaneOfB(row, col));
      m.b_columns[col][row] = f.to_float(Half(f.b, row % 2 + row / 8 * 2));
      m.c[row][col] = c_of(row, col);
    }
  }
  rig::MultiplyAccumulate(rig::kToNearest, lane(0).least_exponent, m);
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned col = 0; col < 8; ++col) c_of(row, col) = m.c[row][col];
  }
}

// A lane's row of a matrix, and its elements of four.
struct MatrixSlot {
  const uint32_t* in;
  uint32_t* out;
};
const MatrixSlot& Row(void** lanes, unsigned lane) {
  return *static_cast<MatrixSlot*>(lanes[lane]);
}

}  // namespace

std::string LaunchErased(void (*call)(const void* context), const void* context,
                         Dim3 grid, Dim3 block, size_t dynamic_shared_bytes,
                         const Options&) {
  Machine m = {call, context, grid, block, {}, {}, {}, {}, {}, {}, {}};
  machine = &m;
  m.threads.resize(block.x * block.y * block.z);
  m.all.slots.resize(m.threads.size());
  m.warps.resize(m.threads.size() / kWarpSize);
  for (unsigned i = 0; i < m.threads.size(); ++i) {
    Thread& thread = m.threads[i];
    thread.index = IndexOf(i, block);
    thread.linear = i;
    thread.warp = &m.warps[i / kWarpSize];
    thread.warp->members.push_back(&thread);
    thread.warp->slots.resize(kWarpSize);
    m.all.members.push_back(&thread);
  }
  for (unsigned b = 0; b < grid.x * grid.y * grid.z; ++b) {
    StartBlock(b, dynamic_shared_bytes);
    if (!RunBlock()) return "threads wait for ever";
  }
  return "";
}

// ---- The running thread ----

const Dim3& ThreadIndex() { return machine->running->index; }
const Dim3& BlockIndex() { return machine->block_index; }
const Dim3& BlockSize() { return machine->block; }
const Dim3& GridSize() { return machine->grid; }
unsigned Lane() { return machine->running->linear % kWarpSize; }

void* SharedArray(const void* id, size_t bytes) {
  for (const SharedArea& array : machine->shared) {
    if (array.id == id) return array.bytes.get();
  }
  return AddShared(id, bytes);
}

uint8_t* DynamicShared() {
  return reinterpret_cast<uint8_t*>(machine->shared.front().bytes.get());
}

void BlockBarrier() {
  Meet(machine->all, machine->running->linear, nullptr, Nothing);
}

bool BlockReduceOr(bool v) {
  Meet(machine->all, machine->running->linear, &v, [](void** threads) {
    bool any = false;
    const size_t n = machine->threads.size();
    for (size_t i = 0; i < n; ++i) any |= *static_cast<bool*>(threads[i]);
    for (size_t i = 0; i < n; ++i) *static_cast<bool*>(threads[i]) = any;
  });
  return v;
}

void WarpBarrier() { MeetInWarp(nullptr, Nothing); }

uint32_t WarpShuffle(uint32_t v, unsigned from_lane) {
  struct Slot {
    uint32_t in;
    unsigned from;
    uint32_t out;
  };
  Slot slot = {v, from_lane % kWarpSize, 0};
  MeetInWarp(&slot, [](void** lanes) {
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      auto* const s = static_cast<Slot*>(lanes[lane]);
      s->out = static_cast<Slot*>(lanes[s->from])->in;
    }
  });
  return slot.out;
}

uint32_t WarpBallot(bool v) {
  uint32_t slot = v;
  MeetInWarp(&slot, [](void** lanes) {
    uint32_t bits = 0;
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      bits |= *static_cast<uint32_t*>(lanes[lane]) << lane;
    }
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      *static_cast<uint32_t*>(lanes[lane]) = bits;
    }
  });
  return slot;
}

void WarpLoadMatrix4(uint32_t (&r)[4], const uint32_t (&row)[4]) {
  MatrixSlot slot = {row, r};
  MeetInWarp(&slot, [](void** lanes) {
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      for (unsigned m = 0; m < 4; ++m) {
        Row(lanes, lane).out[m] = Row(lanes, m * 8 + lane / 4).in[lane % 4];
      }
    }
  });
}

void WarpLoadTransposed4(uint32_t (&r)[4], const uint32_t (&row)[4]) {
  MatrixSlot slot = {row, r};
  MeetInWarp(&slot, [](void** lanes) {
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      for (unsigned m = 0; m < 4; ++m) {
        const unsigned first = m * 8 + lane % 4 * 2;
        Row(lanes, lane).out[m] = Half(Row(lanes, first + 1).in, lane / 4)
                                      << 16 |
                                  Half(Row(lanes, first).in, lane / 4);
      }
    }
  });
}

void WarpMultiply16816(float (*to_float)(uint32_t bits), int least_exponent,
                       float (&c)[4], const uint32_t (&a)[4],
                       const uint32_t (&b)[2]) {
  Fragments slot = {to_float, least_exponent, c, a, b};
  MeetInWarp(&slot, [](void** lanes) { Multiply(lanes); });
}

}  // namespace kvevict::simt
