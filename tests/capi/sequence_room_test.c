/* A ratio leaves a context alone in which what must stay has no room. */
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/hooks.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/policies.h"

static test_model* Model(const char* policy) {
  return test_model_of(policy, 1);
}

/* Evicts, and says why layers were left alone. */
static kvevict_reason Evict(test_model* m, const kvevict_evict_options* options,
                            const char* what) {
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  const kvevict_status status = test_model_evict(m, options, &report);
  EXPECT(status == KVEVICT_OK, "%s of %u: %s", what, m->n_seen,
         kvevict_last_error_message());
  EXPECT(report.evicted == (report.tokens_after < report.tokens_before), "%s",
         what);
  test_model_check(m, what);
  return report.reason;
}

static const char* const kRatios[] = {
    "snapkv:budget=0.5",
    "snapkv:budget=0.5,split=lazy,lazy=0.5",
    "pyramidkv:budget=0.5,alpha=0.5",
    "snapkv:budget=0.5,split=arithmetic-kvpress",
    "cake:budget=0.5",
    "r-kv:budget=0.25",
    "random:budget=0.5,sink=0,recent=16",
    "tova:budget=0.2,recent=12",
    "knorm:budget=0.4,sink=4,recent=12,select_block=4,scope=layer",
    "streaming-llm:budget=0.1",
    "snapkv:budget=0.5,heads=adaptive",
    "snapkv:budget=0.5,heads=adaptive-blend",
    "snapkv:budget=0.5,heads=threshold",
    "lagkv:budget=0.5,block=8,of=partition,recent=30",
    "knorm:budget=0.5,recent=0.9",
    "snapkv:budget=0.5,keep_window=no",
    "tova:budget=0.5,window=30,keep_window=no",
    "pyramidkv:budget=0.5,window=40,keep_window=no,scope=layer",
};

/* Every length is a prompt of its own. */
Test(room, ratios_leave_short_contexts_alone) {
  for (size_t i = 0; i < sizeof kRatios / sizeof *kRatios; ++i) {
    uint32_t n_left = 0, n_evicted = 0;
    for (uint32_t n = 1; n <= 90; n += n < 12 ? 1 : 3) {
      test_model* m = Model(kRatios[i]);
      test_model_step(m, n);
      kvevict_resolved_policy r = {.struct_size = sizeof r};
      EXPECT_OK(kvevict_policy_resolve(m->policy_handle, n, &r));
      const kvevict_reason reason = Evict(m, NULL, kRatios[i]);
      const uint32_t ends = m->policy.sink + m->policy.recent;
      if (r.budget == n) {
        ++n_left;
        EXPECT(test_model_stored(m, 0) == n, "%s of %u: %u stay", kRatios[i], n,
               test_model_stored(m, 0));
        EXPECT(n < 20 || reason == KVEVICT_REASON_SMALL_BUDGET,
               "%s of %u: reason %d", kRatios[i], n, (int)reason);
      } else {
        ++n_evicted;
        EXPECT(reason == KVEVICT_REASON_NONE, "%s of %u: reason %d", kRatios[i],
               n, (int)reason);
        EXPECT(test_model_stored(m, 0) >= (ends < n ? ends : n) ||
                   m->policy.recent_share > 0,
               "%s of %u: %u stay", kRatios[i], n, test_model_stored(m, 0));
      }
      test_model_destroy(m);
    }
    EXPECT(n_left > 0 && n_evicted > 0, "%s: %u left, %u evicted", kRatios[i],
           n_left, n_evicted);
  }
}

