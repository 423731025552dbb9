#include "tests/capi/support/choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/ranges.h"
#include "tests/oracle/head_split.h"
#include "tests/oracle/policy.h"
#include "tests/oracle/select.h"

enum { kHeads = TEST_CHOICE_HEADS, kTokens = TEST_CHOICE_TOKENS };

void test_give(test_given* given, uint32_t n_layers,
               kvevict_evict_options* options) {
  test_give_scores(options, &given->inputs, n_layers, given->scores[0][0],
                   kHeads * kTokens, kTokens);
  for (uint32_t l = 0; l < n_layers; ++l) {
    given->planes[l] = test_floats_plane(given->weights[l][0], kTokens);
    given->inputs.inputs[l].token_weights = &given->planes[l];
  }
}

void test_draw_given(test_random* drawn, test_given* given) {
  test_random own = test_random_apart(drawn), *const random = &own;
  const bool ties = test_random_coin(random);
  const float level = (float)test_random_unit(random);
  /* Often one head wants more than it has, and then another. */
  const size_t high = test_random_below(random, 2 * kHeads);
  const bool is_mass = test_random_below(random, 3) == 0;
  float* scores = given->scores[0][0];
  float* weights = given->weights[0][0];
  for (size_t i = 0; i < sizeof given->scores / sizeof *scores; ++i) {
    scores[i] = ties ? (float)((int)test_random_below(random, 60) - 30) / 4.0f
                     : level * test_random_normal(random);
    if (i / kTokens % kHeads == high) scores[i] += 12;
    if (is_mass) scores[i] = fabsf(scores[i]);
    weights[i] = test_random_normal(random);
    const uint32_t odd = test_random_below(random, 80);
    if (odd < 2) scores[i] = odd == 0 ? NAN : INFINITY;
  }
}

/* ---- Scores ---- */

typedef double all_scores[TEST_MAX_LAYERS][kHeads][kTokens];

static bool IsByQueries(const oracle_policy* p) {
  return p->kind == ORACLE_SNAPKV || p->kind == ORACLE_PYRAMIDKV ||
         p->kind == ORACLE_TOVA || p->kind == ORACLE_CAKE ||
         p->kind == ORACLE_R_KV;
}

/* Sums of attention are given as scores are. */
static bool IsGiven(const oracle_policy* p) {
  return p->kind == ORACLE_CUSTOM || p->kind == ORACLE_H2O;
}

/* The scores that kvevict_score() has for slots, and for positions where they are drawn. */
static void ScoreByDoor(const test_model* m, uint32_t layer,
                        const test_choice* c, all_scores out) {
  const bool draws = m->policy.kind == ORACLE_RANDOM;
  const uint32_t heads = m->spec.n_kv_heads, window = m->policy.window;
  const uint32_t n = draws ? m->n_seen : test_model_stored(m, layer);
  kvevict_geometry geometry = m->geometry;
  geometry.max_tokens = m->spec.max_positions;
  kvevict_plan* plan = NULL;
  kvevict_policy* policy = test_policy_copy(m->policy_handle);
  /* Chunks do not change the scores of these kinds. */
  if (m->policy.chunk > 0) {
    EXPECT_OK(kvevict_policy_set_number(policy, "chunk", 0));
  }
  EXPECT_OK(kvevict_plan_create(m->context, &geometry, policy, NULL, &plan));
  const size_t bytes =
      test_workspace(plan, KVEVICT_OPERATION_SCORE, n).best_bytes;
  void* const workspace = test_workspace_memory(bytes);
  float* const scores = malloc(sizeof *scores * heads * n);
  const kvevict_plane queries =
      test_model_queries(m, layer, m->n_seen > window ? m->n_seen - window : 0);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = IsByQueries(&m->policy) ? &queries : NULL;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  uint32_t counts[kHeads];
  for (uint32_t h = 0; h < heads; ++h) counts[h] = c->heads[layer][h].n;
  job.layer = layer;
  job.n_tokens = n;
  job.n_seen = draws ? 0 : m->n_seen;
  job.token_counts = draws ? NULL : counts;
  job.view = draws ? NULL : &m->views[layer];
  job.inputs = &inputs;
  job.scores = scores;
  job.scores_len = (size_t)heads * n;
  EXPECT_OK(kvevict_score(plan, &job, 1, workspace, bytes, NULL));
  for (uint32_t h = 0; h < heads; ++h) {
    const test_choice_head* head = &c->heads[layer][h];
    for (uint32_t i = 0; i < head->n; ++i) {
      out[layer][h][i] =
          (double)scores[h * n + (draws ? (uint32_t)head->positions[i] : i)];
    }
  }
  free(scores);
  free(workspace);
  kvevict_plan_destroy(plan);
}

