// What PTX's memory model orders, and that it orders nothing else: small programs
// of two or three threads whose outcome only an order forbids.
#include <criterion/criterion.h>

#include "tests/rig/ptx/ptx_test.h"

namespace kvevict::ptx {
namespace {

constexpr LaunchShape kTwoBlocks = {{2, 1, 1}, {}, 0};
constexpr LaunchShape kThreeBlocks = {{3, 1, 1}, {}, 0};

// A program whose threads find `0` in all of `in`. What thread k of the grid
// computes in %r0 goes to out[k].
struct Litmus {
  std::string body;
  LaunchShape shape;
  std::vector<uint32_t> forbidden;  // the outcome; with more, out[1] and on
};

std::string Program(const std::string& body) {
  return TestModule(R"(
    mov.u32 %r18, %ctaid.x;
    mov.u32 %r17, %ntid.x;
    mad.lo.u32 %r17, %r18, %r17, %r19;
    mov.u32 %r0, 0;
    setp.eq.u32 %p18, %r17, 0;
    setp.eq.u32 %p17, %r17, 1;
    setp.eq.u32 %p16, %r17, 2;
    mov.u32 %r16, 1;
  )" + body + R"(
    mul.wide.u32 %rd17, %r17, 4;
    add.s64 %rd17, %rd18, %rd17;
    st.global.u32 [%rd17], %r0;
  )");
}

// The number of seeds that give the outcome.
int CountOutcomes(const Litmus& litmus) {
  const auto n = static_cast<size_t>(litmus.shape.grid.count() *
                                     litmus.shape.block.count());
  int count = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    LaunchOptions options;
    options.seed = seed;
    options.find_races = false;
    const auto out = RunFor<uint32_t>(Program(litmus.body), n, litmus.shape,
                                      std::vector<uint8_t>(64), options);
    count += out == litmus.forbidden ? 1 : 0;
  }
  return count;
}

std::string RaceOf(const Litmus& litmus) {
  std::string found;
  for (uint64_t seed = 1; seed <= 300 && found.empty(); ++seed) {
    LaunchOptions options;
    options.seed = seed;
    try {
      RunFor<uint32_t>(Program(litmus.body), 4, litmus.shape,
                       std::vector<uint8_t>(64), options);
    } catch (const Error& error) {
      found = error.what();
    }
  }
  return found;
}

void ExpectOrdered(const Litmus& litmus, const char* what) {
  cr_expect_eq(CountOutcomes(litmus), 0, "%s: it comes to the outcome", what);
  const std::string race = RaceOf(litmus);
  cr_expect_eq(race, "", "%s: %s", what, race.c_str());
}

void ExpectUnordered(const Litmus& litmus, const char* what) {
  cr_expect_gt(CountOutcomes(litmus), 0, "%s: never comes to it", what);
  const std::string race = RaceOf(litmus);
  cr_expect(race.find("data race: 4 bytes") != std::string::npos, "%s: '%s'",
            what, race.c_str());
}

TestSuite(ptx_order);

// in[8] is data, in[0] a flag. One thread writes data, then the flag. The other
// sees the flag, but not the data.
Litmus Message(const std::string& write_flag, const std::string& read_flag) {
  return {R"(
    @%p17 bra $reader;
    st.global.u32 [%rd19+32], %r16;
    )" + write_flag +
              R"(
    bra $end;
    $reader:
    )" + read_flag +
              R"(
    setp.eq.u32 %p0, %r1, 0;
    mov.u32 %r0, 9;
    @%p0 bra $end;
    ld.global.u32 %r0, [%rd19+32];
    $end:
  )",
          kTwoBlocks,
          {0, 0}};
}

