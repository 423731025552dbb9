/* Random edits among other calls: after every step the cache is as if computed
 * again from the text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/batch.h"
#include "kvevict/edit.h"
#include "kvevict/paged.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/life.h"

static kvevict_edit DrawEdit(const test_life* a, test_random* random) {
  kvevict_edit e = KVEVICT_EDIT_INIT;
  const uint32_t most = a->n_text < 12 ? a->n_text : 12;
  const uint32_t n = test_random_below(random, most + 1);
  e.first = test_random_below(random, a->n_text - n + 1);
  e.end = e.first + n;
  switch (test_random_below(random, 4)) {
    case 0:
      e.kind = KVEVICT_EDIT_MOVE;
      e.to = test_random_below(random, a->n_text - n + 1);
      break;
    case 1:
      e.positions = KVEVICT_EDIT_KEEP;
      e.n_new = test_random_below(random, n + 1);
      break;
    case 2:
      e.n_new = test_random_below(random, 9);
      break;
    default:
      break;
  }
  return e;
}

/* Goes on as a fork; the paged original stays as `kept`, unchanged by what the
 * fork does. */
static void Fork(test_life* a, test_life* kept) {
  kvevict_sequence* fork = NULL;
  EXPECT_OK(kvevict_sequence_fork(a->sequence, NULL, &fork, NULL));
  if (a->cached == NULL || kept->cached != NULL) {
    kvevict_sequence_destroy(a->sequence);
    a->sequence = fork;
    return;
  }
  *kept = *a;
  a->sequence = fork;
  EXPECT_OK(kvevict_paged_sequence_fork(kept->cached, &a->cached, NULL));
}

static void SaveAndLoad(test_life* a) {
  size_t n = 0;
  EXPECT_OK(kvevict_sequence_save(a->sequence, NULL, 0, &n));
  void* data = malloc(n);
  EXPECT_OK(kvevict_sequence_save(a->sequence, data, n, &n));
  kvevict_sequence_destroy(a->sequence);
  EXPECT_OK(kvevict_sequence_create(a->plan, &a->sequence));
  EXPECT_OK(kvevict_sequence_load(a->sequence, data, n, NULL));
  free(data);
}

static void Live(const char* policy, bool is_ragged, bool is_paged,
                 test_layout layout, test_random* random) {
  test_life* a = test_life_begin(policy, is_ragged, is_paged, layout, random);
  test_life* kept = calloc(1, sizeof *kept);
  char what[200];
  uint32_t n_edits = 0;
  for (int step = 0; step < 40; ++step) {
    const uint32_t kind = test_random_below(random, 10);
    const uint32_t room = TEST_LIFE_SLOTS - test_life_longest(a);
    snprintf(what, sizeof what, "%s, %s, step %d", policy,
             is_paged ? "paged" : test_layout_name(layout), step);
    if (kind < 3) {
      test_life_append(a,
                       test_random_below(random, (room < 20 ? room : 20) + 1));
    } else if (kind == 3) {
      test_life_evict(a);
    } else if (kind == 4) {
      test_life_trim(a,
                     a->n_text - test_random_below(random, a->n_text / 3 + 1));
    } else if (kind == 5) {
      Fork(a, kept);
    } else if (kind == 6) {
      SaveAndLoad(a);
    } else {
      const kvevict_edit e = DrawEdit(a, random);
      snprintf(what + strlen(what), sizeof what - strlen(what),
               ": edit %d of [%u, %u) of %u, n_new %u, to %u, positions %d",
               (int)e.kind, e.first, e.end, a->n_text, e.n_new, e.to,
               (int)e.positions);
      n_edits += test_life_edit(a, &e, is_ragged, what);
    }
    test_life_check(a, what);
    if (kept->cached != NULL) test_life_check(kept, "the other fork");
  }
  EXPECT(n_edits > 0, "%s: no edit", what);
  kvevict_sequence_destroy(kept->sequence);
  kvevict_paged_sequence_destroy(kept->cached);
  free(kept);
  test_life_end(a);
}

Test(edit, random_lives_are_as_if_computed_from_the_text) {
  test_random random = test_random_start("edit lives");
  static const char* const kPolicies[] = {
      "none", "streaming-llm:budget=24,sink=2",
      "random:budget=20,sink=2,recent=3,scope=layer",
      "random:budget=20,sink=2,recent=3,scope=model",
      "random:budget=20,sink=2,recent=3,scope=head"};
  for (int layout = 0; layout < TEST_RING; ++layout) {
    for (int p = 0; p < 5; ++p) {
      if (!test_runs((uint32_t)(5 * layout + p))) continue;
      Live(kPolicies[p], false, false, (test_layout)layout, &random);
    }
    if (!test_runs((uint32_t)layout)) continue;
    Live("random:sink=2,recent=3,budget=20", true, false, (test_layout)layout,
         &random);
  }
}