uint32_t test_chunk_end(const oracle_policy* p, uint32_t begin, uint32_t n) {
  return p->chunk == 0 || n - begin < p->chunk ? n : begin + p->chunk;
}

/* Averages round, maxima do not. */
static float MaxPool(const float* row, uint32_t n, uint32_t i, uint32_t width) {
  const uint32_t first = i < width / 2 ? 0 : i - width / 2;
  float most = row[first];
  for (uint32_t j = first; j < n && j <= i + width / 2; ++j) {
    if (isnan(row[j])) return row[j];
    if (row[j] > most) most = row[j];
  }
  return most;
}

float test_refine(const oracle_policy* p, float score, float weight) {
  const float sum = score + (float)p->epsilon;
  return isinf(score) && score > 0 ? score : sum * weight;
}

static void FindScores(const test_model* m, const test_given* given,
                       const test_choice* c, all_scores out) {
  const oracle_policy* p = &m->policy;
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    const bool is_short =
        IsByQueries(p) && (p->window > m->n_seen || m->n_seen == 0);
    if (!is_short && m->n_seen > 0 && c->is_exact &&
        p->kind != ORACLE_STREAMING_LLM && !IsGiven(p) &&
        p->kind != ORACLE_NONE) {
      ScoreByDoor(m, l, c, out);
      continue;
    }
    for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
      const uint32_t n = c->heads[l][h].n;
      memset(out[l][h], 0, sizeof out[l][h]);
      if (!c->is_exact && !is_short) {
        test_model_oracle_scores_of(m, l, h, out[l][h]);
      }
      if (!IsGiven(p)) continue;
      const uint32_t width = p->pool == ORACLE_POOL_NONE ? 1 : p->pool_width;
      EXPECT(p->pool != ORACLE_POOL_AVG, "averages round");
      for (uint32_t i = 0; i < n; ++i) {
        const uint32_t begin = p->chunk == 0 ? 0 : i - i % p->chunk;
        const uint32_t end = test_chunk_end(p, begin, n);
        float score =
            MaxPool(given->scores[l][h] + begin, end - begin, i - begin, width);
        if (p->weight == ORACLE_WEIGHT_GIVEN && p->secure == 0) {
          score = test_refine(p, score, given->weights[l][h][i]);
        }
        out[l][h][i] = (double)score;
      }
    }
  }
}

/* Reduces over the heads and layers that share a list. */
static void Combine(const test_model* m, all_scores all, test_choice* c) {
  static float rows[TEST_MAX_LAYERS * kHeads * kTokens], combined[kTokens];
  const oracle_policy* p = &m->policy;
  const uint32_t heads = m->spec.n_kv_heads;
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    for (uint32_t h = 0; h < heads; ++h) {
      test_choice_head* head = &c->heads[l][h];
      double sums[kTokens] = {0}, highest[kTokens];
      uint32_t n_rows = 0;
      for (uint32_t t = 0; t < head->n; ++t) highest[t] = -INFINITY;
      for (uint32_t i = 0; i < m->spec.n_layers * heads; ++i) {
        const uint32_t l2 = i / heads, h2 = i % heads;
        if (l2 != l && p->scope != KVEVICT_SCOPE_MODEL) continue;
        if (h2 != h && p->scope == KVEVICT_SCOPE_KV_HEAD) continue;
        for (uint32_t t = 0; t < head->n; ++t) {
          rows[(size_t)n_rows * head->n + t] = (float)all[l2][h2][t];
          sums[t] += all[l2][h2][t];
          highest[t] = fmax(highest[t], all[l2][h2][t]);
        }
        ++n_rows;
      }
      oracle_combine(rows, n_rows, head->n, p->over, combined);
      for (uint32_t t = 0; t < head->n; ++t) {
        head->scores[t] = c->is_exact                      ? (double)combined[t]
                          : p->over == KVEVICT_REDUCE_MEAN ? sums[t] / n_rows
                          : p->over == KVEVICT_REDUCE_MAX  ? highest[t]
                                                           : sums[t];
      }
    }
  }
}

