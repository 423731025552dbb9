#include "tests/rig/ptx/races.h"

#include <string>

#include "tests/rig/ptx/block.h"
#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/lane.h"

namespace kvevict::ptx {
namespace {

// Both are strong, with scopes that hold both threads.
bool AreMorallyStrong(const Instruction& a, const Instruction& b,
                      bool same_block) {
  return IsStrong(a.order) && IsStrong(b.order) &&
         (same_block || (a.scope == Scope::kGpu && b.scope == Scope::kGpu));
}

}  // namespace

Races::Races(std::mt19937_64& random)
    : random_(random), lines_([]() -> std::vector<Line>& {
        // Too large to be cleared for every launch.
        static thread_local std::vector<Line> lines(1 << kLineBits);
        return lines;
      }()) {
  static thread_local uint64_t n_launches = 0;
  launch_ = ++n_launches;
}

void Races::Note(const Lane& lane, const Mark& mark, const Instruction& i,
                 const uint8_t* at, uint32_t bytes, bool is_store,
                 bool is_shared) {
  const auto address = reinterpret_cast<uint64_t>(at);
  const uint64_t line_address = address / kLineBytes;
  Line& line = lines_[line_address * 0x9E3779B97F4A7C15u >> (64 - kLineBits)];
  // The next block has the shared memory of the one before.
  const bool is_others =
      is_shared && line.n_cells > 0 && line.cells[0].mark.block != mark.block;
  if (line.address != line_address || line.launch != launch_ || is_others) {
    line.address = line_address;
    line.launch = launch_;
    line.n_cells = 0;
  }
  const auto mask =
      static_cast<uint16_t>(((1u << bytes) - 1) << address % kLineBytes);
  uint32_t n_kept = 0;
  for (uint32_t k = 0; k < line.n_cells; ++k) {
    const Cell& cell = line.cells[k];
    const bool comes_before = lane.ComesAfter(cell.mark);
    if ((cell.bytes & mask) != 0 && (cell.is_store || is_store) &&
        !comes_before &&
        !AreMorallyStrong(*cell.instruction, i,
                          cell.mark.block == mark.block)) {
      Fail("data race: " + std::to_string(bytes) + " bytes at " + Hex(address) +
           ", which block " + std::to_string(cell.mark.block) + ", thread " +
           std::to_string(cell.mark.thread) +
           (cell.is_store ? " has stored" : " has loaded") + " in line " +
           std::to_string(cell.instruction->line));
    }
    // It comes before this one, and finds no more than this one.
    if (comes_before && (cell.bytes & ~mask) == 0 &&
        (is_store || !cell.is_store)) {
      continue;
    }
    if (n_kept != k) line.cells[n_kept] = cell;
    ++n_kept;
  }
  const bool full = n_kept == kCells;
  Cell& cell = line.cells[full ? random_() % kCells : n_kept];
  cell.mark = mark;
  cell.instruction = &i;
  cell.bytes = mask;
  cell.is_store = is_store;
  line.n_cells = full ? kCells : n_kept + 1;
}

}  // namespace kvevict::ptx
