/* Edits against a list of tokens whose keys are known before RoPE: after every
 * step the cache is computed again from that list. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/compact.h"

enum {
  kLayers = 2,
  kHeads = 2,
  kPairs = 3,
  kDim = 8, /* two elements do not rotate */
  kSlots = 48,
  kTokens = 4000
};

/* The naive model: `text` has the tokens in order, 0 in gaps. */
typedef struct life {
  float inv_freq[kPairs];
  kvevict_rope_layout rope;
  kvevict_dtype dtype;
  kvevict_context* context;
  kvevict_plan* plan;
  kvevict_sequence* sequence;
  test_cache* caches[kLayers]; /* NULL with a pool */
  kvevict_paged_cache* pool;
  kvevict_paged_sequence* cached;
  void* workspace;
  size_t workspace_bytes;
  uint32_t last; /* the newest token */
  uint32_t n_text;
  uint32_t text[kTokens];
  uint64_t context_of[kTokens]; /* the text before a token when it came */
  bool held[kLayers][kHeads][kTokens];
  uint32_t n_turns[kTokens];
  bool has_moved;
} life;

static kvevict_view ViewOf(const life* a, uint32_t l) {
  if (a->cached == NULL) return a->caches[l]->view;
  kvevict_view view = KVEVICT_VIEW_INIT;
  EXPECT_OK(kvevict_paged_sequence_view(a->cached, l, &view));
  return view;
}

/* Element i of a token's key before RoPE. */
static double KeyOf(uint32_t token, uint32_t l, uint32_t h, uint32_t i) {
  test_random random = {((uint64_t)token << 16) + l * 1024 + h * 64 + i};
  return (double)test_random_normal(&random);
}
static float ValueOf(uint32_t token, uint32_t l, uint32_t h, uint32_t i) {
  return (float)(token * 64 + l * 32 + h * 16 + i);
}

static void KeyAt(const life* a, uint32_t token, uint32_t l, uint32_t h,
                  uint32_t position, double* out, double* radius) {
  for (uint32_t i = 0; i < kDim; ++i) {
    out[i] = KeyOf(token, l, h, i);
    radius[i] = fabs(out[i]);
  }
  for (uint32_t f = 0; f < kPairs; ++f) {
    const bool halves = a->rope == KVEVICT_ROPE_LAYOUT_HALF;
    const uint32_t x = halves ? f : 2 * f;
    const uint32_t y = halves ? f + kPairs : 2 * f + 1;
    const long double angle = (long double)position * a->inv_freq[f];
    const double c = (double)cosl(angle), s = (double)sinl(angle);
    const double re = out[x], im = out[y];
    out[x] = re * c - im * s;
    out[y] = re * s + im * c;
    radius[x] = radius[y] = hypot(re, im);
  }
}

static void WriteRow(const life* a, uint32_t l, uint32_t h, uint32_t slot,
                     uint32_t token, uint32_t position) {
  const kvevict_view view = ViewOf(a, l);
  const uint32_t size = test_element_bytes(a->dtype);
  double key[kDim], radius[kDim];
  KeyAt(a, token, l, h, position, key, radius);
  for (uint32_t i = 0; i < kDim; ++i) {
    uint8_t k[4], v[4];
    const float value = ValueOf(token, l, h, i);
    test_store(a->dtype, (float)key[i], k);
    memcpy(v, &value, 4);
    for (uint32_t b = 0; b < size; ++b) {
      *oracle_row_byte(&view, &view.k, slot, h, i * size + b) = k[b];
    }
    for (uint32_t b = 0; b < 4; ++b) {
      *oracle_row_byte(&view, &view.v, slot, h, i * 4 + b) = v[b];
    }
  }
  for (uint32_t b = 0; b < 4 && view.n_companions > 0; ++b) {
    *oracle_row_byte(&view, &view.companions[0], slot, h, b) =
        (uint8_t)(token >> 8 * b);
  }
}

/* Rotating turns a pair's length into no other, so errors of both elements stay
 * within sqrt(2) of each other: 3e-7 for cosines, sines and products, and half
 * a unit of the dtype, per rotation. The first row is truncated. */
