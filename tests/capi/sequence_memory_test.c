/* The memory that a sequence holds, and when it holds it. */
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/hooks.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum { kAlignment = 64, kGuardBytes = 256 };

static test_model* Model(void) {
  return test_model_of("snapkv:budget=60,window=8", 1);
}

/* A model whose sequence does not observe. */
static test_model* SmallModel(void) {
  test_model* m = Model();
  EXPECT_OK(kvevict_sequence_end_observing(m->sequence));
  return m;
}

static kvevict_plan* PlanOf8B(const kvevict_context* context,
                              uint32_t max_tokens) {
  const kvevict_layer_geometry layer = test_layer(32, 8, 128, 128);
  const kvevict_geometry geometry = test_geometry(32, max_tokens, &layer);
  const kvevict_policy* policy =
      test_policy("snapkv:budget=2048,window=64,sink=4");
  kvevict_plan* plan = NULL;
  EXPECT_OK(kvevict_plan_create(context, &geometry, policy, NULL, &plan));
  return plan;
}

static size_t ToObserve(const kvevict_plan* plan) {
  return test_workspace(plan, KVEVICT_OPERATION_OBSERVE, 0).least_bytes;
}

static size_t LiveBytes(const test_allocator* allocator) {
  size_t n = 0;
  for (uint32_t i = 0; i < allocator->n_live; ++i) {
    n += allocator->live[i].n_bytes;
  }
  return n;
}

Test(sequence_memory, decoding_takes_under_64_kib_beside_the_positions) {
  test_allocator allocator;
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  test_allocator_install(&allocator, &options);
  kvevict_context* context = NULL;
  EXPECT_OK(kvevict_context_create(&options, &context));
  for (uint32_t max_tokens = 16384; max_tokens <= 131072; max_tokens *= 8) {
    kvevict_plan* plan = PlanOf8B(context, max_tokens);
    const size_t before = LiveBytes(&allocator);
    kvevict_sequence* sequence = NULL;
    EXPECT_OK(kvevict_sequence_create(plan, &sequence));
    const size_t positions = 2 * sizeof(int32_t) * 32 * 8 * 2048;
    const size_t others = LiveBytes(&allocator) - before - positions;
    EXPECT(others < 64 * 1024, "%u tokens: %zu bytes beside the positions",
           max_tokens, others);
    kvevict_sequence_destroy(sequence);
    EXPECT(LiveBytes(&allocator) == before, "some of it stays");
    kvevict_plan_destroy(plan);
  }
  kvevict_context_destroy(context);
}

Test(sequence_memory, of_queries_is_what_the_plan_says_and_is_used_again) {
  test_allocator allocator;
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  test_allocator_install(&allocator, &options);
  kvevict_context* context = NULL;
  EXPECT_OK(kvevict_context_create(&options, &context));
  kvevict_plan* plan = PlanOf8B(context, 16384);
  const size_t bytes = ToObserve(plan);
  cr_assert_eq(bytes, (size_t)32 * 64 * 32 * 128 * sizeof(float));
  kvevict_sequence *a = NULL, *b = NULL;
  EXPECT_OK(kvevict_sequence_create(plan, &a));
  EXPECT_OK(kvevict_sequence_create(plan, &b));
  const size_t before = LiveBytes(&allocator);
  EXPECT_OK(kvevict_sequence_begin_observing(a, NULL, 0));
  const size_t with_one = LiveBytes(&allocator);
  EXPECT(with_one >= before + bytes && with_one <= before + bytes + 64,
         "%zu bytes, of %zu", with_one - before, bytes);
  /* Ending gives the memory back, and the next sequence takes it. */
  EXPECT_OK(kvevict_sequence_end_observing(a));
  EXPECT_OK(kvevict_sequence_begin_observing(b, NULL, 0));
  cr_assert_eq(LiveBytes(&allocator), with_one);
  EXPECT_OK(kvevict_sequence_begin_observing(a, NULL, 0));
  const size_t with_two = LiveBytes(&allocator);
  cr_assert_eq(with_two - before, 2 * (with_one - before));
  /* Destroying gives it back as well, and a reset keeps it. */
  const uint32_t n_allocs = allocator.n_allocs;
  EXPECT_OK(kvevict_sequence_reset(a, NULL));
  kvevict_sequence_destroy(b);
  b = NULL;
  EXPECT_OK(kvevict_sequence_create(plan, &b));
  const uint32_t n_of_create = allocator.n_allocs - n_allocs;
  EXPECT_OK(kvevict_sequence_begin_observing(b, NULL, 0));
  cr_assert_eq(allocator.n_allocs - n_allocs, n_of_create);
  EXPECT_INVALID(kvevict_sequence_begin_observing(a, NULL, 0), "end_observing");
  /* A smaller model takes the memory that is there. */
  EXPECT_OK(kvevict_sequence_end_observing(a));
  const kvevict_layer_geometry layer = test_layer(1, 1, 64, 64);
  const kvevict_geometry geometry = test_geometry(1, 100, &layer);
  const kvevict_policy* policy = test_policy("snapkv:budget=60");
  kvevict_plan* small = NULL;
  kvevict_sequence* c = NULL;
  EXPECT_OK(kvevict_plan_create(context, &geometry, policy, NULL, &small));
  EXPECT_OK(kvevict_sequence_create(small, &c));
  const uint32_t n_before = allocator.n_allocs;
  EXPECT_OK(kvevict_sequence_begin_observing(c, NULL, 0));
  cr_assert_eq(allocator.n_allocs, n_before);
  kvevict_sequence_destroy(a);
  kvevict_sequence_destroy(b);
  kvevict_sequence_destroy(c);
  kvevict_plan_destroy(small);
  kvevict_plan_destroy(plan);
  kvevict_context_destroy(context);
  cr_assert_eq(allocator.n_live, 0);
  cr_assert_eq(allocator.n_complaints, 0);
}

