#include "tests/capi/support/contexts.h"

#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/hooks.h"

enum { kMostTargets = 24 };

static bool IsWanted(const char* simd) {
  const char* const names = getenv("KVEVICT_TEST_TARGETS");
  if (names == NULL) return true;
  const size_t n = strlen(simd);
  for (const char* at = names; (at = strstr(at, simd)) != NULL; at += n) {
    const bool begins = at == names || at[-1] == ' ';
    if (begins && (at[n] == '\0' || at[n] == ' ')) return true;
  }
  return false;
}

bool test_is_fused(const char* simd) {
  return strstr(simd, "SSE") == NULL && strcmp(simd, "WASM") != 0;
}

static test_any_context all[kMostTargets];
static test_runner runners[kMostTargets][TEST_MOST_THREADS];
static uint32_t n;

void test_forget_contexts(void) {
  while (n > 0) {
    for (int i = 0; i < TEST_MOST_THREADS; ++i) {
      kvevict_context_destroy(all[n - 1].of_threads[i]);
    }
    all[--n].simd = NULL;
  }
}

test_any_context test_draw_context(test_random* random) {
  const char* simd;
  for (uint32_t t = 0; all[0].simd == NULL || t > 0; ++t) {
    if ((simd = kvevict_simd_target_at(t)) == NULL) break;
    if (test_on_cuda() ? t > 0 : !IsWanted(simd)) continue;
    test_any_context* const c = &all[n];
    c->simd = test_on_cuda() ? "CUDA" : simd;
    c->is_fused = test_is_fused(c->simd);
    for (uint32_t i = 0; i < TEST_MOST_THREADS; ++i) {
      kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
      options.simd_target = simd;
      test_runner_install(&runners[n][i], i + 1, &options);
      test_use_device(&options);
      EXPECT_OK(kvevict_context_create(&options, &c->of_threads[i]));
    }
    ++n;
  }
  EXPECT(n > 0, "KVEVICT_TEST_TARGETS names no target of this CPU");
  test_any_context drawn = all[test_random_below(random, n)];
  drawn.context =
      drawn.of_threads[test_random_below(random, TEST_MOST_THREADS)];
  return drawn;
}