static double BoundOf(const life* a, uint32_t token, double radius) {
  const double unit = a->dtype == KVEVICT_DTYPE_F32 ? 0x1p-23 : 0x1p-10;
  const double least = a->dtype == KVEVICT_DTYPE_F32 ? 0.0 : 0x1p-24;
  const double n = a->n_turns[token];
  return 2.0 * (radius * (n * (3e-7 + unit / 2) + unit) + (n + 1) * least);
}

static void CheckRow(const life* a, uint32_t l, uint32_t h, uint32_t slot,
                     uint32_t token, uint32_t position, const char* what) {
  const kvevict_view view = ViewOf(a, l);
  const uint32_t size = test_element_bytes(a->dtype);
  double key[kDim], radius[kDim];
  KeyAt(a, token, l, h, position, key, radius);
  for (uint32_t i = 0; i < kDim; ++i) {
    uint8_t k[4], v[4];
    float value;
    for (uint32_t b = 0; b < size; ++b) {
      k[b] = *oracle_row_byte(&view, &view.k, slot, h, i * size + b);
    }
    for (uint32_t b = 0; b < 4; ++b) {
      v[b] = *oracle_row_byte(&view, &view.v, slot, h, i * 4 + b);
    }
    memcpy(&value, v, 4);
    EXPECT(value == ValueOf(token, l, h, i),
           "%s: layer %u, head %u, slot %u: not the value of token %u", what, l,
           h, slot, token);
    const double got = (double)test_load(a->dtype, k);
    EXPECT(fabs(got - key[i]) <= BoundOf(a, token, radius[i]),
           "%s: layer %u, head %u, slot %u, element %u: key %.9g, not %.9g at "
           "%u after %u turns",
           what, l, h, slot, i, got, key[i], position, a->n_turns[token]);
  }
  for (uint32_t b = 0; b < 4 && view.n_companions > 0; ++b) {
    EXPECT(*oracle_row_byte(&view, &view.companions[0], slot, h, b) ==
               (uint8_t)(token >> 8 * b),
           "%s: layer %u, head %u, slot %u: another token's companion", what, l,
           h, slot);
  }
}

static uint64_t Mix(uint64_t hash, uint32_t token) {
  return (hash ^ token) * 0x9E3779B97F4A7C15u + 1;
}

static uint32_t ExactPrefix(const life* a) {
  uint64_t hash = 0;
  uint32_t p = 0;
  for (; p < a->n_text; ++p) {
    const uint32_t token = a->text[p];
    if (token == 0 || a->context_of[token] != hash) break;
    bool is_held = true;
    for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
      is_held = is_held && a->held[i / kHeads][i % kHeads][token];
    }
    if (!is_held) break;
    hash = Mix(hash, token);
  }
  return p;
}

static void Check(const life* a, const char* what) {
  uint32_t logical, prefix;
  EXPECT_OK(kvevict_sequence_logical_length(a->sequence, &logical));
  EXPECT(logical == a->n_text, "%s: %u tokens, not %u", what, logical,
         a->n_text);
  EXPECT_OK(kvevict_sequence_exact_prefix(a->sequence, &prefix));
  const uint32_t want = ExactPrefix(a);
  EXPECT(a->has_moved ? prefix <= want : prefix == want,
         "%s: exact prefix %u, not %u", what, prefix, want);
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      uint32_t slot = 0, stored;
      for (uint32_t p = 0; p < a->n_text; ++p) {
        int32_t found;
        EXPECT_OK(
            kvevict_sequence_slot_of_position(a->sequence, l, h, p, &found));
        if (a->text[p] == 0 || !a->held[l][h][a->text[p]]) {
          EXPECT(found == -1, "%s: layer %u, head %u: position %u in slot %d",
                 what, l, h, p, found);
          continue;
        }
        int32_t position = -1;
        EXPECT_OK(kvevict_sequence_position_of_slot(a->sequence, l, h, slot,
                                                    &position));
        EXPECT(found == (int32_t)slot && position == (int32_t)p,
               "%s: layer %u, head %u: position %u in slot %d, slot %u has %d",
               what, l, h, p, found, slot, position);
        CheckRow(a, l, h, slot, a->text[p], p, what);
        ++slot;
      }
      EXPECT_OK(kvevict_sequence_stored_length(a->sequence, l, h, &stored));
      EXPECT(stored == slot, "%s: layer %u, head %u stores %u, not %u", what, l,
             h, stored, slot);
    }
  }
}

/* ---- Steps ---- */

