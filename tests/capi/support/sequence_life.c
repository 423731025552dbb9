#include "tests/capi/support/sequence_life.h"

#include <stdlib.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/choice.h"
#include "tests/capi/support/copies.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/drawn_inputs.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/merged.h"
#include "tests/capi/support/sequence_state.h"
#include "tests/capi/support/tallies.h"
#include "tests/capi/support/undo.h"

enum { kPositions = TEST_SEQUENCE_POSITIONS, kPrompt = 20 };

/* ---- The naive model ---- */

/* The least length from which on all heads have everything, with a token before it. */
static uint32_t StartBound(const test_living* a) {
  uint32_t bound = 0;
  TEST_EACH_LIST(a, l, h) {
    const int32_t* positions = a->now.positions[l][h];
    uint32_t n = a->now.n[l][h], first = a->now.n_seen;
    for (; n > 0 && positions[n - 1] + 1 == (int32_t)first; --n) --first;
    first += first > 0 && n == 0;
    bound = first > bound ? first : bound;
  }
  return bound;
}

static uint32_t Round(const test_living* a) {
  const uint32_t every = a->m->policy.every > 1 ? a->m->policy.every : 1;
  return (a->now.n_seen - a->now.prompt.n_tokens) / every;
}

static void Cut(test_living* a, uint32_t length) {
  test_state* s = &a->now;
  TEST_EACH_LIST(a, l, h) {
    uint32_t* n = &s->n[l][h];
    while (*n > 0 && s->positions[l][h][*n - 1] >= (int32_t)length) --*n;
    if (s->prompt.slots[l] > *n) s->prompt.slots[l] = *n;
  }
  if (length < s->bound) {
    s->bound = 0;
    s->has_changed = false;
  }
  s->n_seen = a->m->n_seen = length;
  if (s->prompt.n_tokens > length) s->prompt.n_tokens = length;
  if (s->last_round > Round(a)) s->last_round = Round(a);
}

static void Grow(test_living* a, uint32_t n) {
  TEST_EACH_LIST(a, l, h) {
    for (uint32_t i = 0; i < n; ++i) {
      a->now.positions[l][h][a->now.n[l][h]++] = (int32_t)(a->now.n_seen + i);
    }
  }
  a->now.n_seen += n;
}

static uint32_t Longest(const test_living* a, const test_state* s) {
  uint32_t most = 0;
  TEST_EACH_LIST(a, l, h) most = s->n[l][h] > most ? s->n[l][h] : most;
  return most;
}

/* ---- Blocks: unused entries of tables are -1, and freed blocks are used again in any
 * order ---- */

static uint64_t UseBlocks(test_living* a, uint32_t n_more) {
  test_random random = test_random_apart(a->random);
  uint64_t n_used = 0;
  for (uint32_t l = 0; l < a->m->spec.n_layers; ++l) {
    test_cache* c = a->m->live[l];
    if (c->view.block_size == 0 || c->view.ring_slots != 0) continue;
    if (test_model_shares(a->m, l)) continue;
    const uint64_t stride = c->view.block_table_head_stride;
    const uint32_t all = test_cache_blocks(c, a->m->spec.max_tokens);
    for (uint32_t h = 0; h < (stride == 0 ? 1 : a->m->spec.n_kv_heads); ++h) {
      const uint32_t held =
          stride == 0 ? test_model_stored(a->m, l) : a->now.n[l][h];
      const uint32_t n = held + n_more < a->m->spec.max_tokens
                             ? held + n_more
                             : a->m->spec.max_tokens;
      const uint32_t used = test_cache_blocks(c, n);
      n_used += used;
      int32_t* table = a->tables[l] == NULL ? NULL : a->tables[l] + h * stride;
      for (uint32_t i = all; table != NULL && i > used + 1; --i) {
        const uint32_t other = used + test_random_below(&random, i - used);
        const int32_t block = table[i - 1];
        table[i - 1] = table[other];
        table[other] = block;
      }
      for (uint32_t i = 0; table != NULL && i < all; ++i) {
        c->block_table[h * stride + i] = i < used ? table[i] : -1;
      }
    }
  }
  return n_used;
}

