#include "tests/capi/support/life.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/batch.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/compact.h"

kvevict_view test_life_view(const test_life* a, uint32_t l) {
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
/* The companion's number, or the bias. */
static float NumberOf(uint32_t token) { return (float)token / 1024.0f; }
static float ValueOf(uint32_t token, uint32_t l, uint32_t h, uint32_t i) {
  return (float)(token * 64 + l * 32 + h * 16 + i);
}

static void KeyAt(const test_life* a, uint32_t token, uint32_t l, uint32_t h,
                  uint32_t position, double* out, double* radius) {
  for (uint32_t i = 0; i < TEST_LIFE_DIM; ++i) {
    out[i] = KeyOf(token, l, h, i);
    radius[i] = fabs(out[i]);
  }
  for (uint32_t f = 0; f < TEST_LIFE_PAIRS; ++f) {
    const bool halves = a->rope == KVEVICT_ROPE_LAYOUT_HALF;
    const uint32_t x = halves ? f : 2 * f;
    const uint32_t y = halves ? f + TEST_LIFE_PAIRS : 2 * f + 1;
    const long double angle = (long double)position * a->inv_freq[f];
    const double c = (double)cosl(angle), s = (double)sinl(angle);
    const double re = out[x], im = out[y];
    out[x] = re * c - im * s;
    out[y] = re * s + im * c;
    radius[x] = radius[y] = hypot(re, im);
  }
}

static void WriteRow(const test_life* a, uint32_t l, uint32_t h, uint32_t slot,
                     uint32_t token, uint32_t position) {
  const kvevict_view view = test_life_view(a, l);
  const uint32_t size = oracle_element_bytes(a->dtype);
  double key[TEST_LIFE_DIM], radius[TEST_LIFE_DIM];
  KeyAt(a, token, l, h, position, key, radius);
  for (uint32_t i = 0; i < TEST_LIFE_DIM; ++i) {
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
  const float number = NumberOf(token);
  for (uint32_t b = 0; b < 4 && view.n_companions > 0; ++b) {
    *oracle_row_byte(&view, &view.companions[0], slot, h, b) =
        ((const uint8_t*)&number)[b];
  }
}

/* The number that a row's companion has. */
static float NumberAt(const kvevict_view* view, uint32_t h, uint32_t slot) {
  float number = 0;
  for (uint32_t b = 0; b < 4; ++b) {
    ((uint8_t*)&number)[b] =
        *oracle_row_byte(view, &view->companions[0], slot, h, b);
  }
  return number;
}

/* Rotating turns a pair's length into no other, so errors of both elements stay
 * within sqrt(2) of each other: 3e-7 for cosines, sines and products, and half
 * a unit of the dtype, per rotation. The first row is truncated. */
static double BoundOf(const test_life* a, uint32_t token, double radius) {
  const double unit = a->dtype == KVEVICT_DTYPE_F32 ? 0x1p-23 : 0x1p-10;
  const double least = a->dtype == KVEVICT_DTYPE_F32 ? 0.0 : 0x1p-24;
  const double n = a->n_turns[token];
  return 2.0 * (radius * (n * (3e-7 + unit / 2) + unit) + (n + 1) * least);
}

static void CheckRow(const test_life* a, uint32_t l, uint32_t h, uint32_t slot,
                     uint32_t token, uint32_t position, const char* what) {
  const kvevict_view view = test_life_view(a, l);
  const uint32_t size = oracle_element_bytes(a->dtype);
  double key[TEST_LIFE_DIM], radius[TEST_LIFE_DIM];
  KeyAt(a, token, l, h, position, key, radius);
  for (uint32_t i = 0; i < TEST_LIFE_DIM; ++i) {
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
  EXPECT(view.n_companions == 0 || NumberAt(&view, h, slot) == NumberOf(token),
         "%s: layer %u, head %u, slot %u: another token's companion", what, l,
         h, slot);
}

static uint64_t Mix(uint64_t hash, uint32_t token) {
  return (hash ^ token) * 0x9E3779B97F4A7C15u + 1;
}

static uint32_t ExactPrefix(const test_life* a) {
  uint64_t hash = 0;
  uint32_t p = 0;
  for (; p < a->n_text; ++p) {
    const uint32_t token = a->text[p];
    if (token == 0 || a->context_of[token] != hash) break;
    bool is_held = true;
    for (uint32_t i = 0; i < TEST_LIFE_LAYERS * TEST_LIFE_HEADS; ++i) {
      is_held =
          is_held && a->held[i / TEST_LIFE_HEADS][i % TEST_LIFE_HEADS][token];
    }
    if (!is_held) break;
    hash = Mix(hash, token);
  }
  return p;
}

void test_life_check(const test_life* a, const char* what) {
  uint32_t logical, prefix;
  EXPECT_OK(kvevict_sequence_logical_length(a->sequence, &logical));
  EXPECT(logical == a->n_text, "%s: %u tokens, not %u", what, logical,
         a->n_text);
  EXPECT_OK(kvevict_sequence_exact_prefix(a->sequence, &prefix));
  const uint32_t want = ExactPrefix(a);
  EXPECT(a->has_moved ? prefix <= want : prefix == want,
         "%s: exact prefix %u, not %u", what, prefix, want);
  for (uint32_t l = 0; l < TEST_LIFE_LAYERS; ++l) {
    for (uint32_t h = 0; h < TEST_LIFE_HEADS; ++h) {
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
        CheckRow(a, l, h, slot, a->text[p], a->rotates ? slot : p, what);
        ++slot;
      }
      EXPECT_OK(kvevict_sequence_stored_length(a->sequence, l, h, &stored));
      EXPECT(stored == slot, "%s: layer %u, head %u stores %u, not %u", what, l,
             h, stored, slot);
    }
  }
}

/* ---- Steps ---- */

static uint32_t NewToken(test_life* a) {
  EXPECT(a->last + 1 < TEST_LIFE_TOKENS, "too many tokens");
  for (uint32_t i = 0; i < TEST_LIFE_LAYERS * TEST_LIFE_HEADS; ++i) {
    a->held[i / TEST_LIFE_HEADS][i % TEST_LIFE_HEADS][a->last + 1] = true;
  }
  return ++a->last;
}

static uint64_t ContextAt(const test_life* a, uint32_t n) {
  uint64_t hash = 0;
  for (uint32_t p = 0; p < n; ++p) hash = Mix(hash, a->text[p]);
  return hash;
}

static uint32_t Shortest(const test_life* a) {
  uint32_t least = TEST_LIFE_SLOTS;
  for (uint32_t i = 0; i < TEST_LIFE_LAYERS * TEST_LIFE_HEADS; ++i) {
    uint32_t n;
    EXPECT_OK(kvevict_sequence_stored_length(a->sequence, i / TEST_LIFE_HEADS,
                                             i % TEST_LIFE_HEADS, &n));
    least = n < least ? n : least;
  }
  return least;
}

uint32_t test_life_longest(const test_life* a) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < TEST_LIFE_LAYERS * TEST_LIFE_HEADS; ++i) {
    uint32_t n;
    EXPECT_OK(kvevict_sequence_stored_length(a->sequence, i / TEST_LIFE_HEADS,
                                             i % TEST_LIFE_HEADS, &n));
    most = n > most ? n : most;
  }
  return most;
}

