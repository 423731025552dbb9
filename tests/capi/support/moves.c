#include "tests/capi/support/moves.h"

#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/oracle/compact.h"
#include "tests/oracle/quantize.h"
#include "tests/oracle/quantized.h"

enum {
  kHeads = TEST_MOVED_HEADS,
  kSlots = TEST_MOVED_SLOTS,
  kMostFirst = 40,
  kMostDim = 2048
};

/* ---- What a move is ---- */

static const kvevict_plane* FindRole(const kvevict_view* view, int role) {
  for (uint32_t i = 0; i < view->n_companions; ++i) {
    if ((int)view->companions[i].role == role) return &view->companions[i];
  }
  return NULL;
}

static void CopyBytes(const kvevict_view* from, const kvevict_plane* plane,
                      uint32_t slot, const kvevict_view* to,
                      const kvevict_plane* to_plane, uint32_t to_slot,
                      uint32_t head) {
  if (!oracle_has_rows(plane)) return;
  oracle_copy_row(to, to_plane, to_slot, from, plane, slot, head);
}

void test_store_anew(const kvevict_view* from, const kvevict_plane* plane,
                     uint32_t slot, const kvevict_view* to,
                     const kvevict_plane* to_plane, uint32_t to_slot,
                     uint32_t head, bool is_fused) {
  float row[kMostDim];
  for (uint32_t e = 0; e < plane->head_dim; ++e) {
    row[e] = (float)oracle_element(from, plane, slot, head, e);
  }
  oracle_store_row(to, to_plane, to_slot, head, is_fused, row);
}

void test_move_row(const kvevict_view* from, const kvevict_plane* plane,
                   uint32_t slot, const kvevict_view* to,
                   const kvevict_plane* to_plane, uint32_t to_slot,
                   uint32_t head, bool is_fused) {
  if (plane->dtype == to_plane->dtype) {
    CopyBytes(from, plane, slot, to, to_plane, to_slot, head);
    const int first =
        plane == &from->k ? KVEVICT_ROLE_KEY_SCALE : KVEVICT_ROLE_VALUE_SCALE;
    for (int role = first; role < first + 2; ++role) {
      const kvevict_plane* of = FindRole(from, role);
      if (of == NULL) continue;
      CopyBytes(from, of, slot, to, FindRole(to, role), to_slot, head);
    }
    return;
  }
  test_store_anew(from, plane, slot, to, to_plane, to_slot, head, is_fused);
}

/* ---- Lists ---- */

/* Slots of [first, end): all, none, the first ones, a run, all but one, or any. */
static uint32_t DrawAscending(test_random* random, int32_t* list,
                              uint32_t first, uint32_t end) {
  const uint32_t n = end < first ? 0 : end - first;
  const uint32_t shape = n == 0 ? 0 : test_random_below(random, 12);
  const uint32_t at = test_random_below(random, n + 1);
  uint32_t begin = 0, count = at;
  if (shape == 0) count = n;
  if (shape == 1) count = 0;
  if (shape == 3) begin = at, count = test_random_below(random, n - at + 1);
  if (shape == 4) count = n - 1;
  if (shape < 5) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t hole = shape == 4 && i >= at ? 1 : 0;
      list[i] = (int32_t)(first + begin + i + hole);
    }
    return count;
  }
  test_random_ascending(random, list, count, n);
  for (uint32_t i = 0; i < count; ++i) list[i] += (int32_t)first;
  return count;
}

/* Any slots of [0, end), a part of a permutation, or the rows of a ring. */
static uint32_t DrawUnordered(test_random* random, int32_t* list,
                              uint32_t end) {
  int32_t all[kSlots];
  const uint32_t n =
      test_random_coin(random) ? end : test_random_below(random, end + 1);
  const uint32_t shape = test_random_below(random, 3);
  test_random_permutation(random, all, end);
  for (uint32_t i = 0; i < n; ++i) {
    list[i] = shape == 0   ? (int32_t)test_random_below(random, end)
              : shape == 1 ? all[i]
                           : (int32_t)(((uint32_t)all[0] + i) % end);
  }
  return n;
}