static uint32_t NewToken(life* a) {
  EXPECT(a->last + 1 < kTokens, "too many tokens");
  for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
    a->held[i / kHeads][i % kHeads][a->last + 1] = true;
  }
  return ++a->last;
}

static uint64_t ContextAt(const life* a, uint32_t n) {
  uint64_t hash = 0;
  for (uint32_t p = 0; p < n; ++p) hash = Mix(hash, a->text[p]);
  return hash;
}

static uint32_t Shortest(const life* a) {
  uint32_t least = kSlots;
  for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
    uint32_t n;
    EXPECT_OK(kvevict_sequence_stored_length(a->sequence, i / kHeads,
                                             i % kHeads, &n));
    least = n < least ? n : least;
  }
  return least;
}

static uint32_t Longest(const life* a) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
    uint32_t n;
    EXPECT_OK(kvevict_sequence_stored_length(a->sequence, i / kHeads,
                                             i % kHeads, &n));
    most = n > most ? n : most;
  }
  return most;
}

/* Writes the rows of new tokens where the sequence has them. */
static void WriteNew(life* a, uint32_t first, uint32_t n) {
  for (uint32_t p = first; p < first + n; ++p) {
    a->context_of[a->text[p]] = ContextAt(a, p);
    for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
      int32_t slot = -1;
      EXPECT_OK(kvevict_sequence_slot_of_position(a->sequence, i / kHeads,
                                                  i % kHeads, p, &slot));
      EXPECT(slot >= 0, "no slot for position %u", p);
      WriteRow(a, i / kHeads, i % kHeads, (uint32_t)slot, a->text[p], p);
    }
  }
}

static void Append(life* a, uint32_t n) {
  if (a->cached != NULL) {
    EXPECT_OK(kvevict_paged_sequence_append(a->cached, n, NULL));
    /* The rows of shorter heads go to earlier blocks. */
    EXPECT_OK(kvevict_paged_sequence_own(a->cached, Shortest(a), NULL));
  }
  EXPECT_OK(kvevict_sequence_append(a->sequence, n, NULL));
  for (uint32_t i = 0; i < n; ++i) a->text[a->n_text++] = NewToken(a);
  WriteNew(a, a->n_text - n, n);
}

static void Evict(life* a) {
  if (a->cached != NULL) {
    kvevict_paged_eviction item = KVEVICT_PAGED_EVICTION_INIT;
    item.cached = a->cached;
    item.sequence = a->sequence;
    EXPECT_OK(
        kvevict_paged_evict(&item, 1, a->workspace, a->workspace_bytes, NULL));
  } else {
    const kvevict_view views[kLayers] = {ViewOf(a, 0), ViewOf(a, 1)};
    EXPECT_OK(kvevict_sequence_evict(a->sequence, views, kLayers, NULL,
                                     a->workspace, a->workspace_bytes, NULL));
  }
  for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
    for (uint32_t p = 0; p < a->n_text; ++p) {
      int32_t slot;
      EXPECT_OK(kvevict_sequence_slot_of_position(a->sequence, i / kHeads,
                                                  i % kHeads, p, &slot));
      bool* held = &a->held[i / kHeads][i % kHeads][a->text[p]];
      EXPECT(slot < 0 || *held, "an eviction brought position %u back", p);
      *held = slot >= 0;
    }
  }
}

static void Trim(life* a, uint32_t n) {
  if (kvevict_sequence_trim_to(a->sequence, n, NULL) != KVEVICT_OK) return;
  if (a->cached != NULL) {
    EXPECT_OK(kvevict_paged_sequence_fit(a->cached, a->sequence));
  }
  a->n_text = n;
}

/* The text after an edit; returns its length. New tokens are UINT32_MAX. */
static uint32_t TextAfter(const life* a, const kvevict_edit* e, uint32_t* out) {
  uint32_t n = 0, rest[kTokens], n_rest = 0;
  const uint32_t n_span = e->end - e->first;
  if (e->kind == KVEVICT_EDIT_MOVE) {
    for (uint32_t p = 0; p < a->n_text; ++p) {
      if (p < e->first || p >= e->end) rest[n_rest++] = a->text[p];
    }
    for (uint32_t i = 0; i < e->to; ++i) out[n++] = rest[i];
    for (uint32_t i = 0; i < n_span; ++i) out[n++] = a->text[e->first + i];
    for (uint32_t i = e->to; i < n_rest; ++i) out[n++] = rest[i];
    return n;
  }
  for (uint32_t p = 0; p < e->first; ++p) out[n++] = a->text[p];
  for (uint32_t i = 0; i < e->n_new; ++i) out[n++] = UINT32_MAX;
  if (e->positions == KVEVICT_EDIT_KEEP) {
    while (n < e->end) out[n++] = 0;
  }
  for (uint32_t p = e->end; p < a->n_text; ++p) out[n++] = a->text[p];
  return n;
}

