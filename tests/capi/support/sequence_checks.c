/* A life's sequence beside its naive model. */
#include <math.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/copies.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/sequence_state.h"
#include "tests/capi/support/tallies.h"

enum { kLayers = TEST_STATE_LAYERS, kHeads = TEST_STATE_HEADS };

uint32_t test_living_prefix(const test_living* a) {
  uint32_t prefix = a->now.has_changed ? 0 : a->now.n_seen;
  TEST_EACH_LIST(a, l, h) {
    uint32_t n = 0;
    while (n < a->now.n[l][h] && a->now.positions[l][h][n] == (int32_t)n) ++n;
    prefix = n < prefix ? n : prefix;
  }
  return prefix;
}

/* The device reads the length of every list, the listed positions and their counts. */
static void ExpectMemory(const test_living* a, uint32_t l) {
  kvevict_sequence_memory memory = {.struct_size = sizeof memory};
  EXPECT_OK(kvevict_sequence_memory_of(a->m->sequence, l, &memory));
  const uint32_t* lengths = (const uint32_t*)(uintptr_t)memory.lengths;
  const uint32_t* counts = (const uint32_t*)(uintptr_t)memory.listed_counts;
  const int32_t* listed = (const int32_t*)(uintptr_t)memory.positions;
  EXPECT((memory.lengths == 0) == (a->m->policy.kind == ORACLE_NONE),
         "%s: lengths", a->what);
  if (memory.lengths == 0) return;
  EXPECT(memory.n_lists == 1 || memory.n_lists == a->m->spec.n_kv_heads,
         "%s: %u lists", a->what, memory.n_lists);
  for (uint32_t h = 0; h < memory.n_lists; ++h) {
    const uint32_t n_held = a->now.n[l][h];
    EXPECT(lengths[2 * h] == n_held && lengths[2 * h + 1] == a->now.n_seen,
           "%s: layer %u, head %u: lengths %u, %u", a->what, l, h,
           lengths[2 * h], lengths[2 * h + 1]);
    const uint32_t n = counts == NULL ? memory.n_listed : counts[h];
    EXPECT(n <= memory.n_listed && n <= n_held,
           "%s: layer %u, head %u lists %u of %u", a->what, l, h, n, n_held);
    /* Positions after the list count up to the logical length. */
    for (uint32_t i = 0; i < n_held; ++i) {
      const int32_t position = i < n ? listed[(size_t)h * memory.n_listed + i]
                                     : (int32_t)(a->now.n_seen - n_held + i);
      EXPECT(position == a->now.positions[l][h][i],
             "%s: layer %u, head %u: the device sees %d in slot %u", a->what, l,
             h, position, i);
    }
  }
}

void test_living_check(const test_living* a) {
  int32_t positions[TEST_STATE_TOKENS];
  TEST_EACH_LIST(a, l, h) {
    const uint32_t n = test_model_stored_of(a->m, l, h);
    EXPECT(n == a->now.n[l][h], "%s: layer %u, head %u holds %u, not %u",
           a->what, l, h, n, a->now.n[l][h]);
    test_model_positions(a->m, l, h, positions);
    EXPECT(
        memcmp(positions, a->now.positions[l][h], n * sizeof *positions) == 0,
        "%s: layer %u, head %u holds other tokens", a->what, l, h);
    if (h == 0) ExpectMemory(a, l);
  }
  EXPECT(test_exact_prefix(a->m->sequence) == test_living_prefix(a),
         "%s: prefix %u, not %u", a->what, test_exact_prefix(a->m->sequence),
         test_living_prefix(a));
  test_tallies_check(a);
  test_model_check(a->m, a->what);
}

/* Returns the lists of a layer. */
static uint32_t ReadReport(const test_living* a, kvevict_evict_report* report,
                           kvevict_list_report* lists) {
  const test_model* m = a->m;
  kvevict_layer_info info = {.struct_size = sizeof info};
  EXPECT_OK(kvevict_plan_layer(m->plan, m->spec.n_layers - 1, &info));
  const uint32_t n_lists = info.first_list + info.n_lists;
  for (uint32_t i = 0; i < n_lists; ++i) {
    lists[i] = (kvevict_list_report)KVEVICT_LIST_REPORT_INIT;
  }
  EXPECT_OK(kvevict_sequence_report(m->sequence, report, lists, n_lists));
  return info.n_lists;
}