/* Writes the rows of new tokens where the sequence has them. Biases are 0 before. */
static void WriteNew(test_life* a, uint32_t first, uint32_t n) {
  for (uint32_t p = first; p < first + n; ++p) {
    a->context_of[a->text[p]] = ContextAt(a, p);
    for (uint32_t i = 0; i < TEST_LIFE_LAYERS * TEST_LIFE_HEADS; ++i) {
      int32_t slot = -1;
      EXPECT_OK(kvevict_sequence_slot_of_position(
          a->sequence, i / TEST_LIFE_HEADS, i % TEST_LIFE_HEADS, p, &slot));
      EXPECT(slot >= 0, "no slot for position %u", p);
      const kvevict_view view = test_life_view(a, i / TEST_LIFE_HEADS);
      EXPECT(a->n_fit_rows == 0 ||
                 NumberAt(&view, i % TEST_LIFE_HEADS, (uint32_t)slot) == 0,
             "layer %u, head %u: the bias of a new row in slot %d is not 0",
             i / TEST_LIFE_HEADS, i % TEST_LIFE_HEADS, slot);
      WriteRow(a, i / TEST_LIFE_HEADS, i % TEST_LIFE_HEADS, (uint32_t)slot,
               a->text[p], a->rotates ? (uint32_t)slot : p);
    }
  }
}

void test_life_append(test_life* a, uint32_t n) {
  if (a->cached != NULL) {
    EXPECT_OK(kvevict_paged_sequence_append(a->cached, n, NULL));
    /* The rows of shorter heads go to earlier blocks. */
    EXPECT_OK(kvevict_paged_sequence_own(a->cached, Shortest(a), NULL));
  }
  EXPECT_OK(kvevict_sequence_append(a->sequence, n, NULL));
  for (uint32_t i = 0; i < n; ++i) a->text[a->n_text++] = NewToken(a);
  WriteNew(a, a->n_text - n, n);
}