static kvevict_status CallEdit(life* a, const kvevict_edit* e) {
  if (a->cached != NULL) {
    return kvevict_paged_edit(a->cached, a->sequence, e, NULL);
  }
  const kvevict_view views[kLayers] = {ViewOf(a, 0), ViewOf(a, 1)};
  return kvevict_sequence_edit(a->sequence, views, kLayers, e, NULL);
}

/* Edits both. Returns whether the call may and did fail. */
static bool Edit(life* a, const kvevict_edit* e, bool is_ragged,
                 const char* what) {
  uint32_t after[kTokens];
  const uint32_t n = TextAfter(a, e, after);
  bool fits = true;
  for (uint32_t l = 0; l < kLayers; ++l) {
    uint32_t n_held[kHeads] = {0};
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t p = 0; p < n; ++p) {
        n_held[h] += after[p] == UINT32_MAX ||
                     (after[p] != 0 && a->held[l][h][after[p]]);
      }
      fits = fits && n_held[h] <= kSlots && (n_held[h] > 0 || n == 0) &&
             (is_ragged || n_held[h] == n_held[0]);
    }
  }
  const kvevict_status status = CallEdit(a, e);
  if (!fits) {
    EXPECT(status == KVEVICT_ERROR_INVALID_ARGUMENT, "%s: got %s", what,
           kvevict_status_name(status));
    Check(a, what);
    return false;
  }
  EXPECT(status == KVEVICT_OK, "%s: %s", what, kvevict_last_error_message());
  for (uint32_t p = 0; p < n; ++p) {
    const uint32_t token = after[p];
    if (token == 0 || token == UINT32_MAX) continue;
    a->n_turns[token] += p >= a->n_text || a->text[p] != token;
  }
  a->has_moved = a->has_moved || e->kind == KVEVICT_EDIT_MOVE;
  uint32_t n_new = 0;
  for (uint32_t p = 0; p < n; ++p) {
    n_new += after[p] == UINT32_MAX;
    a->text[p] = after[p] == UINT32_MAX ? NewToken(a) : after[p];
  }
  a->n_text = n;
  WriteNew(a, e->first, n_new);
  return true;
}

static kvevict_edit DrawEdit(const life* a, test_random* random) {
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

/* ---- Lives ---- */

static const uint32_t kHeadBudgets[kLayers * kHeads] = {12, 20, 16, 9};

static life* Begin(const char* policy, bool is_ragged, bool is_paged,
                   test_layout layout, test_random* random) {
  life* a = calloc(1, sizeof *a);
  a->rope = test_random_coin(random) ? KVEVICT_ROPE_LAYOUT_HALF
                                     : KVEVICT_ROPE_LAYOUT_INTERLEAVED;
  a->dtype = test_random_coin(random) ? KVEVICT_DTYPE_F32 : KVEVICT_DTYPE_F16;
  for (int f = 0; f < kPairs; ++f) a->inv_freq[f] = powf(50.0f, -(float)f);
  kvevict_layer_geometry layer = test_layer(kHeads, kHeads, kDim, kDim);
  layer.k_dtype = a->dtype;
  kvevict_geometry geometry = test_geometry(kLayers, kSlots, &layer);
  geometry.rope_layout = a->rope;
  geometry.rope_inv_freq = a->inv_freq;
  geometry.rope_inv_freq_len = kPairs;
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  if (is_ragged) {
    options.head_budgets = kHeadBudgets;
    options.head_budgets_len = kLayers * kHeads;
  }
  EXPECT_OK(kvevict_context_create(NULL, &a->context));
  EXPECT_OK(kvevict_plan_create(a->context, &geometry, test_policy(policy),
                                &options, &a->plan));
  EXPECT_OK(kvevict_sequence_create(a->plan, &a->sequence));
  kvevict_workspace w = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_plan_workspace(a->plan, KVEVICT_OPERATION_EVICT, 0, &w));
  a->workspace_bytes = w.best_bytes;
  a->workspace = aligned_alloc(256, w.best_bytes / 256 * 256 + 256);
  for (uint32_t l = 0; !is_paged && l < kLayers; ++l) {
    const test_cache_spec spec = {
        layout, kHeads, kSlots, a->dtype, kDim, KVEVICT_DTYPE_F32, kDim, 1};
    a->caches[l] = test_cache_create(&spec, random);
  }
  if (!is_paged) return a;
  kvevict_paged_cache_options pool = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  pool.n_blocks = 60;
  pool.block_size = test_random_between(random, 1, 7);
  if (pool.block_size < 3) pool.n_blocks = 200;
  pool.layout = (kvevict_block_layout)test_random_below(random, 2);
  EXPECT_OK(kvevict_paged_cache_create(a->plan, &pool, &a->pool));
  EXPECT_OK(kvevict_paged_sequence_create(a->pool, &a->cached));
  return a;
}

