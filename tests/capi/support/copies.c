#include "tests/capi/support/copies.h"

#include <stdlib.h>

#include "kvevict/batch.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"

enum { kMaxHeads = 8 };

test_saved test_save(const kvevict_sequence* sequence) {
  test_saved saved = {NULL, 0};
  size_t written = 0;
  EXPECT_OK(kvevict_sequence_save(sequence, NULL, 0, &saved.n_bytes));
  saved.data = malloc(saved.n_bytes + 8);
  memset(saved.data, TEST_GUARD, saved.n_bytes + 8);
  EXPECT_OK(
      kvevict_sequence_save(sequence, saved.data, saved.n_bytes, &written));
  EXPECT(written == saved.n_bytes, "%zu bytes, not %zu", written,
         saved.n_bytes);
  EXPECT(test_is_filled(saved.data + saved.n_bytes, 8), "written beyond");
  return saved;
}

/* Lists are `room` elements apart, however many they use. */
static void WriteLists(const kvevict_plan* plan,
                       const kvevict_sequence* sequence, uint32_t layer,
                       uint32_t room, int32_t* positions, uint32_t* counts,
                       kvevict_position_lists* out) {
  kvevict_layer_info info = {.struct_size = sizeof info};
  EXPECT_OK(kvevict_plan_layer(plan, layer, &info));
  *out = (kvevict_position_lists)KVEVICT_POSITION_LISTS_INIT;
  if (info.cache != KVEVICT_LAYER_CACHE_FULL) return;
  out->n_lists = info.n_lists;
  out->positions = positions;
  out->counts = counts;
  out->list_stride = room;
  for (uint32_t list = 0; list < info.n_lists; ++list) {
    size_t n = 0;
    EXPECT_OK(kvevict_sequence_keep_positions(
        sequence, layer, list, positions + (size_t)list * room, room, &n));
    counts[list] = (uint32_t)n;
    if (counts[list] > out->count) out->count = counts[list];
  }
  out->positions_len = (info.n_lists - 1) * (size_t)room + out->count;
}

kvevict_status test_start_as(kvevict_sequence* to, const kvevict_plan* plan,
                             const kvevict_sequence* from) {
  uint32_t logical = 0, n_layers = 0;
  EXPECT_OK(kvevict_sequence_logical_length(from, &logical));
  const uint32_t room = logical + 1;
  int32_t* positions[TEST_MAX_LAYERS];
  uint32_t counts[TEST_MAX_LAYERS][kMaxHeads];
  kvevict_position_lists layers[TEST_MAX_LAYERS];
  kvevict_layer_info info = {.struct_size = sizeof info};
  while (n_layers < TEST_MAX_LAYERS &&
         kvevict_plan_layer(plan, n_layers, &info) == KVEVICT_OK) {
    const uint32_t l = n_layers++;
    positions[l] = malloc(kMaxHeads * (size_t)room * sizeof **positions);
    WriteLists(plan, from, l, room, positions[l], counts[l], &layers[l]);
  }
  const kvevict_status status =
      kvevict_sequence_start(to, layers, n_layers, logical, NULL);
  for (uint32_t l = 0; l < n_layers; ++l) free(positions[l]);
  return status;
}

kvevict_sequence* test_copy(const kvevict_plan* plan,
                            const kvevict_sequence* sequence, test_copy_by by) {
  kvevict_sequence* copy = NULL;
  if (by == TEST_COPY_FORK) {
    EXPECT_OK(kvevict_sequence_fork(sequence, NULL, &copy, NULL));
    return copy;
  }
  EXPECT_OK(kvevict_sequence_create(plan, &copy));
  EXPECT_OK(kvevict_sequence_begin_observing(copy, NULL, 0));
  if (by == TEST_COPY_START) {
    EXPECT_OK(test_start_as(copy, plan, sequence));
    return copy;
  }
  const test_saved saved = test_save(sequence);
  EXPECT_OK(kvevict_sequence_load(copy, saved.data, saved.n_bytes, NULL));
  free(saved.data);
  return copy;
}

uint32_t test_exact_prefix(const kvevict_sequence* sequence) {
  uint32_t length = 0;
  EXPECT_OK(kvevict_sequence_exact_prefix(sequence, &length));
  return length;
}