/* ---- Steps ---- */

static uint32_t RowsKept(const test_living* a) {
  return a->m->policy.window + a->m->spec.draft_tokens;
}

/* Shows the query rows of [first, first + n) in f32, with bits that rounding to their dtype
 * takes away. */
static void ShowWide(test_living* a, uint32_t first, uint32_t n) {
  const test_model* m = a->m;
  const kvevict_dtype dtype = m->spec.q_dtype;
  const float more = dtype == KVEVICT_DTYPE_F32 ? 1.0f : 1.0f + 0x1p-13f;
  const size_t n_row = (size_t)m->spec.n_q_heads * m->spec.k_head_dim;
  float* const wide = malloc((n * n_row + 1) * sizeof *wide);
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    kvevict_plane plane = test_model_queries(m, l, first);
    const uint8_t* const rows = (const uint8_t*)(uintptr_t)plane.data;
    for (size_t i = 0; i < n * n_row; ++i) {
      wide[i] = more * test_load(dtype, rows + i * oracle_element_bytes(dtype));
    }
    plane.dtype = KVEVICT_DTYPE_F32;
    plane.data = (uint64_t)(uintptr_t)wide;
    plane.head_stride_bytes = (int64_t)(m->spec.k_head_dim * sizeof *wide);
    plane.token_stride_bytes = (int64_t)(n_row * sizeof *wide);
    EXPECT_OK(test_observe(m->sequence, l, &plane, n, first));
  }
  free(wide);
}

/* Shows the query rows of [first, first + n), in one of many ways that are alike. */
static void Show(test_living* a, uint32_t first, uint32_t n, bool is_next) {
  test_model* m = a->m;
  const uint32_t kept = RowsKept(a);
  kvevict_plane planes[TEST_STATE_LAYERS];
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    planes[l] = test_model_queries(m, l, first);
  }
  switch (test_random_below(a->random, 7)) {
    case 0: /* layers together */
      EXPECT_OK(test_observe_layers(m->sequence, planes, m->spec.n_layers, n,
                                    is_next ? KVEVICT_POSITION_NEXT : first));
      return;
    case 1: { /* some rows twice */
      const uint32_t again = test_random_below(a->random, n + 1);
      test_model_observe(m, first, n);
      test_model_observe(m, first + again, n - again);
      return;
    }
    case 2: /* in chunks */
      for (uint32_t done = 0; done < n;) {
        const uint32_t chunk = test_random_between(a->random, 1, n - done);
        test_model_observe(m, first + done, chunk);
        done += chunk;
      }
      return;
    case 3: /* without those that others push out */
      if (n < kept) break;
      test_model_observe(m, first + n - kept, kept);
      return;
    case 4:
      ShowWide(a, first, n);
      return;
    case 5: /* others that are taken back */
      for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
        const kvevict_plane others = test_model_queries(m, l, first / 2);
        EXPECT_OK(test_observe(m->sequence, l, &others, n, first));
      }
      break;
  }
  test_model_observe(m, first, n);
}

static void ShowWindow(test_living* a) {
  const uint32_t n = a->now.n_seen, rows = RowsKept(a);
  Show(a, n < rows ? 0 : n - rows, n < rows ? n : rows, false);
  a->peak = n;
}

static void ForgetStep(test_living* a) {
  test_graph_step_free(a->step);
  a->step = NULL;
}

/* Adds a token by a graph, captured now or before. */
static void AppendByGraph(test_living* a) {
  if (test_random_below(a->random, 3) == 0) ForgetStep(a);
  UseBlocks(a, 1);
  a->step = test_graph_step_run(a->step, a->m);
  Grow(a, 1);
  if (a->peak < a->now.n_seen) a->peak = a->now.n_seen;
}

