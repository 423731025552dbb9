/* kvevict_sequence_report() says what the last eviction did. */
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

enum { kLists = 4 }; /* 2 layers of 2 heads */

static test_model* Model(const char* policy) {
  return test_model_of(policy, 1);
}

typedef struct told {
  kvevict_evict_report report;
  kvevict_list_report lists[kLists];
} told;

static told Ask(const test_model* m) {
  told t = {KVEVICT_EVICT_REPORT_INIT, {{0, 0, 0, 0, 0, 0}}};
  for (int i = 0; i < kLists; ++i) {
    t.lists[i] = (kvevict_list_report)KVEVICT_LIST_REPORT_INIT;
  }
  EXPECT_OK(kvevict_sequence_report(m->sequence, &t.report, t.lists, kLists));
  return t;
}

static void ExpectNothing(const told* t, const char* what) {
  const kvevict_evict_report none = KVEVICT_EVICT_REPORT_INIT;
  EXPECT(memcmp(&t->report, &none, sizeof none) == 0, "%s: a report", what);
  for (uint32_t i = 0; i < kLists; ++i) {
    EXPECT(t->lists[i].layer == i / 2 && t->lists[i].tokens_before == 0 &&
               t->lists[i].tokens_after == 0,
           "%s: list %u of layer %u: %u to %u", what, i, t->lists[i].layer,
           t->lists[i].tokens_before, t->lists[i].tokens_after);
  }
}

static void ExpectTold(const told* t, uint32_t before, uint32_t after,
                       const char* what) {
  EXPECT(t->report.evicted == (before != after) &&
             t->report.tokens_before == 2 * before &&
             t->report.tokens_after == 2 * after,
         "%s: %llu to %llu tokens", what,
         (unsigned long long)t->report.tokens_before,
         (unsigned long long)t->report.tokens_after);
  for (uint32_t i = 0; i < kLists; ++i) {
    EXPECT(t->lists[i].layer == i / 2 && t->lists[i].tokens_before == before &&
               t->lists[i].tokens_after == after,
           "%s: list %u of layer %u: %u to %u", what, i, t->lists[i].layer,
           t->lists[i].tokens_before, t->lists[i].tokens_after);
  }
}

Test(report, is_of_the_last_eviction_that_worked) {
  test_model* m = Model("snapkv:budget=60,window=8");
  told t = Ask(m);
  ExpectNothing(&t, "before any eviction");
  test_model_step(m, 90);
  t = Ask(m);
  ExpectNothing(&t, "tokens alone");
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  t = Ask(m);
  ExpectTold(&t, 90, 60, "evicted");
  /* Neither later calls nor a failure change it. */
  test_model_append(m, 10);
  t = Ask(m);
  ExpectTold(&t, 90, 60, "grown");
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "observed");
  t = Ask(m);
  ExpectTold(&t, 90, 60, "refused");
  EXPECT_OK(kvevict_sequence_trim_to(m->sequence, 95, NULL));
  m->n_seen = 95;
  t = Ask(m);
  ExpectTold(&t, 90, 60, "trimmed");
  test_model_observe(m, 87, 8);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  t = Ask(m);
  ExpectTold(&t, 65, 60, "again");
  /* An eviction with nothing to do counts as the last one. */
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  t = Ask(m);
  ExpectTold(&t, 60, 60, "idle");
  EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
  t = Ask(m);
  ExpectNothing(&t, "reset");
  test_model_destroy(m);
}

Test(report, refuses_bad_arguments) {
  test_model* m = Model("snapkv:budget=60,window=8");
  test_model_step(m, 90);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  GROWN(kvevict_evict_report) grown;
  kvevict_list_report lists[kLists + 1];
  for (int i = 0; i <= kLists; ++i) {
    lists[i] = (kvevict_list_report)KVEVICT_LIST_REPORT_INIT;
  }
  kvevict_list_report before[kLists + 1];
  memcpy(before, lists, sizeof before);
  EXPECT_INVALID(kvevict_sequence_report(NULL, &grown.value, NULL, 0),
                 "sequence", "NULL");
  for (size_t n = 1; n <= kLists + 1; ++n) {
    if (n == kLists) continue;
    char text[24];
    snprintf(text, sizeof text, "lists_len %zu", n);
    EXPECT_INVALID(kvevict_sequence_report(m->sequence, NULL, lists, n), text,
                   "4");
  }
  EXPECT_INVALID(kvevict_sequence_report(m->sequence, NULL, NULL, kLists),
                 "lists", "NULL");
  EXPECT_CHECKS_OUT_STRUCT_SIZE(
      grown, kvevict_sequence_report(m->sequence, &grown.value, NULL, 0));
  /* A bad list leaves the report and every other list unwritten. */
  GUARD(grown);
  grown.value.struct_size = sizeof grown.value;
  const kvevict_evict_report untouched = grown.value;
  lists[2].struct_size = 8;
  EXPECT_INVALID(
      kvevict_sequence_report(m->sequence, &grown.value, lists, kLists),
      "lists[2]", "struct_size 8");
  lists[2].struct_size = sizeof lists[2];
  grown.value.struct_size = 8;
  EXPECT_INVALID(
      kvevict_sequence_report(m->sequence, &grown.value, lists, kLists),
      "out.struct_size 8");
  grown.value.struct_size = sizeof grown.value;
  cr_assert(memcmp(&untouched, &grown.value, sizeof untouched) == 0);
  cr_assert(memcmp(before, lists, sizeof before) == 0);
  test_model_destroy(m);
}

/* Lists of a later release lie further apart, and fields unknown here stay as they are. */
Test(report, writes_lists_as_wide_as_they_are) {
  test_model* m = Model("snapkv:budget=60,window=8");
  test_model_step(m, 90);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  struct {
    kvevict_list_report list;
    uint64_t later;
  } wide[kLists];
  memset(wide, 0, sizeof wide);
  for (int i = 0; i < kLists; ++i) {
    wide[i].list.struct_size = sizeof wide[i];
    wide[i].later = 7;
  }
  EXPECT_OK(kvevict_sequence_report(m->sequence, NULL, &wide[0].list, kLists));
  for (uint32_t i = 0; i < kLists; ++i) {
    EXPECT(wide[i].list.struct_size == sizeof wide[i] && wide[i].later == 7 &&
               wide[i].list.layer == i / 2 && wide[i].list.tokens_after == 60,
           "list %u", i);
  }
  test_model_destroy(m);
}