/* Makes all lists as long as the shortest one, end to end. */
static void AlignLists(test_moved* t) {
  kvevict_keep_lists* keep = &t->keep;
  for (uint32_t l = 0; l < keep->n_lists; ++l) {
    if (t->counts[l] < keep->count) keep->count = t->counts[l];
  }
  for (uint32_t l = 0; l < keep->n_lists; ++l) {
    t->counts[l] = keep->count;
    memmove(t->slots + (size_t)l * keep->count, t->slots + (size_t)l * kSlots,
            keep->count * sizeof *t->slots);
  }
  keep->list_stride = 0;
  keep->counts = NULL;
}

static void DrawLists(test_moved* t, test_random* random, uint32_t n_heads) {
  const bool in_place = t->kind == TEST_MOVE_DOWN;
  kvevict_keep_lists* keep = &t->keep;
  *keep = (kvevict_keep_lists)KVEVICT_KEEP_LISTS_INIT;
  keep->n_lists = test_random_coin(random) ? 1 : n_heads;
  /* Entries beyond a count are no slots. */
  memset(t->slots, TEST_GUARD, sizeof t->slots);
  for (uint32_t l = 0; l < keep->n_lists; ++l) {
    uint32_t end = t->held[l];
    for (uint32_t h = 0; keep->n_lists == 1 && h < n_heads; ++h) {
      if (t->held[h] < end) end = t->held[h];
    }
    int32_t* list = t->slots + (size_t)l * kSlots;
    t->counts[l] = t->kind == TEST_MOVE_REORDER
                       ? DrawUnordered(random, list, end)
                       : DrawAscending(random, list,
                                       in_place ? t->move.first_slot : 0, end);
    if (t->counts[l] > keep->count) keep->count = t->counts[l];
  }
  keep->slots = t->slots;
  keep->slots_len = (size_t)keep->n_lists * kSlots;
  keep->list_stride = kSlots;
  keep->counts = t->counts;
  t->move.keep = keep;
  if (test_random_coin(random)) AlignLists(t);
}

static uint32_t CountOf(const test_moved* t, uint32_t head) {
  return t->move.keep == NULL ? t->held[head]
                              : t->counts[t->keep.n_lists == 1 ? 0 : head];
}

static uint32_t SlotOf(const test_moved* t, uint32_t head, uint32_t i) {
  const uint32_t l = t->keep.n_lists == 1 ? 0 : head;
  const uint32_t stride = t->keep.list_stride == 0 ? t->keep.count : kSlots;
  return t->move.keep == NULL ? i : (uint32_t)t->slots[l * stride + i];
}

/* ---- Tables ---- */

/* The slots [begin, end) of each head whose block table entries a call may read. */
typedef struct used_slots {
  uint32_t begin, end[kHeads];
} used_slots;

/* Copies the view of a cache with a block table and sets all other entries to -1.
 * Tables of addresses lose those entries. */
static kvevict_view Exposed(test_cache* c, const used_slots* used,
                            int32_t** table) {
  kvevict_view view = c->view;
  if (view.block_size == 0 || view.ring_slots != 0) return view;
  const uint64_t stride = view.block_table_head_stride;
  const uint32_t n_tables = stride == 0 ? 1 : view.n_kv_heads;
  const uint32_t n = test_cache_blocks(c, c->spec.capacity);
  const size_t len = view.block_table_len;
  *table = malloc((len + 1) * sizeof **table);
  if (len > 0) memcpy(*table, view.block_table, len * sizeof **table);
  for (uint32_t h = 0; h < n_tables; ++h) {
    uint32_t end = used->end[h];
    for (uint32_t i = 0; n_tables == 1 && i < view.n_kv_heads; ++i) {
      if (used->end[i] > end) end = used->end[i];
    }
    for (uint32_t i = 0; i < n; ++i) {
      const bool is_used = i >= used->begin / view.block_size &&
                           i * view.block_size < end && used->begin < end;
      if (is_used) continue;
      if (view.block_table == NULL) {
        test_cache_free_entry(c, h * stride + i);
      } else {
        (*table)[h * stride + i] = -1;
      }
    }
  }
  if (view.block_table != NULL) view.block_table = *table;
  return view;
}

