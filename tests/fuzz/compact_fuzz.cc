// Any view is refused, or compaction and reordering move its rows as the oracle
// does, inside buffers of exactly the bytes that its strides reach.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kvevict/edit.h"
#include "tests/fuzz/drawn_plane.h"
#include "tests/fuzz/fuzz.h"
#include "tests/oracle/compact.h"

namespace kvevict {
namespace {

// Draws n_keep slots below n_tokens: ascending, or in any order.
std::vector<int32_t> DrawList(Draw& draw, uint32_t n_tokens, uint32_t n_keep,
                              bool ascending) {
  std::vector<int32_t> list;
  for (uint32_t t = 0; ascending && t < n_tokens; ++t) {
    if (draw.Below(n_tokens - t) < n_keep - list.size()) {
      list.push_back(static_cast<int32_t>(t));
    }
  }
  while (list.size() < n_keep) {
    list.push_back(static_cast<int32_t>(draw.Below(n_tokens)));
  }
  return list;
}

// Calls kvevict_reorder() in a workspace of exactly the size that it asks for.
kvevict_status Reorder(const kvevict_context* context,
                       const kvevict_move& move) {
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  const kvevict_status status =
      kvevict_reorder_workspace(context, &move, 1, &size);
  if (status != KVEVICT_OK) return status;
  const size_t bytes = size.least_bytes;
  const std::unique_ptr<void, decltype(&std::free)> workspace(
      std::aligned_alloc(64, bytes), &std::free);
  return kvevict_reorder(context, &move, 1, workspace.get(), bytes, nullptr);
}

// Draws K with its scales and minima, if it has them, or another companion.
std::vector<kvevict_plane> DrawPlanes(Draw& draw) {
  std::vector<kvevict_plane> planes = {DrawRows(draw)};
  const kvevict_dtype dtype = planes[0].dtype;
  const bool is_coded = dtype >= KVEVICT_DTYPE_FP8_E4M3;
  if (is_coded && draw.Below(8) > 0) {
    planes.push_back(DrawNumber(draw, KVEVICT_ROLE_KEY_SCALE));
  }
  if (is_coded && draw.Below(2) == 0) {
    planes.push_back(DrawNumber(draw, KVEVICT_ROLE_KEY_MINIMUM));
  }
  if (draw.Below(3) == 0) planes.push_back(DrawRows(draw));
  return planes;
}

// Draws where tokens are: contiguous, in a ring, in blocks with ids or addresses or both.
void DrawTokens(Draw& draw, uint32_t n_tokens, std::vector<int32_t>* table,
                bool* has_addresses, kvevict_view* view) {
  if (draw.Below(4) == 0) {
    view->ring_slots = n_tokens + draw.Below(4);
    view->ring_first = draw.Below(view->ring_slots + 1);
  }
  if (draw.Below(2) == 0) return;
  view->block_size = 1 + draw.Below(5);
  const uint32_t n_rows = std::max(n_tokens, view->ring_slots);
  table->resize(n_rows + 1);
  for (size_t i = 0; i < table->size(); ++i) {
    (*table)[i] = static_cast<int32_t>(i);
  }
  for (size_t i = table->size(); i > 1; --i) {
    std::swap((*table)[i - 1], (*table)[draw.Below(static_cast<uint32_t>(i))]);
  }
  *has_addresses = draw.Below(2) == 0;
  if (*has_addresses && draw.Below(2) == 0) return;
  view->block_table = table->data();
  view->block_table_len = table->size();
}

void Run(Draw& draw) {
  static kvevict_context* context = [] {
    kvevict_context* made = nullptr;
    FUZZ_CHECK(kvevict_context_create(nullptr, &made) == KVEVICT_OK);
    return made;
  }();
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = 1 + draw.Below(3);
  const uint32_t n_tokens = draw.Below(20);
  std::vector<int32_t> table;
  bool has_addresses = false;
  DrawTokens(draw, n_tokens, &table, &has_addresses, &view);
  std::vector<kvevict_plane> drawn = DrawPlanes(draw);
  std::vector<PlaneMemory> memory(drawn.size());
  for (size_t i = 0; i < drawn.size(); ++i) {
    DrawStrides(draw, view, n_tokens, has_addresses, &drawn[i]);
    const auto n_blocks =
        has_addresses ? static_cast<uint32_t>(table.size()) : 0;
    if (!memory[i].Place(draw, view, n_tokens, n_blocks, &drawn[i])) return;
  }
  view.k = drawn[0];
  view.companions = drawn.data() + 1;
  view.n_companions = static_cast<uint32_t>(drawn.size() - 1);

  const uint32_t n_lists = draw.Below(2) == 0 ? 1 : view.n_kv_heads;
  const uint32_t n_keep = draw.Below(n_tokens + 1);
  const bool compacts = draw.Below(2) == 0;
  std::vector<int32_t> keep;
  for (uint32_t list = 0; list < n_lists; ++list) {
    const auto slots = DrawList(draw, n_tokens, n_keep, compacts);
    keep.insert(keep.end(), slots.begin(), slots.end());
  }
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
  lists.n_lists = n_lists;
  lists.slots = keep.data();
  lists.slots_len = keep.size();
  lists.count = n_keep;
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = n_tokens;
  move.view = &view;
  move.keep = &lists;
  for (PlaneMemory& plane : memory) plane.Remember();
  const kvevict_status status =
      compacts ? kvevict_compact(context, &move, 1, nullptr, 0, nullptr)
               : Reorder(context, move);
  if (status != KVEVICT_OK) {
    for (const PlaneMemory& plane : memory) FUZZ_CHECK(plane.IsUntouched());
    return;
  }
  for (PlaneMemory& plane : memory) plane.Exchange();
  oracle_compact(&view, keep.data(), n_keep, n_lists);
  // Rows from n_keep on may change in compaction; all other bytes may not.
  const uint32_t first_open = compacts ? n_keep : n_tokens;
  for (size_t i = 0; i < drawn.size(); ++i) {
    FUZZ_CHECK(memory[i].IsAsBefore(view, drawn[i], first_open, n_tokens));
  }
}

}  // namespace
}  // namespace kvevict

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvevict::Draw draw(data, size);
  kvevict::Run(draw);
  return 0;
}