static void Append(test_living* a, uint32_t n) {
  if (test_on_cuda() && n == 1 && a->m->spec.n_threads == 1 &&
      a->tally == TEST_TALLY_NONE && test_random_coin(a->random)) {
    AppendByGraph(a);
    return;
  }
  const bool before = test_random_coin(a->random);
  if (before) Show(a, a->now.n_seen, n, true);
  UseBlocks(a, n);
  test_tallies_append(a, n);
  if (!before) Show(a, a->now.n_seen, n, false);
  Grow(a, n);
  if (a->peak < a->now.n_seen) a->peak = a->now.n_seen;
}

static void Trim(test_living* a, uint32_t length) {
  const kvevict_status status =
      kvevict_sequence_trim_to(a->m->sequence, length, NULL);
  if (length >= a->now.bound || length <= test_living_prefix(a)) {
    EXPECT(status == KVEVICT_OK, "%s: trim to %u of %u: %s", a->what, length,
           a->now.n_seen, kvevict_last_error_message());
    Cut(a, length);
    test_tallies_trimmed(a);
    /* Rows that are taken back had pushed others out, unless they were drafts. */
    if (length + a->m->spec.draft_tokens < a->peak) ShowWindow(a);
    return;
  }
  char below[40], above[40];
  snprintf(below, sizeof below, "up to %u and", test_living_prefix(a));
  snprintf(above, sizeof above, "from %u on", a->now.bound);
  EXPECT_INVALID(status, below, above);
}

static void EndPrompt(test_living* a) {
  EXPECT((kvevict_sequence_end_prompt(a->m->sequence) == KVEVICT_OK) ==
             !a->now.prompt.has_ended,
         "%s: the prompt has ended or not", a->what);
  if (a->now.prompt.has_ended) return;
  a->now.prompt = (test_prompt){true, a->now.n_seen, {0}};
  a->now.last_round = 0;
  TEST_EACH_LIST(a, l, h) a->now.prompt.slots[l] = a->now.n[l][h];
}

/* The sequence goes on as a copy. What it was made from stays as it is. */
static void Copy(test_living* a, test_copy_by by) {
  kvevict_sequence* const source = a->m->sequence;
  const test_saved before = test_save(source);
  ForgetStep(a);
  a->m->sequence = test_copy(a->m->plan, source, by);
  ++a->sum->n_copied;
  if (by == TEST_COPY_START) {
    a->now.bound = StartBound(a);
    a->now.has_changed = false;
    a->now.prompt = (test_prompt){0};
    a->now.last_round = 0;
  } else {
    const test_saved same = test_save(a->m->sequence);
    EXPECT(same.n_bytes == before.n_bytes &&
               memcmp(same.data, before.data, same.n_bytes) == 0,
           "%s: copy %d is not the same when saved", a->what, (int)by);
    free(same.data);
  }
  if (by != TEST_COPY_FORK) ShowWindow(a);
  EXPECT_OK(kvevict_sequence_reset(source, NULL));
  free(before.data);
  kvevict_sequence_destroy(source);
}

/* A start has no prompt, without which some policies evict nothing. It also drops scores,
 * and a load drops sums. */
static test_copy_by DrawCopy(const test_living* a) {
  const uint32_t n = a->tally == TEST_TALLY_SUMS ? TEST_COPY_LOAD
                     : a->now.prompt.has_ended || a->tally == TEST_TALLY_SCORES
                         ? TEST_COPY_START
                         : TEST_N_COPIES;
  return (test_copy_by)test_random_below(a->random, n);
}

/* Whether heads and layers that would share a list hold the same tokens. */
static bool CanGoOnBy(const test_living* a, const oracle_policy* p) {
  const test_state* s = &a->now;
  const bool is_ragged = p->heads != ORACLE_HEADS_EQUAL;
  const bool of_heads =
      p->kind == ORACLE_CUSTOM && p->scope == KVEVICT_SCOPE_KV_HEAD;
  bool can = true;
  TEST_EACH_LIST(a, l, h) {
    const uint32_t l0 = p->scope == KVEVICT_SCOPE_MODEL ? 0 : l;
    const bool same = memcmp(s->positions[l][h], s->positions[l0][0],
                             s->n[l][h] * sizeof(int32_t)) == 0;
    can =
        can && (is_ragged || (s->n[l][h] == s->n[l0][0] && (of_heads || same)));
  }
  return can;
}

