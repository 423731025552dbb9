/* Scores that the caller gives once, when tokens are appended: through random lives
 * they are where a naive model has them, whose slots are moved by hand. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/choice.h"
#include "tests/capi/support/copies.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/undo.h"

enum { kLayers = 3, kMaxHeads = 3, kMaxTokens = 120, kMaxPositions = 900 };

typedef struct slot {
  int32_t position;
  float score;
} slot;

/* What every head should hold. */
typedef struct naive {
  uint32_t n[kLayers][kMaxHeads];
  slot slots[kLayers][kMaxHeads][kMaxTokens];
  uint32_t n_scored; /* tokens from the first on that have scores */
  uint32_t tail;     /* trims to this length or beyond are exact */
} naive;

typedef struct life {
  test_random random;
  test_model* m;
  naive now;
  char what[300];
  /* Before the last eviction, if its memory is kept. */
  naive before;
  test_lent undo;
  bool can_undo;
  uint32_t n_evicted, n_undone, n_again;
} life;

/* ---- The calls ---- */

static float DrawScore(life* s) {
  if (s->m->policy.half_life > 0) return test_random_normal(&s->random);
  switch (test_random_below(&s->random, 40)) {
    case 0:
      return NAN;
    case 1:
      return INFINITY;
    case 2:
      return -0.0f;
    default:
      return (float)((int)test_random_below(&s->random, 64) - 32) / 8.0f;
  }
}

static uint32_t Heads(const life* s) { return s->m->spec.n_kv_heads; }

static uint32_t Room(const life* s) {
  uint32_t most = 0;
  for (uint32_t l = 0; l < kLayers; ++l) {
    const uint32_t stored = test_model_stored(s->m, l);
    most = stored > most ? stored : most;
  }
  return kMaxTokens - most;
}

/* Gives the naive model n tokens at its end. */
static void Grow(life* s, uint32_t n) {
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < Heads(s); ++h) {
      for (uint32_t i = 0; i < n; ++i) {
        s->now.slots[l][h][s->now.n[l][h]++] =
            (slot){(int32_t)(s->m->n_seen + i), DrawScore(s)};
      }
    }
  }
}

/* Observes the scores of positions [first, first + n), which every head holds last
 * but for n_after tokens. All layers go in one call or each in its own. */
static void Observe(life* s, uint32_t first, uint32_t n, uint32_t n_after,
                    uint32_t given_first) {
  static float scores[kLayers][kMaxHeads * (kMaxTokens + 7)];
  const uint32_t stride = n + test_random_below(&s->random, 8);
  kvevict_plane planes[kLayers];
  kvevict_signal_inputs inputs[kLayers];
  kvevict_observation shown[kLayers];
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < Heads(s); ++h) {
      const slot* const at = &s->now.slots[l][h][s->now.n[l][h] - n_after - n];
      EXPECT(at[0].position == (int32_t)first, "%s: the test", s->what);
      for (uint32_t i = 0; i < n; ++i) {
        scores[l][h * stride + i] = at[i].score;
      }
    }
    planes[l] = test_floats_plane(scores[l], stride);
    inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    inputs[l].scores = &planes[l];
    shown[l] = (kvevict_observation){sizeof *shown, l, &inputs[l]};
  }
  const bool at_once = test_random_coin(&s->random);
  for (uint32_t l = 0; l < kLayers; l += at_once ? kLayers : 1) {
    EXPECT_OK(kvevict_sequence_observe(s->m->sequence, &shown[l],
                                       at_once ? kLayers : 1, n, given_first,
                                       NULL));
  }
}

static void Append(life* s, uint32_t n) {
  const uint32_t first = s->m->n_seen;
  const bool has_scores = s->now.n_scored == first;
  Grow(s, n);
  if (!has_scores) {
    test_model_append(s->m, n);
    return;
  }
  const bool is_before = test_random_coin(&s->random);
  if (!is_before) test_model_append(s->m, n);
  const uint32_t n_first = test_random_below(&s->random, n + 1);
  const bool by_next = is_before && test_random_coin(&s->random);
  if (n_first > 0 && !by_next) Observe(s, first, n_first, n - n_first, first);
  const uint32_t from = by_next ? first : first + n_first;
  if (from < first + n) {
    Observe(s, from, first + n - from, 0,
            by_next ? KVEVICT_POSITION_NEXT : from);
  }
  if (is_before) test_model_append(s->m, n);
  s->now.n_scored = first + n;
}