/* ---- Counts ---- */

static void AsHeads(const test_choice* c, uint32_t layer, uint32_t n_heads,
                    float (*scores)[kTokens], oracle_head* out) {
  for (uint32_t h = 0; h < n_heads; ++h) {
    const test_choice_head* head = &c->heads[layer][h];
    for (uint32_t i = 0; i < head->n; ++i)
      scores[h][i] = (float)head->scores[i];
    out[h] = (oracle_head){scores[h], head->forced, head->n};
  }
}

/* Heads of a layer share its budget by scores. */
static void CountByScores(const test_model* m, uint32_t layer, uint32_t budget,
                          uint32_t n_asked, test_choice* c) {
  const oracle_policy* p = &m->policy;
  const uint32_t n = m->spec.n_kv_heads;
  float scores[kHeads][kTokens];
  oracle_head heads[kHeads];
  uint32_t counts[kHeads];
  uint64_t n_held = 0;
  AsHeads(c, layer, n, scores, heads);
  for (uint32_t h = 0; h < n; ++h) n_held += heads[h].n_tokens;
  if (n_held <= ((uint64_t)budget + p->margin) * n &&
      p->heads != ORACLE_HEADS_THRESHOLD) {
    return;
  }
  if (p->normalize && p->heads == ORACLE_HEADS_ADAPTIVE_BLEND) c->slack = n;
  oracle_head_counts(p, heads, n, budget, n_asked, counts);
  for (uint32_t h = 0; h < n; ++h) c->heads[layer][h].n_kept = counts[h];
}

/* Heads that keep the same: of a layer's winners an equal part, and one more for those
 * layers that lost most by rounding. */
static void ShareEqually(uint32_t n_layers, uint32_t n_heads,
                         uint32_t* counts) {
  uint32_t winners[TEST_MAX_LAYERS] = {0}, rest[TEST_MAX_LAYERS], left = 0;
  for (uint32_t l = 0; l < n_layers; ++l) {
    for (uint32_t h = 0; h < n_heads; ++h)
      winners[l] += counts[n_heads * l + h];
    rest[l] = winners[l] % n_heads;
    left += rest[l];
    winners[l] /= n_heads;
  }
  for (; left >= n_heads; left -= n_heads) {
    uint32_t best = 0;
    for (uint32_t l = 1; l < n_layers; ++l) {
      if (rest[l] > rest[best]) best = l;
    }
    if (rest[best] == 0) break;
    ++winners[best];
    rest[best] = 0;
  }
  for (uint32_t i = 0; i < n_layers * n_heads; ++i) {
    counts[i] = winners[i / n_heads];
  }
}

/* The tokens of all layers compete. */
static void CountByContest(const test_model* m, test_choice* c) {
  const oracle_policy* p = &m->policy;
  const uint32_t n_heads = m->spec.n_kv_heads;
  const uint32_t n = m->spec.n_layers * n_heads;
  const double context = test_model_context(m);
  const double wanted =
      p->budget > 1 ? fmin(p->budget, context) : floor(p->budget * context);
  const uint64_t n_winners =
      p->budget <= 1 && p->rounding == ORACLE_ROUNDING_TOGETHER
          ? (uint64_t)(p->budget * context * n)
          : n * (uint64_t)wanted;
  static float scores[TEST_MAX_LAYERS * kHeads][kTokens];
  oracle_head lists[TEST_MAX_LAYERS * kHeads];
  uint32_t counts[TEST_MAX_LAYERS * kHeads];
  uint64_t n_held = 0;
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    AsHeads(c, l, n_heads, scores + l * n_heads, lists + l * n_heads);
  }
  for (uint32_t i = 0; i < n; ++i) n_held += lists[i].n_tokens;
  if (n_held <= n_winners + (uint64_t)p->margin * n) return;
  const uint32_t n_safe =
      (uint32_t)((p->budget > 1 ? floor(p->budget) : wanted) * p->floor);
  oracle_count_winners(lists, n, n_winners, n_safe < 1 ? 1 : n_safe, counts);
  if (p->heads == ORACLE_HEADS_EQUAL) {
    ShareEqually(m->spec.n_layers, n_heads, counts);
  }
  for (uint32_t i = 0; i < n; ++i) {
    c->heads[i / n_heads][i % n_heads].n_kept = counts[i] < 1 ? 1 : counts[i];
  }
}

