/* Blocks chosen by diversity while decoding, against a naive model of OpenVINO
 * GenAI's Adaptive R-KV (cache/cache_eviction.cpp, aggregation ADAPTIVE_RKV) over
 * whole trajectories. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/attention.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

enum {
  kLayers = 2,
  kHeads = 2,
  kDim = 4,
  kMostSlots = 500,
  kMostPositions = 4096,
  kQueue = 8,
  kMostBlocks = 64
};

typedef struct settings {
  uint32_t start, recent, max, block;
  double mass;
  uint32_t queue;
} settings;

/* A layer: the slots that it holds, and the vectors of its queue. */
typedef struct layer_state {
  uint32_t n;
  int32_t position[kMostSlots];
  uint32_t n_queued;
  uint32_t length[kQueue];
  float queue[kQueue][kMostSlots];
  uint32_t n_ever;
  double score[kMostSlots];
} layer_state;

typedef struct tally {
  uint32_t n_evictions, n_by_keys, n_undecided;
} tally;

/* ---- Scores: the mean of the queue, pooled forward. The sum is not divided, since
 * that changes neither order nor shares, so it is exact. ---- */

static void Register(const settings* s, layer_state* a, const float* vector) {
  if (a->n_queued == s->queue) {
    for (uint32_t i = 1; i < s->queue; ++i) {
      a->length[i - 1] = a->length[i];
      memcpy(a->queue[i - 1], a->queue[i], sizeof a->queue[i]);
    }
    --a->n_queued;
  }
  memcpy(a->queue[a->n_queued], vector, a->n * sizeof(float));
  a->length[a->n_queued++] = a->n;
  ++a->n_ever;
}

static void FindScores(layer_state* a) {
  double mean[kMostSlots];
  for (uint32_t t = 0; t < a->n; ++t) {
    mean[t] = 0.0;
    for (uint32_t i = 0; i < a->n_queued; ++i) {
      if (t < a->length[i]) mean[t] += (double)a->queue[i][t];
    }
  }
  for (uint32_t t = 0; t < a->n; ++t) {
    a->score[t] = mean[t];
    for (uint32_t i = t + 1; a->n_ever > 1 && i < t + 7 && i < a->n; ++i) {
      if (mean[i] > a->score[t]) a->score[t] = mean[i];
    }
  }
}

/* ---- Similarity ---- */

/* Indexed by position. */
static float keys[kLayers][kHeads][kMostPositions * kDim];

static double Cosine(const float* a, const float* b) {
  double dot = 0.0, aa = 0x1p-23, bb = 0x1p-23;
  for (uint32_t e = 0; e < kDim; ++e) {
    dot += (double)a[e] * b[e];
    aa += (double)a[e] * a[e];
    bb += (double)b[e] * b[e];
  }
  return dot / sqrt(aa * bb);
}

/* Sums the similarity of the rows of blocks not chosen over the columns of such
 * blocks. `doubt` gets how far entries near a row's mean may change a sum. */
static void FindSimilarity(const settings* s, const layer_state* a,
                           uint32_t layer, uint32_t first_head,
                           uint32_t end_head, uint32_t n_blocks,
                           const uint8_t* taken, double* similarity,
                           double* doubt) {
  const uint32_t n = n_blocks * s->block;
  for (uint32_t k = 0; k < n_blocks; ++k) similarity[k] = doubt[k] = 0.0;
  for (uint32_t h = first_head; h < end_head; ++h) {
    for (uint32_t i = 0; i < n; ++i) {
      if (taken[i / s->block]) continue;
      const float* const row =
          keys[layer][h] + (size_t)a->position[s->start + i] * kDim;
      double row_cosines[kMostSlots], mean = 0.0;
      for (uint32_t j = 0; j < n; ++j) {
        row_cosines[j] =
            i == j ? 0.0
                   : Cosine(row, keys[layer][h] +
                                     (size_t)a->position[s->start + j] * kDim);
        mean += row_cosines[j] / n;
      }
      for (uint32_t j = 0; j < n; ++j) {
        if (taken[j / s->block]) continue;
        /* Rounding of f32 directions, cosines and means, and units of 2^-24. */
        doubt[i / s->block] += 0x1p-20;
        if (fabs(row_cosines[j] - mean) < 0x1p-18) {
          doubt[i / s->block] += fabs(row_cosines[j]);
        }
        if (row_cosines[j] >= mean) similarity[i / s->block] += row_cosines[j];
      }
    }
  }
}

