/* Lifetimes, memory and its accounting, for all handles. */
#include <stdlib.h>

#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

typedef struct handles {
  kvevict_context* context;
  kvevict_plan* plan;
  kvevict_sequence* sequence;
} handles;

static const char* const kPolicies[] = {"none",
                                        "streaming-llm:budget=20",
                                        "snapkv:budget=60",
                                        "pyramidkv:budget=60",
                                        "random:sink=0,budget=20",
                                        "custom:sink=0,budget=20,scope=model"};
enum { kNPolicies = 6 };

static kvevict_status Create(test_allocator* allocator, const char* policy_text,
                             handles* h) {
  memset(h, 0, sizeof *h);
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.alloc = allocator->hooks.alloc;
  options.free = allocator->hooks.free;
  options.alloc_user_data = allocator;
  const kvevict_layer_geometry layer = test_layer(4, 2, 16, 16);
  const kvevict_geometry geometry = test_geometry(3, 100, &layer);
  const kvevict_policy* policy = test_policy(policy_text);
  kvevict_status status = kvevict_context_create(&options, &h->context);
  if (status == KVEVICT_OK) {
    status = kvevict_plan_create(h->context, &geometry, policy, NULL, &h->plan);
  }
  if (status == KVEVICT_OK) {
    status = kvevict_sequence_create(h->plan, &h->sequence);
  }
  if (status == KVEVICT_OK) {
    status = kvevict_sequence_begin_observing(h->sequence, NULL, 0);
  }
  return status;
}

/* Destroys the three in one of the six orders. */
static void DestroyInOrder(handles* h, int order) {
  static const char kOrders[6][4] = {"cps", "csp", "pcs", "psc", "scp", "spc"};
  for (const char* c = kOrders[order]; *c != '\0'; ++c) {
    if (*c == 'c') kvevict_context_destroy(h->context);
    if (*c == 'p') kvevict_plan_destroy(h->plan);
    if (*c == 's') kvevict_sequence_destroy(h->sequence);
  }
}

/* An allocation fails, or none does. */
static void ExpectFreed(const char* policy, int order) {
  for (uint32_t n = 1;; ++n) {
    test_allocator allocator;
    test_allocator_init(&allocator);
    allocator.fail_at = n;
    handles h;
    const kvevict_status status = Create(&allocator, policy, &h);
    if (status != KVEVICT_OK) {
      EXPECT(status == KVEVICT_ERROR_OUT_OF_MEMORY, "%s: allocation %u: %s",
             policy, n, kvevict_status_name(status));
      EXPECT(kvevict_last_error_message()[0] != '\0', "no message");
    }
    DestroyInOrder(&h, order);
    EXPECT(allocator.n_live == 0,
           "%s, order %d: allocation %u failed: %u leaks", policy, order, n,
           allocator.n_live);
    EXPECT(allocator.n_complaints == 0, "%s: misused hooks", policy);
    if (status != KVEVICT_OK) continue;
    EXPECT(n > 3, "%s: only %u allocations", policy, n - 1);
    return;
  }
}

Test(handles, are_destroyed_in_any_order_and_free_every_byte) {
  for (int p = 0; p < kNPolicies; ++p) {
    for (int order = 0; order < 6; ++order) ExpectFreed(kPolicies[p], order);
  }
}

Test(handles, sequences_outlive_the_plan_and_the_context) {
  const test_model_spec spec = {.policy = "snapkv:budget=60,window=8",
                                .n_layers = 2,
                                .n_q_heads = 4,
                                .n_kv_heads = 2,
                                .max_tokens = 100,
                                .max_positions = 100,
                                .k_head_dim = 16,
                                .v_head_dim = 16,
                                .q_dtype = KVEVICT_DTYPE_F32,
                                .k_dtype = KVEVICT_DTYPE_F32};
  test_model* m = test_model_create(&spec, (test_random){1});
  kvevict_context_destroy(m->context);
  kvevict_plan_destroy(m->plan);
  m->context = NULL;
  m->plan = NULL;
  test_model_step(m, 100);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_check(m, "plan and context destroyed");
  test_model_destroy(m);
}

