// Collectives of a warp, and how they may fail.
#include <criterion/criterion.h>

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

}  // namespace
}  // namespace kvevict::ptx
