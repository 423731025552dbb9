/* Evictions keep what the oracle scores highest: by every kind of policy, one eviction
 * after the other, where positions are no slots and heads hold different tokens. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/signals.h"

enum { kLayers = 2, kMostHeads = 3, kMost = 100 };

/* What all heads hold, and what it should score. */
typedef struct held {
  uint32_t n[kLayers][kMostHeads];
  int32_t positions[kLayers][kMostHeads][kMost];
  double scores[kLayers][kMostHeads * kMost],
      bounds[kLayers][kMostHeads * kMost];
} held;

/* Combines the scores of lists that share one. */
static void Combine(const oracle_policy* p, uint32_t n_heads, uint32_t stride,
                    held* all) {
  if (p->scope == KVEVICT_SCOPE_KV_HEAD) return;
  const bool is_model = p->scope == KVEVICT_SCOPE_MODEL;
  for (uint32_t l = 0; l < (is_model ? 1 : kLayers); ++l) {
    const uint32_t n_rows = is_model ? kLayers * n_heads : n_heads;
    for (uint32_t t = 0; t < stride; ++t) {
      double value = p->over == KVEVICT_REDUCE_MAX ? -INFINITY : 0.0;
      double bound = 0.0, sum = 0.0;
      for (uint32_t r = 0; r < n_rows; ++r) {
        const uint32_t at = r % n_heads * stride + t;
        const double score = all->scores[l + r / n_heads][at];
        const double off = all->bounds[l + r / n_heads][at];
        const bool is_max = p->over == KVEVICT_REDUCE_MAX;
        value = is_max ? fmax(value, score) : value + score;
        bound = is_max ? fmax(bound, off) : bound + off;
        sum += fabs(score);
      }
      const double n = p->over == KVEVICT_REDUCE_MEAN ? n_rows : 1;
      bound += n_rows * 0x1p-24 * sum;
      for (uint32_t r = 0; r < n_rows; ++r) {
        const uint32_t at = r % n_heads * stride + t;
        all->scores[l + r / n_heads][at] = value / n;
        all->bounds[l + r / n_heads][at] = bound / n;
      }
    }
  }
}

/* The least that stays is no worse than the best that goes: in a chunk of a head, in a
 * head or, where heads compete, in the layer. Returns how many tokens went. */
static uint32_t ExpectBest(const test_signals* s, const held* before,
                           uint32_t stride, const char* policy, int round) {
  const oracle_policy* p = &s->m->policy;
  uint32_t n_lost = 0;
  for (uint32_t l = 0; l < kLayers; ++l) {
    double least = INFINITY, most = -INFINITY;
    uint32_t n_kept = 0;
    for (uint32_t h = 0; h < s->m->spec.n_kv_heads; ++h) {
      int32_t kept[kMost];
      const uint32_t n = before->n[l][h];
      const uint32_t n_stay = test_model_stored_of(s->m, l, h);
      test_model_positions(s->m, l, h, kept);
      n_kept += n_stay;
      const uint32_t chunk = p->chunk == 0 ? kMost : p->chunk;
      uint32_t sink = p->sink, recent = p->recent;
      if (test_has_window(p) && p->keep_window && p->window > recent) {
        recent = p->window;
      }
      for (uint32_t t = 0, next = 0; t < n; ++t) {
        const bool stays =
            next < n_stay && kept[next] == before->positions[l][h][t];
        const uint32_t at = h * stride + t;
        if (t % chunk == 0 && p->heads == ORACLE_HEADS_EQUAL) {
          least = INFINITY;
          most = -INFINITY;
        }
        const bool must = t % chunk < sink || t + recent >= n;
        next += stays;
        n_lost += !stays;
        EXPECT(stays || !must, "%s: round %d, layer %u, head %u lost slot %u",
               policy, round, l, h, t);
        const double score = before->scores[l][at], off = before->bounds[l][at];
        if (must || isnan(score)) continue; /* which is last */
        /* A head keeps its best token, whatever the others hold. */
        const bool alone = p->heads != ORACLE_HEADS_EQUAL && n_stay <= 1;
        if (stays && !alone) least = fmin(least, score + off);
        if (!stays) most = fmax(most, score - off);
        EXPECT(
            least >= most,
            "%s: round %d, layer %u, head %u, slot %u: kept %.9g and lost %.9g",
            policy, round, l, h, t, least, most);
      }
    }
    EXPECT(n_kept == s->m->spec.n_kv_heads *
                         (before->n[l][0] < 40 ? before->n[l][0] : 40) ||
               p->heads != ORACLE_HEADS_EQUAL,
           "%s: round %d: %u stay", policy, round, n_kept);
  }
  return n_lost;
}

/* Fills in what the layer's slots should score, chunk by chunk. False if f32 may find
 * otherwise. */
