#include "tests/capi/support/blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/select.h"

enum { kTokens = TEST_CHOICE_TOKENS };

/* The whole blocks between both ends that must stay. */
typedef struct middle {
  uint32_t begin, n_blocks;
} middle;

static middle MiddleOf(const oracle_policy* p, uint32_t n) {
  const uint32_t block = p->select_block, last = test_last_of(p);
  const uint32_t begin = (p->sink + block - 1) / block * block;
  const uint32_t end = last < n ? (n - last) / block * block : 0;
  return (middle){begin, end > begin ? (end - begin) / block : 0};
}

/* ---- Rescue ---- */

/* Marks the better half, NaN last; of equal slots the first ones. */
static void FindBits(const float* marks, uint32_t n, uint8_t* bits) {
  memset(bits, 0, n);
  for (uint32_t marked = 0; marked < n / 2; ++marked) {
    uint32_t best = n;
    for (uint32_t i = 0; i < n; ++i) {
      if (bits[i]) continue;
      if (best == n || marks[i] > marks[best] ||
          (isnan(marks[best]) && !isnan(marks[i]))) {
        best = i;
      }
    }
    bits[best] = 1;
  }
}

/* The number of places where a block's bits are not the anchor's. */
static uint32_t DistanceOf(const oracle_policy* p, const uint8_t* bits,
                           uint32_t n_blocks, uint32_t k) {
  const uint32_t block = p->select_block;
  uint32_t distance = 0;
  for (uint32_t j = 0; j < block; ++j) {
    uint32_t n_set = 0;
    for (uint32_t i = 0; i < n_blocks; ++i) n_set += bits[i * block + j];
    const uint32_t anchors[] = {(double)n_set / n_blocks > 0.5, 0, 1, j % 2};
    distance += bits[k * block + j] != anchors[p->anchor];
  }
  return distance;
}

void test_rescue_blocks(const oracle_policy* p, const float* marks, uint32_t n,
                        uint32_t n_rescued, uint8_t* stays) {
  const middle m = MiddleOf(p, n);
  uint8_t bits[kTokens];
  uint32_t distances[kTokens], sorted[kTokens], n_go = 0;
  FindBits(marks + m.begin, m.n_blocks * p->select_block, bits);
  for (uint32_t k = 0; k < m.n_blocks; ++k) {
    distances[k] = DistanceOf(p, bits, m.n_blocks, k);
    if (stays[m.begin + k * p->select_block]) continue;
    uint32_t at = n_go++;
    for (; at > 0 && distances[sorted[at - 1]] > distances[k]; --at) {
      sorted[at] = sorted[at - 1];
    }
    sorted[at] = k;
  }
  const uint32_t step = n_go / n_rescued;
  for (uint32_t i = 0; i < n_rescued; ++i) {
    memset(stays + m.begin + sorted[i * step] * p->select_block, 1,
           p->select_block);
  }
}

/* ---- Blocks that differ ---- */

/* The directions of the keys in the middle, [n, k_head_dim]. */
static double* DirectionsOf(const test_model* m, uint32_t l, uint32_t h,
                            const int32_t* positions, uint32_t n) {
  const test_cache* c = m->archive[l];
  const uint32_t dim = m->spec.k_head_dim;
  double* const out = malloc(((size_t)n * dim + 1) * sizeof *out);
  for (uint32_t i = 0; i < n; ++i) {
    double squares = 0x1p-23;
    for (uint32_t e = 0; e < dim; ++e) {
      const double x =
          test_cache_get(c, &c->view.k, (uint32_t)positions[i], h, e);
      out[i * dim + e] = x;
      squares += x * x;
    }
    for (uint32_t e = 0; e < dim; ++e) out[i * dim + e] /= sqrt(squares);
  }
  return out;
}

/* Adds a head's similarity of blocks that are not taken, over their slots. `doubt` gets
 * how far rounding and entries near a row's mean may change a sum. */