/* Some tokens get their scores later, in one call. */
static void AppendLate(life* s, uint32_t n) {
  const uint32_t first = s->m->n_seen;
  if (s->now.n_scored != first || n < 2) return;
  Grow(s, n);
  test_model_append(s->m, n);
  const kvevict_status status = test_model_evict(s->m, NULL, NULL);
  if (status != KVEVICT_OK) {
    char seen[40];
    snprintf(seen, sizeof seen, "%u tokens have been seen", s->m->n_seen);
    if (first > 0) {
      EXPECT_INVALID(test_model_evict(s->m, NULL, NULL), "layer ",
                     "scores are of the tokens of positions [0,", seen);
    } else {
      EXPECT_INVALID(test_model_evict(s->m, NULL, NULL), "layer ",
                     "inputs.scores is NULL and no scores were observed");
    }
  }
  Observe(s, first, n, 0, first);
  s->now.n_scored = first + n;
}

/* Gives the last tokens other scores, if the sequence is sure to hold them. */
static void GiveAgain(life* s) {
  if (s->now.n_scored != s->m->n_seen || s->m->n_seen == 0) return;
  const uint32_t n_seen = s->m->n_seen;
  const uint32_t most = n_seen < 30 ? n_seen : 30;
  const uint32_t n = test_random_between(&s->random, 1, most);
  const uint32_t n_given = test_random_between(&s->random, 1, n);
  bool held = true;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < Heads(s); ++h) {
      const uint32_t n_held = s->now.n[l][h];
      held = held && n_held >= n &&
             s->now.slots[l][h][n_held - n].position == (int32_t)(n_seen - n);
    }
  }
  if (!held) {
    EXPECT_INVALID(test_model_give_scores(s->m, n_seen - n, n_given),
                   "cannot be given again");
    return;
  }
  const bool is_sure = n <= n_seen - s->now.tail + s->m->policy.recent;
  if (!is_sure) return;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < Heads(s); ++h) {
      slot* const at = &s->now.slots[l][h][s->now.n[l][h] - n];
      for (uint32_t i = 0; i < n_given; ++i) at[i].score = DrawScore(s);
    }
  }
  Observe(s, n_seen - n, n_given, n - n_given, n_seen - n);
  s->n_again += 1;
}

/* The sequence is in the naive model's state. */
static void Check(const life* s) {
  const uint32_t n_scored =
      s->now.n_scored < s->m->n_seen ? s->now.n_scored : s->m->n_seen;
  for (uint32_t l = 0; l < kLayers; ++l) {
    kvevict_sequence_memory memory = {.struct_size = sizeof memory};
    EXPECT_OK(kvevict_sequence_memory_of(s->m->sequence, l, &memory));
    EXPECT(memory.n_sum_heads == Heads(s) && memory.sum_stride == kMaxTokens,
           "%s: %u rows of %llu", s->what, memory.n_sum_heads,
           (unsigned long long)memory.sum_stride);
    const float* const scores = (const float*)(uintptr_t)memory.sums;
    for (uint32_t h = 0; h < Heads(s); ++h) {
      int32_t positions[kMaxTokens];
      const uint32_t n = test_model_stored_of(s->m, l, h);
      EXPECT(n == s->now.n[l][h], "%s: layer %u, head %u: %u slots, not %u",
             s->what, l, h, n, s->now.n[l][h]);
      test_model_positions(s->m, l, h, positions);
      for (uint32_t i = 0; i < n; ++i) {
        const slot* const want = &s->now.slots[l][h][i];
        EXPECT(positions[i] == want->position,
               "%s: layer %u, head %u, slot %u: token %d, not %d", s->what, l,
               h, i, positions[i], want->position);
        EXPECT((uint32_t)want->position >= n_scored ||
                   memcmp(&scores[h * kMaxTokens + i], &want->score,
                          sizeof(float)) == 0,
               "%s: layer %u, head %u, token %d: score %g, not %g", s->what, l,
               h, want->position, scores[h * kMaxTokens + i], want->score);
      }
    }
  }
  test_model_check(s->m, s->what);
}

/* ---- What an eviction keeps ---- */

static float Decayed(const life* s, float score, int32_t position) {
  const uint32_t half_life = s->m->policy.half_life;
  if (half_life == 0) return score;
  const double age = (double)s->m->n_seen - 1 - position;
  return score * (float)exp2(-age / half_life);
}