static bool Expect(test_signals* s, uint32_t layer, held* before) {
  const uint32_t n_heads = s->m->spec.n_kv_heads;
  const uint32_t chunk = s->m->policy.chunk;
  bool is_told = true;
  for (s->first = 0; s->first == 0 || s->first < before->n[layer][0];) {
    uint32_t counts[kMostHeads];
    const int32_t* positions[kMostHeads];
    for (uint32_t h = 0; h < n_heads; ++h) {
      const uint32_t left = before->n[layer][h] - s->first;
      counts[h] = chunk == 0 || left < chunk ? left : chunk;
      positions[h] = before->positions[layer][h] + s->first;
    }
    is_told &= test_signals_expect(s, layer, counts, positions, s->m->n_seen,
                                   before->scores[layer] + s->first,
                                   before->bounds[layer] + s->first);
    if (chunk == 0) break;
    s->first += chunk;
  }
  s->first = 0;
  return is_told;
}

/* False if the policy drawn has no room for what must stay. */
static bool Live(const char* kind, bool has_chunks, test_random* random,
                 uint32_t* n_evicted) {
  static const char* const kScopes[] = {
      "scope=head",           "scope=head",
      "scope=layer,over=max", "scope=layer",
      "scope=model,over=sum", "scope=head,heads=adaptive,floor=0"};
  const bool at_end = strcmp(kind, "non-causal") == 0;
  char more[120], policy[TEST_POLICY_TEXT];
  snprintf(more, sizeof more, "budget=40,split=uniform,%s%s",
           kScopes[test_random_below(random, has_chunks ? 5 : 6)],
           has_chunks ? ",recent=0,chunk=48" : "");
  test_draw_scoring(kind, more, random, policy);
  const oracle_policy p = oracle_policy_from(policy);
  if (test_has_window(&p) && p.window > 20) return false;
  if (p.sink + p.recent + p.window > 40) return false;
  test_signals* s = test_signals_create(policy, kLayers, kMost, false, random);
  const uint32_t n_heads = s->m->spec.n_kv_heads;
  static held before;
  for (int round = 0; round < (at_end ? 1 : 3); ++round) {
    uint32_t held_most = 0;
    for (uint32_t l = 0; l < kLayers; ++l) {
      const uint32_t stored = test_model_stored(s->m, l);
      held_most = stored > held_most ? stored : held_most;
    }
    const uint32_t room = kMost - held_most;
    if (room < 22) break; /* heads compete, and one has nearly everything */
    const uint32_t n_new = test_random_between(random, 22, room);
    const uint32_t stride = held_most + n_new;
    test_model_append(s->m, n_new);
    const bool by_rows = s->m->policy.kind == ORACLE_H2O && round % 2 == 1;
    test_signals_give(s, stride, at_end ? stride : by_rows ? n_new : 0, random);
    bool is_told = true;
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < n_heads; ++h) {
        before.n[l][h] = test_model_stored_of(s->m, l, h);
        test_model_positions(s->m, l, h, before.positions[l][h]);
      }
      is_told &= Expect(s, l, &before);
    }
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.inputs = s->inputs;
    options.inputs_len = kLayers;
    /* In any workspace from the least on. */
    const kvevict_workspace size =
        test_workspace(s->m->plan, KVEVICT_OPERATION_EVICT, stride);
    s->m->workspace_bytes =
        size.least_bytes +
        (size_t)(test_random_unit(random) *
                 (double)(size.best_bytes - size.least_bytes));
    EXPECT_OK(test_model_evict(s->m, &options, NULL));
    Combine(&s->m->policy, n_heads, stride, &before);
    if (is_told) *n_evicted += ExpectBest(s, &before, stride, policy, round);
    test_model_check(s->m, policy);
  }
  test_signals_destroy(s);
  return true;
}

Test(score_evict, the_best_by_the_oracle_stay) {
  test_random random = test_random_start("evict by scores");
  kvevict_policy_info info = {.struct_size = sizeof info};
  for (uint32_t k = 0; kvevict_policy_at(k, &info) == KVEVICT_OK; ++k) {
    if (strcmp(info.signal, "-") == 0 || strcmp(info.signal, "position") == 0 ||
        strcmp(info.signal, "random") == 0) {
      continue; /* nothing to score, or no oracle of it */
    }
    kvevict_policy* chunks = test_policy(info.name);
    const bool can =
        kvevict_policy_set_number(chunks, "chunk", 48) == KVEVICT_OK &&
        kvevict_policy_validate(chunks) == KVEVICT_OK;
    for (int has_chunks = 0; has_chunks <= can; ++has_chunks) {
      uint32_t n_evicted = 0;
      for (int i = 0; i < 5 || (n_evicted <= 150 && i < 50);) {
        i += Live(info.name, has_chunks, &random, &n_evicted);
      }
      EXPECT(n_evicted > 150, "%s: only %u tokens went", info.name, n_evicted);
    }
  }
}