Test(sequence_memory, of_queries_may_be_lent) {
  test_model *m = SmallModel(), *pooled = Model();
  const size_t bytes = ToObserve(m->plan);
  uint8_t* memory = aligned_alloc(kAlignment, bytes + kGuardBytes);
  memset(memory, TEST_GUARD, bytes + kGuardBytes);
  const uint32_t n_allocs = m->allocator.n_allocs;
  EXPECT_OK(kvevict_sequence_begin_observing(m->sequence, memory, bytes));
  cr_assert_eq(m->allocator.n_allocs, n_allocs);
  test_model_step(m, 100);
  test_model_step(pooled, 100);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_OK(test_model_evict(pooled, NULL, NULL));
  test_expect_same_tokens(m, pooled, "in lent memory");
  EXPECT(!test_is_filled(memory, bytes), "the memory was not used");
  EXPECT(test_is_filled(memory + bytes, kGuardBytes), "more than it was used");
  EXPECT_OK(kvevict_sequence_end_observing(m->sequence));
  free(memory);
  /* The sequence forgets lent memory, which may be gone. */
  test_model_append(m, 1);
  test_model_check(m, "after the end");
  test_model_destroy(m);
  test_model_destroy(pooled);
}

Test(sequence_memory, that_will_not_do_is_refused) {
  test_model* m = SmallModel();
  const size_t bytes = ToObserve(m->plan);
  uint8_t* memory = aligned_alloc(kAlignment, bytes + kAlignment);
  char least[32];
  snprintf(least, sizeof least, "< %zu", bytes);
  kvevict_sequence* s = m->sequence;
  EXPECT_INVALID(kvevict_sequence_begin_observing(s, memory, bytes - 1),
                 "memory_bytes", least);
  EXPECT_INVALID(kvevict_sequence_begin_observing(s, memory + 4, bytes),
                 "memory", "64-byte aligned");
  EXPECT_INVALID(kvevict_sequence_begin_observing(s, NULL, bytes),
                 "memory is NULL");
  EXPECT_INVALID(kvevict_sequence_begin_observing(NULL, NULL, 0), "sequence");
  EXPECT_INVALID(kvevict_sequence_end_observing(NULL), "sequence");
  EXPECT_OK(kvevict_sequence_end_observing(s)); /* there is none to give back */
  EXPECT_OK(kvevict_sequence_begin_observing(s, memory, bytes));
  test_model_destroy(m);
  free(memory);
}

Test(sequence_memory, is_asked_for_where_it_is_missing) {
  test_model* m = SmallModel();
  const kvevict_plane queries = test_model_queries(m, 0, 0);
  kvevict_sequence* s = m->sequence;
  EXPECT_INVALID(test_observe(s, 0, &queries, 1, 0),
                 "kvevict_sequence_begin_observing()");
  EXPECT_INVALID(test_observe_lse(s, 0, &queries, 1, 0),
                 "kvevict_sequence_begin_observing()");
  test_model_append(m, 100);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0",
                 "kvevict_sequence_begin_observing()");
  /* Rows observed before the end are gone. */
  EXPECT_OK(kvevict_sequence_begin_observing(s, NULL, 0));
  test_model_observe(m, 0, 100);
  EXPECT_OK(kvevict_sequence_end_observing(s));
  EXPECT_OK(kvevict_sequence_begin_observing(s, NULL, 0));
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "observed", "[0, 0)");
  test_model_observe(m, 92, 8);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

Test(sequence_memory, of_queries_is_not_needed_where_nothing_reads_them) {
  static const char* const kOthers[] = {"none", "streaming-llm:budget=60",
                                        "random:sink=0,budget=60"};
  for (int i = 0; i < 3; ++i) {
    test_model* m = test_model_of(kOthers[i], 1);
    cr_expect_eq(ToObserve(m->plan), 0);
    EXPECT_OK(kvevict_sequence_end_observing(m->sequence));
    const uint32_t n_allocs = m->allocator.n_allocs;
    EXPECT_OK(kvevict_sequence_begin_observing(m->sequence, NULL, 0));
    EXPECT_OK(kvevict_sequence_begin_observing(m->sequence, NULL, 0));
    EXPECT_OK(kvevict_sequence_end_observing(m->sequence));
    cr_expect_eq(m->allocator.n_allocs, n_allocs);
    test_model_observe(m, 0, 100);
    test_model_destroy(m);
  }
}

Test(sequence_memory, that_is_not_there_leaves_everything_as_it_was) {
  test_model* m = SmallModel();
  /* The other model needs more than the pool has. */
  kvevict_plan* plan = PlanOf8B(m->context, 16384);
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(plan, &sequence));
  const uint32_t n_live = m->allocator.n_live;
  for (uint32_t n = 1; n <= 2; ++n) {
    m->allocator.fail_at = m->allocator.n_allocs + n;
    EXPECT_FAILS(kvevict_sequence_begin_observing(sequence, NULL, 0),
                 KVEVICT_ERROR_OUT_OF_MEMORY, "query memory", "33554432");
    cr_expect_eq(m->allocator.n_live, n_live);
  }
  m->allocator.fail_at = 0;
  EXPECT_OK(kvevict_sequence_begin_observing(sequence, NULL, 0));
  kvevict_sequence_destroy(sequence);
  kvevict_plan_destroy(plan);
  test_model_destroy(m);
}
