// Data races in global memory, by the words of PTX's memory model: two accesses
// of the same bytes, one of them a write, of which neither comes before the other,
// and which are not both strong with scopes that hold both threads.
//
// Of every 16 bytes the last accesses are kept, and of what has been touched the
// last lines: a race may go unseen, but what is reported is one. Whether it did
// harm in this launch does not matter.
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

  // An access of global memory, `mark` being where its thread stands. Throws Error
  // if it races with one before it.
  void Note(const Lane& lane, const Mark& mark, const Instruction& i,
            const uint8_t* at, uint32_t bytes, bool is_store);

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