/* Drops the tokens that the sequence has lost. */
static bool Lose(life* s) {
  bool loses = false;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < Heads(s); ++h) {
      int32_t positions[kMaxTokens];
      const uint32_t n = test_model_stored_of(s->m, l, h);
      test_model_positions(s->m, l, h, positions);
      slot* const slots = s->now.slots[l][h];
      uint32_t next = 0;
      for (uint32_t i = 0; i < s->now.n[l][h] && next < n; ++i) {
        if (slots[i].position == positions[next]) slots[next++] = slots[i];
      }
      loses = loses || n < s->now.n[l][h];
      s->now.n[l][h] = next;
    }
  }
  return loses;
}

static void Evict(life* s, bool to_undo) {
  static test_given given;
  static test_choice choice;
  const kvevict_evict_options none = KVEVICT_EVICT_OPTIONS_INIT;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < Heads(s); ++h) {
      for (uint32_t i = 0; i < s->now.n[l][h]; ++i) {
        const slot one = s->now.slots[l][h][i];
        given.scores[l][h][i] = Decayed(s, one.score, one.position);
      }
    }
  }
  test_choose(s->m, &none, &given, NULL, &choice);
  if (s->can_undo) test_lent_return(s->undo);
  s->can_undo = false;
  kvevict_evict_report report = {.struct_size = sizeof report};
  if (to_undo) {
    s->before = s->now;
    s->undo = test_lend(test_undo_bytes(s->m));
    EXPECT_OK(test_evict_lending(s->m, s->undo, &report));
    test_lent_check(s->undo, s->what);
    s->can_undo = report.evicted != 0;
    if (!s->can_undo) test_lent_return(s->undo);
  } else {
    EXPECT_OK(test_model_evict(s->m, NULL, &report));
  }
  test_expect_chosen(s->m, &given, &choice, s->what);
  const bool evicts = Lose(s);
  EXPECT((report.evicted != 0) == evicts, "%s: evicted %u", s->what,
         report.evicted);
  s->n_evicted += report.evicted;
  if (evicts) s->now.tail = s->m->n_seen;
}

/* ---- Everything else ---- */

/* The tokens since the eviction stay, behind those that come back. */
static void Undo(life* s) {
  if (!s->can_undo) return;
  static naive back;
  back = s->before;
  back.n_scored = s->now.n_scored;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < Heads(s); ++h) {
      for (uint32_t i = 0; i < s->now.n[l][h]; ++i) {
        const slot one = s->now.slots[l][h][i];
        if (one.position < (int32_t)s->now.tail) continue;
        if (back.n[l][h] == kMaxTokens) return; /* no room */
        back.slots[l][h][back.n[l][h]++] = one;
      }
    }
  }
  EXPECT_OK(test_undo(s->m, s->undo));
  test_lent_return(s->undo);
  s->can_undo = false;
  s->n_undone += 1;
  s->now = back;
}

static void Trim(life* s) {
  const uint32_t prefix = test_exact_prefix(s->m->sequence);
  const bool deep = test_random_below(&s->random, 4) == 0;
  const uint32_t to =
      deep ? test_random_below(&s->random, prefix + 1)
           : test_random_between(&s->random, s->now.tail, s->m->n_seen);
  EXPECT_OK(kvevict_sequence_trim_to(s->m->sequence, to, NULL));
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < Heads(s); ++h) {
      uint32_t* const n = &s->now.n[l][h];
      while (*n > 0 && s->now.slots[l][h][*n - 1].position >= (int32_t)to) {
        --*n;
      }
    }
  }
  s->m->n_seen = to;
  if (s->now.n_scored > to) s->now.n_scored = to;
  if (to >= s->now.tail) return;
  s->now.tail = 0;
  if (s->can_undo) test_lent_return(s->undo);
  s->can_undo = false;
}

static void Copy(life* s, test_copy_by by) {
  kvevict_sequence* const copy = test_copy(s->m->plan, s->m->sequence, by);
  kvevict_sequence_destroy(s->m->sequence);
  s->m->sequence = copy;
  if (s->can_undo) test_lent_return(s->undo);
  s->can_undo = false;
}