/* ---- Eviction ---- */

static void Drop(layer_state* a, uint32_t first, uint32_t n) {
  memmove(a->position + first, a->position + first + n,
          (a->n - first - n) * sizeof(int32_t));
  a->n -= n;
}

/* Chooses the blocks between both ends of a list. False if rounding may decide. */
static bool Choose(const settings* s, const layer_state* a, uint32_t layer,
                   uint32_t first_head, uint32_t end_head, bool higher,
                   uint32_t n_blocks, uint32_t most, const float* scores,
                   const uint8_t* must, uint8_t* stays) {
  double mass[kMostBlocks], total = 0.0, sum = 0.0;
  uint32_t n = 0;
  for (uint32_t k = 0; k < n_blocks; ++k) {
    mass[k] = 0.0;
    for (uint32_t i = 0; i < s->block; ++i) {
      mass[k] += (double)scores[s->start + k * s->block + i];
    }
    total += mass[k];
    stays[k] = must[k];
    if (must[k]) sum += mass[k];
    n += must[k];
  }
  while (n < most && sum < s->mass * total) {
    if (fabs(sum - s->mass * total) < 1e-5 * total) return false;
    uint32_t best = n_blocks;
    for (uint32_t k = 0; k < n_blocks; ++k) {
      if (stays[k]) continue;
      if (best == n_blocks || mass[k] > mass[best] ||
          (mass[k] == mass[best] && higher)) {
        best = k;
      }
    }
    stays[best] = 1;
    sum += mass[best];
    ++n;
  }
  if (n < most && fabs(sum - s->mass * total) < 1e-5 * total) return false;
  if (n == most) return true;
  double similarity[kMostBlocks], doubt[kMostBlocks], gap = INFINITY;
  uint8_t taken[kMostBlocks];
  memcpy(taken, stays, n_blocks);
  FindSimilarity(s, a, layer, first_head, end_head, n_blocks, taken, similarity,
                 doubt);
  for (; n < most; ++n) {
    uint32_t least = n_blocks;
    for (uint32_t k = 0; k < n_blocks; ++k) {
      if (!stays[k] &&
          (least == n_blocks || similarity[k] < similarity[least])) {
        least = k;
      }
    }
    stays[least] = 2;
  }
  for (uint32_t k = 0; k < n_blocks; ++k) {
    for (uint32_t j = 0; j < n_blocks && stays[k] == 2; ++j) {
      if (stays[j]) continue;
      gap = fmin(gap, similarity[j] - similarity[k] - doubt[j] - doubt[k]);
    }
  }
  return gap > 0.0;
}

/* False if rounding to f32 may decide. The later of two equal blocks stays. */
static bool Evict(const settings* s, layer_state* a, uint32_t layer,
                  tally* count) {
  if (a->n < s->max + s->block) return true;
  FindScores(a);
  const uint32_t n_blocks =
      a->n / s->block - s->recent / s->block - s->start / s->block;
  float scores[kMostSlots];
  uint8_t must[kMostBlocks] = {0}, stays[kMostBlocks];
  bool by_keys = false;
  for (uint32_t t = 0; t < a->n; ++t) scores[t] = (float)a->score[t];
  if (!Choose(s, a, layer, 0, kHeads, true, n_blocks,
              (s->max - s->start - s->recent) / s->block, scores, must,
              stays)) {
    return false;
  }
  ++count->n_evictions;
  for (uint32_t k = n_blocks; k-- > 0;) {
    by_keys = by_keys || stays[k] == 2;
    if (!stays[k]) Drop(a, s->start + k * s->block, s->block);
  }
  count->n_by_keys += by_keys;
  a->n_queued = 0;
  return true;
}