/* The tokens go on under another policy, which reads no rows. */
static void GoOn(test_living* a) {
  static const char* const kTexts[] = {
      "streaming-llm:budget=40,sink=4", "custom:budget=44,sink=0,recent=6",
      "custom:budget=42,sink=1,scope=layer,over=sum",
      "custom:budget=46,sink=2,scope=model,over=max",
      "custom:budget=40,sink=0,heads=adaptive"};
  const char* text = kTexts[test_random_below(a->random, 5)];
  const oracle_policy policy = oracle_policy_from(text);
  if (a->m->spec.last_shares && policy.scope == KVEVICT_SCOPE_MODEL) return;
  ForgetStep(a);
  const kvevict_status status = test_model_go_on(a->m, text, NULL, NULL);
  EXPECT((status == KVEVICT_OK) == CanGoOnBy(a, &policy), "%s, then %s: %s",
         a->what, text,
         status == KVEVICT_OK ? "goes on" : kvevict_last_error_message());
  if (status != KVEVICT_OK) return;
  a->m->spec.report_mass = 0;
  ++a->sum->n_gone_on;
}

/* ---- Evictions ---- */

/* A trim after a start may leave fewer of the last tokens. */
static bool HoldsWindow(const test_living* a) {
  const uint32_t window = a->m->policy.window;
  bool holds = true;
  TEST_EACH_LIST(a, l, h) {
    const uint32_t n = a->now.n[l][h];
    holds = holds && (window == 0 ||
                      (window <= n && a->now.positions[l][h][n - window] ==
                                          (int32_t)(a->now.n_seen - window)));
  }
  return holds;
}

/* Whether an eviction works now. */
static bool IsDue(test_living* a) {
  const oracle_policy* p = &a->m->policy;
  if (!a->now.prompt.has_ended) return p->prompt == ORACLE_PROMPT_INSIDE;
  if (p->every > 1 && Round(a) <= a->now.last_round) return false;
  a->now.last_round = Round(a);
  return true;
}

/* Goes on for some tokens and takes the eviction back. */
static void Undo(test_living* a, const test_state* was, test_lent lent) {
  const uint32_t left = a->m->spec.max_tokens - Longest(a, was);
  const uint32_t n = test_random_below(a->random, (left < 9 ? left : 9) + 1);
  if (test_random_coin(a->random) && a->now.n_seen + n < kPositions) {
    Append(a, n);
    Trim(a, a->now.n_seen - test_random_below(a->random, n + 1));
  }
  const uint32_t n_more = a->now.n_seen - was->n_seen;
  UseBlocks(a, a->m->spec.max_tokens);
  test_lent elsewhere = test_lend(lent.n_bytes);
  memcpy(elsewhere.memory, lent.memory, lent.n_bytes);
  EXPECT_OK(test_undo(a->m, elsewhere));
  EXPECT(memcmp(elsewhere.memory, lent.memory, lent.n_bytes) == 0,
         "%s: the memory was written", a->what);
  EXPECT_INVALID(test_undo(a->m, elsewhere), "nothing to undo");
  test_lent_return(elsewhere);
  const test_state then = a->now;
  a->now = *was;
  Grow(a, n_more);
  test_tallies_undone(a, &then);
  ++a->sum->n_undone;
}

/* Whether lists are chosen by scores that the life knows. */
static bool HasMass(const test_model* m) {
  const oracle_policy* p = &m->policy;
  return (p->kind == ORACLE_CUSTOM || p->kind == ORACLE_H2O) &&
         p->weight == ORACLE_WEIGHT_NONE && p->secure_values == 0 &&
         p->secure_values_share == 0 && !m->spec.last_shares && m->n_seen > 0;
}

/* Whether an eviction can say by the blocks' tables alone which rows go. */
static bool CanGoByTable(const test_living* a) {
  const kvevict_view* view = &a->m->live[0]->view;
  kvevict_capabilities can = {.struct_size = sizeof can};
  EXPECT_OK(kvevict_plan_capabilities(a->m->plan, 0, &can));
  return view->block_size > 0 && view->ring_slots == 0 &&
         !a->m->spec.last_shares && can.table_block > 0 &&
         can.table_block % view->block_size == 0 &&
         (can.needs_head_tables == 0 || view->block_table_head_stride != 0);
}