void test_living_check_report(const test_living* a, const test_state* was,
                              uint64_t n_freed, uint32_t n_weak) {
  const test_model* m = a->m;
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  kvevict_list_report lists[kLayers * kHeads];
  const uint32_t per_layer = ReadReport(a, &report, lists);
  uint64_t tokens[2] = {0, 0}, bytes[2] = {0, 0};
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    uint32_t most[2] = {0, 0};
    for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
      const uint32_t n[2] = {was->n[l][h], a->now.n[l][h]};
      for (int i = 0; i < 2; ++i) {
        most[i] = n[i] > most[i] ? n[i] : most[i];
        bytes[i] += test_model_shares(m, l)
                        ? 0
                        : (uint64_t)n[i] * test_model_row_bytes(m, l);
      }
      const kvevict_list_report* list = &lists[l * per_layer + h % per_layer];
      EXPECT(list->layer == l && list->tokens_before == n[0] &&
                 list->tokens_after == n[1],
             "%s: layer %u, head %u: report of layer %u, %u to %u", a->what, l,
             h, list->layer, list->tokens_before, list->tokens_after);
    }
    for (int i = 0; i < 2; ++i) {
      tokens[i] += test_model_shares(m, l) ? 0 : most[i];
    }
  }
  EXPECT(report.evicted == (bytes[1] < bytes[0]), "%s: evicted", a->what);
  EXPECT(report.n_weak_fits == n_weak, "%s: %u weak fits, not %u", a->what,
         report.n_weak_fits, n_weak);
  EXPECT(report.tokens_before == tokens[0] &&
             report.tokens_after == tokens[1] &&
             report.bytes_before == bytes[0] &&
             report.bytes_after == bytes[1] && report.blocks_freed == n_freed,
         "%s: report of %llu to %llu tokens, %llu to %llu bytes, %llu blocks",
         a->what, (unsigned long long)report.tokens_before,
         (unsigned long long)report.tokens_after,
         (unsigned long long)report.bytes_before,
         (unsigned long long)report.bytes_after,
         (unsigned long long)report.blocks_freed);
}

/* The mass of a head's scores: of all, of those that stay, and the largest that goes. A
 * chunk that keeps everything is not scored. False if a score is below 0. */
static bool FindMass(const test_living* a, uint32_t l, uint32_t h,
                     const test_choice_head* head, double mass[3]) {
  const uint32_t chunk = a->m->policy.chunk;
  uint32_t next = 0;
  bool is_mass = true;
  for (uint32_t begin = 0; begin < head->n;) {
    const uint32_t end = test_chunk_end(&a->m->policy, begin, head->n);
    const uint32_t first = next;
    double part[2] = {0, 0};
    bool is_part = true;
    for (uint32_t i = begin; i < end; ++i) {
      const double score = head->scores[i];
      const bool stays = next < a->now.n[l][h] &&
                         a->now.positions[l][h][next] == head->positions[i];
      next += stays;
      if (!isfinite(score)) continue;
      is_part = is_part && score >= 0;
      part[0] += score;
      if (stays) part[1] += score;
      if (!stays) mass[2] = fmax(mass[2], score);
    }
    const bool is_whole = next - first == end - begin;
    begin = end;
    if (chunk != 0 && is_whole) continue;
    mass[0] += part[0];
    mass[1] += part[1];
    is_mass = is_mass && is_part;
  }
  return is_mass;
}

/* Masses are f32 sums of at most 400 scores, added pairwise. */
void test_living_check_mass(const test_living* a, const test_choice* choice) {
  kvevict_list_report lists[kLayers * kHeads];
  const uint32_t per_layer = ReadReport(a, NULL, lists);
  const oracle_policy* p = &a->m->policy;
  /* Rescued and diverse blocks stay for other reasons than their scores. */
  const bool tells =
      a->m->spec.report_mass != 0 && p->rescue == 0 && p->diverse_mass == 0;
  TEST_EACH_LIST(a, l, h) {
    double mass[3] = {0, 0, 0};
    const bool is_mass = FindMass(a, l, h, &choice->heads[l][h], mass);
    const kvevict_list_report* told = &lists[l * per_layer + h % per_layer];
    const bool loses = told->tokens_after < told->tokens_before;
    if (!tells || (loses && !is_mass)) {
      EXPECT(isnan(told->mass_kept) && isnan(told->largest_mass_evicted),
             "%s: layer %u, head %u: a mass", a->what, l, h);
      continue;
    }
    if (!is_mass) continue; /* other lists of its layer may lose some */
    const double kept = mass[0] == 0 ? 1 : mass[1] / mass[0];
    const double lost = mass[0] == 0 ? 0 : mass[2] / mass[0];
    EXPECT(fabs((double)told->mass_kept - kept) <= 2e-6 &&
               fabs((double)told->largest_mass_evicted - lost) <= 2e-6,
           "%s: layer %u, head %u: %.9g and %.9g, not %.9g and %.9g", a->what,
           l, h, (double)told->mass_kept, (double)told->largest_mass_evicted,
           kept, lost);
    a->sum->n_masses += loses;
  }
}
