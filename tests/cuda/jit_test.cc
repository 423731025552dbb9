// Every real libnvrtc here compiles.
#include "cuda/jit.h"

#include <criterion/criterion.h>
#include <string.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/rig/nvrtcs.h"

namespace kvevict::cuda {
namespace {

constexpr SourceText kProgram = {"scale.cu", R"(
#include "factor.h"
extern "C" __global__ void scale(float* x) {
  static_assert(__cplusplus == 201703L);
  x[threadIdx.x] *= kFactor * KV_TWO;
}
)"};
constexpr SourceText kInclude = {"factor.h", "constexpr float kFactor = 3;\n"};

// Skips the test with the reason if there is none.
std::vector<const Nvrtc*> Nvrtcs() {
  std::vector<const Nvrtc*> all = FindNvrtcs();
  if (all.empty()) {
    fprintf(stderr, "skipped: no libnvrtc here; pkg/fetch_nvrtc.sh gets one\n");
    cr_skip_test("no libnvrtc");
  }
  return all;
}

Status Compile(const Nvrtc& nvrtc, const Target& target,
               const std::vector<std::string>& options, Compiled* out) {
  return nvrtc.Compile(kProgram, {&kInclude, 1}, options, target, out);
}

TestSuite(jit);

Test(jit, makes_cubins_and_ptx) {
  for (const Nvrtc* nvrtc : Nvrtcs()) {
    Compiled cubin;
    cr_assert(Compile(*nvrtc, {.sm = 80}, {"-DKV_TWO=2"}, &cubin).ok(), "%s",
              LastErrorMessage());
    cr_assert_eq(cubin.image.compare(0, 4,
                                     "\x7f"
                                     "ELF"),
                 0);

    Compiled ptx;
    cr_assert(
        Compile(*nvrtc, {.sm = 80, .ptx = true}, {"-DKV_TWO=2"}, &ptx).ok());
    cr_assert(ptx.image.find(".target sm_80") != std::string::npos);
    cr_assert(ptx.image.find(".entry scale") != std::string::npos);
    cr_assert_eq(ptx.image.back(), '\0', "the driver wants a C string");
  }
}

// The keys of the cubin cache rely on it.
Test(jit, gives_the_same_bytes_again) {
  for (const Nvrtc* nvrtc : Nvrtcs()) {
    Compiled images[2];
    for (Compiled& image : images) {
      cr_assert(Compile(*nvrtc, {.sm = 80}, {"-DKV_TWO=2"}, &image).ok());
    }
    cr_assert(images[0].image == images[1].image);
  }
}

Test(jit, errors_show_where_they_are) {
  for (const Nvrtc* nvrtc : Nvrtcs()) {
    Compiled compiled;
    const Status status = Compile(*nvrtc, {.sm = 80}, {}, &compiled);
    cr_assert_eq(status.code(), KVEVICT_ERROR_UNAVAILABLE);
    for (const std::string& words :
         {std::string("scale.cu for sm_80 by NVRTC ") + VersionOf(*nvrtc),
          std::string("scale.cu(5): error"), std::string("KV_TWO")}) {
      cr_expect(strstr(LastErrorMessage(), words.c_str()) != nullptr,
                "'%s' is not in: %s", words.c_str(), LastErrorMessage());
    }
  }
}

Test(jit, refuses_options_it_does_not_know) {
  for (const Nvrtc* nvrtc : Nvrtcs()) {
    Compiled compiled;
    cr_assert_not(Compile(*nvrtc, {.sm = 80}, {"--nonsense"}, &compiled).ok());
    cr_expect(strstr(LastErrorMessage(), "--nonsense") != nullptr, "%s",
              LastErrorMessage());
  }
}

Test(jit, targets_what_it_knows) {
  for (const Nvrtc* nvrtc : Nvrtcs()) {
    const int newest = nvrtc->architectures().back();
    Target target;
    cr_assert(nvrtc->FindTarget(newest, &target).ok());
    cr_assert(target.sm == newest && !target.ptx);
    cr_assert(nvrtc->FindTarget(newest + 50, &target).ok());
    cr_assert(target.sm == newest && target.ptx);
    cr_assert(nvrtc->FindTarget(81, &target).ok());
    cr_assert(target.sm == 80 && target.ptx);
    cr_assert_not(nvrtc->FindTarget(20, &target).ok());
  }
}

}  // namespace
}  // namespace kvevict::cuda