/* No row has moved, and the blocks that went stand behind those that stay. The naive
 * tables follow. */
static void FollowTables(test_living* a, const test_held* held) {
  for (uint32_t l = 0; l < a->m->spec.n_layers; ++l) {
    test_cache* c = a->m->live[l];
    const uint64_t stride = c->view.block_table_head_stride;
    test_expect_same_tables(c, held->caches[l], held->n[l], a->what);
    for (uint32_t h = 0; h < (stride == 0 ? 1 : a->m->spec.n_kv_heads); ++h) {
      const uint32_t used = test_cache_blocks(c, held->n[l][h]);
      for (uint32_t i = 0; a->tables[l] != NULL && i < used; ++i) {
        a->tables[l][h * stride + i] = c->block_table[h * stride + i];
      }
    }
  }
}

static void Evict(test_living* a) {
  static test_drawn_inputs in;
  static test_choice choice;
  static test_held held;
  test_model* const m = a->m;
  const bool changes = m->policy.merge != 0 || m->policy.fit != ORACLE_FIT_NONE;
  const test_state was = a->now;
  uint32_t ends[TEST_STATE_HEADS];
  test_draw_inputs(m, a->n_protect, a->random, &in);
  kvevict_evict_options options = in.options;
  if (a->tally != TEST_TALLY_NONE) {
    options.inputs = NULL;
    options.inputs_len = 0;
    test_tallies_give(a, &in.given);
  }
  const bool is_due = IsDue(a);
  if (is_due) {
    test_choose(m, &options, &in.given, &a->now.prompt, &choice);
  }
  if (!is_due) test_choose_all(m, &choice);
  const bool lends = !changes && test_random_below(a->random, 3) == 0;
  UseBlocks(a, 0);
  const test_lent lent = test_lend(lends ? test_undo_bytes(m) : 0);
  options.undo = lends ? lent.memory : NULL;
  options.undo_bytes = lent.n_bytes;
  const bool by_table = CanGoByTable(a) && test_random_below(a->random, 4) > 0;
  options.by_table = by_table;
  test_hold(m, &held);
  const uint64_t n_blocks = UseBlocks(a, 0);
  const bool is_refused = test_model_evict(m, &options, NULL) != KVEVICT_OK;
  if (is_refused) {
    const char* const message = kvevict_last_error_message();
    EXPECT(
        (options.protected_positions_len > 0 &&
         strstr(message, "protected") != NULL) ||
            (!HoldsWindow(a) && strstr(message, "of the last window") != NULL),
        "%s: %s", a->what, message);
    test_choose_all(m, &choice);
    a->now = was;
    ++a->sum->n_refused;
  }
  if (in.hands_over) ShowWindow(a);
  test_lent_check(lent, a->what);
  test_expect_chosen(m, &in.given, &choice, a->what);
  bool lost = false;
  TEST_EACH_LIST(a, l, h) {
    a->now.n[l][h] = test_model_stored_of(m, l, h);
    test_model_positions(m, l, h, a->now.positions[l][h]);
    lost = lost || a->now.n[l][h] < was.n[l][h];
  }
  test_tallies_evicted(a, &was, lends);
  EXPECT(lost || test_is_filled(lent.memory, lent.n_bytes),
         "%s: nothing went, but rows were saved", a->what);
  if (lost) a->now.bound = a->now.n_seen;
  a->now.has_changed = a->now.has_changed || (lost && changes);
  const uint32_t n_weak =
      changes ? test_expect_changes(m, &held, NULL, &a->sum->changes, a->what)
              : 0;
  a->sum->n_evicted += lost;
  a->sum->n_by_keys += choice.n_by_keys;
  a->sum->n_rescues += choice.n_rescues;
  a->sum->n_by_table += lost && by_table;
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) ends[h] = was.n[l][h];
    if (!by_table) {
      test_expect_same_outside_heads(m->live[l], held.caches[l], ends, a->what);
    } else if (!changes) {
      test_expect_same_bytes(m->live[l], held.caches[l], a->what);
    }
  }
  if (by_table) FollowTables(a, &held);
  test_held_free(m, &held);
  const uint64_t n_freed = n_blocks - UseBlocks(a, 0);
  if (!is_refused) test_living_check_report(a, &was, n_freed, n_weak);
  if (!is_refused && is_due && HasMass(m)) test_living_check_mass(a, &choice);
  test_living_check(a);
  if (lost && lends && test_random_below(a->random, 3) > 0) Undo(a, &was, lent);
  test_lent_return(lent);
}