/* How many tokens must stay in a list, held or not: both ends and what is protected
 * between them. */
static uint32_t Asked(const test_model* m,
                      const kvevict_evict_options* options) {
  const oracle_policy* p = &m->policy;
  const uint32_t window = IsByQueries(p) && p->keep_window ? p->window : 0;
  const uint32_t last = p->recent > window ? p->recent : window;
  uint32_t n = p->sink + last;
  for (size_t i = 0; i < options->protected_positions_len; ++i) {
    const uint32_t position = (uint32_t)options->protected_positions[i];
    n += position >= p->sink && position + last < m->n_seen;
  }
  return n;
}

/* CAKE's shares of the layers, or lazy layers, by the oracle's measures. */
static void MeasuredBudgets(const test_model* m, uint32_t least, test_choice* c,
                            uint32_t* budgets) {
  const oracle_policy* p = &m->policy;
  const uint32_t n_layers = m->spec.n_layers, n_context = test_model_context(m);
  const double wanted = p->budget > 1 ? p->budget : p->budget * n_context;
  const uint32_t budget = wanted < n_context ? (uint32_t)wanted : n_context;
  double nearest = 1.0, preferences[TEST_MAX_LAYERS];
  uint64_t shares[TEST_MAX_LAYERS];
  for (uint32_t l = 0; l < n_layers; ++l) budgets[l] = n_context;
  if (budget == n_context || m->n_seen < p->window) return;
  const uint32_t room = least + (p->split == ORACLE_SPLIT_CAKE);
  if (p->budget <= 1 && budget < room) return;
  for (uint32_t l = 0; l < n_layers; ++l) {
    const oracle_measure measure = test_model_measure(m, l);
    const double apart = measure.ends - p->lazy;
    preferences[l] = pow(measure.entropy, 1.0 / p->tau1) *
                     pow(measure.variance, 1.0 / p->tau2);
    if (p->split != ORACLE_SPLIT_LAZY) continue;
    nearest = fmin(nearest, fabs(apart));
    /* Both measured ends have to fit side by side. */
    const bool is_short =
        c->heads[l][0].n < p->sink + p->recent + 2 * p->window;
    if (apart > 0 && !is_short) budgets[l] = budget;
  }
  if (p->split == ORACLE_SPLIT_CAKE) {
    nearest = oracle_split_cake(preferences, n_layers,
                                (uint64_t)(budget - least) * n_layers,
                                n_context - least, shares);
    for (uint32_t l = 0; l < n_layers; ++l) {
      budgets[l] = (uint32_t)shares[l] + least;
    }
  }
  if (nearest <= 1e-5) c->slack = p->split == ORACLE_SPLIT_LAZY ? n_context : 2;
}

static uint32_t LayerBudget(const test_model* m, const test_prompt* prompt,
                            uint32_t layer, uint32_t n_held) {
  const oracle_policy* p = &m->policy;
  const bool is_beside =
      prompt != NULL && (p->prompt == ORACLE_PROMPT_BESIDE ||
                         p->prompt == ORACLE_PROMPT_PINNED_BESIDE);
  uint32_t budgets[TEST_MAX_LAYERS] = {0};
  uint32_t n = m->n_seen - (is_beside ? prompt->n_tokens : 0);
  if (n > m->spec.max_tokens) n = m->spec.max_tokens;
  /* Chunks share a count of tokens, so no more than the slots of the longest list. */
  if (p->chunk > 0 && p->budget > 1 && m->spec.layer_budgets == NULL) {
    uint32_t most = 0;
    for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
      most = test_model_stored(m, l) > most ? test_model_stored(m, l) : most;
    }
    if (n > most) n = most;
  }
  /* A length whose last block is as full as the cache's. */
  for (uint32_t block = p->select_block;
       block > 1 && n % block != n_held % block;)
    --n;
  oracle_policy of_layer = *p;
  if (m->spec.layer_budgets != NULL) {
    of_layer.budget = m->spec.layer_budgets[layer];
  }
  EXPECT(
      n == 0 || oracle_layer_budgets(&of_layer, n, budgets, m->spec.n_layers),
      "%s: no budgets of %u", m->spec.policy, n);
  return budgets[layer] + (is_beside ? prompt->slots[layer] : 0);
}

