// Accepted and refused statements: nothing unknown is ever skipped.
#include <criterion/criterion.h>

#include "tests/rig/ptx/ptx_test.h"

namespace kvevict::ptx {
namespace {

// The statement is refused, and the message names the first line of the body.
void ExpectRefused(const std::string& statement, const char* words,
                   int target = 80) {
  const std::string error = ErrorOf(TestModule(statement, "", target));
  const std::string line = "line " + std::to_string(kFirstLineOfBody) + ":";
  cr_expect(error.find(line) == 0 && error.find(words) != std::string::npos,
            "%s: '%s' is not in: %s", statement.c_str(), words, error.c_str());
}

TestSuite(ptx_syntax);

Test(ptx_syntax, unknown_words_are_errors) {
  ExpectRefused("frobnicate.u32 %r0, %r1;", "unknown opcode");
  ExpectRefused("add.cc.u32 %r0, %r1, %r2;", "cc");
  ExpectRefused("add.u33 %r0, %r1, %r2;", "u33");
  ExpectRefused("add.rz.f32 %f0, %f1, %f2;", "unknown modifier");
  ExpectRefused("ld.global.v3.u32 {%r0, %r1, %r2}, [%rd18];", "v3");
  ExpectRefused("ld.global.v2.u32 %r0, [%rd18];", "vector");
  ExpectRefused("atom.global.add.f32 %f0, [%rd18], %f1;", "expected .u32");
  ExpectRefused("bar.arrive 0, 64;", "operands");
  ExpectRefused("shfl.up.b32 %r0, %r1, 1, 0;", "operands");
  ExpectRefused(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%f0,%f1,%f2,%f3}, {%r0,%r1}, {%r2}, {%f0,%f1,%f2,%f3};",
      "m16n8k16");
  ExpectRefused("atom.global.cas.b32 %r0, [%rd18], 1, 2;", "too many");
  ExpectRefused("ld.u32 %r0, [%rd18];", "generic");
  ExpectRefused("call foo;", "unknown opcode");
  ExpectRefused("fence.acq_rel.gpu;", "unknown opcode");
  ExpectRefused("ld.volatile.global.u32 %r0, [%rd18];", "generic");
  ExpectRefused("st.release.sys.global.u32 [%rd18], %r0;", "sys");
  ExpectRefused("mov.u32 %r0, %clock;", "unknown name");
  ExpectRefused("mov.u32 %r0, nowhere;", "unknown name");
  ExpectRefused("mov.u32 %r77, 0;", "not a register");
  ExpectRefused("bra $nowhere;", "unknown label");
  ExpectRefused("add.u32 %r0, %r1;", "too few");
  ExpectRefused("neg.s32 %r0, %r1, %r2;", "too many");
  ExpectRefused("cvt.rn.s32.f32 %r0, %f0;", "only .rzi");
  ExpectRefused("cvt.f16.f32 %rs0, %f0;", ".rn");
  ExpectRefused("setp.lt.and.u32 %p0, %r0, %r1;", "and");
  ExpectRefused("add.u32 %r0, 1.5, %r1;", "expected");
  ExpectRefused("mul.wide.u64 %rd0, %rd1, %rd2;", "wide");
}

Test(ptx_syntax, architectures) {
  const char* const kCopy = "cp.async.commit_group;";
  const char* const kMatrix =
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1, %r2, %r3}, [%rd0];";
  ExpectRefused(kCopy, "needs sm_80", 75);
  ExpectRefused(kMatrix, "needs sm_75", 70);
  cr_expect_eq(ErrorOf(TestModule(kCopy, "", 80)), "");
}

Test(ptx_syntax, modules) {
  const auto refused = [](const std::string& ptx, const char* words) {
    const std::string error = ErrorOf(ptx);
    cr_expect(error.find(words) != std::string::npos, "%s", error.c_str());
  };
  refused("", "no .target");
  refused(".version 7.8\n.target sm_80\n.address_size 32\n", "line 3: only 64");
  refused(".version 7.8\n.target sm_80\n.texref t;\n", "line 3: unknown dir");
  refused(".version 7.8\n.target sm_80\n.func f() { }\n",
          "line 3: unknown dir");
  refused(TestModule("") + "?", "not PTX");
  refused(TestModule("$a:\n$a:\n"), "twice");
}

// Lines of debug information, comments, pragmas, nested scopes with registers of
// their own.
Test(ptx_syntax, what_nvrtc_writes_around_the_code) {
  const std::string scoped = R"({
    .reg .pred p;
    .reg .b32 t;
    setp.eq.u32 p, %r0, 0;
    selp.b32 t, 5, 7, p;
    add.u32 %r0, %r0, t;
    })";
  const auto out = RunFor<uint32_t>(
      TestModule("mov.u32 %r0, 0; // first\n.loc 1 7 3\n" + scoped + "\n" +
                 ".loc 1 8 3, function_name $info, inlined_at 1 7 3\n" +
                 ".pragma \"nounroll\";\n/* and\nagain */\n" + scoped +
                 "\nst.global.u32 [%rd18], %r0;") +
          ".file 1 \"k.cu\"\n",
      1);
  cr_expect_eq(out[0], 12u);
}

Test(ptx_syntax, predicates_guard) {
  const auto out = RunFor<uint32_t>(TestModule(R"(
    setp.eq.u32 %p0, %r19, 0;
    mov.u32 %r0, 1;
    @%p0 mov.u32 %r0, 2;
    @!%p0 mov.u32 %r0, 3;
    st.global.u32 [%rd18], %r0;
  )"),
                                    1);
  cr_expect_eq(out[0], 2u);
}

}  // namespace
}  // namespace kvevict::ptx
