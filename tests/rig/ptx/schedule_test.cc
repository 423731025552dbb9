// The order of threads and blocks.
#include <criterion/criterion.h>

#include <set>

#include "tests/rig/ptx/ptx_test.h"

namespace kvevict::ptx {
namespace {

LaunchOptions Options(uint64_t seed, uint32_t resident_blocks) {
  LaunchOptions options;
  options.seed = seed;
  options.resident_blocks = resident_blocks;
  return options;
}

// Blocks go in the order of tickets: each waits for the one before and adds its
// ticket to a sum. `wait` is in the loop.
std::string Chain(const char* wait) {
  return TestModule(std::string(R"(
    atom.acq_rel.gpu.global.add.u32 %r0, [%rd19], 1;
    $spin:
    )") + wait + R"(
    ld.global.acquire.gpu.u32 %r1, [%rd19+4];
    setp.ne.u32 %p0, %r1, %r0;
    @%p0 bra $spin;
    ld.global.u32 %r2, [%rd18];
    mad.lo.u32 %r2, %r2, 3, %r0;
    st.global.u32 [%rd18], %r2;
    add.u32 %r1, %r1, 1;
    st.release.gpu.global.u32 [%rd19+4], %r1;
  )");
}

TestSuite(ptx_schedule);

Test(ptx_schedule, blocks_wait_for_blocks) {
  uint32_t expected = 0xFFFFFFFF;
  for (uint32_t ticket = 0; ticket < 20; ++ticket) {
    expected = expected * 3 + ticket;
  }
  for (const char* wait : {"", "nanosleep.u32 20;"}) {
    for (uint32_t resident : {1u, 3u, 20u}) {
      for (uint64_t seed = 1; seed < 5; ++seed) {
        const auto out =
            RunFor<uint32_t>(Chain(wait), 1, {{20, 1, 1}, {}, 0},
                             {0, 0, 0, 0, 0, 0, 0, 0}, Options(seed, resident));
        cr_expect_eq(out[0], expected);
      }
    }
  }
}

Test(ptx_schedule, waiting_for_nobody_is_an_error) {
  LaunchOptions options;
  options.max_idle_turns = 5000;
  for (const char* body : {
           "$spin: ld.global.acquire.gpu.u32 %r0, [%rd18];\nbra $spin;",
           "$spin: atom.global.add.u32 %r0, [%rd18], 0;\nbra $spin;",
           "$spin: nanosleep.u32 100;\nbra $spin;",
       }) {
    const std::string error = ErrorOf(TestModule(body), {}, options);
    cr_expect(error.find("spin") != std::string::npos, "%s: %s", body,
              error.c_str());
  }
}

// Only the seed decides which thread writes last. It is a race, of course.
Test(ptx_schedule, the_seed_decides) {
  const std::string ptx = TestModule("st.global.u32 [%rd18], %r19;");
  std::set<uint32_t> last;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const LaunchShape shape = {{2, 1, 1}, {64, 1, 1}, 0};
    LaunchOptions options = Options(seed, 2);
    options.find_races = false;
    const auto first = RunFor<uint32_t>(ptx, 1, shape, {}, options);
    const auto again = RunFor<uint32_t>(ptx, 1, shape, {}, options);
    cr_expect_eq(first[0], again[0]);
    last.insert(first[0]);
  }
  cr_expect_gt(last.size(), 5u);
}

// A missing barrier shows, also where nobody looks for races: thread 0 reads what the
// others may not have written.
Test(ptx_schedule, a_missing_barrier_shows) {
  uint32_t wrong = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    LaunchOptions options = Options(seed, 1);
    options.find_races = false;
    const auto out = RunFor<uint32_t>(TestModule(R"(
      .shared .align 4 .b8 s[256];
      mul.wide.u32 %rd0, %r19, 4;
      mov.u64 %rd1, s;
      add.s64 %rd2, %rd1, %rd0;
      st.shared.u32 [%rd2], %r19;
      ld.shared.u32 %r0, [s+252];
      setp.ne.u32 %p0, %r19, 0;
      @%p0 ret;
      st.global.u32 [%rd18], %r0;
    )"),
                                      1, {{}, {64, 1, 1}, 0}, {}, options);
    wrong += out[0] != 63 ? 1 : 0;
  }
  cr_expect_gt(wrong, 0u);
}

Test(ptx_schedule, indices_and_sizes) {
  const auto out = RunFor<uint32_t>(TestModule(R"(
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ctaid.y;
    mov.u32 %r2, %ctaid.z;
    mov.u32 %r3, %nctaid.x;
    mov.u32 %r4, %nctaid.y;
    mad.lo.u32 %r5, %r2, %r4, %r1;
    mad.lo.u32 %r5, %r5, %r3, %r0;
    mov.u32 %r6, %tid.y;
    mov.u32 %r7, %ntid.x;
    mad.lo.u32 %r8, %r6, %r7, %r19;
    mov.u32 %r9, %ntid.y;
    mul.lo.u32 %r9, %r9, %r7;
    mad.lo.u32 %r10, %r5, %r9, %r8;
    mul.wide.u32 %rd0, %r10, 4;
    add.s64 %rd0, %rd18, %rd0;
    st.global.u32 [%rd0], %r10;
  )"),
                                    2 * 3 * 2 * 40, {{2, 3, 2}, {8, 5, 1}, 0});
  for (uint32_t k = 0; k < out.size(); ++k) {
    cr_expect_eq(out[k], k);
  }
}

Test(ptx_schedule, shapes_are_checked) {
  std::string ptx = TestModule("");
  ptx.replace(ptx.find("\n{"), 2, "\n.maxntid 64, 1, 1\n.minnctapersm 2\n{");
  cr_expect_eq(ErrorOf(ptx, {{}, {64, 1, 1}, 0}), "");
  cr_expect(ErrorOf(ptx, {{}, {65, 1, 1}, 0}).find("65 threads") !=
            std::string::npos);
}

}  // namespace
}  // namespace kvevict::ptx
