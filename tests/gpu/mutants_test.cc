// The mutation test itself: a small kernel whose first barrier is needed and whose
// second one is not, and weaker forms of everything else.
#include "tests/gpu/mutants.h"

#include <cstdio>
#include <cstdlib>

#include "tests/rig/ptx/ptx_test.h"
#include "tests/thread/check.h"

namespace kvevict::ptx {
namespace {

void WeakensEverything() {
  const struct {
    const char* statement;
    int n_mutants;
    const char* one;
  } kRows[] = {
      {"bar.sync 0;", 1, "left out"},
      {"bar.red.or.pred %p1, 0, %p2;", 1, "made mov.pred %p1,  %p2"},
      {"ld.acquire.gpu.global.u32 %r1, [%rd1];", 2, "made ld.relaxed.gpu"},
      {"st.release.gpu.global.u32 [%rd1], %r1;", 2, "made st.release.cta"},
      {"st.global.release.gpu.u32 [%rd1], %r1;", 2, "st.global.relaxed.gpu"},
      {"atom.acq_rel.gpu.global.add.u32 %r1, [%rd1], 1;", 4,
       "made atom.release.gpu"},
      {"atom.relaxed.gpu.global.add.u32 %r1, [%rd1], 1;", 1,
       "atom.relaxed.cta"},
      {"cp.async.wait_group 0;", 1, "left out"},
      {"atom.shared.add.u32 %r1, [%rd1], 1;", 0, ""},
      {"ld.global.u32 %r1, [%rd1];", 0, ""},
      {"st.relaxed.cta.global.u32 [%rd1], %r1;", 0, ""},
  };
  for (const auto& row : kRows) {
    const std::vector<Mutant> mutants = MutantsOf(TestModule(row.statement));
    std::string all;
    for (const Mutant& m : mutants) all += m.what + "\n";
    std::printf("%s\n", all.c_str());
    CHECK(mutants.size() == static_cast<size_t>(row.n_mutants));
    CHECK(all.find(row.one) != std::string::npos);
  }
}

// Thread 0 sees what the others stored before the first barrier.
constexpr const char* kBody = R"(
  .shared .align 4 .b8 s[256];
  mul.wide.u32 %rd0, %r19, 4;
  mov.u64 %rd1, s;
  add.s64 %rd2, %rd1, %rd0;
  st.shared.u32 [%rd2], %r19;
  bar.sync 0;
  ld.shared.u32 %r0, [s+252];
  bar.sync 0;
  setp.ne.u32 %p0, %r19, 0;
  @%p0 ret;
  st.global.u32 [%rd18], %r0;
)";

void RunOnce(const std::string& ptx) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    LaunchOptions options;
    options.seed = seed;
    const auto out = RunFor<uint32_t>(ptx, 1, {{}, {64, 1, 1}, 0}, {}, options);
    if (out[0] != 63) std::exit(1);
  }
}

}  // namespace
}  // namespace kvevict::ptx

int main() {
  using namespace kvevict::ptx;
  WeakensEverything();
  RunOnce(TryMutants(TestModule(kBody), "test"));
  return AllMutantsWereNoticed() ? 0 : 1;
}