static void AddSimilarity(const test_model* m, const double* directions,
                          uint32_t n_blocks, const uint8_t* taken,
                          double* similarity, double* doubt) {
  const uint32_t block = m->policy.select_block, n = n_blocks * block;
  const uint32_t dim = m->spec.k_head_dim;
  /* f32 directions, cosines and means, and units of 2^-24. */
  const double unit = (dim + 12) * 0x1p-24;
  for (uint32_t i = 0; i < n; ++i) {
    if (taken[i / block]) continue;
    double cosines[kTokens], mean = 0.0;
    for (uint32_t j = 0; j < n; ++j) {
      cosines[j] = 0.0;
      for (uint32_t e = 0; e < dim && i != j; ++e) {
        cosines[j] += directions[i * dim + e] * directions[j * dim + e];
      }
      mean += cosines[j] / n;
    }
    for (uint32_t j = 0; j < n; ++j) {
      if (taken[j / block]) continue;
      doubt[i / block] += unit;
      if (fabs(cosines[j] - mean) < 4 * unit) {
        doubt[i / block] += fabs(cosines[j]);
      }
      if (cosines[j] >= mean) similarity[i / block] += cosines[j];
    }
  }
}

/* Takes the best blocks until they have the share of the mass. False if rounding may
 * decide; scores below 0 are no mass. */
static bool TakeByMass(const oracle_policy* p, const test_choice_head* head,
                       middle m, uint32_t n_most, uint8_t* taken,
                       uint32_t* n_taken) {
  const uint32_t block = p->select_block, n_ends = head->n - m.n_blocks * block;
  float scores[kTokens];
  double masses[kTokens] = {0}, total = 0.0;
  int32_t keep[kTokens];
  *n_taken = 0;
  for (uint32_t i = 0; i < head->n; ++i) scores[i] = (float)head->scores[i];
  for (uint32_t k = 0; k < m.n_blocks; ++k) {
    bool must = false;
    for (uint32_t i = m.begin + k * block; i < m.begin + (k + 1) * block; ++i) {
      if (scores[i] < 0) return false;
      if (isfinite(scores[i])) masses[k] += (double)scores[i];
      must = must || head->forced[i];
    }
    total += masses[k];
    *n_taken += must;
  }
  for (;; ++*n_taken) {
    const uint32_t n = n_ends + *n_taken * block;
    double sum = 0.0;
    oracle_select_ranked(scores, head->ranks, head->n, n, head->forced, block,
                         p->tie, keep);
    memset(taken, 0, m.n_blocks);
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t slot = (uint32_t)keep[i];
      const uint32_t k = (slot - m.begin) / block;
      if (slot < m.begin || k >= m.n_blocks || taken[k]) continue;
      taken[k] = 1;
      sum += masses[k];
    }
    if (*n_taken >= n_most) return true;
    const double apart = sum - p->diverse_mass * total;
    if (fabs(apart) < 1e-5 * total) return false;
    if (apart >= 0) return true;
  }
}

bool test_keep_diverse_blocks(const test_model* model, uint32_t l, uint32_t h,
                              const test_choice_head* head, uint32_t n_keep,
                              uint8_t* stays, bool* by_keys) {
  const oracle_policy* p = &model->policy;
  const middle m = MiddleOf(p, head->n);
  const uint32_t block = p->select_block, n = m.n_blocks * block;
  const uint32_t n_most = (n_keep - (head->n - n)) / block;
  const bool of_layer = p->scope == KVEVICT_SCOPE_LAYER;
  uint8_t taken[kTokens];
  uint32_t n_taken;
  double similarity[kTokens] = {0}, doubt[kTokens] = {0}, gap = INFINITY;
  if (!TakeByMass(p, head, m, n_most, taken, &n_taken)) return false;
  *by_keys = n_taken < n_most;
  for (uint32_t i = 0; *by_keys && i < model->spec.n_kv_heads; ++i) {
    if (!of_layer && i != h) continue;
    double* const directions =
        DirectionsOf(model, l, i, head->positions + m.begin, n);
    AddSimilarity(model, directions, m.n_blocks, taken, similarity, doubt);
    free(directions);
  }
  for (; n_taken < n_most; ++n_taken) {
    uint32_t least = m.n_blocks;
    for (uint32_t k = 0; k < m.n_blocks; ++k) {
      if (taken[k]) continue;
      if (least == m.n_blocks || similarity[k] < similarity[least]) least = k;
    }
    taken[least] = 2;
  }
  memset(stays, 1, head->n);
  for (uint32_t k = 0; k < m.n_blocks; ++k) {
    if (taken[k] == 0) memset(stays + m.begin + k * block, 0, block);
    for (uint32_t j = 0; taken[k] == 2 && j < m.n_blocks; ++j) {
      if (taken[j]) continue;
      gap = fmin(gap, similarity[j] - similarity[k] - doubt[j] - doubt[k]);
    }
  }
  return gap > 0.0;
}