static void End(life* a) {
  kvevict_sequence_destroy(a->sequence);
  kvevict_paged_sequence_destroy(a->cached);
  kvevict_paged_cache_destroy(a->pool);
  kvevict_plan_destroy(a->plan);
  kvevict_context_destroy(a->context);
  for (uint32_t l = 0; l < kLayers && a->caches[0] != NULL; ++l) {
    test_cache_destroy(a->caches[l]);
  }
  free(a->workspace);
  free(a);
}

/* Goes on as a fork; the paged original stays as `kept`, unchanged by what the
 * fork does. */
static void Fork(life* a, life* kept) {
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

static void SaveAndLoad(life* a) {
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
  life* a = Begin(policy, is_ragged, is_paged, layout, random);
  life* kept = calloc(1, sizeof *kept);
  char what[200];
  uint32_t n_edits = 0;
  for (int step = 0; step < 40; ++step) {
    const uint32_t kind = test_random_below(random, 10);
    const uint32_t room = kSlots - Longest(a);
    snprintf(what, sizeof what, "%s, %s, step %d", policy,
             is_paged ? "paged" : test_layout_name(layout), step);
    if (kind < 3) {
      Append(a, test_random_below(random, (room < 20 ? room : 20) + 1));
    } else if (kind == 3) {
      Evict(a);
    } else if (kind == 4) {
      Trim(a, a->n_text - test_random_below(random, a->n_text / 3 + 1));
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
      n_edits += Edit(a, &e, is_ragged, what);
    }
    Check(a, what);
    if (kept->cached != NULL) Check(kept, "the other fork");
  }
  EXPECT(n_edits > 0, "%s: no edit", what);
  kvevict_sequence_destroy(kept->sequence);
  kvevict_paged_sequence_destroy(kept->cached);
  free(kept);
  End(a);
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
      Live(kPolicies[p], false, false, (test_layout)layout, &random);
    }
    Live("random:sink=2,recent=3,budget=20", true, false, (test_layout)layout,
         &random);
  }
}

Test(edit, random_lives_in_a_pool_leave_forks_as_they_are) {
  test_random random = test_random_start("edit pools");
  for (int i = 0; i < 25; ++i) {
    Live("none", false, true, TEST_TOKEN_MAJOR, &random);
    Live("random:budget=20,sink=2,recent=3,scope=layer", false, true,
         TEST_TOKEN_MAJOR, &random);
    Live("random:sink=2,recent=3,budget=20", true, true, TEST_TOKEN_MAJOR,
         &random);
  }
}

/* ---- Errors ---- */

