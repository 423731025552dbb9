// Collectives of a warp, and how they may fail.
#include <criterion/criterion.h>

#include <cmath>

#include "tests/rig/ptx/half.h"
#include "tests/rig/ptx/ptx_test.h"

namespace kvevict::ptx {
namespace {

constexpr LaunchShape kWarp = {{}, {32, 1, 1}, 0};

// Every thread stores %r0 at its own word.
std::string StoreAll(const std::string& body) {
  return TestModule(body + R"(
    mul.wide.u32 %rd0, %r19, 4;
    add.s64 %rd0, %rd18, %rd0;
    st.global.u32 [%rd0], %r0;
  )");
}

std::vector<uint32_t> RunWarp(const std::string& body, uint64_t seed = 1) {
  LaunchOptions options;
  options.seed = seed;
  return RunFor<uint32_t>(StoreAll(body), 32, kWarp, {}, options);
}

void ExpectError(const std::string& body, const char* words,
                 const LaunchShape& shape = kWarp) {
  const std::string error = ErrorOf(TestModule(body), shape);
  cr_expect(error.find(words) != std::string::npos, "'%s' is not in: %s", words,
            error.c_str());
}

TestSuite(ptx_warp);

Test(ptx_warp, shuffles) {
  const auto down = RunWarp("shfl.sync.down.b32 %r0, %r19, 5, 31, -1;");
  const auto up = RunWarp("shfl.sync.up.b32 %r0, %r19, 3, 0, -1;");
  const auto butterfly = RunWarp("shfl.sync.bfly.b32 %r0, %r19, 16, 31, -1;");
  // c = 0x1803: segments of 8 lanes, of which the first four are read.
  const auto index = RunWarp("shfl.sync.idx.b32 %r0, %r19, 2, 0x1803, -1;");
  const auto outside = RunWarp(R"(
    shfl.sync.down.b32 %r1|%p0, %r19, 5, 31, -1;
    selp.u32 %r0, 1, 0, %p0;
  )");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    cr_expect_eq(down[lane], lane + 5 < 32 ? lane + 5 : lane);
    cr_expect_eq(up[lane], lane >= 3 ? lane - 3 : lane);
    cr_expect_eq(butterfly[lane], lane ^ 16);
    cr_expect_eq(index[lane], (lane & ~7u) + 2);
    cr_expect_eq(outside[lane], lane + 5 < 32 ? 1u : 0u);
  }
}

Test(ptx_warp, votes) {
  const std::string odd = R"(
    and.b32 %r1, %r19, 1;
    setp.eq.u32 %p1, %r1, 1;
  )";
  cr_expect_eq(RunWarp(odd + "vote.sync.ballot.b32 %r0, %p1, -1;")[7],
               0xAAAAAAAA);
  cr_expect_eq(RunWarp(odd + "vote.sync.ballot.b32 %r0, !%p1, -1;")[0],
               0x55555555u);
  const std::string select = "selp.u32 %r0, 1, 0, %p2;";
  cr_expect_eq(RunWarp(odd + "vote.sync.any.pred %p2, %p1, -1;" + select)[0],
               1u);
  cr_expect_eq(RunWarp(odd + "vote.sync.all.pred %p2, %p1, -1;" + select)[0],
               0u);
  cr_expect_eq(RunWarp(odd + "vote.sync.uni.pred %p2, %p1, -1;" + select)[0],
               0u);
}

// Half the warp uses its own mask while the other half does something else.
Test(ptx_warp, parts_of_a_warp) {
  const auto out = RunWarp(R"(
    mov.u32 %r0, 100;
    setp.ge.u32 %p0, %r19, 16;
    @%p0 bra $high;
    shfl.sync.bfly.b32 %r0, %r19, 1, 31, 0xFFFF;
    bra.uni $join;
    $high:
    vote.sync.ballot.b32 %r0, %p0, 0xFFFF0000;
    $join:
    bar.warp.sync -1;
  )");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    cr_expect_eq(out[lane], lane < 16 ? lane ^ 1 : 0xFFFF0000u);
  }
}

