/* Every workspace from the least on gives the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/scene.h"

/* Scores in n_sizes sizes and compares with the best one's scores. */
static void CheckScores(const char* target, const test_scene_spec* spec,
                        const float* expected, int n_sizes) {
  test_scene* s = test_scene_create_for(target, spec, 1);
  const size_t n_bytes = test_scene_scores_len(s) * sizeof(float);
  const size_t best = s->plan->workspace_bytes;
  const size_t least =
      test_workspace(s->plan->plan, KVEVICT_OPERATION_SCORE, spec->n_tokens)
          .least_bytes;
  EXPECT(least < best, "at least %zu, at best %zu bytes", least, best);
  for (int i = 0; i < n_sizes; ++i) {
    const size_t bytes = best - (best - least) * (size_t)i / (n_sizes - 1);
    test_plan_shrink(s->plan, bytes);
    float* scores = test_scene_score(s);
    EXPECT(memcmp(scores, expected, n_bytes) == 0,
           "%s, %u threads, %u heads for %u, %s: other scores in %zu bytes",
           target, spec->n_threads, spec->n_q_heads, spec->n_kv_heads,
           spec->policy, bytes);
    free(scores);
  }
  test_scene_destroy(s);
}

static test_model* Model(const char* policy) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = 3;
  return test_model_create(&spec, (test_random){1});
}

/* The rows of K or V of any layer: all of them, and a byte at either end. */
Test(workspace, on_rows_of_the_cache_is_refused) {
  test_model* m = Model("snapkv:budget=60,window=8");
  test_model_step(m, 100);
  const size_t bytes = m->workspace_bytes;
  for (uint32_t l = 0; l < 3; ++l) {
    char where[32];
    snprintf(where, sizeof where, "overlaps views[%u]", l);
    for (int part = 0; part < 2; ++part) {
      const kvevict_view* view = &m->views[l];
      const uint64_t data = part == 0 ? view->k.data : view->v.data;
      const uint64_t first = (data + 64) / 64 * 64; /* after a row's begin */
      const uint64_t kPlaces[] = {first, first - bytes / 64 * 64};
      for (int i = 0; i < 2; ++i) {
        EXPECT_INVALID(
            kvevict_sequence_evict(m->sequence, m->views, 3, NULL,
                                   (void*)(uintptr_t)kPlaces[i], bytes, NULL),
            "workspace 0x", where);
      }
    }
  }
  test_model_check(m, "refused");
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_check(m, "evicted");
  test_model_destroy(m);
}

Test(workspace, of_less_than_the_least_is_refused_with_both_numbers) {
  test_model* m = Model("snapkv:budget=60,window=8");
  char least[32], best[32];
  test_model_step(m, 80);
  const kvevict_workspace w =
      test_workspace(m->plan, KVEVICT_OPERATION_EVICT, 80);
  const size_t bytes = w.least_bytes;
  snprintf(least, sizeof least, "< %zu", bytes);
  snprintf(best, sizeof best, "the best is %zu", w.best_bytes);
  m->workspace_bytes = bytes - 1;
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "workspace_bytes", least,
                 best);
  m->workspace_bytes = bytes; /* less than 100 tokens would need */
  cr_assert(bytes <
            test_workspace(m->plan, KVEVICT_OPERATION_EVICT, 100).least_bytes);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

/* GQA in groups of 4, 8 and 16, MQA, and MLA, whose heads share one latent row. */
typedef struct heads {
  uint32_t n_q_heads, n_kv_heads, k_head_dim, v_head_dim;
} heads;
static const heads kHeads[] = {{32, 8, 128, 128},
                               {64, 8, 128, 128},
                               {32, 2, 128, 128},
                               {64, 1, 128, 128},
                               {128, 1, 576, 0}};
static const uint32_t kWindows[] = {32, 64, 256};

static const char* SnapKv(uint32_t window) {
  static char text[64];
  snprintf(text, sizeof text, "snapkv:budget=2048,window=%u", window);
  return text;
}

Test(workspace, of_long_contexts_is_at_least_under_8_mib_per_thread) {
  for (int h = 0; h < 5; ++h) {
    for (int w = 0; w < 3; ++w) {
      for (uint32_t n_threads = 1; n_threads <= 8; n_threads *= 8) {
        const heads n = kHeads[h];
        const kvevict_layer_geometry layer =
            test_layer(n.n_q_heads, n.n_kv_heads, n.k_head_dim, n.v_head_dim);
        const kvevict_geometry geometry = test_geometry(32, 131072, &layer);
        test_plan* p = test_plan_create_to_select(SnapKv(kWindows[w]),
                                                  &geometry, n_threads);
        const size_t of_threads = (size_t)n_threads * (8 << 20);
        size_t bytes =
            test_workspace(p->plan, KVEVICT_OPERATION_SCORE, 0).least_bytes;
        EXPECT(bytes < of_threads,
               "%u heads for %u, window %u, %u threads: %zu bytes", n.n_q_heads,
               n.n_kv_heads, kWindows[w], n_threads, bytes);
        const size_t of_layer = (size_t)n.n_kv_heads * 131072 * sizeof(float);
        const size_t keep_lists =
            (size_t)32 * n.n_kv_heads * 2048 * sizeof(int32_t);
        bytes = test_workspace(p->plan, KVEVICT_OPERATION_EVICT, 0).least_bytes;
        EXPECT(bytes < of_threads + of_layer + keep_lists,
               "an eviction of %u heads for %u, window %u, %u threads: %zu "
               "bytes",
               n.n_q_heads, n.n_kv_heads, kWindows[w], n_threads, bytes);
        test_plan_destroy(p);
      }
    }
  }
}

Test(workspace, of_any_size_gives_the_same_scores_whatever_the_heads) {
  const char* target = kvevict_simd_target_at(0);
  for (int h = 0; h < 5; ++h) {
    for (int w = 0; w < 3; ++w) {
      const heads n = kHeads[h];
      /* Two KV heads prove as much as eight. */
      const uint32_t n_kv_heads = n.n_kv_heads < 2 ? n.n_kv_heads : 2;
      test_scene_spec spec = test_scene_of(
          SnapKv(kWindows[w]), n.n_q_heads / n.n_kv_heads * n_kv_heads,
          n_kv_heads, n.k_head_dim, kWindows[w] + 150);
      spec.q_dtype = KVEVICT_DTYPE_BF16;
      spec.k_dtype = KVEVICT_DTYPE_BF16;
      test_scene* s = test_scene_create_for(target, &spec, 1);
      float* expected = test_scene_score(s);
      test_scene_destroy(s);
      spec.n_threads = 2;
      CheckScores(target, &spec, expected, 3);
      free(expected);
    }
  }
}
