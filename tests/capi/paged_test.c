/* Sequences in a pool, each against a model of its own after every operation,
 * and attention to them. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/attention.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/grouped_pool.h"
#include "tests/capi/support/grouped_rows.h"
#include "tests/oracle/attention.h"

/* ---- Attention to what rows stand for, in double precision ---- */

enum { kMostQueries = 20 };

static void Attend(test_pool* s, const test_pooled* a, uint32_t l) {
  const uint32_t n = a->n_slots[l], dim = s->dim,
                 n_heads = 2 * test_pool_heads[l];
  if (n == 0 || !test_pool_has_values(l)) return;
  static float queries[6 * kMostQueries * TEST_POOL_DIM];
  static float out[6 * kMostQueries * TEST_POOL_DIM];
  const uint32_t n_queries =
      test_random_coin(s->random)
          ? 1
          : test_random_between(s->random, 2, kMostQueries);
  for (uint32_t i = 0; i < n_heads * n_queries * dim; ++i) {
    queries[i] = test_random_normal(s->random);
  }
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = (uintptr_t)queries;
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = dim;
  plane.token_stride_bytes = dim * sizeof(float);
  plane.head_stride_bytes = plane.token_stride_bytes * n_queries;
  kvevict_plane out_plane = plane;
  out_plane.data = (uintptr_t)out;
  const kvevict_view view = test_pool_view(a, l);
  kvevict_attention_job job = KVEVICT_ATTENTION_JOB_INIT;
  uint32_t counts[TEST_POOL_HEADS];
  for (uint32_t h = 0; h < test_pool_heads[l]; ++h) {
    counts[h] = test_pool_stored(a, l, h);
  }
  job.n_tokens = n;
  job.token_counts = s->is_plain ? counts : NULL;
  job.view = &view;
  job.queries = &plane;
  job.out = &out_plane;
  job.n_q_heads = n_heads;
  job.n_queries = n_queries;
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_attend_workspace(s->context, &job, 1, &size));
  void* const workspace = test_workspace_memory(size.best_bytes);
  EXPECT_OK(
      kvevict_attend(s->context, &job, 1, workspace, size.best_bytes, NULL));
  free(workspace);
  for (uint32_t row = 0; row < n_heads * n_queries; ++row) {
    const uint32_t head = row / n_queries / 2, i = row % n_queries;
    double wanted[TEST_POOL_DIM], tolerance[TEST_POOL_DIM];
    const test_attend_errors errors = test_errors_of((test_attend_shape){
        KVEVICT_DTYPE_F32, s->dtype, s->dtype, dim, dim, counts[head]});
    const oracle_query in = {.dot_error = errors.dot,
                             .value_error = errors.value,
                             .query = queries + (size_t)row * dim,
                             .keys = test_grouped_row(a->held[l], 0, head, 0),
                             .values = test_grouped_row(a->held[l], 1, head, 0),
                             .n_tokens = counts[head],
                             .k_dim = dim,
                             .v_dim = dim,
                             .value_stride = dim,
                             .slot = (int64_t)counts[head] - n_queries + i,
                             .scale = 1.0 / sqrt(dim)};
    oracle_attended attended = {.out = wanted, .out_tolerance = tolerance};
    oracle_attend(&in, &attended);
    for (uint32_t e = 0; e < dim; ++e) {
      const double got = (double)out[(size_t)row * dim + e];
      /* CUDA's powers of 2 are off by 2 ulp. */
      EXPECT(fabs(got - wanted[e]) <=
                 (test_on_cuda() ? 2.0 : 1.0) * tolerance[e] +
                     errors.lost_weight * counts[head] * 100.0,
             "head %u, query %u, element %u: %g, not %g", head, i, e, got,
             wanted[e]);
    }
  }
}

/* ---- Lives ---- */

/* Evicts some sequences in one call. */
static void EvictSome(test_pool* s) {
  bool chosen[TEST_POOL_MOST];
  for (uint32_t i = 0; i < TEST_POOL_MOST; ++i) {
    chosen[i] = test_random_coin(s->random);
  }
  test_pool_evict(s, chosen);
}

static void Live(test_pool* s, uint32_t n_steps) {
  for (uint32_t step = 0; step < n_steps; ++step) {
    const uint32_t what = test_random_below(s->random, 18);
    test_pooled* const a =
        s->n_sequences == 0
            ? NULL
            : &s->sequences[test_random_below(s->random, s->n_sequences)];
    if (a == NULL || (what == 0 && s->n_sequences < TEST_POOL_MOST)) {
      test_pool_add(s);
    } else if (what == 1 && s->n_sequences < TEST_POOL_MOST) {
      test_pool_fork(s, a);
    } else if (what == 2 && s->n_sequences > 2) {
      test_pool_remove(s, (uint32_t)(a - s->sequences));
    } else if (what < 10) {
      test_pool_append(s, a, what < 7 ? (s->is_plain ? 20 : 3) : 70);
    } else if (what < 12) {
      test_pool_trim(s, a);
    } else if (what < 14) {
      test_pool_overwrite(s, a);
    } else if (what < 16) {
      EvictSome(s);
    } else {
      Attend(s, a, test_random_below(s->random, TEST_POOL_LAYERS));
    }
    test_pool_check(s);
  }
}

static void LiveAll(const char* const* policies, uint32_t n_policies,
                    bool is_plain, uint32_t n, uint32_t n_steps) {
  test_random random = test_random_start(is_plain ? "pages" : "grouped pages");
  test_pool* const s = malloc(sizeof *s);
  uint32_t n_short = 0, n_evicted = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (!test_runs(i)) continue;
    test_pool_begin(s, &random, policies[i % n_policies], is_plain);
    Live(s, test_on_cuda() ? n_steps / 4 : n_steps);
    test_pool_end(s);
    n_short += s->n_short;
    n_evicted += s->n_evicted;
  }
  EXPECT(test_on_cuda() || (n_short > 0 && n_evicted > 0),
         "%u short of blocks, %u evicted", n_short, n_evicted);
  free(s);
}

