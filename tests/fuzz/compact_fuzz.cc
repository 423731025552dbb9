// Any view is refused or its rows are moved as the oracle does it, by compaction or
// in any order, inside a buffer of exactly the bytes its strides reach.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "tests/oracle/compact.h"

namespace kvevict {
namespace {

constexpr int64_t kMaxBytes = 1 << 16;

struct Range {
  int64_t low = 0;   // first byte reached, relative to data
  int64_t high = 0;  // one past the last
};

// Strides that nest, in a random order, direction and with gaps; now and then any.
void DrawStrides(Draw& draw, uint32_t n_heads, uint32_t n_tokens,
                 uint32_t block_size, kvevict_plane* plane) {
  struct Axis {
    int64_t* stride;
    uint32_t n;
  };
  const uint32_t in_block =
      block_size == 0 ? n_tokens : std::min(n_tokens, block_size);
  Axis axes[] = {{&plane->token_stride_bytes, in_block},
                 {&plane->head_stride_bytes, n_heads},
                 {&plane->block_stride_bytes, n_tokens + 1},
                 {&plane->element_stride_bytes, plane->head_dim}};
  const bool packed =
      plane->dtype == KVEVICT_DTYPE_OPAQUE || draw.Below(2) == 0;
  const size_t n_axes = packed ? 3 : 4;
  for (size_t i = n_axes; i > 1; --i) {
    std::swap(axes[i - 1], axes[draw.Below(static_cast<uint32_t>(i))]);
  }
  int64_t reach = oracle_row_bytes(plane);
  if (!packed) reach /= plane->head_dim;
  for (size_t i = 0; i < n_axes; ++i) {
    *axes[i].stride = reach + draw.Below(4);
    reach += *axes[i].stride * (std::max(axes[i].n, 1u) - 1);
    if (draw.Below(3) == 0) *axes[i].stride = -*axes[i].stride;
    if (draw.Below(40) == 0) *axes[i].stride = int64_t{draw.Below(90)} - 40;
  }
}

kvevict_plane DrawPlane(Draw& draw) {
  kvevict_plane plane{};
  plane.data = 1;  // present; placed later
  plane.dtype = static_cast<kvevict_dtype>(draw.Below(4));
  const uint32_t dim = 1 + draw.Below(6);
  (plane.dtype == KVEVICT_DTYPE_OPAQUE ? plane.row_bytes : plane.head_dim) =
      dim;
  return plane;
}

// The bytes that `n_tokens` slots of a plane reach, walked one by one.
Range RangeOf(const kvevict_view& view, const kvevict_plane& plane,
              uint32_t n_tokens) {
  Range range;
  for (uint32_t t = 0; t < n_tokens; ++t) {
    for (uint32_t h = 0; h < view.n_kv_heads; ++h) {
      for (uint32_t b = 0; b < oracle_row_bytes(&plane); ++b) {
        const auto address =
            reinterpret_cast<uint64_t>(oracle_row_byte(&view, &plane, t, h, b));
        const auto at = static_cast<int64_t>(address - plane.data);
        range.low = std::min(range.low, at);
        range.high = std::max(range.high, at + 1);
      }
    }
  }
  return range;
}

// A plane's rows in memory of just the right size.
std::unique_ptr<uint8_t[]> Place(kvevict_plane* plane, const Range& range,
                                 Draw& draw) {
  const auto n_bytes = static_cast<size_t>(range.high - range.low);
  auto memory = std::make_unique<uint8_t[]>(std::max<size_t>(n_bytes, 1));
  for (size_t i = 0; i < n_bytes; ++i) {
    memory[i] = static_cast<uint8_t>(i * 7 + draw.Byte());
  }
  plane->data = reinterpret_cast<uint64_t>(memory.get()) -
                static_cast<uint64_t>(range.low);
  return memory;
}

// n_keep slots below n_tokens: ascending, or any.
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

// kvevict_reorder() in a workspace of just the size it asks for.
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

void Run(Draw& draw) {
  static kvevict_context* context = [] {
    kvevict_context* made = nullptr;
    FUZZ_CHECK(kvevict_context_create(nullptr, &made) == KVEVICT_OK);
    return made;
  }();
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = 1 + draw.Below(3);
  const uint32_t n_tokens = draw.Below(20);
  std::vector<int32_t> table(n_tokens + 1);
  if (draw.Below(2) == 0) {
    view.block_size = 1 + draw.Below(5);
    for (size_t i = 0; i < table.size(); ++i)
      table[i] = static_cast<int32_t>(i);
    for (size_t i = table.size(); i > 1; --i) {
      std::swap(table[i - 1], table[draw.Below(static_cast<uint32_t>(i))]);
    }
    view.block_table = table.data();
    view.block_table_len = table.size();
  }
  view.k = DrawPlane(draw);
  DrawStrides(draw, view.n_kv_heads, n_tokens, view.block_size, &view.k);
  const Range range = RangeOf(view, view.k, n_tokens);
  if (range.high - range.low > kMaxBytes) return;
  const auto memory = Place(&view.k, range, draw);
  const auto n_bytes = static_cast<size_t>(range.high - range.low);

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
  const std::vector<uint8_t> before(memory.get(), memory.get() + n_bytes);
  const kvevict_status status =
      compacts ? kvevict_compact(context, &move, 1, nullptr, 0, nullptr)
               : Reorder(context, move);
  if (status != KVEVICT_OK) {
    FUZZ_CHECK(std::equal(before.begin(), before.end(), memory.get()));
    return;
  }
  const std::vector<uint8_t> ours(memory.get(), memory.get() + n_bytes);
  std::copy(before.begin(), before.end(), memory.get());
  oracle_compact(&view, keep.data(), n_keep, n_lists);
  // Rows from n_keep on are open after compaction; all other bytes are not.
  std::vector<bool> open(n_bytes, false);
  const auto* first = memory.get();
  for (uint32_t t = n_keep; compacts && t < n_tokens; ++t) {
    for (uint32_t h = 0; h < view.n_kv_heads; ++h) {
      for (uint32_t b = 0; b < oracle_row_bytes(&view.k); ++b) {
        open[oracle_row_byte(&view, &view.k, t, h, b) - first] = true;
      }
    }
  }
  for (size_t i = 0; i < n_bytes; ++i) {
    FUZZ_CHECK(open[i] || ours[i] == memory[i]);
  }
}

}  // namespace
}  // namespace kvevict

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvevict::Draw draw(data, size);
  kvevict::Run(draw);
  return 0;
}
