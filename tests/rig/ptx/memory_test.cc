// Loads, stores and atomics of every space, and forbidden accesses.
#include <criterion/criterion.h>

#include "tests/rig/ptx/ptx_test.h"

namespace kvevict::ptx {
namespace {

void ExpectError(const std::string& body, const char* words,
                 const std::string& variables = "",
                 const LaunchShape& shape = {}) {
  const std::string error = ErrorOf(TestModule(body, variables), shape);
  cr_expect(error.find(words) != std::string::npos, "'%s' is not in: %s", words,
            error.c_str());
}

TestSuite(ptx_memory);

Test(ptx_memory, vectors_and_widths) {
  const auto out = RunFor<uint32_t>(TestModule(R"(
    ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%rd19];
    ld.global.s8 %r4, [%rd19+3];
    ld.global.u8 %r5, [%rd19+3];
    ld.global.u16 %rs0, [%rd19+2];
    cvt.u32.u16 %r6, %rs0;
    st.global.v2.u32 [%rd18], {%r3, %r0};
    st.global.v2.u32 [%rd18+8], {%r4, %r5};
    st.global.u32 [%rd18+16], %r6;
    st.global.u8 [%rd18+20], %r1;
  )"),
                                    6, {},
                                    {0x10, 0, 0x34, 0xF2, 0x77, 0, 0, 0,  //
                                     0, 0, 0, 0, 0x99, 0, 0, 0});
  const uint32_t expected[] = {0x99,       0xF2340010, 0xFFFFFFF2,
                               0x000000F2, 0x0000F234, 0xFFFFFF77};
  for (size_t k = 0; k < out.size(); ++k) {
    cr_expect_eq(out[k], expected[k], "%zu: %x", k, out[k]);
  }
}

// Shared memory: declared in the body, by the module, and sized by the launch.
Test(ptx_memory, shared) {
  const auto out = RunFor<uint32_t>(TestModule(R"(
    .shared .align 16 .b8 demoted[64];
    mov.u64 %rd0, demoted;
    mul.wide.u32 %rd1, %r19, 4;
    add.s64 %rd2, %rd0, %rd1;
    st.shared.u32 [%rd2], %r19;
    mov.u64 %rd3, dynamic;
    add.s64 %rd4, %rd3, %rd1;
    st.shared.u32 [%rd4+32], %r19;
    setp.ne.u32 %p0, %r19, 0;
    @!%p0 st.shared.u32 [of_module], %r19;
    bar.sync 0;
    ld.shared.u32 %r0, [%rd0+8];
    cvt.u32.u64 %r2, %rd3;
    ld.shared.u32 %r1, [%r2+44];
    @%p0 bra $done;
    st.global.v2.u32 [%rd18], {%r0, %r1};
    $done:
  )",
                                               R"(
    .extern .shared .align 16 .b8 dynamic[];
    .shared .align 4 .b8 of_module[4];
  )"),
                                    2, {{}, {8, 1, 1}, 64});
  cr_expect_eq(out[0], 2u);
  cr_expect_eq(out[1], 3u);
}

Test(ptx_memory, local_and_parameters) {
  const auto out = RunFor<uint64_t>(TestModule(R"(
    .local .align 8 .b8 depot[16];
    .reg .b64 %SPL;
    mov.u64 %SPL, depot;
    mov.u64 %rd0, 77;
    st.local.u64 [%SPL+8], %rd0;
    ld.local.u64 %rd1, [depot+8];
    st.global.u64 [%rd18], %rd1;
    mov.b64 %rd2, out;
    ld.param.u64 %rd3, [%rd2+8];
    sub.s64 %rd3, %rd3, %rd19;
    st.global.u64 [%rd18+8], %rd3;
  )"),
                                    2);
  cr_expect_eq(out[0], 77u);
  cr_expect_eq(out[1], 0u);
}

Test(ptx_memory, variables_of_the_module) {
  const auto out = RunFor<uint32_t>(TestModule(R"(
    ld.global.u32 %r0, [table+4];
    mov.u64 %rd0, table;
    ld.global.u32 %r1, [%rd0];
    ld.global.u32 %r2, [zero];
    st.global.v2.u32 [%rd18], {%r0, %r1};
    st.global.u32 [%rd18+8], %r2;
  )",
                                               R"(
    .global .align 4 .b8 table[8] = {1, 2, 3, 4, 255, 6, 7, 8};
    .global .u32 zero;
  )"),
                                    3);
  cr_expect_eq(out[0], 0x080706FFu);
  cr_expect_eq(out[1], 0x04030201u);
  cr_expect_eq(out[2], 0u);
}

Test(ptx_memory, atomics) {
  const auto out = RunFor<uint32_t>(TestModule(R"(
    .shared .align 4 .b8 count[4];
    mov.u32 %r0, 0;
    setp.ne.u32 %p0, %r19, 0;
    @!%p0 st.shared.u32 [count], %r0;
    bar.sync 0;
    atom.shared.add.u32 %r1, [count], 3;
    red.shared.add.u32 [count], 1;
    bar.sync 0;
    ld.shared.u32 %r2, [count];
    @%p0 ret;
    st.global.u32 [%rd18], %r2;
    st.global.u32 [%rd18+4], %r0;
    atom.acq_rel.gpu.global.add.u32 %r3, [%rd18+4], 5;
    atom.global.add.u32 %r4, [%rd18+4], -1;
    st.global.v2.u32 [%rd18+8], {%r3, %r4};
  )"),
                                    4, {{}, {64, 1, 1}});
  const uint32_t expected[] = {256, 4, 0, 5};
  for (size_t k = 0; k < out.size(); ++k) {
    cr_expect_eq(out[k], expected[k], "%zu: %u", k, out[k]);
  }
}

