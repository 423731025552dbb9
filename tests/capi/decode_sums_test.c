/* Attention sums while decoding, against naive models of published code over whole
 * trajectories: the same tokens stay after every step. */
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/attention.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

enum { kLayers = 2, kMostSlots = 900, kMostPositions = 4096 };

/* The slots of one keep list, with the attention each has received. */
typedef struct held {
  uint32_t n;
  int32_t position[kMostSlots];
  double sum[kMostSlots];
  double n_saw[kMostSlots]; /* the number of queries that could see it */
} held;

static void Drop(held* a, uint32_t first, uint32_t n) {
  const uint32_t rest = a->n - first - n;
  memmove(a->position + first, a->position + first + n, rest * sizeof(int32_t));
  memmove(a->sum + first, a->sum + first + n, rest * sizeof(double));
  memmove(a->n_saw + first, a->n_saw + first + n, rest * sizeof(double));
  a->n -= n;
}

static void Append(held* a, uint32_t n, uint32_t first_position) {
  for (uint32_t i = 0; i < n; ++i, ++a->n) {
    a->position[a->n] = (int32_t)(first_position + i);
    a->sum[a->n] = a->n_saw[a->n] = 0.0;
  }
}

static void ExpectHeld(const test_model* m, uint32_t layer, uint32_t head,
                       const held* a, const char* what) {
  static int32_t positions[kMostSlots];
  const uint32_t n = test_model_stored_of(m, layer, head);
  EXPECT(n == a->n, "%s: at %u tokens head %u of layer %u holds %u, not %u",
         what, m->n_seen, head, layer, n, a->n);
  test_model_positions(m, layer, head, positions);
  for (uint32_t i = 0; i < n; ++i) {
    EXPECT(positions[i] == a->position[i],
           "%s: at %u tokens head %u of layer %u has %d in slot %u, not %d",
           what, m->n_seen, head, layer, positions[i], i, a->position[i]);
  }
}

static test_model* Model(const char* policy, uint32_t n_q_heads,
                         uint64_t seed) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = kLayers;
  spec.n_q_heads = n_q_heads;
  spec.k_head_dim = spec.v_head_dim = 4;
  spec.max_tokens = kMostSlots;
  spec.max_positions = kMostPositions;
  return test_model_create(&spec, (test_random){seed});
}

/* ---- H2O: H2OKVCache_LayerWise, called after the attention of every step ---- */

/* Keeps the last `recent` tokens and the `heavy` best of the others. */
static void EvictH2o(held* a, uint32_t heavy, uint32_t recent) {
  while (a->n > heavy + recent) {
    uint32_t least = 0;
    for (uint32_t i = 1; i < a->n - recent; ++i) {
      if (a->sum[i] <= a->sum[least]) least = i; /* the latest ties go */
    }
    Drop(a, least, 1);
  }
}

static void RunH2o(const char* policy, uint32_t heavy, uint32_t recent,
                   uint32_t group, uint32_t n_steps, uint64_t seed) {
  static held state[kLayers][2];
  static test_attention attention;
  test_random random = {seed};
  test_model* m = Model(policy, 2 * group, seed);
  memset(state, 0, sizeof state);
  uint32_t n = 150; /* the prompt, in chunks */
  for (uint32_t step = 0; step < n_steps; ++step) {
    const bool first = test_random_coin(&random);
    if (first) test_model_append(m, n);
    for (uint32_t l = 0; l < kLayers; ++l) {
      const uint32_t n_slots = state[l][0].n + n;
      test_attention_draw(&attention, 2 * group, n_slots, &random);
      EXPECT_OK(test_attention_observe(m->sequence, l, &attention, n,
                                       m->n_seen - (first ? n : 0)));
      for (uint32_t h = 0; h < 2; ++h) {
        Append(&state[l][h], n, m->n_seen - (first ? n : 0));
        for (uint32_t t = 0; t < n_slots; ++t) {
          for (uint32_t g = 0; g < group; ++g) {
            state[l][h].sum[t] +=
                (double)attention.values[h * group + g][t] / group;
          }
        }
      }
    }
    if (!first) test_model_append(m, n);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < 2; ++h) {
        EvictH2o(&state[l][h], heavy, recent);
        ExpectHeld(m, l, h, &state[l][h], policy);
      }
    }
    n = step < 3 ? 1 + test_random_below(&random, 60) : 1;
  }
  test_model_check(m, policy);
  test_model_destroy(m);
}

Test(decode_sums, h2o_keeps_heavy_hitters_and_recents_for_thousands_of_steps) {
  RunH2o("h2o:budget=64,recent=32", 32, 32, 1, 3500, 1);
  RunH2o("h2o:budget=24,recent=4", 20, 4, 2, 1500, 2);
  RunH2o("h2o:budget=24,recent=4,sums=query", 20, 4, 4, 500, 3);
  RunH2o("h2o-original:budget=300,recent=200", 100, 200, 1, 600, 4);
}

