/* Caches that share bytes without being the same are refused, and no others: random
 * layouts against a count of every byte. */
#include <stdlib.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/overlap.h"

enum { kArena = 1 << 16, kWorkspace = 1 << 16, kMaxBlocks = 16, kPlanes = 4 };

static uint8_t arena[kArena];
static uint8_t elsewhere[2][kArena];
static _Alignas(64) uint8_t workspace[kWorkspace];

/* A view and its memory. */
typedef struct layer {
  kvevict_view view;
  kvevict_plane companions[2];
  int32_t table[kMaxBlocks];
} layer;

static const kvevict_plane* Plane(const layer* l, uint32_t i) {
  return i == 0 ? &l->view.k : i == 1 ? &l->view.v : &l->companions[i - 2];
}

static uint32_t PlaneCount(const layer* l) { return 2 + l->view.n_companions; }

/* A stride that often nests with others and interleaves with other planes' strides. */
static int64_t Stride(test_random* random) {
  static const int64_t kStrides[] = {1,  2,  3,  4,  6,  8,  12,  16,
                                     24, 32, 40, 48, 64, 96, 128, 192};
  const int64_t stride = kStrides[test_random_below(random, 16)];
  return test_random_below(random, 4) == 0 ? -stride : stride;
}

static kvevict_plane RandomPlane(test_random* random, kvevict_dtype dtype,
                                 uint32_t row, bool paged) {
  kvevict_plane plane;
  memset(&plane, 0, sizeof plane);
  plane.dtype = dtype;
  plane.data =
      (uint64_t)(uintptr_t)arena + kArena / 2 + test_random_below(random, 300);
  plane.token_stride_bytes = Stride(random);
  plane.head_stride_bytes = Stride(random);
  if (paged) plane.block_stride_bytes = 2 * Stride(random);
  if (dtype == KVEVICT_DTYPE_OPAQUE) {
    plane.row_bytes = row;
  } else {
    plane.head_dim = row;
    plane.element_stride_bytes = test_random_coin(random) ? 0 : Stride(random);
  }
  return plane;
}

/* The layers of a model have these in common. */
typedef struct shape {
  kvevict_dtype dtype[2];
  uint32_t row[2]; /* 0: no V */
  uint32_t n_heads;
} shape;

/* A layer that is valid by itself. The byte count decides if its planes overlap. */
static void RandomLayer(test_random* random, const shape* s, uint32_t n_tokens,
                        layer* out) {
  for (;;) {
    memset(out, 0, sizeof *out);
    kvevict_view* view = &out->view;
    view->struct_size = sizeof *view;
    view->n_kv_heads = s->n_heads;
    const bool paged = test_random_coin(random);
    if (paged) {
      view->block_size = 1u << test_random_below(random, 3);
      test_random_permutation(random, out->table, kMaxBlocks);
      view->block_table = out->table;
      view->block_table_len = kMaxBlocks;
    }
    view->k = RandomPlane(random, s->dtype[0], s->row[0], paged);
    if (s->row[1] > 0) {
      view->v = RandomPlane(random, s->dtype[1], s->row[1], paged);
    }
    view->n_companions = test_random_below(random, 3);
    if (view->n_companions > 0) view->companions = out->companions;
    for (uint32_t i = 0; i < view->n_companions; ++i) {
      out->companions[i] =
          RandomPlane(random, i == 0 ? KVEVICT_DTYPE_OPAQUE : KVEVICT_DTYPE_F16,
                      test_random_between(random, 1, 3), paged);
    }
    if (kvevict_view_validate(view, n_tokens) == KVEVICT_OK) return;
  }
}

/* Puts a layer into the pool of another, in blocks of its own. */
static void UsePool(test_random* random, const layer* pool, uint32_t n_tokens,
                    layer* out) {
  if (pool->view.block_size == 0) return;
  layer made = *pool;
  made.view.block_table = made.table;
  if (made.view.n_companions > 0) made.view.companions = made.companions;
  test_random_permutation(random, made.table, kMaxBlocks);
  if (kvevict_view_validate(&made.view, n_tokens) != KVEVICT_OK) return;
  *out = made;
  out->view.block_table = out->table;
  if (out->view.n_companions > 0) out->view.companions = out->companions;
}

