// Operations that move rows, and keep what is known of slots.
#ifndef KVEVICT_CORE_OPS_MOVE_H_
#define KVEVICT_CORE_OPS_MOVE_H_

#include <cstdint>
#include <span>

#include "core/evict/keep_lists.h"
#include "core/evict/merge.h"
#include "core/jobs.h"
#include "core/ops/op.h"
#include "core/view/row_change.h"
#include "core/view/view.h"

namespace kvevict {

class Rope;

struct MoveJob {
  const kvevict_view* view = nullptr;
  ListCounts tokens;  // slots held, per KV head
  KeepLists keep;
  // Bit i: companion i is another layer's too, whose job it is.
  uint64_t shared_companions = 0;
  Merge merge;  // before rows move: what becomes of those that are not kept
  uint32_t first_slot = 0;  // where the first kept row goes
  const kvevict_view* destination =
      nullptr;            // another cache; nullptr: in place
  RowChange change = {};  // of rows on their way there

  const kvevict_view& target() const {
    return destination == nullptr ? *view : *destination;
  }
  // In place: leaves recent rows, the last ones of every list, out, and has those change
  // that share numbers.
  void StayWhereRecent() {
    const uint32_t n_recent = RecentOf(*view, tokens.most);
    keep.count.most -= n_recent;
    keep.count.more -= n_recent;  // modulo 2^32
    change = GroupedRows(*view);
  }
};

inline bool AnyChanges(Jobs<MoveJob> jobs) {
  for (const MoveJob& job : jobs) {
    if (job.change.any()) return true;
  }
  return false;
}

// Merges rows of each job that are not kept into those that are, as the job says, in
// place; jobs that merge nothing are left alone. Rows can be read.
struct MergeArgs {
  // Of n_layers alike.
  struct Size {
    uint32_t n_kv_heads;
    uint32_t k_head_dim;
    uint32_t v_head_dim;
    uint32_t n_tokens;
    uint32_t n_layers;
  };

  Jobs<MoveJob> jobs;
  std::span<uint8_t> scratch;
};

// Moves the kept rows of each job's view down to slots [first_slot, first_slot +
// count), or copies them to those of its destination; but those that change. There
// `keep.slots` may be NULL: 0, 1, ...
struct CompactArgs {
  using Size =
      Jobs<MoveJob>;  // of which only view and count of the lists matter

  Jobs<MoveJob> jobs;
  std::span<uint8_t> scratch;  // it works with less too, maybe slower
};

// Tables of one layer's blocks: for all KV heads, or one for each.
struct TableJob {
  void* entries = nullptr;  // block ids, i32, or addresses, u64; nullptr: none
  bool are_ids = false;
  // Of a view with blocks: which stay, whole but for the last one of a list.
  const MoveJob* move = nullptr;

  const kvevict_view& view() const { return *move->view; }
  uint32_t n_tables() const {
    return view().block_table_head_stride == 0 ? 1 : view().n_kv_heads;
  }
};

// Puts the entries of the blocks that jobs keep first in their tables, in order, those of
// the others behind them. Entries are taken kTile at a time: what was dropped before
// makes room for those that stay and follows them, before what is dropped of the tile.
struct DropBlocksArgs {
  static constexpr uint32_t kTile = 512;
  Jobs<TableJob> jobs;
};

// Stores the kept rows of each job that change anew in its destination, with their
// numbers; or in place, where numbers are those of groups of tokens.
struct RequantizeArgs {
  Jobs<MoveJob> jobs;
};

// Moves row keep[i] of each job's view to slot i, as if all were read first; keep
// lists are in any order and may repeat slots. Jobs take turns with the scratch.
struct ReorderArgs {
  using Size = MoveJob;  // of which only view and count of the lists matter

  Jobs<MoveJob> jobs;
  std::span<uint8_t> scratch;  // the most of any job
};

struct EvictedJob {
  ListCounts tokens;  // slots held, per list
  KeepLists keep;
  // out: [n_lists, stride], how many there are by their number in `tokens` and `keep`;
  // behind the last one stands how many slots the list held
  int32_t* slots = nullptr;
  uint32_t stride = 0;
  uint32_t* counts = nullptr;  // out: [n_lists]; NULL where lists are alike
};

// Lists the slots that jobs do not keep, ascending.
struct ListEvictedArgs {
  Jobs<EvictedJob> jobs;
};

// Takes back what compaction did to each job's view. `keep` are the slots that were not
// kept, as ListEvictedArgs says, their rows are in `destination`, and first_slot is how
// many slots were filled since. Rows from the first such slot on move up, and those
// rows go between them.
struct RestoreArgs {
  Jobs<MoveJob> jobs;
};

struct RotateJob {
  const kvevict_view* view = nullptr;
  ListCounts tokens;  // per KV head
  // [n_lists, tokens.most]: by how many positions keys move, or where they were
  const int32_t* offsets = nullptr;
  uint32_t n_lists = 1;  // or n_kv_heads
};

// Turns keys by RoPE, in place.
struct RotateArgs {
  Jobs<RotateJob> jobs;
  const Rope& rope;
  // Offsets are the slots in which keys were: they move to their own.
  bool from_slots = false;
};

struct MapJob {
  SlotPositions slots;     // before
  KeepLists keep;          // slots NULL: the first ones of every list
  int32_t* out = nullptr;  // [n_lists, keep.count.most], of the survivors
};

// Writes the positions of the slots that jobs keep.
struct MapPositionsArgs {
  Jobs<MapJob> jobs;
};

// {stored, logical} of every list of every layer, u32 [n_lists, 2].
struct SetLengthsArgs {
  uint32_t* lengths;
  std::span<const uint32_t> stored;  // host memory
  uint32_t logical;
};

// Counts from one on.
struct AdvanceCountsArgs {
  uint32_t* counts;
  uint32_t n;
  uint32_t more;  // added to each
};

// Counts, from the host.
struct SetCountsArgs {
  uint32_t* counts;
  std::span<const uint32_t> values;  // host memory
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_OPS_MOVE_H_
