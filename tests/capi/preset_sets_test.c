/* Keep sets of presets, from queries on, against the published rules in double
 * precision. Their numbers are made smaller, so that small models evict. */
#include <math.h>
#include <stdlib.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/oracle/key_scores.h"
#include "tests/oracle/policy.h"
#include "tests/oracle/select.h"

enum { kLayers = 4, kHeads = 2, kMostTokens = 400 };

static test_model* Model(const char* policy, uint64_t seed) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = kLayers;
  spec.max_tokens = spec.max_positions = kMostTokens;
  return test_model_create(&spec, (test_random){seed});
}

/* ---- ChunkKV ---- */

/* kvpress: the window's scores are the greatest of all + 1, scores are summed over the
 * heads, and of chunks of 20, the last one shorter, max(1, int(n * (1 - r))) stay by
 * their means. */
static uint32_t KvpressChunks(double scores[kHeads][kMostTokens], uint32_t n,
                              double kept_ratio, double* chunks,
                              uint32_t* n_chunks) {
  enum { kChunk = 20 };
  double greatest = 0.0;
  for (uint32_t i = 0; i < kHeads * n; ++i) {
    const double s = scores[i / n][i % n];
    if (isfinite(s)) greatest = fmax(greatest, s);
  }
  *n_chunks = 0;
  for (uint32_t begin = 0; begin < n; begin += kChunk) {
    const uint32_t end = begin + kChunk < n ? begin + kChunk : n;
    double sum = 0.0;
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t i = begin; i < end; ++i) {
        sum += isfinite(scores[h][i]) ? scores[h][i] : greatest + 1.0;
      }
    }
    chunks[(*n_chunks)++] = sum / (end - begin);
  }
  const uint32_t n_kept = (uint32_t)(*n_chunks * kept_ratio);
  return n_kept < 1 ? 1 : n_kept;
}

Test(preset_sets, chunkkv_kvpress) {
  static const double kRatios[] = {0.1, 0.25, 0.5, 0.6};
  static const uint32_t kTokens[] = {200, 219, 301, 399, 400};
  for (uint32_t i = 0; i < 20; ++i) {
    const double kept_ratio = 1.0 - kRatios[i % 4];
    const uint32_t n = kTokens[i / 4];
    char text[64];
    snprintf(text, sizeof text, "chunkkv-kvpress:budget=%.17g", kept_ratio);
    test_model* m = Model(text, i + 1);
    test_model_step(m, n);
    double scores[kLayers][kHeads][kMostTokens];
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        test_model_oracle_scores_of(m, l, h, scores[l][h]);
      }
    }
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    for (uint32_t l = 0; l < kLayers; ++l) {
      double chunks[kMostTokens];
      uint32_t n_chunks = 0, n_held = 0;
      const uint32_t n_kept =
          KvpressChunks(scores[l], n, kept_ratio, chunks, &n_chunks);
      int32_t positions[kMostTokens], kept[kMostTokens];
      test_model_positions(m, l, 0, positions);
      const uint32_t stored = test_model_stored(m, l);
      for (uint32_t at = 0; at < stored; ++n_held) {
        kept[n_held] = positions[at] / 20;
        for (int32_t p = kept[n_held] * 20;
             p < (kept[n_held] + 1) * 20 && p < (int32_t)n; ++p, ++at) {
          EXPECT(at < stored && positions[at] == p, "%s of %u: a part of %d",
                 text, n, kept[n_held]);
        }
      }
      const uint8_t forced[kMostTokens] = {0};
      EXPECT(n_held == n_kept, "%s of %u: %u chunks, not %u", text, n, n_held,
             n_kept);
      EXPECT(oracle_selection_is_right(chunks, n_chunks, kept, n_held, forced,
                                       1e-5),
             "%s of %u: layer %u keeps others than the best", text, n, l);
    }
    test_model_check(m, text);
    test_model_destroy(m);
  }
}

/* Where kvpress would drop a part of the window, the budget is too small here. */
Test(preset_sets, chunkkv_kvpress_keeps_the_window) {
  test_model* m = Model("chunkkv-kvpress:budget=0.2", 1);
  test_model_step(m, 300); /* 3 chunks; 64 tokens lie in 4 */
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "sink 0 + window 64",
                 "budget 60");
  test_model_destroy(m);
}

