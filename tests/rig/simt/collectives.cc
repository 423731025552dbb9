// Collectives of a block or a warp: each thread brings its operands, the last
// to come computes for all, and then all go on.
#include <cstring>

#include "tests/rig/simt/machine.h"
#include "tests/rig/simt/thread.h"
#include "tests/rig/tensor_core.h"

namespace kvevict::simt {
namespace {

bool IsSame(const Site& a, const Site& b) {
  return a.line == b.line && std::strcmp(a.file, b.file) == 0;
}

void Check(const Rendezvous& r, const char* what, const Site& site) {
  const Thread& self = *machine().running();
  if (r.n_returned != 0) {
    machine().set_error(Describe(self) + " is in " + Describe(what, site) +
                        ", but others have returned");
    machine().Stop();
  }
  if (r.n_waiting != 0 &&
      (std::strcmp(r.what, what) != 0 || !IsSame(r.site, site))) {
    machine().set_error(Describe(self) + " is in " + Describe(what, site) +
                        ", but others wait in " + Describe(r.what, r.site));
    machine().Stop();
  }
}

// `join` computes from what all brought; `slot` is this thread's part.
template <class Join>
void Meet(Rendezvous& r, unsigned member, const char* what, const Site& site,
          void* slot, Join join) {
  Check(r, what, site);
  Thread& self = *machine().running();
  self.waits_at = r.what = what;
  self.site = r.site = site;
  r.slots[member] = slot;
  ++r.n_waiting;
  machine().NoteProgress();
  if (r.n_waiting == r.members.size()) {
    join(r.slots.data());
    r.n_waiting = 0;
    for (Thread* thread : r.members) machine().MakeReady(*thread);
  }
  machine().Suspend();
}

void Nothing(void**) {}

Warp& OwnWarp() { return *machine().running()->warp; }

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
  rig::MultiplyAccumulate(machine().options().tensor_core,
                          lane(0).least_exponent, m);
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned col = 0; col < 8; ++col) c_of(row, col) = m.c[row][col];
  }
}

// A lane's row of a matrix, and its elements of four.
struct MatrixSlot {
  const uint32_t* in;
  uint32_t* out;

  uint32_t Half(unsigned i) const { return in[i / 2] >> i % 2 * 16 & 0xffff; }
};

}  // namespace

void BlockBarrier(const Site& site) {
  const Thread& self = *machine().running();
  Meet(self.block->rendezvous, self.linear, "BlockSync", site, nullptr,
       Nothing);
}

bool BlockReduceOr(bool v, const Site& site) {
  const Thread& self = *machine().running();
  Rendezvous& r = self.block->rendezvous;
  Meet(r, self.linear, "BlockAny", site, &v, [&r](void** threads) {
    bool any = false;
    for (size_t i = 0; i < r.members.size(); ++i) {
      any |= *static_cast<bool*>(threads[i]);
    }
    for (size_t i = 0; i < r.members.size(); ++i) {
      *static_cast<bool*>(threads[i]) = any;
    }
  });
  return v;
}

void WarpBarrier(const Site& site) {
  Meet(OwnWarp().rendezvous, Lane(), "WarpSync", site, nullptr, Nothing);
}

uint32_t WarpShuffle(const char* what, uint32_t v, unsigned from_lane,
                     const Site& site) {
  struct Slot {
    uint32_t in;
    unsigned from;
    uint32_t out;
  };
  Slot slot = {v, from_lane % kWarpSize, 0};
  Meet(OwnWarp().rendezvous, Lane(), what, site, &slot, [](void** lanes) {
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      auto* const s = static_cast<Slot*>(lanes[lane]);
      s->out = static_cast<Slot*>(lanes[s->from])->in;
    }
  });
  return slot.out;
}

uint32_t WarpBallot(bool v, const Site& site) {
  uint32_t slot = v;
  Meet(OwnWarp().rendezvous, Lane(), "Ballot", site, &slot, [](void** lanes) {
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

void WarpLoadMatrix4(uint32_t (&r)[4], const uint32_t (&row)[4],
                     const Site& site) {
  MatrixSlot slot = {row, r};
  Meet(OwnWarp().rendezvous, Lane(), "LoadMatrix4", site, &slot,
       [](void** lanes) {
         for (unsigned lane = 0; lane < kWarpSize; ++lane) {
           for (unsigned m = 0; m < 4; ++m) {
             const auto* from =
                 static_cast<MatrixSlot*>(lanes[m * 8 + lane / 4]);
             static_cast<MatrixSlot*>(lanes[lane])->out[m] = from->in[lane % 4];
           }
         }
       });
}

void WarpLoadTransposed4(uint32_t (&r)[4], const uint32_t (&row)[4],
                         const Site& site) {
  MatrixSlot slot = {row, r};
  Meet(OwnWarp().rendezvous, Lane(), "LoadTransposed4", site, &slot,
       [](void** lanes) {
         for (unsigned lane = 0; lane < kWarpSize; ++lane) {
           for (unsigned m = 0; m < 4; ++m) {
             void** const rows = lanes + m * 8 + lane % 4 * 2;
             static_cast<MatrixSlot*>(lanes[lane])->out[m] =
                 static_cast<MatrixSlot*>(rows[1])->Half(lane / 4) << 16 |
                 static_cast<MatrixSlot*>(rows[0])->Half(lane / 4);
           }
         }
       });
}

void WarpMultiply16816(float (*to_float)(uint32_t bits), int least_exponent,
                       float (&c)[4], const uint32_t (&a)[4],
                       const uint32_t (&b)[2], const Site& site) {
  Fragments slot = {to_float, least_exponent, c, a, b};
  Meet(OwnWarp().rendezvous, Lane(), "MultiplyAccumulate16816", site, &slot,
       [](void** lanes) { Multiply(lanes); });
}

}  // namespace kvevict::simt
