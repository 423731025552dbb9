// Slots are counted along the scorer's loops, and blocks at work agree with
// NVIDIA's occupancy calculator.
#include "tests/cuda/gates/slots.h"

#include <criterion/criterion.h>

#include <stdexcept>

#include "tests/cuda/gates/occupancy.h"

namespace kvevict::cuda {
namespace {

constexpr int kSm = 80;  // for the branches below
constexpr auto kOther = static_cast<Opcode>(0x010);

SassInstruction Always(Opcode opcode) {
  const uint64_t guard = SassInstruction::kAlways;
  return {static_cast<uint64_t>(opcode) | guard << 12, 0};
}

// A branch to another place if a predicate holds.
SassInstruction Branch(int64_t from, int64_t to) {
  const auto distance = static_cast<uint64_t>((to - from - 1) * 16 / 4);
  return {static_cast<uint64_t>(Opcode::kBra) | distance << 34,
          (distance >> 30 & 0x3ffff) | uint64_t{7} << 23};
}

CubinKernel Kernel(std::vector<SassInstruction> code) {
  return {.name = "test", .max_threads = 32, .instructions = std::move(code)};
}

std::vector<SassInstruction> TwoLoops() {
  return {Always(kOther),
          Always(kOther),         // 1: a tile
          Branch(2, 4),           // the shorter way skips 3
          Always(kOther),         //
          Always(Opcode::kHmma),  // 4: a chunk
          Always(Opcode::kMufu),  //
          Branch(6, 9),           //    a reference is raised
          Always(Opcode::kMufu),  //
          Always(kOther),         //
          Branch(9, 11),          // 9: the shorter way skips 10
          Always(kOther),         //
          Branch(11, 4),          //
          Always(kOther),         //
          Branch(13, 1),          //
          Always(Opcode::kExit)};
}

TestSuite(slots);

Test(slots, counts_the_longest_way_with_the_fewest_exponentials) {
  const ScorerSlots slots = CountScorerSlots(Kernel(TwoLoops()), kSm, 1);
  cr_expect_eq(slots.of_chunk, 6);  // 4 5 6 9 10 11
  cr_expect_eq(slots.exponentials_of_chunk, 1);
  cr_expect_eq(slots.of_tile, 5);  // 1 2 3 12 13
}

// Nearly all tiles take the form without mask.
Test(slots, takes_the_shorter_of_two_loops_over_chunks) {
  std::vector<SassInstruction> code = TwoLoops();
  code.insert(code.begin() + 12,
              {Always(Opcode::kHmma), Always(Opcode::kMufu), Branch(14, 12)});
  code[16] = Branch(16, 1);
  const ScorerSlots slots = CountScorerSlots(Kernel(code), kSm, 1);
  cr_expect_eq(slots.of_chunk, 3);
  cr_expect_eq(slots.of_tile, 5);
}

Test(slots, counts_exponentials_between_the_products_of_two_chunks) {
  std::vector<SassInstruction> code = TwoLoops();
  // An exponential before the first product, and one between two.
  code[3] = Always(Opcode::kMufu);
  code.insert(code.begin() + 4, {Always(Opcode::kMufu), Always(Opcode::kHmma)});
  code[2] = Branch(2, 4);
  code[8] = Branch(8, 11);
  code[11] = Branch(11, 13);
  code[13] = Branch(13, 4);
  code[15] = Branch(15, 1);
  code[7] = Always(Opcode::kHmma);
  code[6] = Always(Opcode::kMufu);
  const ScorerSlots slots = CountScorerSlots(Kernel(code), kSm, 2);
  cr_expect_eq(slots.of_chunk, 8);  // 4 to 8, 11 12 13: a chunk of two products
  cr_expect_eq(slots.exponentials_of_chunk, 2);
  cr_expect_eq(slots.exponentials_between_products, 1);
}

Test(slots, refuses_what_has_no_such_loops) {
  std::vector<SassInstruction> no_products = TwoLoops();
  no_products[4] = Always(kOther);
  std::vector<SassInstruction> no_tiles = TwoLoops();
  no_tiles[13] = Always(kOther);
  for (const auto& code : {no_products, no_tiles}) {
    bool refused = false;
    try {
      (void)CountScorerSlots(Kernel(code), kSm, 1);
    } catch (const std::runtime_error&) {
      refused = true;
    }
    cr_expect(refused);
  }
}

Test(slots, knows_the_blocks_at_work) {
  const struct {
    BlockNeeds needs;
    int sm;
    uint32_t n_blocks;
  } expected[] = {
      {{256, 128, 0}, 80, 2},       // registers
      {{256, 129, 0}, 80, 1},       // handed out 8 at a time
      {{32, 254, 0}, 86, 8},        //
      {{1024, 32, 0}, 80, 2},       // threads
      {{1024, 32, 0}, 86, 1},       //
      {{32, 16, 0}, 80, 32},        // blocks
      {{32, 16, 0}, 89, 24},        //
      {{32, 16, 0}, 121, 24},       // as sm_120
      {{256, 32, 82944}, 80, 2},    // shared memory, and 1 KB of the system's
      {{256, 32, 82945}, 80, 1},    //
      {{256, 32, 32 << 10}, 75, 2}  // which has none of it
  };
  for (const auto& e : expected) {
    cr_expect_eq(BlocksPerMultiprocessor(e.needs, e.sm), e.n_blocks,
                 "%u threads, %u registers, %u bytes on sm_%d",
                 e.needs.n_threads, e.needs.n_registers, e.needs.shared_bytes,
                 e.sm);
  }
}

}  // namespace
}  // namespace kvevict::cuda