/* Rows that were fitted are no token's own, until they are written again. */
static void WriteFitted(test_life* a) {
  a->has_moved = true;
  for (uint32_t i = 0; i < TEST_LIFE_LAYERS * TEST_LIFE_HEADS; ++i) {
    const uint32_t l = i / TEST_LIFE_HEADS, h = i % TEST_LIFE_HEADS;
    uint32_t slot = 0;
    for (uint32_t p = 0; p < a->n_text; ++p) {
      const uint32_t token = a->text[p];
      if (token != 0 && a->held[l][h][token]) {
        WriteRow(a, l, h, slot++, token, p);
      }
    }
  }
}

/* Calls the eviction. Values and biases are fitted to drawn queries. */
static void CallEvict(test_life* a) {
  static float queries[20][TEST_LIFE_HEADS][TEST_LIFE_DIM];
  test_random random = {a->last};
  for (size_t i = 0; i < sizeof queries / sizeof(float); ++i) {
    ((float*)queries)[i] = test_random_normal(&random);
  }
  const kvevict_plane plane =
      test_rows_plane(queries[0][0], TEST_LIFE_HEADS, TEST_LIFE_DIM);
  kvevict_signal_inputs inputs[TEST_LIFE_LAYERS];
  for (uint32_t l = 0; l < TEST_LIFE_LAYERS; ++l) {
    inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    inputs[l].reference_queries = &plane;
    inputs[l].n_reference_rows = a->n_fit_rows;
  }
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = a->n_fit_rows > 0 ? inputs : NULL;
  options.inputs_len = a->n_fit_rows > 0 ? TEST_LIFE_LAYERS : 0;
  if (a->cached != NULL) {
    kvevict_paged_eviction item = KVEVICT_PAGED_EVICTION_INIT;
    item.cached = a->cached;
    item.sequence = a->sequence;
    item.options = &options;
    EXPECT_OK(
        kvevict_paged_evict(&item, 1, a->workspace, a->workspace_bytes, NULL));
  } else {
    const kvevict_view views[TEST_LIFE_LAYERS] = {test_life_view(a, 0),
                                                  test_life_view(a, 1)};
    EXPECT_OK(kvevict_sequence_evict(a->sequence, views, TEST_LIFE_LAYERS,
                                     &options, a->workspace, a->workspace_bytes,
                                     NULL));
  }
}

void test_life_evict(test_life* a) {
  static int32_t before[TEST_LIFE_LAYERS * TEST_LIFE_HEADS][TEST_LIFE_TOKENS];
  for (uint32_t i = 0; i < TEST_LIFE_LAYERS * TEST_LIFE_HEADS; ++i) {
    for (uint32_t p = 0; p < a->n_text; ++p) {
      EXPECT_OK(kvevict_sequence_slot_of_position(
          a->sequence, i / TEST_LIFE_HEADS, i % TEST_LIFE_HEADS, p,
          &before[i][p]));
    }
  }
  CallEvict(a);
  bool has_lost = false;
  for (uint32_t p = 0; p < a->n_text; ++p) {
    bool has_moved = false;
    for (uint32_t i = 0; i < TEST_LIFE_LAYERS * TEST_LIFE_HEADS; ++i) {
      int32_t slot;
      EXPECT_OK(kvevict_sequence_slot_of_position(
          a->sequence, i / TEST_LIFE_HEADS, i % TEST_LIFE_HEADS, p, &slot));
      bool* held =
          &a->held[i / TEST_LIFE_HEADS][i % TEST_LIFE_HEADS][a->text[p]];
      EXPECT(slot < 0 || *held, "an eviction brought position %u back", p);
      has_lost = has_lost || (*held && slot < 0);
      *held = slot >= 0;
      has_moved = has_moved || (slot >= 0 && slot != before[i][p]);
    }
    a->n_turns[a->text[p]] += a->rotates && has_moved;
  }
  if (has_lost && a->n_fit_rows > 0) WriteFitted(a);
}

void test_life_trim(test_life* a, uint32_t n) {
  if (kvevict_sequence_trim_to(a->sequence, n, NULL) != KVEVICT_OK) return;
  if (a->cached != NULL) {
    EXPECT_OK(kvevict_paged_sequence_fit(a->cached, a->sequence));
  }
  a->n_text = n;
}