static void ExpectHeld(const test_model* m, uint32_t layer,
                       const layer_state* a, const char* what) {
  static int32_t positions[kMostSlots];
  for (uint32_t h = 0; h < kHeads; ++h) {
    const uint32_t n = test_model_stored_of(m, layer, h);
    EXPECT(n == a->n, "%s: at %u tokens layer %u holds %u, not %u", what,
           m->n_seen, layer, n, a->n);
    test_model_positions(m, layer, h, positions);
    for (uint32_t i = 0; i < n; ++i) {
      EXPECT(positions[i] == a->position[i],
             "%s: at %u tokens layer %u has %d in slot %u, not %d", what,
             m->n_seen, layer, positions[i], i, a->position[i]);
    }
  }
}

/* The model takes over the library's choice if f32 may decide otherwise than double. */
static void Follow(const test_model* m, uint32_t layer, layer_state* a) {
  a->n = test_model_stored_of(m, layer, 0);
  test_model_positions(m, layer, 0, a->position);
  a->n_queued = 0;
}

/* Observes tokens and takes them back. The call's vector is dropped as well, and
 * what it pushed out of the queue does not come back. */
static void Speculate(test_model* m, const settings* s, layer_state* state,
                      uint32_t n, test_random* random) {
  static test_attention attention;
  test_model_append(m, n);
  for (uint32_t l = 0; l < kLayers; ++l) {
    test_attention_draw(&attention, 1, state[l].n + n, random);
    EXPECT_OK(
        test_attention_observe(m->sequence, l, &attention, n, m->n_seen - n));
    Register(s, &state[l], attention.values[0]);
    --state[l].n_queued;
    --state[l].n_ever;
  }
  m->n_seen -= n;
  EXPECT_OK(kvevict_sequence_trim_to(m->sequence, m->n_seen, NULL));
}

static tally Run(const char* policy, settings s, uint32_t n_prompt,
                 uint32_t n_steps, uint64_t seed) {
  static layer_state state[kLayers];
  static test_attention attention;
  static float total[kMostSlots];
  tally count = {0, 0, 0};
  test_random random = {seed};
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = kLayers;
  spec.n_q_heads = 4;
  spec.n_kv_heads = kHeads;
  spec.k_head_dim = spec.v_head_dim = kDim;
  spec.max_tokens = kMostSlots;
  spec.max_positions = kMostPositions;
  test_model* m = test_model_create(&spec, (test_random){seed});
  memset(state, 0, sizeof state);
  for (uint32_t l = 0; l < kLayers; ++l) {
    test_cache_keys(m->archive[l], kMostPositions, keys[l][0]);
  }
  while (m->n_seen < n_prompt + n_steps) {
    const bool in_prompt = m->n_seen < n_prompt;
    uint32_t n = in_prompt
                     ? 1 + test_random_below(&random, n_prompt - m->n_seen)
                     : 1 + (test_random_below(&random, 4) == 0);
    if (in_prompt && seed % 2 == 0) n = n_prompt;
    if (!in_prompt && test_random_below(&random, 5) == 0) {
      Speculate(m, &s, state, 1 + test_random_below(&random, 3), &random);
    }
    test_model_append(m, n);
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t i = 0; i < n; ++i) {
        state[l].position[state[l].n++] = (int32_t)(m->n_seen - n + i);
      }
      test_attention_draw(&attention, test_random_coin(&random) ? 1 : 4,
                          state[l].n, &random);
      for (uint32_t r = 0; r < attention.n_rows; ++r) {
        for (uint32_t t = 0; t < state[l].n; ++t) { /* some parts matter more */
          if (state[l].position[t] / 16 % 3 != 0) {
            attention.values[r][t] /= 64.0f;
          }
        }
      }
      EXPECT_OK(
          test_attention_observe(m->sequence, l, &attention, n, m->n_seen - n));
      for (uint32_t t = 0; t < state[l].n; ++t) {
        total[t] = 0.0f;
        for (uint32_t r = 0; r < attention.n_rows; ++r) {
          total[t] += attention.values[r][t];
        }
      }
      Register(&s, &state[l], total);
    }
    if (m->n_seen == n_prompt) {
      EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
    }
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    for (uint32_t l = 0; l < kLayers; ++l) {
      if (m->n_seen >= n_prompt && !Evict(&s, &state[l], l, &count)) {
        ++count.n_undecided;
        EXPECT(test_model_stored_of(m, l, 0) < state[l].n, "%s", policy);
        Follow(m, l, &state[l]);
      }
      ExpectHeld(m, l, &state[l], policy);
    }
  }
  test_model_check(m, policy);
  test_model_destroy(m);
  return count;
}