static void HideUnused(test_moved* t) {
  const bool in_place = t->to == t->ours;
  used_slots used = {t->kind == TEST_MOVE_DOWN ? t->move.first_slot : 0, {0}};
  used_slots written = {t->move.first_slot, {0}};
  for (uint32_t h = 0; h < t->ours->spec.n_kv_heads; ++h) {
    const bool own = t->ours->view.block_table_head_stride != 0;
    used.end[h] = own ? t->held[h] : t->move.n_tokens;
    written.end[h] = written.begin + CountOf(t, h);
    if (t->to->view.block_table_head_stride != 0) continue;
    written.end[h] = written.begin +
                     (t->move.keep == NULL ? t->move.n_tokens : t->keep.count);
  }
  t->view = Exposed(t->ours, &used, &t->table);
  t->move.view = &t->view;
  if (in_place) return;
  t->destination = Exposed(t->to, &written, &t->to_table);
  t->move.destination = &t->destination;
}

/* ---- Drawing ---- */

static void DrawHeld(test_moved* t, test_random* random, uint32_t n_heads) {
  const bool ragged = test_random_coin(random);
  const uint32_t most = test_random_below(
      random, test_random_below(random, 4) == 0 ? 5 : kSlots + 1);
  for (uint32_t h = 0; h < n_heads; ++h) {
    t->held[h] = ragged ? test_random_below(random, most + 1) : most;
    if (t->held[h] > t->move.n_tokens) t->move.n_tokens = t->held[h];
  }
  t->move.token_counts = ragged ? t->held : NULL;
}

static test_moved* MovedOf(test_random* random, test_move_kind kind,
                           const test_cache_spec* from,
                           const test_cache_spec* to) {
  test_moved* t = calloc(1, sizeof *t);
  const bool in_place = to == NULL;
  t->kind = kind;
  test_cache_spec spec = *from;
  spec.capacity = kSlots;
  t->to = t->ours = test_cache_create(&spec, random);
  t->before = test_cache_clone(t->ours);
  t->move = (kvevict_move)KVEVICT_MOVE_INIT;
  DrawHeld(t, random, spec.n_kv_heads);
  if (kind != TEST_MOVE_REORDER && test_random_below(random, 3) != 0) {
    t->move.first_slot = test_random_below(
        random, in_place ? t->move.n_tokens + 1 : kMostFirst + 1);
  }
  if (!in_place) {
    spec = *to;
    spec.capacity = kMostFirst + kSlots;
    t->to = test_cache_create(&spec, random);
  }
  t->theirs = test_cache_clone(t->to);
  if (in_place || test_random_below(random, 4) != 0) {
    DrawLists(t, random, spec.n_kv_heads);
  }
  HideUnused(t);
  return t;
}

/* Some rows fill many vectors, and few are so long that runs of them are moved. */
static uint32_t DrawDim(test_random* random, uint32_t least) {
  switch (test_random_below(random, 24)) {
    case 0:
      return test_random_between(random, 41, 700);
    case 1:
      return test_random_between(random, 1020, 1030);
    default:
      return test_random_between(random, least, 40);
  }
}

/* Elements in a block of either dtype. */
static uint32_t UnitOf(kvevict_dtype a, kvevict_dtype b) {
  const uint32_t of_a = test_dtype_info(a).block_elements;
  const uint32_t of_b = test_dtype_info(b).block_elements;
  return of_a > of_b ? of_a : of_b;
}