// A lane sees what others wrote before the barrier, whoever ran first.
Test(ptx_warp, barriers_of_a_warp) {
  for (uint64_t seed = 1; seed < 20; ++seed) {
    const auto out = RunWarp(R"(
      .shared .align 4 .b8 s[128];
      mul.wide.u32 %rd1, %r19, 4;
      mov.u64 %rd2, s;
      add.s64 %rd3, %rd2, %rd1;
      st.shared.u32 [%rd3], %r19;
      bar.warp.sync -1;
      xor.b32 %r1, %r19, 31;
      mul.wide.u32 %rd4, %r1, 4;
      add.s64 %rd4, %rd2, %rd4;
      ld.shared.u32 %r0, [%rd4];
    )",
                             seed);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      cr_expect_eq(out[lane], 31 - lane);
    }
  }
}

// Whether any thread of the block, 0 to 63, passes true.
Test(ptx_warp, barriers_that_reduce) {
  for (const int thread : {0, 40, 63, 64}) {
    for (const char* negation : {"", "!"}) {
      const std::string body =
          "setp." + std::string(*negation == '!' ? "ne" : "eq") +
          ".u32 %p0, %r19, " + std::to_string(thread) +
          ";\n  bar.red.or.pred %p1, 0, " + negation + "%p0;" + R"(
    selp.u32 %r0, 7, 3, %p1;
    mul.wide.u32 %rd1, %r19, 4;
    add.s64 %rd1, %rd18, %rd1;
    st.global.u32 [%rd1], %r0;
  )";
      const auto out = RunFor<uint32_t>(TestModule(body), 64, {{}, {64}});
      for (const uint32_t v : out) cr_expect_eq(v, thread < 64 ? 7 : 3);
    }
  }
}

Test(ptx_warp, misuse) {
  ExpectError(R"(
    setp.lt.u32 %p0, %r19, 3;
    @%p0 bra $other;
    bar.sync 0;
    ret;
    $other:
    bar.sync 0;
  )",
              "divergent barrier");
  ExpectError(R"(
    setp.lt.u32 %p0, %r19, 3;
    @%p0 ret;
    bar.sync 0;
  )",
              "has ended");
  ExpectError(R"(
    setp.lt.u32 %p0, %r19, 3;
    @%p0 bra $other;
    bar.warp.sync -1;
    ret;
    $other:
    bar.sync 0;
  )",
              "divergent barrier");
  ExpectError(R"(
    setp.lt.u32 %p0, %r19, 3;
    @%p0 bra $other;
    shfl.sync.idx.b32 %r0, %r19, 0, 31, -1;
    ret;
    $other:
    shfl.sync.idx.b32 %r0, %r19, 0, 31, -1;
  )",
              "divergent barrier");
  ExpectError("shfl.sync.idx.b32 %r0, %r19, 20, 31, 0xFFFF;",
              "not in its own mask");
  ExpectError(R"(
    setp.ge.u32 %p0, %r19, 16;
    @%p0 ret;
    shfl.sync.idx.b32 %r0, %r19, 20, 31, 0xFFFF;
  )",
              "does not take part");
  ExpectError("bar.sync 1;", "only barrier 0");
  ExpectError("bar.warp.sync %r19;", "not in its own mask");
}

// Row k of matrix j of the source holds 100 j + 10 k + column.
std::string LoadMatrix(const char* trans) {
  return std::string(R"(
    .shared .align 16 .b8 s[512];
    mul.wide.u32 %rd1, %r19, 16;
    mov.u64 %rd2, s;
    add.s64 %rd3, %rd2, %rd1;
    shr.u32 %r1, %r19, 3;
    and.b32 %r2, %r19, 7;
    mul.lo.u32 %r1, %r1, 100;
    mad.lo.u32 %r1, %r2, 10, %r1;
    mad.lo.u32 %r1, %r1, 0x10001, 0x10000;
    add.u32 %r2, %r1, 0x20002;
    add.u32 %r3, %r1, 0x40004;
    add.u32 %r4, %r1, 0x60006;
    st.shared.v4.u32 [%rd3], {%r1, %r2, %r3, %r4};
    bar.warp.sync -1;
    ldmatrix.sync.aligned.m8n8.x4)") +
         trans + R"(.shared.b16 {%r5, %r6, %r7, %r0}, [%rd3];
  )";
}

