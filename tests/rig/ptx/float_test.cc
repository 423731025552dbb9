// Float arithmetic, comparisons, conversions, moves.
#include <cmath>
#include <limits>

#include "tests/rig/ptx/instruction_rows.h"

namespace kvevict::ptx {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kTiny = 0x1p-140f;         // subnormal
constexpr uint64_t kNanBits = 0x7FFFFFFF;  // that of f32 arithmetic
constexpr uint64_t kAll = 0xFFFFFFFF;

TestSuite(ptx_float);

Test(ptx_float, arithmetic) {
  const InstructionRow kRows[] = {
      {"add.f32 D, A, B;", "fff", {F(1.0f), F(0x1p-24f)}, F(1.0f)},
      {"add.rn.f32 D, A, B;", "fff", {F(1.5f), F(2.25f)}, F(3.75f)},
      {"add.f32 D, A, B;", "fff", {F(kInf), F(-kInf)}, kNanBits},
      {"add.f32 D, A, B;", "fff", {F(kTiny), F(0.0f)}, F(kTiny)},
      {"add.ftz.f32 D, A, B;", "fff", {F(-kTiny), F(-0.0f)}, F(-0.0f)},
      {"add.sat.f32 D, A, B;", "fff", {F(0.75f), F(0.75f)}, F(1.0f)},
      {"add.f64 D, A, B;", "ggg", {G(1.0), G(0x1p-52)}, G(1.0 + 0x1p-52)},
      {"sub.f32 D, A, B;", "fff", {F(1.0f), F(3.0f)}, F(-2.0f)},
      {"mul.f32 D, A, B;", "fff", {F(3.0f), F(-0.5f)}, F(-1.5f)},
      {"mul.ftz.f32 D, A, B;", "fff", {F(0x1p-100f), F(0x1p-40f)}, F(0.0f)},
      {"mul.f64 D, A, B;", "ggg", {G(3.0), G(0.25)}, G(0.75)},
      // (1 + 2^-12)^2 - 1 keeps its last bit only if the product is not rounded.
      {"fma.rn.f32 D, A, B, C;",
       "ffff",
       {F(1.0f + 0x1p-12f), F(1.0f + 0x1p-12f), F(-1.0f)},
       F(0x1p-11f + 0x1p-24f)},
      {"fma.rn.f64 D, A, B, C;", "gggg", {G(2.0), G(3.0), G(1.0)}, G(7.0)},
      {"div.rn.f32 D, A, B;", "fff", {F(1.0f), F(3.0f)}, 0x3EAAAAAB},
      {"div.full.f32 D, A, B;", "fff", {F(6.0f), F(3.0f)}, F(2.0f)},
      {"div.approx.ftz.f32 D, A, B;", "fff", {F(1.0f), F(0.0f)}, F(kInf)},
      {"div.rn.f64 D, A, B;", "ggg", {G(1.0), G(8.0)}, G(0.125)},
      {"rcp.rn.f32 D, A;", "ff", {F(3.0f)}, 0x3EAAAAAB},
      {"rcp.approx.ftz.f32 D, A;", "ff", {F(-4.0f)}, F(-0.25f)},
      {"sqrt.rn.f32 D, A;", "ff", {F(2.0f)}, 0x3FB504F3},
      {"rsqrt.approx.f32 D, A;", "ff", {F(16.0f)}, F(0.25f)},
      {"ex2.approx.ftz.f32 D, A;", "ff", {F(-3.0f)}, F(0.125f)},
      {"ex2.approx.ftz.f32 D, A;", "ff", {F(-140.0f)}, F(0.0f)},
      {"ex2.approx.f32 D, A;", "ff", {F(-140.0f)}, F(kTiny)},
      {"ex2.approx.ftz.f32 D, A;", "ff", {F(-1e30f)}, F(0.0f)},
      {"lg2.approx.ftz.f32 D, A;", "ff", {F(32.0f)}, F(5.0f)},
      {"lg2.approx.ftz.f32 D, A;", "ff", {F(0.0f)}, F(-kInf)},
      {"abs.f32 D, A;", "ff", {F(-1.5f)}, F(1.5f)},
      {"neg.f32 D, A;", "ff", {F(0.0f)}, F(-0.0f)},
      {"neg.f64 D, A;", "gg", {G(2.0)}, G(-2.0)},
      {"copysign.f32 D, A, B;", "fff", {F(-1.0f), F(3.0f)}, F(-3.0f)},
  };
  ExpectRows(kRows);
}

Test(ptx_float, minimum_and_maximum) {
  const InstructionRow kRows[] = {
      {"max.f32 D, A, B;", "fff", {F(1.0f), F(2.0f)}, F(2.0f)},
      {"max.f32 D, A, B;", "fff", {F(kNan), F(-2.0f)}, F(-2.0f)},
      {"max.f32 D, A, B;", "fff", {F(-2.0f), F(kNan)}, F(-2.0f)},
      {"max.f32 D, A, B;", "fff", {F(kNan), F(kNan)}, kNanBits},
      {"max.NaN.f32 D, A, B;", "fff", {F(1.0f), F(kNan)}, kNanBits},
      {"max.f32 D, A, B;", "fff", {F(-0.0f), F(0.0f)}, F(0.0f)},
      {"min.f32 D, A, B;", "fff", {F(0.0f), F(-0.0f)}, F(-0.0f)},
      {"min.f32 D, A, B;", "fff", {F(kNan), F(7.0f)}, F(7.0f)},
      {"min.f64 D, A, B;", "ggg", {G(1.0), G(-1.0)}, G(-1.0)},
  };
  ExpectRows(kRows);
}

Test(ptx_float, comparisons) {
  const InstructionRow kRows[] = {
      {"setp.lt.f32 D, A, B;", "pff", {F(1.0f), F(2.0f)}, 1},
      {"setp.lt.f32 D, A, B;", "pff", {F(kNan), F(2.0f)}, 0},
      {"setp.ltu.f32 D, A, B;", "pff", {F(kNan), F(2.0f)}, 1},
      {"setp.geu.f32 D, A, B;", "pff", {F(1.0f), F(2.0f)}, 0},
      {"setp.ne.f32 D, A, B;", "pff", {F(kNan), F(2.0f)}, 0},
      {"setp.neu.f32 D, A, B;", "pff", {F(kNan), F(2.0f)}, 1},
      {"setp.equ.f32 D, A, B;", "pff", {F(kNan), F(kNan)}, 1},
      {"setp.eq.f32 D, A, B;", "pff", {F(0.0f), F(-0.0f)}, 1},
      {"setp.num.f32 D, A, B;", "pff", {F(0.0f), F(kNan)}, 0},
      {"setp.nan.f32 D, A, B;", "pff", {F(0.0f), F(kNan)}, 1},
      {"setp.gt.ftz.f32 D, A, B;", "pff", {F(kTiny), F(0.0f)}, 0},
      {"setp.gt.f32 D, A, B;", "pff", {F(kTiny), F(0.0f)}, 1},
      {"setp.le.f64 D, A, B;", "pgg", {G(2.0), G(2.0)}, 1},
      {"setp.lt.s32 D, A, B;", "prr", {kAll, 0}, 1},
      {"setp.lt.u32 D, A, B;", "prr", {kAll, 0}, 0},
      {"setp.hi.u32 D, A, B;", "prr", {kAll, 0}, 1},
      {"setp.ls.u32 D, A, B;", "prr", {1, 1}, 1},
      {"setp.ge.s64 D, A, B;", "pdd", {1ull << 63, 0}, 0},
      {"setp.ne.s16 D, A, B;", "pss", {1, 1}, 0},
      {"setp.eq.b32 D, A, B;", "prr", {7, 7}, 1},
      {"setp.lt.and.s32 D, A, B, C;", "prrp", {1, 2, 1}, 1},
      {"setp.lt.and.s32 D, A, B, !C;", "prrp", {1, 2, 1}, 0},
      {"setp.lt.or.s32 D, A, B, C;", "prrp", {2, 1, 1}, 1},
      {"setp.lt.xor.s32 D, A, B, C;", "prrp", {1, 2, 1}, 0},
      {"setp.lt.s32 %p9|D, A, B;", "prr", {1, 2}, 0},  // D: the opposite
      {"set.lt.u32.s32 D, A, B;", "rrr", {1, 2}, kAll},
      {"set.lt.f32.f32 D, A, B;", "fff", {F(1.0f), F(2.0f)}, F(1.0f)},
      {"set.gt.u32.f32 D, A, B;", "rff", {F(1.0f), F(2.0f)}, 0},
      {"selp.b32 D, A, B, C;", "rrrp", {3, 4, 1}, 3},
      {"selp.f32 D, A, B, C;", "fffp", {F(3.0f), F(4.0f), 0}, F(4.0f)},
      {"selp.b64 D, A, B, C;", "dddp", {3, 4, 0}, 4},
  };
  ExpectRows(kRows);
}

Test(ptx_float, conversions) {
  const InstructionRow kRows[] = {
      {"cvt.u64.u32 D, A;", "dr", {kAll}, kAll},
      {"cvt.s64.s32 D, A;", "dr", {kAll}, ~uint64_t{0}},
      {"cvt.u32.u64 D, A;", "rd", {0x123456789Aull}, 0x3456789A},
      {"cvt.u32.u16 D, A;", "rs", {0xFFFF}, 0xFFFF},
      {"cvt.s32.s16 D, A;", "rs", {0xFFFF}, kAll},
      {"cvt.u16.u32 D, A;", "sr", {0x12345}, 0x2345},
      {"cvt.s32.s8 D, A;", "rr", {0x80}, 0xFFFFFF80},
      {"cvt.u32.u8 D, A;", "rr", {0x1FF}, 0xFF},
      {"cvt.sat.u8.s32 D, A;", "rr", {300}, 255},
      {"cvt.sat.u8.s32 D, A;", "rr", {kAll}, 0},
      {"cvt.rn.f32.s32 D, A;", "fr", {kAll}, F(-1.0f)},
      {"cvt.rn.f32.u32 D, A;", "fr", {kAll}, F(0x1p32f)},
      {"cvt.rn.f32.u32 D, A;", "fr", {(1u << 24) + 1}, F(0x1p24f)},
      {"cvt.rn.f32.u64 D, A;",
       "fd",
       {(1ull << 40) + (1ull << 16) + 1},
       F(0x1p40f + 0x1p17f)},
      {"cvt.rn.f64.s64 D, A;", "gd", {~uint64_t{0}}, G(-1.0)},
      {"cvt.rni.s32.f32 D, A;", "rf", {F(2.5f)}, 2},
      {"cvt.rzi.s32.f32 D, A;", "rf", {F(-2.9f)}, 0xFFFFFFFE},
      {"cvt.rmi.s32.f32 D, A;", "rf", {F(-2.1f)}, 0xFFFFFFFD},
      {"cvt.rpi.s32.f32 D, A;", "rf", {F(2.1f)}, 3},
      {"cvt.rzi.s32.f32 D, A;", "rf", {F(1e20f)}, 0x7FFFFFFF},
      {"cvt.rzi.u32.f32 D, A;", "rf", {F(-5.0f)}, 0},
      {"cvt.rzi.u32.f32 D, A;", "rf", {F(kNan)}, 0},
      {"cvt.rzi.u64.f32 D, A;", "df", {F(0x1p63f)}, 1ull << 63},
      {"cvt.rni.f32.f32 D, A;", "ff", {F(3.5f)}, F(4.0f)},
      {"cvt.rmi.f32.f32 D, A;", "ff", {F(-0.5f)}, F(-1.0f)},
      {"cvt.sat.f32.f32 D, A;", "ff", {F(7.0f)}, F(1.0f)},
      {"cvt.f64.f32 D, A;", "gf", {F(1.5f)}, G(1.5)},
      {"cvt.rn.f32.f64 D, A;", "fg", {G(1.0 + 0x1p-25)}, F(1.0f)},
      {"cvt.f32.f16 D, A;", "fs", {0x3C00}, F(1.0f)},
      {"cvt.f32.f16 D, A;", "fs", {0x8001}, F(-0x1p-24f)},
      {"cvt.f32.f16 D, A;", "fs", {0x7C00}, F(kInf)},
      {"cvt.rn.f16.f32 D, A;", "sf", {F(1.0f + 0x1p-11f)}, 0x3C00},
      {"cvt.rn.f16.f32 D, A;", "sf", {F(1.0f + 0x1.8p-10f)}, 0x3C02},
      {"cvt.rn.f16.f32 D, A;", "sf", {F(65519.0f)}, 0x7BFF},
      {"cvt.rn.f16.f32 D, A;", "sf", {F(65520.0f)}, 0x7C00},
      {"cvt.rz.f16.f32 D, A;", "sf", {F(-1e9f)}, 0xFBFF},
      {"cvt.rn.f16.f32 D, A;", "sf", {F(0x1p-25f)}, 0},
      {"cvt.rn.f16.f32 D, A;", "sf", {F(0x1.8p-24f)}, 2},
      {"cvt.rn.bf16.f32 D, A;", "sf", {0x3F808000}, 0x3F80},
      {"cvt.rn.bf16.f32 D, A;", "sf", {0x3F818000}, 0x3F82},
      {"cvt.rn.bf16.f32 D, A;", "sf", {F(kNan)}, 0x7FFF},
      {"cvt.rn.bf16x2.f32 D, A, B;", "rff", {F(1.0f), F(2.0f)}, 0x3F804000},
      {"cvt.rn.f16x2.f32 D, A, B;", "rff", {F(1.0f), F(2.0f)}, 0x3C004000},
  };
  ExpectRows(kRows);
}

Test(ptx_float, moves) {
  const InstructionRow kRows[] = {
      {"mov.u32 D, A;", "rr", {5}, 5},
      {"mov.f32 D, 0f3F800000;", "f", {}, F(1.0f)},
      {"mov.f64 D, 0d3FF0000000000000;", "g", {}, G(1.0)},
      {"mov.b32 D, A;", "rf", {F(1.0f)}, F(1.0f)},
      {"mov.pred D, A;", "pp", {1}, 1},
      {"mov.b64 D, {A, B};", "drr", {1, 2}, 0x200000001},
      {"mov.b32 D, {A, B};", "rss", {0x1234, 0x5678}, 0x56781234},
      {"mov.b64 {%r10, D}, A;", "rd", {0x1234567890ull}, 0x12},
      {"mov.b32 {D, _}, A;", "sr", {0x56781234}, 0x1234},
  };
  ExpectRows(kRows);
}

}  // namespace
}  // namespace kvevict::ptx
