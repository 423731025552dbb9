// LD_LIBRARY_PATH names a libnvrtc of 11.6, which is too old.
#include <criterion/criterion.h>
#include <string.h>

#include "cuda/jit.h"

namespace kvevict::cuda {
namespace {

TestSuite(nvrtc_age);

Test(nvrtc_age, tells_what_was_found) {
  const Nvrtc* nvrtc = nullptr;
  const Status status = Nvrtc::Open(nullptr, 11, 80, &nvrtc);
  cr_assert_eq(status.code(), KVEVICT_ERROR_UNAVAILABLE);
  for (const char* word :
       {"no libnvrtc", "sm_80", "NVRTC 11.6 (sm 52 70 72 80), too old",
        "11.7 or newer"}) {
    cr_expect(strstr(LastErrorMessage(), word) != nullptr, "'%s' is not in: %s",
              word, LastErrorMessage());
  }
}

}  // namespace
}  // namespace kvevict::cuda