Test(room, ratios_leave_protected_and_pinned_tokens_alone) {
  static const struct {
    const char* policy;
    uint32_t n_least; /* the least length with room for 16 protected tokens */
  } kCases[] = {{"snapkv:budget=0.5,window=8", 2 * (4 + 8 + 16)},
                {"cake:budget=0.5,window=8", 2 * (8 + 16)},
                {"knorm:budget=0.5,scope=model", 2 * (4 + 16)},
                {"knorm:budget=0.5,chunk=40", 0}};
  int32_t protect[16];
  for (int32_t i = 0; i < 16; ++i) protect[i] = 6 + i;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.protected_positions = protect;
  options.protected_positions_len = 16;
  for (int i = 0; i < 4; ++i) {
    uint32_t n_left = 0;
    for (uint32_t n = 24; n <= 70; n += 2) {
      test_model* m = Model(kCases[i].policy);
      test_model_step(m, n);
      const kvevict_reason reason = Evict(m, &options, kCases[i].policy);
      const bool stays = test_model_stored(m, 1) == n;
      EXPECT(stays == (reason == KVEVICT_REASON_SMALL_BUDGET) &&
                 (kCases[i].n_least == 0 || stays == (n < kCases[i].n_least)),
             "%s of %u: %u stay, reason %d", kCases[i].policy, n,
             test_model_stored(m, 1), (int)reason);
      n_left += stays;
      test_model_destroy(m);
    }
    EXPECT(n_left > 0 && n_left < 24, "%s: %u", kCases[i].policy, n_left);
  }
  test_model* m = Model("knorm:budget=0.5,sink=0,prompt=pinned");
  test_model_append(m, 30);
  EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
  for (uint32_t n = 30; n < 70; n += 2) {
    const kvevict_reason reason = Evict(m, NULL, "pinned");
    EXPECT((reason == KVEVICT_REASON_SMALL_BUDGET) == (n < 60),
           "pinned, %u seen: reason %d", n, (int)reason);
    test_model_append(m, 2);
  }
  cr_expect_eq(test_model_stored(m, 0), 34 + 2);
  test_model_destroy(m);
}

/* The context is shorter than a window that is ranked like other tokens. */
Test(room, budgets_leave_contexts_alone_that_are_shorter_than_the_window) {
  static const char* const kPolicies[] = {
      "snapkv:budget=8,keep_window=no",
      "snapkv:budget=8,keep_window=no,heads=adaptive",
      "snapkv:budget=8,keep_window=no,select_block=2,scope=model",
      "cake:budget=8,sink=0,keep_window=no",
      "snapkv-sharpinference:budget=8,recent=0,window=32",
  };
  for (size_t i = 0; i < sizeof kPolicies / sizeof *kPolicies; ++i) {
    test_model* m = Model(kPolicies[i]);
    for (uint32_t n = 1; n <= 32; ++n) {
      test_model_step(m, 1);
      kvevict_resolved_policy r = {.struct_size = sizeof r};
      EXPECT_OK(kvevict_policy_resolve(m->policy_handle, n, &r));
      const kvevict_reason reason = Evict(m, NULL, kPolicies[i]);
      const bool waits = n > 8 && n < 32;
      EXPECT((reason == KVEVICT_REASON_SMALL_BUDGET) == waits &&
                 (test_model_stored(m, 0) == n) == (n < 32) &&
                 r.budget == (n < 32 ? n : 8),
             "%s of %u: %u stay, reason %d, budget %u", kPolicies[i], n,
             test_model_stored(m, 0), (int)reason, r.budget);
    }
    test_model_destroy(m);
  }
  /* These are budgets of heads. */
  const uint32_t heads[4] = {8, 12, 12, 8};
  test_model* m = Model("snapkv:budget=1,sink=0,keep_window=no");
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.head_budgets = heads;
  options.head_budgets_len = 4;
  EXPECT_OK(test_model_go_on(m, m->spec.policy, NULL, &options));
  for (uint32_t n = 1; n <= 32; ++n) {
    test_model_step(m, 1);
    const bool waits = n > 8 && n < 32;
    cr_expect_eq(Evict(m, NULL, "heads") == KVEVICT_REASON_SMALL_BUDGET, waits);
    cr_expect_eq(test_model_stored(m, 0), n < 32 ? n : 12, "%u", n);
  }
  test_model_destroy(m);
}

/* Each layer goes by its own budget. A count of tokens is still an error. */
Test(room, is_of_each_layer) {
  const double budgets[2] = {0.1, 0.6};
  test_model_spec spec = test_small_model("knorm:budget=0.5,sink=4,recent=4");
  test_model* m = test_model_create(&spec, (test_random){1});
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.layer_budgets = budgets;
  options.layer_budgets_len = 2;
  EXPECT_OK(test_model_go_on(m, spec.policy, NULL, &options));
  test_model_append(m, 50);
  cr_expect_eq(Evict(m, NULL, "layers"), KVEVICT_REASON_SMALL_BUDGET);
  cr_expect_eq(test_model_stored(m, 0), 50);
  cr_expect_eq(test_model_stored(m, 1), 30);
  test_model_destroy(m);
}