Test(ptx_warp, matrix_rows) {
  const auto plain = RunWarp(LoadMatrix(""));
  const auto transposed = RunWarp(LoadMatrix(".trans"));
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t a = lane / 4;
    const uint32_t b = lane % 4 * 2;
    const uint32_t row = 300 + 10 * a + b;
    cr_expect_eq(plain[lane], (row + 1) << 16 | row);
    cr_expect_eq(transposed[lane],
                 (300 + 10 * (b + 1) + a) << 16 | (300 + 10 * b + a));
  }
}

// A[i][k] = i + 2 k, B[k][j] = k - j, C = 0.5; whole numbers, so exact.
Test(ptx_warp, matrix_products) {
  for (const bool bf16 : {false, true}) {
    const char* type = bf16 ? "bf16" : "f16";
    const std::string product =
        std::string("mma.sync.aligned.m16n8k16.row.col.f32.") + type + "." +
        type +
        ".f32 {%f0,%f1,%f2,%f3}, {%r4,%r5,%r6,%r7}, {%r8,%r9}, "
        "{%f4,%f4,%f4,%f4};\n";
    const auto half = [bf16](int v) -> uint32_t {
      return bf16 ? ToBF16(static_cast<float>(v), false)
                  : ToF16(static_cast<float>(v), false);
    };
    // The fragments of each lane follow the PTX manual.
    std::vector<uint32_t> fragments;
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4;
      const int t = lane % 4 * 2;
      const auto a = [&](int i, int k) {
        return half(i + 2 * (k + 1)) << 16 | half(i + 2 * k);
      };
      const auto b = [&](int k, int j) {
        return half(k + 1 - j) << 16 | half(k - j);
      };
      for (const uint32_t word :
           {a(g, t), a(g + 8, t), a(g, t + 8), a(g + 8, t + 8), b(t, g),
            b(t + 8, g), 0u, 0u}) {
        fragments.push_back(word);
      }
    }
    std::vector<uint8_t> in(4 * fragments.size());
    std::memcpy(in.data(), fragments.data(), in.size());
    const auto c = RunFor<float>(TestModule(R"(
      mul.wide.u32 %rd1, %r19, 32;
      add.s64 %rd2, %rd19, %rd1;
      ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd2];
      ld.global.v2.u32 {%r8, %r9}, [%rd2+16];
      mov.f32 %f4, 0f3F000000;
      )" + product + R"(
      mul.wide.u32 %rd3, %r19, 16;
      add.s64 %rd3, %rd18, %rd3;
      st.global.v4.f32 [%rd3], {%f0, %f1, %f2, %f3};
    )"),
                                 128, kWarp, in);
    for (int lane = 0; lane < 32; ++lane) {
      for (int r = 0; r < 4; ++r) {
        const int i = lane / 4 + r / 2 * 8;
        const int j = lane % 4 * 2 + r % 2;
        float expected = 0.5f;
        for (int k = 0; k < 16; ++k) {
          expected += static_cast<float>((i + 2 * k) * (k - j));
        }
        cr_expect_eq(c[static_cast<size_t>(4 * lane + r)], expected);
      }
    }
  }
}

Test(ptx_warp, matrices_need_the_whole_warp) {
  ExpectError(R"(
    .shared .align 16 .b8 s[512];
    setp.ge.u32 %p0, %r19, 16;
    @%p0 ret;
    mov.u64 %rd0, s;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1, %r2, %r3}, [%rd0];
  )",
              "whole warp");
}

Test(ptx_warp, halves) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    const float f16 = FromF16(h);
    const float bf16 = FromBF16(h);
    if (!std::isnan(f16)) cr_assert_eq(ToF16(f16, false), h, "%x", bits);
    if (!std::isnan(bf16)) cr_assert_eq(ToBF16(bf16, false), h, "%x", bits);
    cr_assert_eq(std::isnan(f16), (bits & 0x7FFF) > 0x7C00, "%x", bits);
  }
  cr_expect_eq(FromF16(0x3555), 0x1.554p-2f);
  cr_expect_eq(FromF16(0x7BFF), 65504.0f);
}

}  // namespace
}  // namespace kvevict::ptx