kvevict_tie test_tie_of(const oracle_policy* p) {
  return p->kind == ORACLE_STREAMING_LLM ? KVEVICT_TIE_HIGHER_POSITION : p->tie;
}

static uint32_t InBlocks(const oracle_policy* p, const test_choice_head* head,
                         uint32_t budget, int32_t* keep) {
  float scores[kTokens];
  for (uint32_t i = 0; i < head->n; ++i) scores[i] = (float)head->scores[i];
  const uint32_t n =
      oracle_select_blocks(scores, head->n, budget, head->forced,
                           p->select_block, test_tie_of(p), keep);
  if (n > 0 || budget >= p->select_block) return n;
  return InBlocks(p, head, p->select_block, keep); /* at least one */
}

/* Heads of a layer keep the same of each chunk, so the most that one must keep. False
 * if the budget has no room for that. */
static bool CountChunks(const oracle_policy* p, const test_choice_head* heads,
                        uint32_t n_heads, uint32_t budget, uint32_t* counts) {
  const uint32_t n = heads[0].n;
  uint32_t least = 0;
  memset(counts, 0, kTokens * sizeof *counts);
  for (uint32_t h = 0; h < n_heads; ++h) {
    for (uint32_t begin = 0; begin < n; begin = test_chunk_end(p, begin, n)) {
      uint32_t n_forced = 0;
      for (uint32_t i = begin; i < test_chunk_end(p, begin, n); ++i) {
        n_forced += heads[h].forced[i];
      }
      uint32_t* const count = &counts[begin / p->chunk];
      if (*count < n_forced) *count = n_forced;
    }
  }
  for (uint32_t i = 0; i * p->chunk < n; ++i) {
    least += counts[i] < 1 ? 1 : counts[i];
  }
  oracle_chunk_counts(p, n, budget, counts);
  return least <= budget;
}

/* What must stay of the lists of a layer. */
static uint32_t Needed(const oracle_policy* p, const test_choice_head* heads,
                       uint32_t n_heads, uint32_t n_asked) {
  if (p->heads != ORACLE_HEADS_EQUAL || p->select_block > 1) return n_asked;
  uint32_t most = 0;
  for (uint32_t h = 0; h < n_heads; ++h) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < heads[h].n; ++i) n += heads[h].forced[i];
    most = n > most ? n : most;
  }
  return most;
}

static void Count(const test_model* m, const kvevict_evict_options* options,
                  const test_prompt* prompt, test_choice* c) {
  const oracle_policy* p = &m->policy;
  const uint32_t heads = m->spec.n_kv_heads;
  const bool measures =
      p->split == ORACLE_SPLIT_CAKE || p->split == ORACLE_SPLIT_LAZY;
  uint32_t budgets[TEST_MAX_LAYERS] = {0}, budget;
  if (p->kind == ORACLE_NONE || m->n_seen == 0) return;
  if (m->spec.head_budgets == NULL && p->split == ORACLE_SPLIT_SCORES) {
    CountByContest(m, c);
    return;
  }
  if (m->spec.head_budgets == NULL && measures) {
    MeasuredBudgets(m, Asked(m, options), c, budgets);
  }
  for (uint32_t l = 0; !measures && l < m->spec.n_layers; ++l) {
    if (m->spec.head_budgets != NULL) break;
    budgets[l] = LayerBudget(m, prompt, l, c->heads[l][0].n);
  }
  const uint32_t n_asked = Asked(m, options);
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    const double of_layer =
        m->spec.layer_budgets == NULL ? p->budget : m->spec.layer_budgets[l];
    const bool is_ratio = p->kind != ORACLE_STREAMING_LLM && of_layer <= 1 &&
                          p->chunk == 0 && m->spec.head_budgets == NULL;
    /* A ratio leaves layers alone in which what must stay has no room. */
    if (is_ratio && budgets[l] < Needed(p, c->heads[l], heads, n_asked)) {
      continue;
    }
    if (p->heads != ORACLE_HEADS_EQUAL) {
      CountByScores(m, l, budgets[l], n_asked, c);
      continue;
    }
    for (uint32_t h = 0; h < heads; ++h) {
      test_choice_head* head = &c->heads[l][h];
      int32_t keep[kTokens];
      budget = m->spec.head_budgets == NULL
                   ? budgets[l]
                   : m->spec.head_budgets[l * heads + h];
      if (budget == 0) budget = 1;
      if (head->n <= budget) continue;
      const uint32_t n_best =
          p->select_block > 1 ? InBlocks(p, head, budget, keep) : budget;
      const uint32_t n_rescued = p->rescue * p->select_block;
      const bool rescues = head->n - n_best >= n_rescued;
      const uint32_t n_kept = n_best + (rescues ? n_rescued : 0);
      if (head->n <= (uint64_t)n_kept + p->margin) continue;
      head->n_kept = n_kept;
      head->n_rescued = rescues ? p->rescue : 0;
    }
    if (p->chunk == 0 || c->heads[l][0].n_kept == c->heads[l][0].n) continue;
    if (CountChunks(p, c->heads[l], heads, budgets[l], c->of_chunks[l])) {
      continue;
    }
    for (uint32_t h = 0; of_layer <= 1 && h < heads; ++h) {
      c->heads[l][h].n_kept = c->heads[l][h].n;
    }
  }
}