Test(paged_cache, holds_what_each_sequence_would_hold_alone) {
  static const char* const kPolicies[] = {
      "knorm:budget=40,sink=1",
      "knorm:budget=44,scope=layer",
      "streaming-llm:budget=33,sink=3",
      "random:budget=32,heads=adaptive",
      "random:budget=32,sink=0,heads=adaptive,floor=0,split=scores",
      "knorm:budget=0.5,sink=0,heads=adaptive,split=scores,rounding=together",
      "knorm:budget=50,split=geometric",
      "random:budget=0.5,sink=0,select_block=4",
      "random:budget=0.5,sink=0,select_block=24,scope=layer",
      "streaming-llm:budget=50,sink=3,select_block=8",
      "keydiff:budget=30,sink=0,merge=pivot,scope=layer",
      "none"};
  LiveAll(kPolicies, sizeof kPolicies / sizeof *kPolicies, true, 96, 100);
}

/* KIVI-style: the last rows are not quantized. */
Test(paged_grouped, holds_what_each_sequence_would_hold_alone) {
  static const char* const kPolicies[] = {
      "knorm:budget=64,sink=2,scope=layer",
      "knorm:budget=62,sink=1,recent=3,scope=head",
      "streaming-llm:budget=70,sink=4",
      "random:budget=64,sink=0,select_block=8,scope=layer",
      "keydiff:budget=64,sink=2,scope=head",
      "none"};
  LiveAll(kPolicies, sizeof kPolicies / sizeof *kPolicies, false, 72, 60);
}

/* ---- Calls that need few blocks ---- */

/* A pool with one sequence of n tokens and a fork. */
static test_pool* Forked(test_random* random, const char* policy,
                         uint32_t block_size, uint32_t n_blocks, uint32_t n) {
  test_pool* const s = malloc(sizeof *s);
  test_pool_begin(s, random, policy, true);
  test_pool_resize(s, block_size, n_blocks);
  test_pooled* const a = test_pool_add(s);
  while (a->n_slots[0] < n) test_pool_append(s, a, n - a->n_slots[0]);
  test_pool_fork(s, a);
  return s;
}

static void End(test_pool* s) {
  test_pool_end(s);
  free(s);
}

/* Takes the blocks of every layer, except for what 12 tokens need. */
static void TakeAllBut12(test_pool* s, kvevict_paged_sequence** takers,
                         size_t n) {
  kvevict_paged_sequence* last = NULL;
  EXPECT_OK(kvevict_paged_sequence_create(s->cache, &last));
  EXPECT_OK(kvevict_paged_sequence_append(last, 12, NULL));
  for (size_t i = 0; i < n; ++i) {
    EXPECT_OK(kvevict_paged_sequence_create(s->cache, &takers[i]));
    for (uint32_t t = 0; t < TEST_POOL_TOKENS / 4; ++t) {
      if (kvevict_paged_sequence_append(takers[i], 4, NULL) != KVEVICT_OK)
        break;
    }
  }
  EXPECT_FAILS(kvevict_paged_sequence_append(last, 4, NULL),
               KVEVICT_ERROR_OUT_OF_MEMORY, "are free");
  kvevict_paged_sequence_destroy(last);
}

/* Two forks share a block and write to it in one call. As soon as one has its
 * copy, the other has the block to itself. */
Test(paged_cache, forks_evicted_together_make_one_copy) {
  test_random random = test_random_start("paged_cache/one_copy");
  test_pool* s =
      Forked(&random, "knorm:budget=10,sink=0,scope=layer", 4, 200, 40);
  kvevict_paged_sequence* takers[16];
  TakeAllBut12(s, takers, 16);
  const bool both[TEST_POOL_MOST] = {true, true};
  test_pool_evict(s, both);
  for (int i = 0; i < 16; ++i) kvevict_paged_sequence_destroy(takers[i]);
  EXPECT(s->sequences[0].n_slots[0] == 10, "nothing went");
  test_pool_check(s);
  End(s);
}

/* Whole blocks go without writing, though no block is free and all are shared.
 */
Test(paged_cache, drops_blocks_without_room_and_without_writing) {
  test_random random = test_random_start("paged_cache/drops");
  for (uint32_t turn = 0; turn < 8; ++turn) {
    const uint32_t block_size = 1u << turn % 4;
    test_pool* s =
        Forked(&random, "knorm:budget=30,sink=2,select_block=8,scope=layer",
               block_size, 64 / block_size, 64);
    uint8_t* const bytes = malloc(s->memory_bytes);
    memcpy(bytes, s->memory + 256, s->memory_bytes);
    const kvevict_paged_cache_usage full = test_pool_usage(s);
    const bool first[TEST_POOL_MOST] = {true};
    test_pool_evict(s, first);
    test_pool_check(s);
    EXPECT(memcmp(bytes, s->memory + 256, s->memory_bytes) == 0,
           "rows were written");
    EXPECT(s->sequences[0].n_slots[0] <= 30, "nothing went");
    cr_expect_eq(test_pool_usage(s).n_free, full.n_free,
                 "the fork holds all of them");
    test_pool_remove(s, 1);
    cr_expect_gt(test_pool_usage(s).n_free, full.n_free);
    test_pool_append(s, &s->sequences[0], 20);
    test_pool_check(s);
    free(bytes);
    End(s);
  }
}