/* ---- KeyDiff by blocks ---- */

/* kvpress: kept = the first n_kept = int(S * (1 - r)) tokens; of kept and the next 128 the
 * n_kept best by KeyDiff of just these, and so on; n_kept of a layer where they differ. */
Test(preset_sets, keydiff_block_kvpress) {
  static const char* const kTexts[] = {
      "keydiff-block-kvpress", "keydiff-block-kvpress:budget=0.25",
      "keydiff-block-kvpress:budget=100,block=20",
      "keydiff-block-kvpress:budget=60,block=7,split=geometric,alpha=0.9"};
  static const uint32_t kTokens[] = {130, 256, 400, 399};
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t n = kTokens[i];
    /* Heads in which f32 may choose otherwise, next to a cut, say nothing: keys around 0
     * have a short mean, and more of these. */
    uint32_t n_told = 0;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      test_model* m = Model(kTexts[i], seed);
      test_model_append(m, n);
      uint32_t budgets[kLayers];
      EXPECT_OK(kvevict_policy_layer_budgets(&m->policy, n, budgets, kLayers));
      double scores[kLayers][kHeads][kMostTokens];
      bool is_told[kLayers][kHeads];
      for (uint32_t l = 0; l < kLayers; ++l) {
        for (uint32_t h = 0; h < kHeads; ++h) {
          static float queries[2 * kMostTokens * 16], keys[kMostTokens * 16];
          double norms[kMostTokens], bounds[kMostTokens];
          test_model_read_rows(m, l, h, queries, keys, norms);
          is_told[l][h] =
              oracle_key_diff_blocks(keys, n, 16, budgets[l], m->policy.block,
                                     0, scores[l][h], bounds) > 0.0;
          n_told += is_told[l][h];
        }
      }
      EXPECT_OK(test_model_evict(m, NULL, NULL));
      for (uint32_t l = 0; l < kLayers; ++l) {
        for (uint32_t h = 0; h < kHeads; ++h) {
          int32_t kept[kMostTokens];
          test_model_positions(m, l, h, kept);
          const uint32_t n_kept = test_model_stored_of(m, l, h);
          EXPECT(n_kept == budgets[l], "%s of %u: layer %u keeps %u", kTexts[i],
                 n, l, n_kept);
          for (uint32_t at = 0, t = 0; is_told[l][h] && t < n; ++t) {
            const bool is_kept = at < n_kept && kept[at] == (int32_t)t;
            at += is_kept;
            EXPECT(is_kept == (n_kept == n || scores[l][h][t] > -2.0),
                   "%s of %u: layer %u, head %u, token %u", kTexts[i], n, l, h,
                   t);
          }
        }
      }
      test_model_check(m, kTexts[i]);
      test_model_destroy(m);
    }
    EXPECT(n_told >= kLayers * kHeads, "%s: %u heads can be told", kTexts[i],
           n_told);
  }
}

/* Sinks, recent and protected tokens take places of the worst that stayed. */
Test(preset_sets, keydiff_by_blocks_keeps_what_must_stay) {
  test_model* m = Model("keydiff:budget=50,block=16,sink=3,recent=5", 7);
  test_model_append(m, 200);
  const int32_t protect[] = {20, 77, 120};
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.protected_positions = protect;
  options.protected_positions_len = 3;
  EXPECT_OK(test_model_evict(m, &options, NULL));
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      int32_t kept[kMostTokens];
      test_model_positions(m, l, h, kept);
      uint32_t n_forced = 0;
      for (uint32_t i = 0; i < 50; ++i) {
        n_forced += kept[i] < 3 || kept[i] >= 195 || kept[i] == 20 ||
                    kept[i] == 77 || kept[i] == 120;
      }
      EXPECT(test_model_stored_of(m, l, h) == 50 && n_forced == 11,
             "layer %u, head %u: %u of what must stay", l, h, n_forced);
    }
  }
  test_model_destroy(m);
}

/* ---- Pyramids ---- */

