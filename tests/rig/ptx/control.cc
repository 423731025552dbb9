// Control flow of a thread: branches, ends, waits.
#include "tests/rig/ptx/block.h"
#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

void RunBranch(Lane& lane, const Instruction& i) { lane.pc = i.target; }

void RunIndexedBranch(Lane& lane, const Instruction& i) {
  const auto& table = lane.block->grid.kernel.branch_tables[i.target];
  const auto index = lane.Get<uint32_t>(i.slots[0]);
  if (index >= table.size()) Fail("branch index outside of its table");
  lane.pc = table[index];
}

void RunExit(Lane& lane, const Instruction&) {
  lane.state = LaneState::kExited;
}

void RunTrap(Lane&, const Instruction&) { Fail("trap"); }

void RunSleep(Lane& lane, const Instruction&) {
  lane.state = LaneState::kYielded;
}

void DecodeBranch(Modifiers& m, Instruction& i) {
  m.Take("uni");
  i.run = &RunBranch;
}

void DecodeIndexedBranch(Modifiers& m, Instruction& i) {
  m.Expect("idx");
  m.Take("uni");
  i.run = &RunIndexedBranch;
}

void DecodeReturn(Modifiers& m, Instruction& i) {
  m.Take("uni");
  i.run = &RunExit;
}

void DecodeExit(Modifiers&, Instruction& i) { i.run = &RunExit; }
void DecodeTrap(Modifiers&, Instruction& i) { i.run = &RunTrap; }

void DecodeSleep(Modifiers& m, Instruction& i) {
  m.Expect("u32");
  i.run = &RunSleep;
}

constexpr Opcode kOpcodes[] = {
    {"bra", "l", &DecodeBranch}, {"brx", "st", &DecodeIndexedBranch},
    {"ret", "", &DecodeReturn},  {"exit", "", &DecodeExit},
    {"trap", "", &DecodeTrap},   {"nanosleep", "s", &DecodeSleep, 70},
};

}  // namespace

std::span<const Opcode> ControlOpcodes() { return kOpcodes; }

}  // namespace kvevict::ptx