/* ---- OpenVINO GenAI: cache/cache_eviction.cpp ---- */

typedef struct openvino {
  uint32_t start, recent, max, block;
  bool normalizes;
  uint32_t snapkv_window; /* 0: all rows of the prompt */
  uint32_t n_window;      /* rows of it counted so far */
  uint32_t rescue;        /* KVCrush's budget */
  uint32_t anchor;        /* mean, zeros, ones, alternating */
} openvino;

/* Adds one vector of scores of m query rows, the last of which is the last slot's. */
static void Register(const openvino* o, held* a, const float* scores,
                     uint32_t n_scores, uint32_t m, bool fills_window,
                     uint32_t n_window) {
  EXPECT(n_scores == a->n, "%u scores of %u slots", n_scores, a->n);
  for (uint32_t t = o->start; t < a->n; ++t) {
    double pooled = scores[t];
    for (uint32_t i = t + 1; i < t + 7 && i < a->n; ++i) {
      if (scores[i] > pooled) pooled = scores[i];
    }
    a->sum[t] += pooled;
    if (fills_window) {
      /* The counters become n, n - 1, .. 1, bounded by the window. */
      const uint32_t back = a->n - t;
      a->n_saw[t] = back < n_window ? back : n_window;
    } else {
      a->n_saw[t] += a->n - t < m ? a->n - t : m;
    }
  }
}

static double BlockScore(const openvino* o, const held* a, uint32_t block) {
  double score = 0.0;
  for (uint32_t t = block * o->block; t < (block + 1) * o->block; ++t) {
    score += o->normalizes ? a->sum[t] / a->n_saw[t] : a->sum[t];
  }
  return score;
}

/* ---- KVCrush: cache/kvcrush.cpp ---- */

/* 1 for the half of all blocks' rows with the largest sums. */
static void FindIndicators(const openvino* o, const held* a, uint32_t n_blocks,
                           uint8_t* indicators) {
  const uint32_t n = n_blocks * o->block;
  const double* const sums = a->sum + o->start;
  memset(indicators, 0, n);
  for (uint32_t marked = 0; marked < n / 2; ++marked) {
    uint32_t best = n;
    for (uint32_t i = 0; i < n; ++i) {
      if (!indicators[i] && (best == n || sums[i] > sums[best])) best = i;
    }
    indicators[best] = 1;
  }
}

static uint32_t Distance(const openvino* o, const uint8_t* indicators,
                         uint32_t n_blocks, uint32_t block) {
  uint32_t distance = 0;
  for (uint32_t j = 0; j < o->block; ++j) {
    uint32_t n_set = 0;
    for (uint32_t k = 0; k < n_blocks; ++k)
      n_set += indicators[k * o->block + j];
    const uint32_t anchors[] = {(double)n_set / n_blocks > 0.5, 0, 1, j % 2};
    distance += indicators[block * o->block + j] != anchors[o->anchor];
  }
  return distance;
}

/* Takes the rescued blocks out of those that go. */
static void Crush(const openvino* o, const held* a, uint32_t n_blocks,
                  uint32_t n_go, uint8_t* goes) {
  static uint8_t indicators[kMostSlots];
  uint32_t distance[kMostSlots], sorted[kMostSlots], n = 0;
  FindIndicators(o, a, n_blocks, indicators);
  for (uint32_t k = 0; k < n_blocks; ++k) {
    distance[k] = Distance(o, indicators, n_blocks, k);
    if (!goes[k]) continue;
    uint32_t at = n++;
    for (; at > 0 && distance[sorted[at - 1]] > distance[k]; --at) {
      sorted[at] = sorted[at - 1];
    }
    sorted[at] = k;
  }
  const uint32_t step = n_go / (n_go < o->rescue ? n_go : o->rescue);
  for (uint32_t i = 0; i < o->rescue; ++i) goes[sorted[i * step]] = 0;
}

static void EvictOpenvino(const openvino* o, held* a) {
  if (a->n < o->max + o->block) return;
  const uint32_t begin = o->start / o->block;
  const uint32_t n_blocks = a->n / o->block - o->recent / o->block - begin;
  const uint32_t n_kept = (o->max - o->start - o->recent) / o->block;
  const uint32_t n_go = n_blocks - n_kept;
  uint8_t goes[kMostSlots] = {0};
  for (uint32_t i = 0; i < n_go; ++i) {
    uint32_t least = n_blocks;
    for (uint32_t k = 0; k < n_blocks; ++k) {
      if (!goes[k] &&
          (least == n_blocks ||
           BlockScore(o, a, begin + k) < BlockScore(o, a, begin + least))) {
        least = k;
      }
    }
    goes[least] = 1;
  }
  if (o->rescue > 0 && n_go >= o->rescue) Crush(o, a, n_blocks, n_go, goes);
  for (uint32_t k = n_blocks; k-- > 0;) {
    if (goes[k]) Drop(a, (begin + k) * o->block, o->block);
  }
}