/* c = cap - W; min = c // beta; max = 2c - min; if max >= S - W {max = S - W; min = 2c -
 * max}; step = (max - min) // (L - 1); layer l keeps max - l * step past tokens and the
 * window. KVCache-Factory keeps the cap in every layer where S < 2c. */
static uint32_t IntegerSteps(uint32_t cap, uint32_t window, uint32_t seen,
                             uint32_t l, bool is_kvf) {
  const int c = (int)cap - (int)window;
  if (is_kvf && (int)seen < 2 * c) return cap;
  int min = c / 20, max = 2 * c - min;
  if (max >= (int)(seen - window)) {
    max = (int)(seen - window);
    min = 2 * c - max;
  }
  const int kept = max - (int)l * ((max - min) / (kLayers - 1)) + (int)window;
  return kept < (int)seen ? (uint32_t)kept : seen;
}

/* kvpress: window on top of the budget; n_l = round(max - l (max - min) / (L - 1)). */
static uint32_t RealSteps(double ratio, uint32_t window, uint32_t seen,
                          uint32_t l) {
  const double cap = window + seen * ratio;
  double min = (cap - window) / 20.0, max = (cap - window) * 2 - min;
  if (max >= seen - window) {
    max = seen - window;
    min = (cap - window) * 2 - max;
  }
  if (!(seen >= max && max >= min && min >= window)) {
    return (uint32_t)nearbyint(seen * ratio);
  }
  return (uint32_t)nearbyint(max - l * (max - min) / (kLayers - 1));
}

static void ExpectPyramid(const char* text, uint32_t seen,
                          const uint32_t* expected) {
  test_model* m = Model(text, seen);
  test_model_step(m, seen);
  const uint32_t window = m->policy.obs_window;
  double scores[kLayers][kHeads][kMostTokens];
  double largest = 0.0;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      test_model_oracle_scores_of(m, l, h, scores[l][h]);
      for (uint32_t i = 0; i < seen - window; ++i) {
        largest = fmax(largest, scores[l][h][i]);
      }
    }
  }
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  uint8_t forced[kMostTokens] = {0};
  memset(forced + seen - window, 1, window);
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      const uint32_t n = test_model_stored_of(m, l, h);
      int32_t kept[kMostTokens];
      EXPECT(n == expected[l], "%s of %u: layer %u keeps %u, not %u", text,
             seen, l, n, expected[l]);
      test_model_positions(m, l, h, kept);
      EXPECT(oracle_selection_is_right(scores[l][h], seen, kept, n, forced,
                                       1e-5 * largest),
             "%s of %u: layer %u, head %u keeps others than the best", text,
             seen, l, h);
    }
  }
  test_model_check(m, text);
  test_model_destroy(m);
}

Test(preset_sets, pyramidkv_of_every_source) {
  static const uint32_t kTokens[] = {101, 130, 168, 190, 300, 400};
  for (size_t i = 0; i < sizeof kTokens / sizeof kTokens[0]; ++i) {
    const uint32_t seen = kTokens[i];
    uint32_t kvf[kLayers], adakv[kLayers], kvpress[kLayers];
    for (uint32_t l = 0; l < kLayers; ++l) {
      kvf[l] = IntegerSteps(100, 32, seen, l, true);
      adakv[l] = IntegerSteps(100, 32, seen, l, false);
      kvpress[l] = RealSteps(0.5, 8, seen, l);
    }
    ExpectPyramid("pyramidkv-kvf:budget=100", seen, kvf);
    ExpectPyramid("pyramidkv-adakv:budget=100", seen, adakv);
    ExpectPyramid("pyramidkv-kvpress:budget=0.5,window=8", seen, kvpress);
  }
  /* In the context under 2c only AdaKV's are unlike. */
  cr_expect_eq(IntegerSteps(100, 32, 130, 0, true), 100);
  cr_expect_eq(IntegerSteps(100, 32, 130, 0, false), 130);
}

Test(preset_sets, snapkv_kvf_keeps_the_same_everywhere) {
  const uint32_t expected[kLayers] = {100, 100, 100, 100};
  ExpectPyramid("snapkv-kvf:budget=100", 300, expected);
}
