// Data races in global and shared memory, in the words of PTX's memory model: two accesses to
// the same bytes, one of them a write, of which neither comes before the other,
// and which are not both strong with scopes that hold both threads.
//
// The last accesses to every 16 bytes are kept, and the last lines that were
// touched. So a race may go unseen, but every report is one. Whether it did harm
// in this launch does not matter.
#ifndef KVEVICT_TESTS_RIG_PTX_RACES_H_
#define KVEVICT_TESTS_RIG_PTX_RACES_H_

#include <cstdint>
#include <random>
#include <vector>

#include "tests/rig/ptx/instruction.h"
#include "tests/rig/ptx/order.h"

namespace kvevict::ptx {

class Races {
 public:
  explicit Races(std::mt19937_64& random);

  // Notes an access to memory by a thread whose place is `mark`. Throws
  // Error if it races with an earlier one.
  void Note(const Lane& lane, const Mark& mark, const Instruction& i,
            const uint8_t* at, uint32_t bytes, bool is_store, bool is_shared);

 private:
  static constexpr uint32_t kLineBits = 14;
  static constexpr uint32_t kLineBytes = 16;
  static constexpr uint32_t kCells = 4;

  struct Cell {
    Mark mark;
    const Instruction* instruction;
    uint16_t bytes;  // a bit each
    bool is_store;
  };
  struct Line {
    uint64_t address = 0;  // in lines
    uint64_t launch = 0;
    uint32_t n_cells = 0;
    Cell cells[kCells];
  };

  std::mt19937_64& random_;
  uint64_t launch_;
  std::vector<Line>& lines_;
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_RACES_H_