/* ---- Executing calls allocate nothing ---- */

/* Counts every call of the C allocator in this process, also by the library and
 * the C++ runtime. Sanitizers replace the allocator. */
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define KVEVICT_TEST_COUNTS_MALLOC 1
static volatile long n_mallocs;
extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
void* malloc(size_t n) {
  n_mallocs += 1;
  return __libc_malloc(n);
}
void* calloc(size_t n, size_t size) {
  n_mallocs += 1;
  return __libc_calloc(n, size);
}
void* realloc(void* memory, size_t n) {
  n_mallocs += 1;
  return __libc_realloc(memory, n);
}
void* aligned_alloc(size_t alignment, size_t n) {
  n_mallocs += 1;
  return __libc_memalign(alignment, n);
}
#else
#define KVEVICT_TEST_COUNTS_MALLOC 0
static long n_mallocs;
#endif

static void ExpectNoAllocation(const char* policy, uint32_t n_threads) {
  const test_model_spec spec = {.policy = policy,
                                .n_layers = 3,
                                .n_q_heads = 4,
                                .n_kv_heads = 2,
                                .max_tokens = 100,
                                .max_positions = 200,
                                .k_head_dim = 16,
                                .v_head_dim = 16,
                                .q_dtype = KVEVICT_DTYPE_F32,
                                .k_dtype = KVEVICT_DTYPE_F32,
                                .n_threads = n_threads};
  test_model* m = test_model_create(&spec, (test_random){1});
  static float scores[3 * 2 * 100];
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs inputs;
  const int32_t protect[] = {0, 99};
  options.protected_positions = protect;
  options.protected_positions_len = 2;
  if (m->policy.kind == ORACLE_CUSTOM) {
    test_give_scores(&options, &inputs, 3, scores, 200, 100);
  }
  kvevict_plane queries[3];
  for (uint32_t l = 0; l < 3; ++l) queries[l] = test_model_queries(m, l, 0);
  static int32_t positions[100];
  const uint32_t n_hooked = m->allocator.n_allocs;
  const long before = n_mallocs;
  kvevict_status status = KVEVICT_OK;
  for (uint32_t l = 0; l < 3; ++l) {
    status |= test_observe(m->sequence, l, &queries[l], 100, 0);
  }
  status |= kvevict_sequence_append(m->sequence, 100, NULL);
  status |= kvevict_sequence_evict(m->sequence, m->views, 3, &options,
                                   m->workspace, m->workspace_bytes, NULL);
  kvevict_evict_report report = {.struct_size = sizeof report};
  status |= kvevict_sequence_report(m->sequence, &report, NULL, 0);
  size_t n = 0;
  status |=
      kvevict_sequence_keep_positions(m->sequence, 2, 1, positions, 100, &n);
  status |= test_compact(m->context, &m->views[0], 10, positions, 1, 1);
  status |= kvevict_sequence_reset(m->sequence, NULL);
  /* A failing call allocates nothing either. */
  const kvevict_status failed = kvevict_sequence_append(m->sequence, 101, NULL);
  const long after = n_mallocs;
  EXPECT_OK(status);
  cr_assert_eq(failed, KVEVICT_ERROR_INVALID_ARGUMENT);
  EXPECT(m->allocator.n_allocs == n_hooked, "%s: %u allocations by the hook",
         policy, m->allocator.n_allocs - n_hooked);
  EXPECT(after == before, "%s: %ld calls of malloc", policy, after - before);
  test_model_destroy(m);
}

Test(handles, executing_calls_allocate_nothing) {
  if (!KVEVICT_TEST_COUNTS_MALLOC) {
    fprintf(stderr, "malloc is not counted here; only the hooks are\n");
  } else {
    const long before = n_mallocs;
    free(malloc(1));
    cr_assert_eq(n_mallocs, before + 1, "malloc is not counted");
  }
  for (int p = 0; p < kNPolicies; ++p) {
    ExpectNoAllocation(kPolicies[p], 1);
    ExpectNoAllocation(kPolicies[p], 3);
  }
}