/* A call that works does not change the last error message. */
Test(room, leaves_the_last_error_message_alone) {
  int32_t protect[16];
  for (int32_t i = 0; i < 16; ++i) protect[i] = i;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.protected_positions = protect;
  options.protected_positions_len = 16;
  static const char* const kPolicies[] = {"knorm:budget=0.5",
                                          "cake:budget=0.5,window=8"};
  for (int i = 0; i < 2; ++i) {
    test_model* m = Model(kPolicies[i]);
    test_model_step(m, 20);
    EXPECT_INVALID(kvevict_sequence_append(NULL, 1, NULL), "sequence", "NULL");
    char before[512];
    snprintf(before, sizeof before, "%s", kvevict_last_error_message());
    cr_expect_eq(Evict(m, &options, kPolicies[i]), KVEVICT_REASON_SMALL_BUDGET);
    cr_expect_str_eq(kvevict_last_error_message(), before);
    test_model_destroy(m);
  }
}

/* Half of the budget is recent, whatever the context. */
Test(room, recent_tokens_may_be_a_share) {
  test_model* m = Model("custom:budget=0.4,sink=0,recent=0.5");
  test_model_append(m, 80);
  float scores[2][2][80] = {{{0}}};
  for (int t = 0; t < 16; ++t) scores[0][0][t] = scores[0][1][t] = 1;
  memcpy(scores[1], scores[0], sizeof scores[0]);
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs inputs;
  test_give_scores(&options, &inputs, 2, scores[0][0], 2 * 80, 80);
  cr_expect_eq(Evict(m, &options, "share"), KVEVICT_REASON_NONE);
  cr_assert_eq(test_model_stored(m, 0), 32);
  int32_t positions[32];
  test_model_positions(m, 0, 0, positions);
  for (int32_t i = 0; i < 32; ++i) {
    cr_expect_eq(positions[i], i < 16 ? i : 48 + i, "%d", positions[i]);
  }
  test_model_destroy(m);
}

/* ---- Prompts that do not end ---- */

static char g_lines[1024];

static void Note(kvevict_log_level level, const char* message,
                 void* user_data) {
  (void)user_data;
  if (level != KVEVICT_LOG_INFO) return;
  strncat(g_lines, message, sizeof g_lines - strlen(g_lines) - 1);
}

Test(room, prompts_that_have_not_ended_are_told) {
  static const char* const kPrompts[] = {"beside", "pinned", "pinned-beside",
                                         "at-end", "inside"};
  for (int i = 0; i < 5; ++i) {
    char text[64];
    snprintf(text, sizeof text, "knorm:budget=20,prompt=%s", kPrompts[i]);
    test_model* m = Model(text);
    test_model_append(m, 50);
    const bool waits = i < 4;
    cr_expect_eq(Evict(m, NULL, text),
                 waits ? KVEVICT_REASON_OPEN_PROMPT : KVEVICT_REASON_NONE);
    cr_expect_eq(test_model_stored(m, 0), waits ? 50 : 20);
    if (waits) EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
    test_model_append(m, 1);
    kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
    const bool fits = i != 1; /* 50 pinned tokens in a budget of 20 */
    EXPECT((test_model_evict(m, NULL, &report) == KVEVICT_OK) == fits, "%s",
           text);
    if (fits) cr_expect_eq(report.reason, KVEVICT_REASON_NONE);

    kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
    options.log = Note;
    options.log_level = KVEVICT_LOG_INFO;
    kvevict_context* context = NULL;
    kvevict_plan* plan = NULL;
    EXPECT_OK(kvevict_context_create(&options, &context));
    g_lines[0] = '\0';
    EXPECT_OK(kvevict_plan_create(context, &m->geometry, m->policy_handle, NULL,
                                  &plan));
    EXPECT((strstr(g_lines, "kvevict_sequence_end_prompt()") != NULL) == waits,
           "%s: \"%s\"", text, g_lines);
    kvevict_plan_destroy(plan);
    kvevict_context_destroy(context);
    test_model_destroy(m);
  }
  cr_expect(strlen(kvevict_reason_text(KVEVICT_REASON_OPEN_PROMPT)) > 10);
  cr_expect(strlen(kvevict_reason_text(KVEVICT_REASON_SMALL_BUDGET)) > 10);
}

Test(room, rotation_without_frequencies_is_an_error) {
  test_model* m = Model("knorm:budget=20");
  kvevict_plan* plan = NULL;
  const kvevict_policy* policy = test_policy("knorm:budget=20,rotate=yes");
  EXPECT_INVALID(
      kvevict_plan_create(m->context, &m->geometry, policy, NULL, &plan),
      "rope_inv_freq is NULL", "rotate yes");
  cr_expect_null(plan);
  test_model_destroy(m);
}
