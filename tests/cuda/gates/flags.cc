#include "tests/cuda/gates/flags.h"

#include <optional>

namespace kvevict::cuda {
namespace {

// The state before an instruction, on any way to it.
struct State {
  static constexpr uint32_t kNoBarrier = 1u << 31;
  static constexpr unsigned kNoFence = ~0u;

  uint32_t loads = 0;                // scoreboards of loads under way
  uint32_t at_barrier = kNoBarrier;  // loads at the last barrier
  unsigned fence = kNoFence;         // guard of a fence since then

  bool operator==(const State&) const = default;
};

State Join(const State& a, const State& b) {
  return {a.loads | b.loads, a.at_barrier | b.at_barrier,
          a.fence == b.fence ? a.fence : State::kNoFence};
}

State After(State state, const SassInstruction& i) {
  state.loads &= ~i.waits_for();
  if (i.opcode() == Opcode::kLdg) state.loads |= i.puts_up();
  if (i.opcode() == Opcode::kBar) {
    state.at_barrier = state.loads;
    state.fence = State::kNoFence;
  }
  if (i.opcode() == Opcode::kMembar && i.FenceScope() >= Scope::kGpu) {
    state.fence = i.guard();
  }
  return state;
}

// The states before every instruction that can be reached.
std::vector<std::optional<State>> FindStates(
    const std::vector<SassInstruction>& code, int sm) {
  std::vector<std::optional<State>> states(code.size());
  states.front() = State();
  std::vector<size_t> changed = {0};
  while (!changed.empty()) {
    const size_t at = changed.back();
    changed.pop_back();
    const State after = After(*states[at], code[at]);
    for (const size_t next : NextPlaces(code, at, sm)) {
      const State joined = states[next] ? Join(*states[next], after) : after;
      if (states[next] == joined) continue;
      states[next] = joined;
      changed.push_back(next);
    }
  }
  return states;
}

bool EmptiesCache(const std::vector<SassInstruction>& code, size_t at) {
  for (++at; at < code.size(); ++at) {
    if (code[at].opcode() == Opcode::kCctl) return true;
    if (code[at].opcode() == Opcode::kBra) return false;
  }
  return false;
}

}  // namespace

Flags CheckFlags(const CubinKernel& kernel, int sm) {
  Flags flags;
  const std::vector<SassInstruction>& code = kernel.instructions;
  const auto fault = [&](size_t at, const char* what) {
    flags.faults.push_back(kernel.name + ", byte " + std::to_string(16 * at) +
                           ": " + what);
  };
  std::vector<std::optional<State>> states;
  for (size_t at = 0; at < code.size(); ++at) {
    const SassInstruction& i = code[at];
    const bool is_load = i.opcode() == Opcode::kLdg;
    const bool is_store = i.opcode() == Opcode::kStg;
    if (!(is_load || is_store) || i.StrongScope(sm) < Scope::kGpu) continue;
    if (is_load) {
      ++flags.n_acquired;
      if (!EmptiesCache(code, at)) fault(at, "acquired without CCTL");
      continue;
    }
    ++flags.n_raised;
    if (states.empty()) states = FindStates(code, sm);
    if (!states[at]) continue;  // never executed
    if (states[at]->at_barrier == State::kNoBarrier) {
      fault(at, "raised without a barrier");
    } else if (states[at]->at_barrier != 0) {
      fault(at, "raised, but the barrier lets loads be on their way");
    }
    const unsigned fence = states[at]->fence;
    if (fence != SassInstruction::kAlways && fence != i.guard()) {
      fault(at, "raised without a fence of scope GPU");
    }
  }
  return flags;
}

}  // namespace kvevict::cuda