/* ---- Together ---- */

uint32_t test_last_of(const oracle_policy* p) {
  const uint32_t window = IsByQueries(p) ? p->window : 0;
  if (p->kind == ORACLE_STREAMING_LLM) return 1;
  return p->recent > window ? p->recent : window;
}

/* Blocks are counted from the ends of what a head holds, not from the context's, and
 * every chunk has sinks of its own. */
static void ForceEnds(const oracle_policy* p,
                      const kvevict_evict_options* options,
                      test_choice_head* head) {
  const uint32_t last = test_last_of(p);
  for (uint32_t i = 0; i < head->n; ++i) {
    const uint32_t of_chunk = p->chunk == 0 ? i : i % p->chunk;
    head->forced[i] = of_chunk < p->sink || i + last >= head->n;
    for (size_t k = 0; k < options->protected_positions_len; ++k) {
      if (options->protected_positions[k] == head->positions[i])
        head->forced[i] = 1;
    }
  }
}

void test_choose_all(const test_model* m, test_choice* c) {
  memset(c, 0, sizeof *c);
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
      c->heads[l][h].n = c->heads[l][h].n_kept = test_model_stored_of(m, l, h);
      test_model_positions(m, l, h, c->heads[l][h].positions);
    }
  }
}

void test_choose(const test_model* m, const kvevict_evict_options* options,
                 const test_given* given, const test_prompt* prompt,
                 test_choice* c) {
  static all_scores scores;
  const oracle_policy* p = &m->policy;
  test_choose_all(m, c);
  c->is_exact = !IsByQueries(p) || p->select_block > 1;
  const bool is_pinned =
      prompt != NULL && (p->prompt == ORACLE_PROMPT_PINNED ||
                         p->prompt == ORACLE_PROMPT_PINNED_BESIDE);
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
      test_choice_head* head = &c->heads[l][h];
      test_model_forced(m, l, h, options, head->forced);
      if (p->select_block > 1 || p->chunk > 0) ForceEnds(p, options, head);
      for (uint32_t i = 0; i < head->n; ++i) {
        head->ranks[i] = test_rank_of(options->ranges, options->ranges_len,
                                      (uint32_t)head->positions[i]);
      }
      for (uint32_t i = 0; is_pinned && i < prompt->slots[l]; ++i) {
        head->forced[i] = 1;
      }
    }
  }
  FindScores(m, given, c, scores);
  Combine(m, scores, c);
  c->n_asked = Asked(m, options);
  Count(m, options, prompt, c);
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    if (!test_model_shares(m, l)) continue;
    memcpy(c->heads[l], c->heads[0], sizeof c->heads[l]);
    memcpy(c->of_chunks[l], c->of_chunks[0], sizeof c->of_chunks[l]);
  }
}