Test(ptx_order, a_message_passes) {
  const struct {
    const char* write;
    const char* read;
    bool ordered;
  } kRows[] = {
      {"st.release.gpu.global.u32 [%rd19], %r16;",
       "ld.acquire.gpu.global.u32 %r1, [%rd19];", true},
      {"st.relaxed.gpu.global.u32 [%rd19], %r16;",
       "ld.acquire.gpu.global.u32 %r1, [%rd19];", false},
      {"st.release.gpu.global.u32 [%rd19], %r16;",
       "ld.relaxed.gpu.global.u32 %r1, [%rd19];", false},
      {"st.release.cta.global.u32 [%rd19], %r16;",
       "ld.acquire.gpu.global.u32 %r1, [%rd19];", false},
      {"st.release.gpu.global.u32 [%rd19], %r16;",
       "ld.acquire.cta.global.u32 %r1, [%rd19];", false},
      {"atom.release.gpu.global.add.u32 %r2, [%rd19], 1;",
       "atom.acquire.gpu.global.add.u32 %r1, [%rd19], 0;", true},
      {"red.release.gpu.global.add.u32 [%rd19], 1;",
       "atom.acq_rel.gpu.global.add.u32 %r1, [%rd19], 0;", true},
      {"atom.acq_rel.gpu.global.add.u32 %r2, [%rd19], 1;",
       "atom.release.gpu.global.add.u32 %r1, [%rd19], 0;", false},
      {"atom.acquire.gpu.global.add.u32 %r2, [%rd19], 1;",
       "atom.acq_rel.gpu.global.add.u32 %r1, [%rd19], 0;", false},
      {"atom.acq_rel.cta.global.add.u32 %r2, [%rd19], 1;",
       "atom.acq_rel.gpu.global.add.u32 %r1, [%rd19], 0;", false},
      // A relaxed read orders nothing, also if another word is acquired after it.
      {"st.release.gpu.global.u32 [%rd19], %r16;",
       "ld.relaxed.gpu.global.u32 %r1, [%rd19];"
       "ld.acquire.gpu.global.u32 %r2, [%rd19+16];",
       false},
      // Its own later strong store passes on what it has released.
      {"st.release.gpu.global.u32 [%rd19], %r16;"
       "st.relaxed.gpu.global.u32 [%rd19], 2;",
       "ld.acquire.gpu.global.u32 %r1, [%rd19];", true},
  };
  for (const auto& row : kRows) {
    const std::string what = std::string(row.write) + " / " + row.read;
    const Litmus litmus = Message(row.write, row.read);
    row.ordered ? ExpectOrdered(litmus, what.c_str())
                : ExpectUnordered(litmus, what.c_str());
  }
}

// A third thread adds to the flag in between, and passes on what it has read.
Test(ptx_order, atomics_pass_on_what_they_read) {
  const auto chain = [](const char* link) {
    return Litmus{std::string(R"(
      @%p17 bra $reader;
      @%p16 bra $link;
      st.global.u32 [%rd19+32], %r16;
      st.release.gpu.global.u32 [%rd19], %r16;
      bra $end;
      $link:
    )") + link + R"(
      bra $end;
      $reader:
      ld.acquire.gpu.global.u32 %r1, [%rd19];
      setp.ne.u32 %p0, %r1, 2;
      mov.u32 %r0, 9;
      @%p0 bra $end;
      ld.global.u32 %r0, [%rd19+32];
      $end:
    )",
                  kThreeBlocks,
                  {0, 0, 0}};
  };
  ExpectOrdered(chain("atom.relaxed.gpu.global.add.u32 %r1, [%rd19], 1;"),
                "a relaxed atomic");
  ExpectOrdered(chain("red.relaxed.gpu.global.add.u32 [%rd19], 1;"), "red");
}

// One thread passes it to the next and to a third, by two flags.
Test(ptx_order, order_is_transitive) {
  const auto relay = [](const char* scope) {
    return Litmus{R"(
      @%p17 bra $relay;
      @%p16 bra $reader;
      st.global.u32 [%rd19+32], %r16;
      st.release.gpu.global.u32 [%rd19], %r16;
      bra $end;
      $relay:
      ld.acquire.)" + std::string(scope) +
                      R"(.global.u32 %r1, [%rd19];
      setp.eq.u32 %p0, %r1, 0;
      @%p0 bra $end;
      st.release.gpu.global.u32 [%rd19+4], %r16;
      bra $end;
      $reader:
      ld.acquire.gpu.global.u32 %r1, [%rd19+4];
      setp.eq.u32 %p0, %r1, 0;
      mov.u32 %r0, 9;
      @%p0 bra $end;
      ld.global.u32 %r0, [%rd19+32];
      $end:
    )",
                  kThreeBlocks,
                  {0, 0, 0}};
  };
  ExpectOrdered(relay("gpu"), "gpu");
  ExpectUnordered(relay("cta"), "cta");
}

// A load that is not done when its thread raises the flag reads what was stored
// because of the flag.
Test(ptx_order, loads_are_late) {
  const auto late = [](const char* write, const char* read,
                       const char* between) {
    return Litmus{std::string(R"(
      @%p17 bra $other;
      ld.global.u32 %r0, [%rd19+32];
    )") + between + write +
                      R"(
      nanosleep.u32 20;
      nanosleep.u32 20;
      nanosleep.u32 20;
      bra $end;
      $other:
    )" + read + R"(
      setp.eq.u32 %p0, %r1, 0;
      @%p0 bra $end;
      st.global.u32 [%rd19+32], %r16;
      $end:
    )",
                  kTwoBlocks,
                  {1, 0}};
  };
  constexpr const char* kRelease = "st.release.gpu.global.u32 [%rd19], %r16;";
  constexpr const char* kAcquire = "ld.acquire.gpu.global.u32 %r1, [%rd19];";
  constexpr const char* kWrite = "st.relaxed.gpu.global.u32 [%rd19], %r16;";
  constexpr const char* kRead = "ld.relaxed.gpu.global.u32 %r1, [%rd19];";
  ExpectOrdered(late(kRelease, kAcquire, ""), "release, acquire");
  ExpectUnordered(late(kWrite, kAcquire, ""), "relaxed, acquire");
  ExpectUnordered(late(kRelease, kRead, ""), "release, relaxed");
  // A use makes the load done, but it is still a race.
  const Litmus used = late(kWrite, kRead, "or.b32 %r2, %r0, %r0;\n");
  cr_expect_eq(CountOutcomes(used), 0);
  cr_expect_neq(RaceOf(used), "");
}

