#include "tests/capi/support/moves.h"

#include <stddef.h>

void test_draw_held(test_random* random, uint32_t n_heads, uint32_t most,
                    uint32_t* held, kvevict_move* move) {
  const bool ragged = test_random_coin(random);
  most = test_random_below(random, most + 1);
  for (uint32_t h = 0; h < n_heads; ++h) {
    held[h] = ragged ? test_random_below(random, most + 1) : most;
    if (held[h] > move->n_tokens) move->n_tokens = held[h];
  }
  move->token_counts = ragged ? held : NULL;
}

void test_draw_lists(test_random* random, uint32_t n_heads, uint32_t first,
                     const uint32_t* held, uint32_t stride, uint32_t* counts,
                     int32_t* slots, kvevict_keep_lists* out) {
  *out = (kvevict_keep_lists)KVEVICT_KEEP_LISTS_INIT;
  out->n_lists = test_random_coin(random) ? 1 : n_heads;
  for (uint32_t l = 0; l < out->n_lists; ++l) {
    uint32_t end = held[l];
    for (uint32_t h = 0; out->n_lists == 1 && h < n_heads; ++h) {
      if (held[h] < end) end = held[h];
    }
    const uint32_t n = end < first ? 0 : end - first;
    counts[l] = test_random_below(random, n + 1);
    int32_t* list = slots + (size_t)l * stride;
    test_random_ascending(random, list, counts[l], n);
    for (uint32_t i = 0; i < counts[l]; ++i) list[i] += (int32_t)first;
    if (counts[l] > out->count) out->count = counts[l];
  }
  out->slots = slots;
  out->slots_len = (size_t)out->n_lists * stride;
  out->list_stride = stride;
  out->counts = counts;
}
