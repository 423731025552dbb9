// Counted instructions, sectors and bank conflicts.
#include <criterion/criterion.h>

#include "tests/rig/ptx/ptx_test.h"

namespace kvevict::ptx {
namespace {

constexpr LaunchShape kWarp = {{}, {32, 1, 1}, 0};

// Lane t accesses the element at t * stride + first of memory that is long
// enough; `access` uses %rd0.
Counters CountAccess(const std::string& address_of, uint32_t stride,
                     uint32_t first, const std::string& access,
                     uint64_t seed = 1) {
  TestRun run;
  run.ptx = TestModule(".shared .align 128 .b8 s[8192];\nmov.u64 %rd1, " +
                       address_of + ";\nmul.wide.u32 %rd0, %r19, " +
                       std::to_string(stride) +
                       ";\nadd.s64 %rd0, %rd0, %rd1;\nadd.s64 %rd0, %rd0, " +
                       std::to_string(first) + ";\n" + access);
  run.in.resize(8192);
  run.shape = kWarp;
  run.options.seed = seed;
  Run(run);
  return run.counters;
}

TestSuite(ptx_counters);

Test(ptx_counters, instructions) {
  TestRun run;
  run.ptx = TestModule(R"(
    setp.lt.u32 %p0, %r19, 5;
    mov.u32 %r0, 3;
    $loop:
    add.u32 %r0, %r0, -1;
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra $loop;
    @%p0 add.u64 %rd0, %rd0, 1;
  )");
  run.shape = {{2, 1, 1}, {32, 1, 1}, 0};
  Run(run);
  cr_expect_eq(run.counters.launches, 1u);
  cr_expect_eq(run.counters.instructions["add.u32"], 3u * 64);
  cr_expect_eq(run.counters.instructions["bra"], 3u * 64);
  // A predicate that does not hold does not save the instruction.
  cr_expect_eq(run.counters.instructions["add.u64"], 64u);
  cr_expect_eq(run.counters.CountOf("setp."), 4u * 64);
  cr_expect_eq(run.counters.CountOf("mma"), 0u);
}

Test(ptx_counters, sectors) {
  const struct {
    uint32_t stride;
    uint32_t first;
    const char* access;
    uint64_t sectors;
  } kRows[] = {
      {4, 0, "ld.global.u32 %r0, [%rd0];", 4},
      {4, 4, "ld.global.u32 %r0, [%rd0];", 5},
      {0, 0, "ld.global.u32 %r0, [%rd0];", 1},
      {32, 0, "ld.global.u32 %r0, [%rd0];", 32},
      {16, 0, "ld.global.v4.u32 {%r0,%r1,%r2,%r3}, [%rd0];", 16},
      {1, 0, "ld.global.u8 %r0, [%rd0];", 1},
      {2, 0, "ld.global.u16 %rs0, [%rd0];", 2},
  };
  for (const auto& row : kRows) {
    // The order of the lanes does not matter.
    for (uint64_t seed = 1; seed < 5; ++seed) {
      const Counters c =
          CountAccess("%rd19", row.stride, row.first, row.access, seed);
      cr_expect_eq(c.global_loads, 1u);
      cr_expect_eq(c.global_load_sectors, row.sectors, "%s, %u: %llu",
                   row.access, row.stride,
                   static_cast<unsigned long long>(c.global_load_sectors));
      cr_expect_eq(c.global_stores, 0u);
    }
  }
  const Counters c = CountAccess("%rd19", 8, 0, "st.global.u64 [%rd0], %rd0;");
  cr_expect_eq(c.global_stores, 1u);
  cr_expect_eq(c.global_store_sectors, 8u);
}

Test(ptx_counters, bank_conflicts) {
  const struct {
    uint32_t stride;
    const char* access;
    uint64_t conflicts;
  } kRows[] = {
      {4, "ld.shared.u32 %r0, [%rd0];", 0},
      {0, "ld.shared.u32 %r0, [%rd0];", 0},
      {8, "ld.shared.u32 %r0, [%rd0];", 1},
      {128, "ld.shared.u32 %r0, [%rd0];", 31},
      {132, "st.shared.u32 [%rd0], %r0;", 0},
      {2, "ld.shared.u16 %rs0, [%rd0];", 0},
      {16, "ld.shared.v4.u32 {%r0,%r1,%r2,%r3}, [%rd0];", 0},
      // Every quarter of the warp meets at 4 banks: 7 passes too many.
      {128, "ld.shared.v4.u32 {%r0,%r1,%r2,%r3}, [%rd0];", 28},
      {144, "ld.shared.v4.u32 {%r0,%r1,%r2,%r3}, [%rd0];", 0},
      {128,
       "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0,%r1,%r2,%r3}, "
       "[%rd0];",
       28},
      {144,
       "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0,%r1,%r2,%r3}, "
       "[%rd0];",
       0},
      {8, "ld.shared.u64 %rd2, [%rd0];", 0},
      {16, "ld.shared.u64 %rd2, [%rd0];", 2},
  };
  for (const auto& row : kRows) {
    const Counters c = CountAccess("s", row.stride, 0, row.access);
    cr_expect_eq(c.shared_accesses, 1u);
    cr_expect_eq(c.shared_conflicts, row.conflicts, "%s, %u: %llu", row.access,
                 row.stride,
                 static_cast<unsigned long long>(c.shared_conflicts));
  }
}

// Turns of a loop are accesses of their own, though one lane may run all of its
// turns before the next lane begins.
Test(ptx_counters, turns_of_a_loop) {
  const Counters c = CountAccess("%rd19", 4, 0, R"(
    mov.u32 %r0, 6;
    $loop:
    ld.global.u32 %r1, [%rd0];
    add.s64 %rd0, %rd0, 128;
    add.u32 %r0, %r0, -1;
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra $loop;
  )");
  cr_expect_eq(c.global_loads, 6u);
  cr_expect_eq(c.global_load_sectors, 24u);
}

// One copy reads global and writes shared memory.
Test(ptx_counters, asynchronous_copies) {
  const Counters c = CountAccess("s", 16, 0, R"(
    mul.wide.u32 %rd2, %r19, 16;
    add.s64 %rd2, %rd2, %rd19;
    cp.async.cg.shared.global [%rd0], [%rd2], 16;
    cp.async.commit_group;
    cp.async.wait_group 0;
  )");
  cr_expect_eq(c.global_loads, 1u);
  cr_expect_eq(c.global_load_sectors, 16u);
  cr_expect_eq(c.shared_accesses, 1u);
  cr_expect_eq(c.shared_conflicts, 0u);
}

}  // namespace
}  // namespace kvevict::ptx