Test(decode_diverse,
     adaptive_r_kv_keeps_the_same_blocks_for_thousands_of_steps) {
  const settings small = {8, 16, 88, 8, 0.9, 8};
  const char* const kSmall =
      "openvino-genai-adaptive-r-kv:budget=95,sink=8,recent=16,select_block=8";
  tally all = {0, 0, 0};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    char text[200];
    settings s = small;
    s.mass = (double[]){0.9, 0.6, 0.3, 1.0}[seed - 1];
    s.queue = (uint32_t[]){8, 8, 3, 1}[seed - 1];
    snprintf(text, sizeof text, "%s,diverse_mass=%g,sum_last=%u", kSmall,
             s.mass, s.queue);
    const tally count = Run(text, s, 60 + 60 * (uint32_t)seed, 700, seed);
    EXPECT(s.mass == 1.0 || count.n_by_keys > 20, "%s: %u of %u by keys", text,
           count.n_by_keys, count.n_evictions);
    all.n_evictions += count.n_evictions;
    all.n_undecided += count.n_undecided;
  }
  const settings whole = {32, 128, 352, 32, 0.9, 8};
  const tally count =
      Run("openvino-genai-adaptive-r-kv:budget=383", whole, 300, 300, 6);
  EXPECT(all.n_evictions > 300 && count.n_evictions > 8, "%u, %u",
         all.n_evictions, count.n_evictions);
  EXPECT(all.n_undecided * 20 < all.n_evictions, "%u of %u undecided",
         all.n_undecided, all.n_evictions);
}

/* ---- Any scores that are a mass, lists of heads, and what must stay ---- */