Test(edit, what_does_not_fit_is_named_and_changes_nothing) {
  test_random random = {5};
  life* a = Begin("none", false, false, TEST_TOKEN_MAJOR, &random);
  Append(a, 40);
  kvevict_edit e = KVEVICT_EDIT_INIT;
  e.first = 7;
  e.end = 6;
  EXPECT_INVALID(CallEdit(a, &e), "edit: ", "first 7", "end 6");
  e.end = 41;
  EXPECT_INVALID(CallEdit(a, &e), "end 41", "40 tokens");
  e.end = 9;
  e.n_new = 11;
  EXPECT_INVALID(CallEdit(a, &e), "49 slots > max_tokens 48");
  e.positions = KVEVICT_EDIT_KEEP;
  EXPECT_INVALID(CallEdit(a, &e), "n_new 11 > 2");
  e.n_new = 0;
  e.to = 3;
  EXPECT_INVALID(CallEdit(a, &e), "to 3");
  e.kind = KVEVICT_EDIT_MOVE;
  EXPECT_INVALID(CallEdit(a, &e), "positions keep");
  e.positions = KVEVICT_EDIT_ROTATE;
  e.to = 39;
  EXPECT_INVALID(CallEdit(a, &e), "to 39 + 2", "40");
  e.to = 3;
  e.n_new = 1;
  EXPECT_INVALID(CallEdit(a, &e), "n_new 1 of a move");
  e.n_new = 0;
  e.reserved = 1;
  EXPECT_INVALID(CallEdit(a, &e), "reserved 1");
  e.reserved = 0;
  e.kind = (kvevict_edit_kind)2;
  EXPECT_INVALID(CallEdit(a, &e), "kind 2");
  e.kind = KVEVICT_EDIT_REPLACE;
  e.to = 0;
  e.positions = (kvevict_edit_positions)3;
  EXPECT_INVALID(CallEdit(a, &e), "positions 3");
  e.positions = KVEVICT_EDIT_KEEP;
  e.first = 0;
  e.end = 40;
  EXPECT_INVALID(CallEdit(a, &e), "after the edit: layer 0", "no token");
  EXPECT_INVALID(CallEdit(a, NULL), "edit is NULL");
  EXPECT_INVALID(kvevict_sequence_edit(NULL, NULL, 0, &e, NULL), "sequence");
  EXPECT_INVALID(kvevict_paged_edit(NULL, a->sequence, &e, NULL), "cached");
  kvevict_view views[kLayers] = {ViewOf(a, 0), ViewOf(a, 1)};
  views[1].k.data = 0;
  e = (kvevict_edit)KVEVICT_EDIT_INIT;
  e.end = 3;
  EXPECT_INVALID(kvevict_sequence_edit(a->sequence, views, kLayers, &e, NULL),
                 "views[1]: ");
  views[1] = views[0];
  views[1].k.data += 4 * kDim;
  EXPECT_INVALID(kvevict_sequence_edit(a->sequence, views, kLayers, &e, NULL),
                 "views[1]");
  Check(a, "after errors");
  End(a);
}

/* ---- What goes with the rows ---- */

enum { kFew = 12 };

/* Sums of single queries, which are exact, so that slots tell their tokens. */
static void ObserveSums(life* a, uint32_t first, const float* sums,
                        uint32_t n) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = (uintptr_t)sums;
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = 1;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.attention_sums = &plane;
  inputs.n_sum_heads = kHeads;
  for (uint32_t l = 0; l < kLayers; ++l) {
    kvevict_observation one = KVEVICT_OBSERVATION_INIT;
    one.layer = l;
    one.inputs = &inputs;
    EXPECT_OK(kvevict_sequence_observe(a->sequence, &one, 1, n, first, NULL));
  }
}

static float SumAt(const life* a, uint32_t layer, uint32_t row, uint32_t slot) {
  kvevict_sequence_memory m = {.struct_size = sizeof m};
  EXPECT_OK(kvevict_sequence_memory_of(a->sequence, layer, &m));
  EXPECT(m.n_sum_heads == kHeads, "%u rows of sums", m.n_sum_heads);
  return ((const float*)(uintptr_t)m.sums)[row * m.sum_stride + slot];
}

Test(edit, sums_stay_with_their_tokens_and_go_on) {
  test_random random = {6};
  life* a = Begin("h2o:budget=9,sink=0,recent=2,sums=head", false, false,
                  TEST_HEAD_MAJOR, &random);
  EXPECT_OK(kvevict_sequence_begin_observing(a->sequence, NULL, 0));
  Append(a, kFew);
  float sums[kHeads * (kFew + 2)];
  for (int i = 0; i < kHeads * kFew; ++i) sums[i] = (float)(i + 1);
  ObserveSums(a, 0, sums, kFew);
  kvevict_edit e = KVEVICT_EDIT_INIT;
  e.first = 3;
  e.end = 5;
  e.n_new = 3;
  EXPECT(Edit(a, &e, false, "replace"), "replaced");
  const uint32_t n = kFew + 1;
  for (uint32_t h = 0; h < kHeads; ++h) {
    for (uint32_t slot = 0; slot < n; ++slot) {
      const uint32_t from = slot < 3 ? slot : slot - 1;
      const float want =
          slot >= 3 && slot < 6 ? 0.0f : (float)(h * kFew + from + 1);
      EXPECT(SumAt(a, 1, h, slot) == want, "head %u, slot %u: %g, not %g", h,
             slot, (double)SumAt(a, 1, h, slot), (double)want);
    }
  }
  Append(a, 1);
  for (uint32_t i = 0; i < kHeads * (n + 1); ++i) sums[i] = 0.5f;
  ObserveSums(a, n, sums, 1);
  EXPECT(SumAt(a, 0, 1, 3) == 0.5f && SumAt(a, 0, 1, 0) == kFew + 1.5f,
         "sums do not go on");
  Evict(a);
  Check(a, "after the eviction");
  End(a);
}