test_moved* test_moved_draw(test_random* random, test_move_kind kind,
                            test_layout layout, kvevict_dtype k) {
  const kvevict_dtype last = test_last_dtype();
  const bool any = kind == TEST_MOVE_REQUANTIZE || k > KVEVICT_DTYPE_BF16;
  test_cache_spec spec = {.layout = layout, .k_dtype = k};
  spec.n_kv_heads = test_random_between(random, 1, kHeads);
  spec.n_companions = test_random_below(random, 3);
  kvevict_dtype to_k = k, to_v = 0;
  if (any) { /* rows are whole blocks of codes */
    spec.v_dtype = to_v = test_random_between(random, KVEVICT_DTYPE_F32, last);
    if (kind == TEST_MOVE_REQUANTIZE) {
      to_k = test_random_between(random, KVEVICT_DTYPE_F32, last);
      to_v = test_random_between(random, KVEVICT_DTYPE_F32, last);
    }
    const uint32_t k_unit = UnitOf(k, to_k),
                   v_unit = UnitOf(spec.v_dtype, to_v);
    spec.k_head_dim = k_unit * test_random_between(random, 1, 70 / k_unit);
    spec.v_head_dim = v_unit * test_random_below(random, 70 / v_unit + 1);
  } else {
    spec.v_dtype = test_random_below(random, KVEVICT_DTYPE_BF16 + 1);
    spec.k_head_dim = DrawDim(random, 1);
    spec.v_head_dim = DrawDim(random, 0);
    if (spec.k_head_dim > 1000) {
      spec.n_kv_heads = 1;
      if (k == KVEVICT_DTYPE_OPAQUE) spec.k_head_dim *= 4;
    }
  }
  if (kind == TEST_MOVE_DOWN || kind == TEST_MOVE_REORDER) {
    return MovedOf(random, kind, &spec, NULL);
  }
  test_cache_spec to = spec;
  to.layout = test_random_below(random, TEST_N_LAYOUTS);
  if (kind == TEST_MOVE_REQUANTIZE) {
    to.k_dtype = to_k;
    to.v_dtype = to_v;
  }
  return MovedOf(random, kind, &spec, &to);
}

/* ---- Checking ---- */

static void MoveNaively(test_moved* t, bool is_fused) {
  const kvevict_view* from = &t->before->view;
  const kvevict_view* to = &t->theirs->view;
  for (uint32_t h = 0; h < from->n_kv_heads; ++h) {
    for (uint32_t i = 0; i < CountOf(t, h); ++i) {
      const uint32_t slot = SlotOf(t, h, i), at = t->move.first_slot + i;
      test_move_row(from, &from->k, slot, to, &to->k, at, h, is_fused);
      if (oracle_has_rows(&from->v)) {
        test_move_row(from, &from->v, slot, to, &to->v, at, h, is_fused);
      }
      for (uint32_t c = 0; c < t->ours->spec.n_companions; ++c) {
        CopyBytes(from, &from->companions[c], slot, to, &to->companions[c], at,
                  h);
      }
    }
  }
}

/* The end of the rows of a head that are specified after a move in place: no row moves
 * if those that stay are in place. */
static uint32_t EndOf(const test_moved* t, uint32_t head) {
  const uint32_t n = CountOf(t, head), first = t->move.first_slot;
  for (uint32_t i = 0; i < n; ++i) {
    if (SlotOf(t, head, i) != first + i) return first + n;
  }
  return t->held[head];
}

void test_moved_check(test_moved* t, bool is_fused) {
  char what[96];
  snprintf(what, sizeof what, "move %d, %s, dtypes %d and %d to %s, %d and %d",
           (int)t->kind, test_layout_name(t->ours->spec.layout),
           (int)t->ours->spec.k_dtype, (int)t->ours->spec.v_dtype,
           test_layout_name(t->to->spec.layout), (int)t->to->spec.k_dtype,
           (int)t->to->spec.v_dtype);
  MoveNaively(t, is_fused);
  test_cache_restore_entries(t->ours, t->before);
  if (t->to != t->ours) test_expect_same_bytes(t->ours, t->before, what);
  if (t->kind != TEST_MOVE_DOWN) {
    test_expect_same_bytes(t->to, t->theirs, what);
    return;
  }
  uint32_t ends[kHeads] = {0};
  for (uint32_t h = 0; h < t->ours->spec.n_kv_heads; ++h) ends[h] = EndOf(t, h);
  test_expect_same_rows_of_heads(t->ours, t->theirs, ends, what);
  test_expect_same_outside_heads(t->ours, t->before, t->held, what);
}

void test_moved_destroy(test_moved* t) {
  test_cache_destroy(t->ours);
  test_cache_destroy(t->before);
  test_cache_destroy(t->theirs);
  if (t->to != t->ours) test_cache_destroy(t->to);
  free(t->table);
  free(t->to_table);
  free(t);
}
