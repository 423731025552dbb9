// Integer and bit instructions.
#include "tests/rig/ptx/instruction_rows.h"

namespace kvevict::ptx {
namespace {

constexpr uint64_t kMinus1 = 0xFFFFFFFF;  // as 32 bits
constexpr uint64_t kMinus1Of64 = ~uint64_t{0};

TestSuite(ptx_integer);

Test(ptx_integer, arithmetic) {
  const InstructionRow kRows[] = {
      {"add.s32 D, A, B;", "rrr", {0x7FFFFFFF, 1}, 0x80000000},
      {"add.s64 D, A, B;", "ddd", {kMinus1Of64, 2}, 1},
      {"add.s16 D, A, B;", "sss", {0xFFFF, 2}, 1},
      {"add.s32 D, A, -3;", "rr", {1}, 0xFFFFFFFE},
      {"sub.s32 D, A, B;", "rrr", {3, 5}, 0xFFFFFFFE},
      {"sub.s64 D, A, B;", "ddd", {0, 1}, kMinus1Of64},
      {"mul.lo.s32 D, A, B;", "rrr", {0x10001, 0x10001}, 0x20001},
      {"mul.lo.s64 D, A, B;", "ddd", {kMinus1Of64, 3}, kMinus1Of64 - 2},
      {"mul.hi.u32 D, A, B;", "rrr", {kMinus1, kMinus1}, 0xFFFFFFFE},
      {"mul.hi.s32 D, A, B;", "rrr", {kMinus1, kMinus1}, 0},
      {"mul.hi.u64 D, A, B;",
       "ddd",
       {kMinus1Of64, kMinus1Of64},
       kMinus1Of64 - 1},
      {"mul.hi.s64 D, A, B;", "ddd", {kMinus1Of64, 5}, kMinus1Of64},
      {"mul.wide.u32 D, A, B;", "drr", {kMinus1, 2}, 0x1FFFFFFFE},
      {"mul.wide.s32 D, A, B;", "drr", {kMinus1, 2}, kMinus1Of64 - 1},
      {"mul.wide.u16 D, A, B;", "rss", {0xFFFF, 0xFFFF}, 0xFFFE0001},
      {"mul.wide.s16 D, A, B;", "rss", {0xFFFF, 0xFFFF}, 1},
      {"mul24.lo.u32 D, A, B;", "rrr", {0x1000003, 5}, 15},
      {"mad.lo.s32 D, A, B, C;", "rrrr", {3, 5, kMinus1}, 14},
      {"mad.hi.u32 D, A, B, C;", "rrrr", {0x80000000, 6, 10}, 13},
      {"mad.wide.u32 D, A, B, C;", "drrd", {kMinus1, 2, 3}, 0x200000001},
      {"mad.wide.s32 D, A, B, C;", "drrd", {kMinus1, 2, 3}, 1},
      {"mad.lo.s64 D, A, B, C;", "dddd", {1ull << 40, 4, 1}, (1ull << 42) + 1},
      {"div.u32 D, A, B;", "rrr", {kMinus1, 2}, 0x7FFFFFFF},
      {"div.s32 D, A, B;", "rrr", {kMinus1 - 6, 2}, 0xFFFFFFFD},  // -7 / 2
      {"rem.u32 D, A, B;", "rrr", {17, 5}, 2},
      {"rem.s32 D, A, B;", "rrr", {kMinus1 - 6, 4}, 0xFFFFFFFD},  // -7 % 4
      {"div.u64 D, A, B;", "ddd", {kMinus1Of64, 1ull << 60}, 15},
      {"rem.s64 D, A, B;", "ddd", {kMinus1Of64 - 6, 4}, kMinus1Of64 - 2},
      {"min.s32 D, A, B;", "rrr", {kMinus1, 1}, kMinus1},
      {"min.u32 D, A, B;", "rrr", {kMinus1, 1}, 1},
      {"max.s32 D, A, B;", "rrr", {kMinus1, 1}, 1},
      {"max.u64 D, A, B;", "ddd", {kMinus1Of64, 1}, kMinus1Of64},
      {"min.s16 D, A, B;", "sss", {0x8000, 1}, 0x8000},
      {"abs.s32 D, A;", "rr", {kMinus1 - 4}, 5},
      {"abs.s64 D, A;", "dd", {kMinus1Of64}, 1},
      {"neg.s32 D, A;", "rr", {5}, 0xFFFFFFFB},
      {"neg.s64 D, A;", "dd", {1}, kMinus1Of64},
  };
  ExpectRows(kRows);
}

Test(ptx_integer, logic_and_shifts) {
  const InstructionRow kRows[] = {
      {"and.b32 D, A, B;", "rrr", {0xFF00FF00, 0x0FF00FF0}, 0x0F000F00},
      {"or.b64 D, A, B;", "ddd", {1ull << 63, 1}, (1ull << 63) + 1},
      {"xor.b16 D, A, B;", "sss", {0xFFFF, 0x0F0F}, 0xF0F0},
      {"not.b32 D, A;", "rr", {0x0F0F0F0F}, 0xF0F0F0F0},
      {"not.b64 D, A;", "dd", {1}, kMinus1Of64 - 1},
      {"and.pred D, A, B;", "ppp", {1, 0}, 0},
      {"or.pred D, A, B;", "ppp", {1, 0}, 1},
      {"xor.pred D, A, B;", "ppp", {1, 1}, 0},
      {"not.pred D, A;", "pp", {0}, 1},
      {"shl.b32 D, A, B;", "rrr", {3, 4}, 48},
      {"shl.b32 D, A, B;", "rrr", {3, 32}, 0},
      {"shl.b64 D, A, B;", "ddr", {3, 62}, 3ull << 62},
      {"shl.b16 D, A, B;", "ssr", {0x8001, 1}, 2},
      {"shr.u32 D, A, B;", "rrr", {0x80000000, 31}, 1},
      {"shr.u32 D, A, B;", "rrr", {0x80000000, 32}, 0},
      {"shr.s32 D, A, B;", "rrr", {0x80000000, 31}, kMinus1},
      {"shr.s32 D, A, B;", "rrr", {0x80000000, 99}, kMinus1},
      {"shr.u64 D, A, B;", "ddr", {1ull << 63, 63}, 1},
      {"shr.s64 D, A, B;", "ddr", {1ull << 63, 70}, kMinus1Of64},
      {"shr.u16 D, A, B;", "ssr", {0x8000, 15}, 1},
      {"shf.l.wrap.b32 D, A, B, C;", "rrrr", {0x80000000, 1, 33}, 3},
      {"shf.l.clamp.b32 D, A, B, C;", "rrrr", {0x80000000, 1, 33}, 0x80000000},
      {"shf.r.wrap.b32 D, A, B, C;", "rrrr", {2, 3, 33}, 0x80000001},
      {"shf.r.clamp.b32 D, A, B, C;", "rrrr", {2, 3, 33}, 3},
      {"lop3.b32 D, A, B, C, 150;", "rrrr", {0xF0, 0xCC, 0xAA}, 0x96},
      {"lop3.b32 D, A, B, C, 42;", "rrrr", {0xF0, 0xCC, 0xAA}, 0x2A},
  };
  ExpectRows(kRows);
}

Test(ptx_integer, fields_and_counts) {
  const InstructionRow kRows[] = {
      {"bfe.u32 D, A, B, C;", "rrrr", {0x12345678, 8, 12}, 0x456},
      {"bfe.u32 D, A, B, C;", "rrrr", {0x12345678, 8, 0}, 0},
      {"bfe.u32 D, A, B, C;", "rrrr", {0xF2345678, 28, 99}, 0xF},
      {"bfe.s32 D, A, B, C;", "rrrr", {0x00000F00, 8, 4}, kMinus1},
      {"bfe.s32 D, A, B, C;", "rrrr", {0x80000000, 31, 8}, kMinus1},
      {"bfe.u64 D, A, B, C;", "ddrr", {0xABCDull << 40, 40, 8}, 0xCD},
      {"bfi.b32 D, A, B, C, E;", "rrrrr", {0xAB, 0x11111111, 8, 8}, 0x1111AB11},
      {"bfi.b32 D, A, B, C, E;",
       "rrrrr",
       {0xAB, 0x11111111, 28, 8},
       0xB1111111},
      {"bfi.b64 D, A, B, C, E;", "dddrr", {0xFFFF, 0, 32, 16}, 0xFFFFull << 32},
      {"bfind.u32 D, A;", "rr", {0x00010000}, 16},
      {"bfind.u32 D, A;", "rr", {0}, kMinus1},
      {"bfind.s32 D, A;", "rr", {kMinus1 - 4}, 2},
      {"bfind.shiftamt.u32 D, A;", "rr", {0x00010000}, 15},
      {"bfind.u64 D, A;", "rd", {1ull << 50}, 50},
      {"brev.b32 D, A;", "rr", {0x00000003}, 0xC0000000},
      {"brev.b64 D, A;", "dd", {1}, 1ull << 63},
      {"popc.b32 D, A;", "rr", {0xF00F}, 8},
      {"popc.b64 D, A;", "rd", {kMinus1Of64}, 64},
      {"clz.b32 D, A;", "rr", {0x00010000}, 15},
      {"clz.b32 D, A;", "rr", {0}, 32},
      {"clz.b64 D, A;", "rd", {1}, 63},
      {"prmt.b32 D, A, B, C;",
       "rrrr",
       {0x33221100, 0x77665544, 0x7520},
       0x77552200},
      {"prmt.b32 D, A, B, C;", "rrrr", {0x00008000, 0, 0x9810}, 0xFF008000},
  };
  ExpectRows(kRows);
}

Test(ptx_integer, division_by_zero_is_an_error) {
  const std::string error = ErrorOf(TestModule("div.u32 %r0, %r19, 0;"));
  cr_expect(error.find("division by zero") != std::string::npos, "%s",
            error.c_str());
}

}  // namespace
}  // namespace kvevict::ptx
