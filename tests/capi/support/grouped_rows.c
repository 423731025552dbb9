#include "tests/capi/support/grouped_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/expect.h"

test_plain test_plain_make(const test_grouped_spec* spec, uint32_t n) {
  test_plain p = {.n = n, .view = KVEVICT_VIEW_INIT};
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = spec->dim;
  plane.token_stride_bytes = spec->dim * 4;
  plane.head_stride_bytes = (int64_t)n * spec->dim * 4;
  p.view.n_kv_heads = spec->n_heads;
  p.view.k = p.view.v = plane;
  for (int v = 0; v < 2; ++v) {
    p.rows[v] = calloc((size_t)spec->n_heads * n * spec->dim + 1, 4);
    (v == 0 ? &p.view.k : &p.view.v)->data = (uintptr_t)p.rows[v];
  }
  return p;
}
void test_plain_free(test_plain* p) { free(p->rows[0]), free(p->rows[1]); }

float* test_plain_row(const test_plain* p, int v, uint32_t head, uint32_t i) {
  return p->rows[v] + ((size_t)head * p->n + i) * p->view.k.head_dim;
}

void test_plain_draw(test_plain* p, uint32_t dim, test_random* random,
                     bool finite) {
  static const float kOdd[] = {NAN, INFINITY, -INFINITY, 1e38f, -1e38f, 1e-40f};
  const size_t n = (size_t)p->view.n_kv_heads * p->n * dim;
  for (int v = 0; v < 2; ++v) {
    for (size_t i = 0; i < n; ++i) {
      const uint32_t kind = test_random_below(random, finite ? 39 : 40);
      p->rows[v][i] = i % dim == 1 ? 3.25f
                      : kind == 39
                          ? kOdd[test_random_below(random, 6)]
                          : (float)(i % 5) * test_random_normal(random);
    }
  }
}

void test_grouped_expect_same(const test_grouped* ours,
                              const test_grouped* theirs, uint32_t n,
                              const char* what) {
  if (memcmp(ours->memory, theirs->memory, ours->n_bytes) == 0) return;
  size_t i = 0;
  while (ours->memory[i] == theirs->memory[i]) ++i;
  const test_grouped_spec* s = &ours->spec;
  cr_assert_fail("%s: byte %zu of %zu; dtype %d, group %u, dim %u, n %u", what,
                 i, ours->n_bytes, (int)s->dtype, s->group, s->dim, n);
}

void test_grouped_store_all(test_grouped* c, const test_plain* p,
                            uint32_t first) {
  for (int v = 0; v < 2; ++v) {
    for (uint32_t h = 0; h < c->spec.n_heads; ++h) {
      test_grouped_store(c, v, h, first, p->n, test_plain_row(p, v, h, 0));
    }
  }
}

void test_grouped_fill(kvevict_context* context, test_grouped* c,
                       uint32_t first, uint32_t n, test_random* random,
                       bool finite) {
  test_plain p = test_plain_make(&c->spec, n);
  test_plain_draw(&p, c->spec.dim, random, finite);
  test_grouped* theirs = test_grouped_clone(c);
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = n;
  move.view = &p.view;
  move.first_slot = first;
  move.destination = &c->view;
  EXPECT_OK(kvevict_compact(context, &move, 1, NULL, 0, NULL));
  test_grouped_store_all(theirs, &p, first);
  test_grouped_expect_same(c, theirs, n, "stored");
  for (int v = 0; v < 2; ++v) {
    memcpy(c->rows[v], theirs->rows[v],
           sizeof(float) * c->spec.n_heads * c->spec.capacity * c->spec.dim);
  }
  test_grouped_destroy(theirs);
  test_plain_free(&p);
}

test_grouped* test_grouped_filled(kvevict_context* context,
                                  test_grouped_spec spec, uint32_t n,
                                  test_random* random, bool finite) {
  test_grouped* c = test_grouped_create(&spec, random);
  uint32_t first = 0;
  if (spec.has_recent) c->view.first_recent = test_random_below(random, n + 9);
  while (first < n) {
    const uint32_t more = test_random_between(random, 1, n - first);
    test_grouped_fill(context, c, first, more, random, finite);
    first += more;
  }
  return c;
}

test_plain test_grouped_read(kvevict_context* context, const test_grouped* c,
                             uint32_t n) {
  test_plain p = test_plain_make(&c->spec, n);
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = n;
  move.view = &c->view;
  move.destination = &p.view;
  EXPECT_OK(kvevict_compact(context, &move, 1, NULL, 0, NULL));
  return p;
}

void test_grouped_expect_row(const float* ours, const float* theirs,
                             uint32_t dim, const char* what, uint32_t slot) {
  for (uint32_t e = 0; e < dim; ++e) {
    EXPECT(ours[e] == theirs[e] || (isnan(ours[e]) && isnan(theirs[e])),
           "%s, slot %u, element %u: %.9g is not %.9g", what, slot, e, ours[e],
           theirs[e]);
  }
}

void test_grouped_expect_survivors(const test_grouped* before,
                                   const test_plain* ours, uint32_t head,
                                   const int32_t* list, uint32_t n_kept,
                                   uint32_t n_recent) {
  const uint32_t dim = before->spec.dim;
  test_grouped* made = test_grouped_clone(before);
  for (int v = 0; v < 2; ++v) {
    float* rows = malloc((n_kept + 1) * dim * sizeof *rows);
    for (uint32_t i = 0; i < n_kept; ++i) {
      memcpy(rows + i * dim,
             test_grouped_row(before, v, head, (uint32_t)list[i]),
             dim * sizeof *rows);
    }
    const bool moves = v == 1 && !before->spec.groups_values;
    uint32_t n_still = 0; /* groups of which every row stays are not touched */
    while (n_still < n_kept && list[n_still] == (int32_t)n_still) ++n_still;
    if (n_still < n_kept) n_still -= n_still % before->spec.group;
    if (!moves) {
      test_grouped_store(made, v, head, n_still, n_kept - n_still,
                         rows + n_still * dim);
    }
    for (uint32_t i = 0; i < n_kept + n_recent; ++i) {
      const float* want =
          i >= n_kept ? test_grouped_row(before, v, head, (uint32_t)list[i])
          : moves     ? rows + i * dim
                      : test_grouped_row(made, v, head, i);
      test_grouped_expect_row(test_plain_row(ours, v, head, i), want, dim,
                              "survivor", i);
    }
    free(rows);
  }
  test_grouped_destroy(made);
}