/* ---- Lives ---- */

static void Step(test_living* a, bool decodes) {
  const uint32_t n_seen = a->now.n_seen;
  const uint32_t room = a->m->spec.max_tokens - Longest(a, &a->now);
  const uint32_t left = kPositions - n_seen;
  const uint32_t most = room < left ? room : left;
  switch (test_random_below(a->random, decodes ? 40 : 9)) {
    case 0:
      Trim(a, test_random_coin(a->random)
                  ? test_random_below(a->random, n_seen + 1)
                  : n_seen - test_random_below(a->random,
                                               n_seen < 6 ? n_seen + 1 : 6));
      break;
    case 1:
      Copy(a, DrawCopy(a));
      break;
    case 2:
      if (n_seen <= kPrompt) EndPrompt(a);
      if (a->m->spec.head_budgets == NULL && a->m->spec.layer_budgets == NULL &&
          a->m->policy.every == 0 && a->tally == TEST_TALLY_NONE &&
          a->m->policy.prompt == ORACLE_PROMPT_INSIDE &&
          test_random_below(a->random, 8) == 0) {
        GoOn(a);
      }
      break;
    case 3:
      if (test_random_below(a->random, 4) > 0) break;
      ForgetStep(a);
      EXPECT_OK(kvevict_sequence_reset(a->m->sequence, NULL));
      memset(&a->now, 0, sizeof a->now);
      a->m->n_seen = 0;
      if (a->m->policy.prompt != ORACLE_PROMPT_INSIDE) EndPrompt(a);
      break;
    case 4:
    case 5:
      Evict(a);
      break;
    default:
      if (!decodes) {
        Append(a, test_random_below(a->random, most + 1));
      } else {
        Append(a, test_random_below(a->random, (most < 3 ? most : 3) + 1));
        if (a->now.n_seen > kPrompt + 20 || most < 9) Evict(a);
      }
  }
  test_living_check(a);
}

void test_live(test_model* m, uint32_t n_protect, test_random* random,
               bool decodes, test_lived* sum) {
  test_living a = {
      .m = m, .n_protect = n_protect, .random = random, .sum = sum};
  char what[200];
  snprintf(what, sizeof what, "%s, %s", m->spec.policy,
           test_layout_name(m->spec.layout));
  a.what = what;
  test_tallies_begin(&a);
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    const test_cache* c = m->live[l];
    if (c->block_table == NULL || c->view.ring_slots != 0) continue;
    if (test_model_shares(m, l)) continue;
    const size_t bytes = c->view.block_table_len * sizeof(int32_t);
    a.tables[l] = malloc(bytes);
    memcpy(a.tables[l], c->block_table, bytes);
  }
  const bool waits = m->policy.prompt != ORACLE_PROMPT_INSIDE;
  Append(&a, test_random_below(random, decodes || waits ? kPrompt : 100));
  if (decodes || waits) EndPrompt(&a);
  const int n_steps = (decodes ? 60 : 18) / (test_on_cuda() ? 3 : 1);
  for (int step = 0; step < n_steps; ++step) Step(&a, decodes);
  const uint32_t room = m->spec.max_tokens - Longest(&a, &a.now);
  if (a.now.n_seen + room < kPositions) Append(&a, room);
  Evict(&a);
  ForgetStep(&a);
  for (uint32_t l = 0; l < TEST_STATE_LAYERS; ++l) free(a.tables[l]);
  test_model_destroy(m);
}