Test(edit, the_last_eviction_cannot_be_undone) {
  test_random random = {7};
  life* a = Begin("streaming-llm:budget=10,sink=2", false, false,
                  TEST_TOKEN_MAJOR, &random);
  Append(a, 30);
  const kvevict_view views[kLayers] = {ViewOf(a, 0), ViewOf(a, 1)};
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  EXPECT_OK(kvevict_sequence_undo_bytes(a->sequence, views, kLayers,
                                        &options.undo_bytes));
  options.undo = aligned_alloc(64, options.undo_bytes / 64 * 64 + 64);
  EXPECT_OK(kvevict_sequence_evict(a->sequence, views, kLayers, &options,
                                   a->workspace, a->workspace_bytes, NULL));
  kvevict_edit e = KVEVICT_EDIT_INIT;
  e.first = 24;
  e.end = 26;
  EXPECT_OK(kvevict_sequence_edit(a->sequence, views, kLayers, &e, NULL));
  EXPECT_INVALID(kvevict_sequence_undo(a->sequence, views, kLayers,
                                       options.undo, options.undo_bytes, NULL),
                 "nothing to undo");
  free(options.undo);
  End(a);
}

/* Quantized keys do not rotate, but their codes and scales move. */
Test(edit, quantized_rows_move_and_do_not_rotate) {
  test_random random = {8};
  const test_cache_spec spec = {
      TEST_PAGED_3, kHeads,           kSlots, KVEVICT_DTYPE_I8,
      kDim,         KVEVICT_DTYPE_U8, kDim,   2};
  test_cache* cache = test_cache_create(&spec, &random);
  kvevict_layer_geometry layer = test_layer(kHeads, kHeads, kDim, kDim);
  layer.k_dtype = KVEVICT_DTYPE_I8;
  layer.v_dtype = KVEVICT_DTYPE_U8;
  float inv_freq[kPairs] = {1.0f, 0.1f, 0.01f};
  kvevict_geometry geometry = test_geometry(1, kSlots, &layer);
  geometry.rope_inv_freq = inv_freq;
  geometry.rope_inv_freq_len = kPairs;
  test_plan* plan =
      test_plan_create("none", &geometry, KVEVICT_OPERATION_EVICT, 3);
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(plan->plan, &sequence));
  EXPECT_OK(kvevict_sequence_start(sequence, NULL, 0, 40, NULL));
  kvevict_edit e = KVEVICT_EDIT_INIT;
  e.kind = KVEVICT_EDIT_MOVE;
  e.first = 30;
  e.end = 36;
  e.to = 5;
  test_cache* want = test_cache_clone(cache);
  EXPECT_FAILS(kvevict_sequence_edit(sequence, &cache->view, 1, &e, NULL),
               KVEVICT_ERROR_UNSUPPORTED, "layer 0", "quantized");
  test_expect_same_bytes(cache, want, "refused");
  e.positions = KVEVICT_EDIT_RENUMBER;
  EXPECT_OK(kvevict_sequence_edit(sequence, &cache->view, 1, &e, NULL));
  int32_t from[40];
  for (int i = 0; i < 40; ++i) {
    from[i] = i < 5 || i >= 36 ? i : i < 11 ? i + 25 : i - 6;
  }
  oracle_compact(&want->view, from, 40, 1);
  test_expect_same_bytes(cache, want, "moved");
  kvevict_sequence_destroy(sequence);
  test_plan_destroy(plan);
  test_cache_destroy(cache);
  test_cache_destroy(want);
}