/* A block in use counts as full, since the engine will fill it. */
static uint32_t WholeBlocks(const layer* l, uint32_t n_tokens) {
  const uint32_t size = l->view.block_size;
  return n_tokens < size || size == 0 ? n_tokens
                                      : (n_tokens + size - 1) / size * size;
}

static bool LayersOverlap(const layer* a, uint32_t a_tokens, const layer* b,
                          uint32_t b_tokens) {
  for (uint32_t i = 0; i < PlaneCount(a); ++i) {
    for (uint32_t j = 0; j < PlaneCount(b); ++j) {
      if (oracle_planes_overlap(&a->view, Plane(a, i), a_tokens, &b->view,
                                Plane(b, j), b_tokens)) {
        return true;
      }
    }
  }
  return false;
}

typedef struct model {
  kvevict_context* context;
  kvevict_plan* plan;
  kvevict_sequence* sequence;
  uint32_t stored[2];
} model;

static kvevict_status Evict(model* m, const kvevict_view* views) {
  static const float scores[64];
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs inputs;
  test_give_scores(&options, &inputs, 2, scores, 24, 8);
  return kvevict_sequence_evict(m->sequence, views, 2, &options, workspace,
                                sizeof workspace, NULL);
}

/* Two layers of unequal lengths, 2 to 8 tokens each. */
static model NewModel(test_random* random, const shape* s) {
  model m;
  m.context = test_context();
  kvevict_layer_geometry layer = test_layer(s->n_heads, s->n_heads, 0, 0);
  layer.k_dtype = s->dtype[0];
  layer.k_head_dim = layer.k_dtype == KVEVICT_DTYPE_OPAQUE ? 0 : s->row[0];
  if (s->row[1] > 0) layer.v_dtype = s->dtype[1];
  layer.v_head_dim = layer.v_dtype == KVEVICT_DTYPE_OPAQUE ? 0 : s->row[1];
  const kvevict_geometry g = test_geometry(2, 8, &layer);
  const kvevict_policy* policy =
      test_policy("custom:budget=2,sink=0,split=geometric,alpha=0.3");
  EXPECT_OK(kvevict_plan_create(m.context, &g, policy, NULL, &m.plan));
  EXPECT_OK(kvevict_sequence_create(m.plan, &m.sequence));
  EXPECT_OK(kvevict_sequence_begin_observing(m.sequence, NULL, 0));
  EXPECT_OK(kvevict_sequence_append(m.sequence, 6, NULL));
  kvevict_view clean[2];
  for (int l = 0; l < 2; ++l) {
    kvevict_view view = {.struct_size = sizeof view, .n_kv_heads = s->n_heads};
    for (int p = 0; p < 2; ++p) {
      if (s->row[p] == 0) continue;
      kvevict_plane* plane = p == 0 ? &view.k : &view.v;
      *plane = RandomPlane(random, s->dtype[p], s->row[p], false);
      plane->element_stride_bytes = 0;
      plane->head_stride_bytes = 64;
      plane->token_stride_bytes = 256;
      plane->data = (uint64_t)(uintptr_t)(elsewhere[l] + p * kArena / 2);
    }
    clean[l] = view;
  }
  EXPECT_OK(Evict(&m, clean));
  EXPECT_OK(kvevict_sequence_append(m.sequence,
                                    test_random_between(random, 2, 5), NULL));
  for (uint32_t l = 0; l < 2; ++l) {
    EXPECT_OK(kvevict_sequence_stored_length(m.sequence, l, 0, &m.stored[l]));
  }
  return m;
}

static void DestroyModel(model* m) {
  kvevict_sequence_destroy(m->sequence);
  kvevict_plan_destroy(m->plan);
}