Test(edit, random_lives_in_a_pool_leave_forks_as_they_are) {
  test_random random = test_random_start("edit pools");
  for (int i = 0; i < 25; ++i) {
    if (!test_runs((uint32_t)i)) continue;
    Live("none", false, true, TEST_TOKEN_MAJOR, &random);
    Live("random:budget=20,sink=2,recent=3,scope=layer", false, true,
         TEST_TOKEN_MAJOR, &random);
    Live("random:sink=2,recent=3,budget=20", true, true, TEST_TOKEN_MAJOR,
         &random);
    Live("random:budget=20,scope=layer,reference=20,fit=bias-values", false,
         true, TEST_TOKEN_MAJOR, &random);
    Live("random:budget=20,reference=12,fit=bias-values", true, true,
         TEST_TOKEN_MAJOR, &random);
  }
}

/* ---- Errors ---- */

Test(edit, what_does_not_fit_is_named_and_changes_nothing) {
  test_random random = {5};
  test_life* a =
      test_life_begin("none", false, false, TEST_TOKEN_MAJOR, &random);
  test_life_append(a, 40);
  kvevict_edit e = KVEVICT_EDIT_INIT;
  e.first = 7;
  e.end = 6;
  EXPECT_INVALID(test_life_call_edit(a, &e), "edit: ", "first 7", "end 6");
  e.end = 41;
  EXPECT_INVALID(test_life_call_edit(a, &e), "end 41", "40 tokens");
  e.end = 9;
  e.n_new = 11;
  EXPECT_INVALID(test_life_call_edit(a, &e), "49 slots > max_tokens 48");
  e.positions = KVEVICT_EDIT_KEEP;
  EXPECT_INVALID(test_life_call_edit(a, &e), "n_new 11 > 2");
  e.n_new = 0;
  e.to = 3;
  EXPECT_INVALID(test_life_call_edit(a, &e), "to 3");
  e.kind = KVEVICT_EDIT_MOVE;
  EXPECT_INVALID(test_life_call_edit(a, &e), "positions keep");
  e.positions = KVEVICT_EDIT_ROTATE;
  e.to = 39;
  EXPECT_INVALID(test_life_call_edit(a, &e), "to 39 + 2", "40");
  e.to = 3;
  e.n_new = 1;
  EXPECT_INVALID(test_life_call_edit(a, &e), "n_new 1 of a move");
  e.n_new = 0;
  e.reserved = 1;
  EXPECT_INVALID(test_life_call_edit(a, &e), "reserved 1");
  e.reserved = 0;
  e.kind = (kvevict_edit_kind)2;
  EXPECT_INVALID(test_life_call_edit(a, &e), "kind 2");
  e.kind = KVEVICT_EDIT_REPLACE;
  e.to = 0;
  e.positions = (kvevict_edit_positions)3;
  EXPECT_INVALID(test_life_call_edit(a, &e), "positions 3");
  e.positions = KVEVICT_EDIT_KEEP;
  e.first = 0;
  e.end = 40;
  EXPECT_INVALID(test_life_call_edit(a, &e), "after the edit: layer 0",
                 "no token");
  EXPECT_INVALID(test_life_call_edit(a, NULL), "edit is NULL");
  EXPECT_INVALID(kvevict_sequence_edit(NULL, NULL, 0, &e, NULL), "sequence");
  EXPECT_INVALID(kvevict_paged_edit(NULL, a->sequence, &e, NULL), "cached");
  kvevict_view views[TEST_LIFE_LAYERS] = {test_life_view(a, 0),
                                          test_life_view(a, 1)};
  views[1].k.data = 0;
  e = (kvevict_edit)KVEVICT_EDIT_INIT;
  e.end = 3;
  EXPECT_INVALID(
      kvevict_sequence_edit(a->sequence, views, TEST_LIFE_LAYERS, &e, NULL),
      "views[1]: ");
  views[1] = views[0];
  views[1].k.data += 4 * TEST_LIFE_DIM;
  EXPECT_INVALID(
      kvevict_sequence_edit(a->sequence, views, TEST_LIFE_LAYERS, &e, NULL),
      "views[1]");
  test_life_check(a, "after errors");
  test_life_end(a);
}