/* Observes the sum over heads, or each query head's weights. */
static void Show(test_model* m, uint32_t layer, test_attention* attention,
                 uint32_t n_rows, uint32_t first_position, float* total) {
  EXPECT_OK(test_attention_observe(m->sequence, layer, attention, n_rows,
                                   first_position));
  for (uint32_t t = 0; t < attention->n_slots; ++t) {
    total[t] = 0.0f;
    for (uint32_t r = 0; r < attention->n_rows; ++r) {
      total[t] += attention->values[r][t];
    }
  }
}

static void RunOpenvino(const char* policy, openvino o, uint32_t n_prompt,
                        uint32_t n_steps, uint64_t seed) {
  static held state[kLayers];
  static test_attention attention;
  static float total[kMostSlots];
  test_random random = {seed};
  test_model* m = Model(policy, 4, seed);
  memset(state, 0, sizeof state);
  while (m->n_seen < n_prompt + n_steps) {
    const bool in_prompt = m->n_seen < n_prompt;
    const uint32_t n =
        in_prompt ? 1 + test_random_below(&random, n_prompt - m->n_seen) : 1;
    const uint32_t end = m->n_seen + n;
    uint32_t n_rows = n; /* rows whose weights are summed */
    if (in_prompt && o.snapkv_window > 0) {
      const int64_t counted = (int64_t)end - n_prompt + o.snapkv_window;
      n_rows = counted < 0 ? 0 : counted < n ? (uint32_t)counted : n;
    }
    const bool appended = test_random_coin(&random);
    if (appended) test_model_append(m, n);
    const bool fills = in_prompt && o.snapkv_window > 0;
    if (fills) o.n_window += n_rows;
    for (uint32_t l = 0; l < kLayers; ++l) {
      Append(&state[l], n, end - n);
      if (n_rows == 0) continue;
      test_attention_draw(&attention, test_random_coin(&random) ? 1 : 4,
                          state[l].n, &random);
      Show(m, l, &attention, n_rows, end - n_rows, total);
      Register(&o, &state[l], total, state[l].n, n_rows, fills, o.n_window);
    }
    if (!appended) test_model_append(m, n);
    if (end == n_prompt) EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    for (uint32_t l = 0; l < kLayers; ++l) {
      if (end >= n_prompt) EvictOpenvino(&o, &state[l]);
      for (uint32_t h = 0; h < 2; ++h) ExpectHeld(m, l, h, &state[l], policy);
    }
  }
  test_model_check(m, policy);
  test_model_destroy(m);
}

Test(decode_sums,
     openvino_genai_evicts_the_same_blocks_for_thousands_of_steps) {
  const openvino small = {8, 16, 48, 8, true, 8, 0, 0, 0};
  openvino sum = small, all = small,
           whole = {32, 128, 672, 32, true, 8, 0, 0, 0};
  sum.normalizes = false;
  all.snapkv_window = 0;
  const char* const kSmall =
      "openvino-genai:budget=55,sink=8,recent=16,"
      "select_block=8";
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    RunOpenvino(kSmall, small, 100, 700, seed);
    RunOpenvino(kSmall, all, 100, 700, 10 + seed);
    RunOpenvino("openvino-genai-sum:budget=55,sink=8,recent=16,select_block=8",
                sum, 3 + 40 * (uint32_t)seed, 700, 20 + seed);
  }
  RunOpenvino(kSmall, small, 5, 2500, 30); /* a prompt within the window */
  RunOpenvino("openvino-genai", whole, 800, 400, 40);
  whole.normalizes = false;
  RunOpenvino("openvino-genai-sum", whole, 300, 900, 41);
}

/* Rescued blocks are on top of the budget, so the cache is longer by them. */
Test(decode_sums, kvcrush_rescues_the_same_blocks) {
  static const char* const kAnchors[] = {"mean", "zeros", "ones",
                                         "alternating"};
  for (uint32_t anchor = 0; anchor < 4; ++anchor) {
    for (uint32_t rescue = 1; rescue <= 3; ++rescue) {
      const openvino o = {8, 16, 48,     8,     (anchor + rescue) % 2 == 0,
                          8, 0,  rescue, anchor};
      char text[200];
      snprintf(text, sizeof text,
               "openvino-genai%s:budget=55,sink=8,recent=16,select_block=8,"
               "rescue=%u,anchor=%s",
               o.normalizes ? "" : "-sum", rescue, kAnchors[anchor]);
      RunOpenvino(text, o, 20 + 60 * rescue, 250, 50 + 4 * rescue + anchor);
    }
  }
}