// Thread 0 writes global and shared memory, thread 1 reads.
Test(ptx_order, barriers) {
  const auto across = [](const char* barrier, const char* space) {
    const std::string s = space;
    return Litmus{".shared .align 4 .b8 word[4];\nmov.u64 %rd0, word;\n" +
                      (s == "global" ? std::string("add.s64 %rd0, %rd19, 32;\n")
                                     : "@%p18 st.shared.u32 [%rd0], 0;\n" +
                                           std::string("bar.sync 0;\n")) +
                      "@%p18 st." + s + ".u32 [%rd0], %r16;\n" + barrier +
                      "@%p17 ld." + s + ".u32 %r0, [%rd0];\n",
                  {{}, {2, 1, 1}, 0},
                  {0, 0}};
  };
  for (const char* barrier :
       {"bar.sync 0;\n", "bar.red.or.pred %p0, 0, %p18;\n",
        "bar.warp.sync 3;\n"}) {
    ExpectOrdered(across(barrier, "global"), barrier);
    ExpectOrdered(across(barrier, "shared"), barrier);
  }
  // A shuffle makes lanes meet, but orders nothing.
  const char* const shuffle = "shfl.sync.bfly.b32 %r2, %r19, 1, 31, 3;\n";
  ExpectUnordered(across(shuffle, "global"), shuffle);
  ExpectUnordered(across(shuffle, "shared"), "a shuffle, shared memory");
}

// One thread of a block releases what the others did before their barrier. All
// know what one acquires after the next barrier.
Test(ptx_order, barriers_and_flags) {
  const auto between_blocks = [](const char* before, const char* after) {
    return Litmus{R"(
      setp.eq.u32 %p0, %r18, 0;
      @!%p0 bra $reader;
      @%p17 st.global.u32 [%rd19+32], %r16;
    )" + std::string(before) +
                      R"(
      @%p18 st.release.gpu.global.u32 [%rd19], %r16;
      bra $end;
      $reader:
      mov.u32 %r1, 1;
      .shared .align 4 .b8 seen[4];
      @%p16 ld.acquire.gpu.global.u32 %r1, [%rd19];
      @%p16 st.shared.u32 [seen], %r1;
    )" + after + R"(
      ld.shared.u32 %r1, [seen];
      setp.ne.u32 %p0, %r1, 1;
      mov.u32 %r0, 9;
      @%p0 bra $end;
      ld.global.u32 %r0, [%rd19+32];
      $end:
    )",
                  {{2, 1, 1}, {2, 1, 1}, 0},
                  {0, 0, 0, 0}};
  };
  ExpectOrdered(between_blocks("bar.sync 0;", "bar.sync 0;"), "both barriers");
  const std::string race = RaceOf(between_blocks("", "bar.sync 0;"));
  cr_expect_neq(race, "");
}

// A thread reads what it wrote, and its late loads do not read what it writes later.
Test(ptx_order, a_thread_is_in_order_with_itself) {
  ExpectOrdered({R"(
    st.global.u32 [%rd19+32], %r16;
    ld.global.u32 %r0, [%rd19+32];
  )",
                 {},
                 {0}},
                "store, load");
  ExpectOrdered({R"(
    ld.global.u32 %r0, [%rd19+32];
    st.global.u32 [%rd19+32], %r16;
  )",
                 {},
                 {1}},
                "load, store");
  ExpectOrdered({R"(
    mov.u32 %r1, 2;
    st.global.u32 [%rd19+32], %r16;
    st.global.v2.u32 [%rd19+32], {%r1, %r1};
    ld.global.u32 %r0, [%rd19+32];
  )",
                 {},
                 {1}},
                "store, store");
}

// An atomic of the block's scope is a load and a store to other blocks.
Test(ptx_order, atomics_of_too_small_a_scope) {
  const auto tickets = [](const char* scope) {
    return Litmus{"atom.relaxed." + std::string(scope) +
                      ".global.add.u32 %r0, [%rd19], 1;\n",
                  kTwoBlocks,
                  {0, 0}};
  };
  ExpectOrdered(tickets("gpu"), "gpu");
  ExpectUnordered(tickets("cta"), "cta");
}

}  // namespace
}  // namespace kvevict::ptx