static void Reset(life* s) {
  EXPECT_OK(kvevict_sequence_reset(s->m->sequence, NULL));
  memset(&s->now, 0, sizeof s->now);
  s->m->n_seen = 0;
  if (s->can_undo) test_lent_return(s->undo);
  s->can_undo = false;
}

static void Act(life* s) {
  const uint32_t room = Room(s);
  if (s->m->n_seen + room > kMaxPositions) return Reset(s);
  const uint32_t n = room == 0 ? 0 : test_random_between(&s->random, 1, room);
  switch (test_random_below(&s->random, 13)) {
    case 0:
    case 1:
    case 2:
      if (n > 0) Append(s, n);
      break;
    case 3:
      if (room > 0) Append(s, 1);
      break;
    case 4:
      AppendLate(s, n);
      break;
    case 5:
      Trim(s);
      break;
    case 6:
      Copy(s, test_random_coin(&s->random) ? TEST_COPY_FORK : TEST_COPY_LOAD);
      break;
    case 7:
      Undo(s);
      break;
    case 8:
      if (test_random_below(&s->random, 8) == 0) Reset(s);
      break;
    case 9:
      GiveAgain(s);
      break;
    default:
      if (s->now.n_scored == s->m->n_seen) {
        Evict(s, test_random_coin(&s->random));
      }
  }
}

static void Live(const char* policy, uint64_t seed, uint32_t* n_undone,
                 uint32_t* n_again) {
  static life s;
  memset(&s, 0, sizeof s);
  s.random = (test_random){seed};
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = kLayers;
  spec.n_kv_heads = test_random_between(&s.random, 1, kMaxHeads);
  spec.n_q_heads = spec.n_kv_heads * test_random_between(&s.random, 1, 2);
  spec.max_tokens = kMaxTokens;
  spec.max_positions = kMaxPositions;
  spec.layout = (test_layout)(seed % TEST_N_LAYOUTS);
  spec.n_companions = test_random_below(&s.random, 3);
  spec.n_threads = test_random_between(&s.random, 1, 3);
  const kvevict_dtype dtypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                  KVEVICT_DTYPE_BF16, KVEVICT_DTYPE_OPAQUE};
  spec.k_dtype = dtypes[test_random_below(&s.random, 4)];
  if (test_random_below(&s.random, 3) == 0) {
    test_draw_quantized(&spec, &s.random);
  }
  s.m = test_model_create(&spec, s.random);
  snprintf(s.what, sizeof s.what, "%s, %s, seed %llu", policy,
           test_layout_name(spec.layout), (unsigned long long)seed);
  for (int i = 0; i < 40; ++i) {
    Act(&s);
    Check(&s);
  }
  EXPECT(s.n_evicted > 0, "%s: nothing was evicted", s.what);
  *n_undone += s.n_undone;
  *n_again += s.n_again;
  if (s.can_undo) test_lent_return(s.undo);
  test_model_destroy(s.m);
}

Test(scores, are_where_a_model_moved_by_hand_has_them) {
  static const char* const kPolicies[] = {
      "custom:budget=30,sink=2,recent=3",
      "custom:budget=0.4,sink=1,tie=higher",
      "custom:budget=28,sink=0,recent=4,scope=layer,over=max",
      "custom:budget=25,sink=1,scope=model,over=sum",
      "custom:budget=30,sink=0,split=geometric,alpha=0.7",
      "custom:budget=32,sink=0,recent=1,select_block=4",
      "custom:budget=20,sink=1,recent=2,heads=adaptive,floor=0.3",
      "custom:budget=20,sink=1,recent=2,heads=adaptive-blend",
      "custom:sink=1,recent=5,heads=threshold,threshold=0.5",
      "custom:budget=40,sink=0,recent=4,heads=threshold,threshold=2",
      "custom:budget=26,sink=2,half_life=16",
      "custom:budget=0.5,sink=0,recent=2,half_life=3",
      "custom:budget=24,scope=layer,over=max,half_life=7",
      "custom:sink=1,recent=8,heads=threshold,threshold=0.2,half_life=25"};
  enum { kN = sizeof kPolicies / sizeof *kPolicies };
  uint32_t n_undone = 0, n_again = 0;
  for (uint32_t i = 0; i < 4 * TEST_N_LAYOUTS; ++i) {
    Live(kPolicies[i % kN], 100 + i, &n_undone, &n_again);
  }
  cr_expect(n_undone > 20 && n_again > 20, "%u evictions taken back, %u again",
            n_undone, n_again);
}