Test(overlap, of_layers_is_found_exactly) {
  test_random random = test_random_start("overlap of layers");
  uint32_t n_apart = 0, n_overlap = 0, n_passed = 0, n_refused = 0, n_tail = 0;
  uint32_t n_apart_in_pool = 0;
  for (int i = 0; i < 12000; ++i) {
    shape s = {{KVEVICT_DTYPE_OPAQUE, KVEVICT_DTYPE_OPAQUE},
               {test_random_between(&random, 1, 4),
                test_random_between(&random, 0, 3)},
               test_random_between(&random, 1, 3)};
    for (int p = 0; p < 2; ++p) {
      if (test_random_coin(&random)) s.dtype[p] = KVEVICT_DTYPE_F16;
    }
    model m = NewModel(&random, &s);
    layer layers[2];
    kvevict_view views[2];
    for (int l = 0; l < 2; ++l) {
      RandomLayer(&random, &s, m.stored[l], &layers[l]);
    }
    if (test_random_below(&random, 4) == 0) {
      UsePool(&random, &layers[0], m.stored[1], &layers[1]);
    }
    for (int l = 0; l < 2; ++l) views[l] = layers[l].view;
    const bool strictly =
        LayersOverlap(&layers[0], m.stored[0], &layers[1], m.stored[1]);
    const bool overlap =
        strictly ||
        LayersOverlap(&layers[0], WholeBlocks(&layers[0], m.stored[0]),
                      &layers[1], WholeBlocks(&layers[1], m.stored[1]));
    const kvevict_status status = Evict(&m, views);
    n_apart += !overlap;
    n_apart_in_pool += !overlap && views[0].k.data == views[1].k.data;
    n_overlap += overlap;
    n_tail += overlap && !strictly;
    if (status == KVEVICT_OK) {
      n_passed += overlap;
    } else {
      n_refused += !overlap;
      const char* const message = kvevict_last_error_message();
      EXPECT(strstr(message, "overlap") != NULL, "case %d: %s", i, message);
    }
    DestroyModel(&m);
  }
  fprintf(
      stderr,
      "%u pairs of layers apart: %u refused; %u overlap: %u pass; %u of them "
      "only in the free slots of a last block\n",
      n_apart, n_refused, n_overlap, n_passed, n_tail);
  cr_expect_eq(n_passed, 0, "%u overlapping pairs pass", n_passed);
  cr_expect_eq(n_refused, 0, "%u pairs apart are refused", n_refused);
  cr_expect(n_apart > 1500 && n_overlap > 1500 && n_apart_in_pool > 30,
            "%u in one pool", n_apart_in_pool);
}

/* The planes of one view. Rows whose axes interleave without nesting are refused
 * earlier, with a message that names their size. */
Test(overlap, of_planes_in_a_view_is_found_exactly) {
  test_random random = test_random_start("overlap of planes");
  uint32_t n_apart = 0, n_overlap = 0;
  while (n_apart < 4000 || n_overlap < 4000) {
    layer l;
    memset(&l, 0, sizeof l);
    l.view.struct_size = sizeof l.view;
    l.view.n_kv_heads = test_random_between(&random, 1, 3);
    const bool paged = test_random_coin(&random);
    if (paged) {
      l.view.block_size = 1u << test_random_below(&random, 3);
      test_random_permutation(&random, l.table, kMaxBlocks);
      l.view.block_table = l.table;
      l.view.block_table_len = kMaxBlocks;
    }
    l.view.k = RandomPlane(&random, KVEVICT_DTYPE_F16, 2, paged);
    l.view.v = RandomPlane(&random, KVEVICT_DTYPE_OPAQUE, 3, paged);
    if (paged && test_random_coin(&random)) { /* as in one pool */
      l.view.v.block_stride_bytes = l.view.k.block_stride_bytes;
    }
    const uint32_t n_tokens = test_random_between(&random, 1, 8);
    const kvevict_status status = kvevict_view_validate(&l.view, n_tokens);
    const char* const message = kvevict_last_error_message();
    if (status != KVEVICT_OK && strstr(message, "rows of") != NULL) continue;
    const uint32_t whole = WholeBlocks(&l, n_tokens);
    const bool overlap = oracle_planes_overlap(&l.view, &l.view.k, whole,
                                               &l.view, &l.view.v, whole);
    EXPECT((status != KVEVICT_OK) == overlap, "%u tokens, overlap %d: %s",
           n_tokens, overlap, status == KVEVICT_OK ? "passes" : message);
    n_apart += !overlap;
    n_overlap += overlap;
  }
}