/* The text after an edit; returns its length. New tokens are UINT32_MAX. */
static uint32_t TextAfter(const test_life* a, const kvevict_edit* e,
                          uint32_t* out) {
  uint32_t n = 0, rest[TEST_LIFE_TOKENS], n_rest = 0;
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

kvevict_status test_life_call_edit(test_life* a, const kvevict_edit* e) {
  if (a->cached != NULL) {
    return kvevict_paged_edit(a->cached, a->sequence, e, NULL);
  }
  const kvevict_view views[TEST_LIFE_LAYERS] = {test_life_view(a, 0),
                                                test_life_view(a, 1)};
  return kvevict_sequence_edit(a->sequence, views, TEST_LIFE_LAYERS, e, NULL);
}

bool test_life_edit(test_life* a, const kvevict_edit* e, bool is_ragged,
                    const char* what) {
  uint32_t after[TEST_LIFE_TOKENS];
  const uint32_t n = TextAfter(a, e, after);
  bool fits = true;
  for (uint32_t l = 0; l < TEST_LIFE_LAYERS; ++l) {
    uint32_t n_held[TEST_LIFE_HEADS] = {0};
    for (uint32_t h = 0; h < TEST_LIFE_HEADS; ++h) {
      for (uint32_t p = 0; p < n; ++p) {
        n_held[h] += after[p] == UINT32_MAX ||
                     (after[p] != 0 && a->held[l][h][after[p]]);
      }
      fits = fits && n_held[h] <= TEST_LIFE_SLOTS &&
             (n_held[h] > 0 || n == 0) && (is_ragged || n_held[h] == n_held[0]);
    }
  }
  const kvevict_status status = test_life_call_edit(a, e);
  if (!fits) {
    EXPECT(status == KVEVICT_ERROR_INVALID_ARGUMENT, "%s: got %s", what,
           kvevict_status_name(status));
    test_life_check(a, what);
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

static const uint32_t kHeadBudgets[TEST_LIFE_LAYERS * TEST_LIFE_HEADS] = {
    12, 20, 16, 9};

test_life* test_life_begin(const char* policy, bool is_ragged, bool is_paged,
                           test_layout layout, test_random* random) {
  test_life* a = calloc(1, sizeof *a);
  a->rope = test_random_coin(random) ? KVEVICT_ROPE_LAYOUT_HALF
                                     : KVEVICT_ROPE_LAYOUT_INTERLEAVED;
  a->dtype = test_random_coin(random) ? KVEVICT_DTYPE_F32 : KVEVICT_DTYPE_F16;
  for (int f = 0; f < TEST_LIFE_PAIRS; ++f)
    a->inv_freq[f] = powf(50.0f, -(float)f);
  kvevict_layer_geometry layer = test_layer(TEST_LIFE_HEADS, TEST_LIFE_HEADS,
                                            TEST_LIFE_DIM, TEST_LIFE_DIM);
  layer.q_dtype = KVEVICT_DTYPE_F32;
  layer.k_dtype = a->dtype;
  kvevict_geometry geometry =
      test_geometry(TEST_LIFE_LAYERS, TEST_LIFE_SLOTS, &layer);
  geometry.rope_layout = a->rope;
  geometry.rope_inv_freq = a->inv_freq;
  geometry.rope_inv_freq_len = TEST_LIFE_PAIRS;
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  if (is_ragged) {
    options.head_budgets = kHeadBudgets;
    options.head_budgets_len = TEST_LIFE_LAYERS * TEST_LIFE_HEADS;
  }
  a->context = test_device_context();
  EXPECT_OK(kvevict_plan_create(a->context, &geometry, test_policy(policy),
                                &options, &a->plan));
  const oracle_policy p = oracle_policy_of(test_policy(policy));
  a->rotates = p.rotate;
  a->n_fit_rows = p.fit == ORACLE_FIT_NONE ? 0 : p.reference;
  EXPECT_OK(kvevict_sequence_create(a->plan, &a->sequence));
  kvevict_workspace w = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_plan_workspace(a->plan, KVEVICT_OPERATION_EVICT, 0, &w));
  a->workspace_bytes = w.best_bytes;
  a->workspace = test_workspace_memory(w.best_bytes);
  for (uint32_t l = 0; !is_paged && l < TEST_LIFE_LAYERS; ++l) {
    const test_cache_spec spec = {
        layout,        TEST_LIFE_HEADS,   TEST_LIFE_SLOTS, a->dtype,
        TEST_LIFE_DIM, KVEVICT_DTYPE_F32, TEST_LIFE_DIM,   1};
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

void test_life_end(test_life* a) {
  kvevict_sequence_destroy(a->sequence);
  kvevict_paged_sequence_destroy(a->cached);
  kvevict_paged_cache_destroy(a->pool);
  kvevict_plan_destroy(a->plan);
  kvevict_context_destroy(a->context);
  for (uint32_t l = 0; l < TEST_LIFE_LAYERS && a->caches[0] != NULL; ++l) {
    test_cache_destroy(a->caches[l]);
  }
  free(a->workspace);
  free(a);
}