// The memory is poison until the wait. A copy that is not valid writes zeros.
Test(ptx_memory, asynchronous_copies) {
  const auto out = RunFor<uint32_t>(TestModule(R"(
    .shared .align 16 .b8 tile[48];
    mov.u32 %r0, 16;
    mov.u32 %r1, 0;
    cp.async.cg.shared.global [tile], [%rd19], 16, %r0;
    cp.async.commit_group;
    cp.async.cg.shared.global [tile+16], [%rd19], 16, %r1;
    cp.async.cg.shared.global [tile+32], [%rd19+16], 16;
    cp.async.commit_group;
    ld.shared.u32 %r2, [tile];
    cp.async.wait_group 1;
    ld.shared.u32 %r3, [tile];
    ld.shared.u32 %r4, [tile+32];
    cp.async.wait_group 0;
    ld.shared.u32 %r5, [tile+28];
    ld.shared.u32 %r6, [tile+32];
    st.global.v4.u32 [%rd18], {%r2, %r3, %r4, %r5};
    st.global.u32 [%rd18+16], %r6;
  )"),
                                    5, {}, {1, 0, 0, 0, 0, 0, 0, 0,  //
                                            0, 0, 0, 0, 0, 0, 0, 0,  //
                                            2, 0, 0, 0, 0, 0, 0, 0,  //
                                            0, 0, 0, 0, 0, 0, 0, 0});
  const uint32_t expected[] = {0xFFFFFFFF, 1, 0xFFFFFFFF, 0, 2};
  for (size_t k = 0; k < out.size(); ++k) {
    cr_expect_eq(out[k], expected[k], "%zu: %x", k, out[k]);
  }
}

// Their order is unknown until a wait.
Test(ptx_memory, asynchronous_copies_to_one_place) {
  const std::string twice =
      ".shared .align 16 .b8 a[32];\n"
      "cp.async.cg.shared.global [a+16], [%rd18], 16;\n";
  const char* const again = "cp.async.cg.shared.global [a+16], [%rd18], 16;";
  const char* const commit = "cp.async.commit_group;\n";
  const char* const error = "cp.async to where another one is under way";
  ExpectError(twice + again, error);
  ExpectError(twice + commit + again, error);
  const std::string waits = twice + commit + "cp.async.wait_group 0;\n" + again;
  cr_expect_str_empty(ErrorOf(TestModule(waits)).c_str());
}

Test(ptx_memory, bounds) {
  // out has 64 bytes.
  ExpectError("st.global.u32 [%rd18+64], %r19;", "out of bounds");
  ExpectError("st.global.u32 [%rd18+-4], %r19;", "out of bounds");
  ExpectError("ld.global.v4.u32 {%r0,%r1,%r2,%r3}, [%rd18+64];",
              "out of bounds");
  ExpectError("ld.global.u32 %r0, [0];", "out of bounds");
  ExpectError(".shared .align 4 .b8 a[8];\nld.shared.u32 %r0, [a+8];",
              "out of bounds of shared memory");
  ExpectError("ld.shared.u32 %r0, [0];", "out of bounds of shared memory");
  ExpectError("st.shared.u32 [d+16], %r19;", "out of bounds of shared memory",
              ".extern .shared .align 16 .b8 d[];", {{}, {}, 16});
  ExpectError(".local .align 4 .b8 l[8];\nst.local.u32 [l+8], %r19;",
              "out of bounds of local memory");
  ExpectError("ld.param.u64 %rd0, [out+16];", "out of bounds of the param");
  ExpectError(
      ".shared .align 16 .b8 a[16];\n"
      "cp.async.cg.shared.global [a], [%rd18+64], 16;",
      "out of bounds");
}

Test(ptx_memory, alignment) {
  ExpectError("st.global.u32 [%rd18+2], %r19;", "misaligned");
  ExpectError("ld.global.v4.u32 {%r0,%r1,%r2,%r3}, [%rd18+8];", "misaligned");
  ExpectError(".shared .align 16 .b8 a[32];\nld.shared.u64 %rd0, [a+4];",
              "misaligned");
  ExpectError(
      ".shared .align 16 .b8 a[16];\n"
      "cp.async.cg.shared.global [a], [%rd18+8], 16;",
      "misaligned");
}

// Errors name the line of the PTX and the thread that was there.
Test(ptx_memory, errors_say_where) {
  const std::string error = ErrorOf(TestModule(R"(setp.ne.u32 %p0, %r19, 5;
@%p0 ret;
st.global.u32 [%rd18+2], %r19;)"),
                                    {{}, {8, 1, 1}});
  const std::string expected = "kernel test, line " +
                               std::to_string(kFirstLineOfBody + 2) +
                               ", block 0, thread 5: misaligned";
  cr_expect(error.find(expected) == 0, "%s", error.c_str());
}

Test(ptx_memory, what_is_freed_is_gone) {
  Memory memory;
  const uint64_t a = memory.Allocate(100);
  const uint64_t b = memory.Allocate(100);
  cr_expect_not_null(memory.Find(a, 100));
  cr_expect_null(memory.Find(a, 101));
  cr_expect_null(memory.Find(a + 100, 1));
  cr_expect(memory.Free(a));
  cr_expect_not(memory.Free(a));
  cr_expect_null(memory.Find(a, 1));
  cr_expect_not_null(memory.Find(b + 99, 1));
  cr_expect_neq(memory.Allocate(100), a);
}

}  // namespace
}  // namespace kvevict::ptx
