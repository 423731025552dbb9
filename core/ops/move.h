// Operations that move rows and those that update positions, lengths and counts
// of slots.
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
  // Bit i: companion i also belongs to another layer, whose job moves it.
  uint64_t shared_companions = 0;
  Merge merge;              // before rows move: how evicted rows are merged
  uint32_t first_slot = 0;  // where the first kept row goes
  // Another cache; nullptr moves rows in place.
  const kvevict_view* destination = nullptr;
  RowChange change = {};  // how rows change on their way there

  const kvevict_view& target() const {
    return destination == nullptr ? *view : *destination;
  }
  // Prepares a move in place: excludes recent rows, the last ones of every
  // list, and sets `change` for rows that share quantization parameters with
  // others.
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

// Merges rows that a job does not keep into rows that it keeps, in place, as
// the job says. Jobs that merge nothing are left alone. All rows must be
// readable.
struct MergeArgs {
  // The size for n_layers like layers.
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

// Moves the kept rows of each job's view down to slots [first_slot, first_slot
// + count), or copies them to those slots of its destination. Rows that change
// are left out. With a destination `keep.slots` may be NULL: 0, 1, ...
struct CompactArgs {
  using Size = Jobs<MoveJob>;  // only the view and the lists' count are read

  Jobs<MoveJob> jobs;
  std::span<uint8_t> scratch;  // less than the best works too, maybe slower
};

// The tables of one layer's blocks: one for all KV heads, or one for each.
struct TableJob {
  void* entries = nullptr;  // i32 block ids or u64 addresses; nullptr: no table
  bool are_ids = false;
  // A job of the view with blocks, which says what stays: whole blocks except a
  // list's last.
  const MoveJob* move = nullptr;

  const kvevict_view& view() const { return *move->view; }
  uint32_t n_tables() const {
    return view().block_table_head_stride == 0 ? 1 : view().n_kv_heads;
  }
};

// Puts the entries of kept blocks first in their tables, in order, and those of
// the others after them. Entries are processed kTile at a time. Entries that
// earlier tiles dropped move back to make room for the kept entries of the
// tile, and precede those that the tile drops.
struct DropBlocksArgs {
  static constexpr uint32_t kTile = 512;
  Jobs<TableJob> jobs;
};

// Stores the kept rows that change in each job's destination, with new scales
// and minima. Without a destination it does so in place, if groups of tokens
// share scales.
struct RequantizeArgs {
  Jobs<MoveJob> jobs;
};

// Moves row keep[i] of each job's view to slot i, as if all rows were read
// first. Keep lists may be in any order and repeat slots. Jobs use the scratch
// one after the other.
struct ReorderArgs {
  using Size = MoveJob;  // only the view and the lists' count are read

  Jobs<MoveJob> jobs;
  std::span<uint8_t> scratch;  // the most that any job needs
};

struct EvictedJob {
  ListCounts tokens;  // slots held, per list
  KeepLists keep;
  // Out: [n_lists, stride]. `tokens` and `keep` say how many each list has.
  // After a list's last slot stands how many slots it held.
  int32_t* slots = nullptr;
  uint32_t stride = 0;
  uint32_t* counts = nullptr;  // out: [n_lists]; NULL if lists are equally long
};

// Lists the slots that jobs do not keep, in ascending order.
struct ListEvictedArgs {
  Jobs<EvictedJob> jobs;
};

// Reverts the compaction of each job's view. `keep` lists the slots that were
// evicted, as ListEvictedArgs writes them. Their rows are in `destination`.
// first_slot is the number of slots filled since. Rows from the first evicted
// slot on move up, and the evicted rows go between them.
struct RestoreArgs {
  Jobs<MoveJob> jobs;
};

struct RotateJob {
  const kvevict_view* view = nullptr;
  ListCounts tokens;  // per KV head
  // [n_lists, tokens.most]: the positions by which keys move, or the slots in
  // which they were.
  const int32_t* offsets = nullptr;
  uint32_t n_lists = 1;  // or n_kv_heads
};

// Rotates keys by RoPE, in place.
struct RotateArgs {
  Jobs<RotateJob> jobs;
  const Rope& rope;
  // Offsets are the slots in which keys were. They are rotated to their present
  // slots.
  bool from_slots = false;
};

struct MapJob {
  SlotPositions slots;     // before the eviction
  KeepLists keep;          // slots NULL: the first slots of every list
  int32_t* out = nullptr;  // [n_lists, keep.count.most] positions
};

// Writes the positions of the slots that jobs keep.
struct MapPositionsArgs {
  Jobs<MapJob> jobs;
};

// Writes {stored, logical} of every list of every layer, u32 [n_lists, 2].
struct SetLengthsArgs {
  uint32_t* lengths;
  std::span<const uint32_t> stored;  // host memory
  uint32_t logical;
};

// Adds `more` to the n counts from `counts` on.
struct AdvanceCountsArgs {
  uint32_t* counts;
  uint32_t n;
  uint32_t more;
};

// Writes counts from host memory.
struct SetCountsArgs {
  uint32_t* counts;
  std::span<const uint32_t> values;  // host memory
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_OPS_MOVE_H_