static void RunCustom(const char* text, settings s, bool of_layer, bool higher,
                      uint32_t n_keep, tally* count, test_random* random) {
  static layer_state a;
  static float scores[kLayers][kHeads][kMostSlots];
  static float rows[kHeads * kMostPositions * kDim];
  test_model_spec spec = test_small_model(text);
  spec.n_layers = kLayers;
  spec.n_kv_heads = kHeads;
  spec.k_head_dim = spec.v_head_dim = kDim;
  test_model* m = test_model_create(&spec, *random);
  for (uint32_t l = 0; l < kLayers; ++l) {
    test_cache_keys(m->archive[l], spec.max_positions, rows);
    for (uint32_t h = 0; h < kHeads; ++h) {
      memcpy(keys[l][h], rows + (size_t)h * spec.max_positions * kDim,
             sizeof(float) * spec.max_positions * kDim);
    }
  }
  a.n = 60 + test_random_below(random, 40);
  for (uint32_t i = 0; i < a.n; ++i) a.position[i] = (int32_t)i;
  test_model_append(m, a.n);
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t t = 0; t < a.n; ++t) {
        scores[l][h][t] = (float)test_random_below(random, 64) /
                          (t / 8 % 3 == 0 ? 64.0f : 4096.0f);
      }
    }
  }
  const int32_t protect = (int32_t)test_random_below(random, a.n);
  test_inputs inputs;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_give_scores(&options, &inputs, kLayers, scores[0][0],
                   kHeads * kMostSlots, kMostSlots);
  options.protected_positions = &protect;
  options.protected_positions_len = 1;
  EXPECT_OK(test_model_evict(m, &options, NULL));
  const uint32_t end = (a.n - s.recent) / s.block * s.block;
  const uint32_t n_blocks = (end - s.start) / s.block;
  const uint32_t n_lost = (a.n - n_keep + s.block - 1) / s.block;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      float sums[kMostSlots];
      uint8_t must[kMostBlocks] = {0}, stays[kMostBlocks];
      for (uint32_t t = 0; t < a.n; ++t) {
        sums[t] =
            of_layer ? scores[l][0][t] + scores[l][1][t] : scores[l][h][t];
      }
      if ((uint32_t)protect >= s.start && (uint32_t)protect < end) {
        must[((uint32_t)protect - s.start) / s.block] = 1;
      }
      if (!Choose(&s, &a, l, of_layer ? 0 : h, of_layer ? kHeads : h + 1,
                  higher, n_blocks, n_blocks - n_lost, sums, must, stays)) {
        ++count->n_undecided;
        continue;
      }
      ++count->n_evictions;
      int32_t positions[kMostSlots];
      test_model_positions(m, l, h, positions);
      uint32_t n = 0;
      for (uint32_t t = 0; t < a.n; ++t) {
        if (t >= s.start && t < end && !stays[(t - s.start) / s.block])
          continue;
        EXPECT(n < test_model_stored_of(m, l, h) && positions[n] == (int32_t)t,
               "%s: layer %u, head %u: %d in slot %u, not %u", text, l, h,
               positions[n], n, t);
        ++n;
      }
      for (uint32_t k = 0; k < n_blocks; ++k) count->n_by_keys += stays[k] == 2;
    }
  }
  test_model_check(m, text);
  test_model_destroy(m);
}

Test(decode_diverse, lists_of_any_scores_keep_what_a_naive_choice_keeps) {
  test_random random = test_random_start("decode_diverse any scores");
  tally count = {0, 0, 0};
  for (uint32_t i = 0; i < 80; ++i) {
    const settings s = {6, 7, 0, 3, (double[]){0.5, 0.8, 0.95}[i % 3], 0};
    const bool of_layer = i % 2 == 0, higher = i / 2 % 2 == 0;
    char text[200];
    snprintf(text, sizeof text,
             "custom:budget=40,sink=5,recent=7,select_block=3,over=sum,"
             "diverse_mass=%g,scope=%s,tie=%s",
             s.mass, of_layer ? "layer" : "head", higher ? "higher" : "lower");
    RunCustom(text, s, of_layer, higher, 40, &count, &random);
  }
  EXPECT(count.n_by_keys > 300 && count.n_undecided * 10 < count.n_evictions,
         "%u lists, %u blocks by keys, %u undecided", count.n_evictions,
         count.n_by_keys, count.n_undecided);
}

Test(decode_diverse, what_does_not_go_together_is_refused) {
  const char* const kText = "custom:budget=40,select_block=4,diverse_mass=0.5";
  test_model_spec spec = test_small_model(kText);
  test_model* m = test_model_create(&spec, (test_random){1});
  test_model_append(m, 90);
  static float scores[4 * 90];
  test_inputs inputs;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0", "scores");
  test_give_scores(&options, &inputs, 2, scores, 180, 90);
  const kvevict_token_range range = {sizeof range, 1, 0, 9};
  options.ranges = &range;
  options.ranges_len = 1;
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "ranges",
                 "diverse_mass 0.5");
  options.ranges_len = 0;
  options.ranges = NULL;
  EXPECT_OK(test_model_evict(m, &options, NULL));
  test_model_destroy(m);
  /* These rows can be moved but not read. */
  spec.k_dtype = KVEVICT_DTYPE_OPAQUE;
  m = test_model_create(&spec, (test_random){1});
  test_model_append(m, 90);
  EXPECT_FAILS(test_model_evict(m, &options, NULL), KVEVICT_ERROR_UNSUPPORTED,
               "layer 0", "cannot score: k_dtype is opaque");
  test_model_destroy(m);
}
