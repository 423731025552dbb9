// Control flow of a thread: branches, ends, waits.
#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

void RunBranch(Lane& lane, const Instruction& i) { lane.pc = i.target; }

void RunExit(Lane& lane, const Instruction&) {
  lane.state = LaneState::kExited;
}

void RunSleep(Lane& lane, const Instruction&) {
  lane.state = LaneState::kYielded;
}

void DecodeBranch(Modifiers& m, Instruction& i) {
  m.Take("uni");
  i.run = &RunBranch;
}

void DecodeReturn(Modifiers& m, Instruction& i) {
  m.Take("uni");
  i.run = &RunExit;
}

void DecodeSleep(Modifiers& m, Instruction& i) {
  m.Expect("u32");
  i.run = &RunSleep;
}

constexpr Opcode kControlOpcodes[] = {
    {"bra", "l", &DecodeBranch},
    {"ret", "", &DecodeReturn},
    {"nanosleep", "s", &DecodeSleep, 70},
};

}  // namespace

std::span<const Opcode> ControlOpcodes() { return kControlOpcodes; }

}  // namespace kvevict::ptx
