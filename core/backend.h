// The table of operations that each device fills in, a file per operation:
// core/cpu with Highway kernels, cuda with launches. Policies, plans and sequences
// do not know which one runs. An eviction is a chain of them:
//
//   score_<signal> -> shape -> weigh -> diversify -> reduce -> rescue or vary
//     -> select -> merge -> list_evicted, compact or drop_blocks -> rotate
//     -> map_positions
//
// with normalize before heads compete, secure before scores are weighed, and mass
// behind a selection that is to be measured.
#ifndef KVEVICT_CORE_BACKEND_H_
#define KVEVICT_CORE_BACKEND_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/attention.h"
#include "core/checked_math.h"
#include "core/evict/keep_lists.h"
#include "core/evict/mass.h"
#include "core/evict/merge.h"
#include "core/evict/slot_blocks.h"
#include "core/evict/token_ranges.h"
#include "core/jobs.h"
#include "core/kernels/row_source.h"
#include "core/policy/params.h"
#include "core/policy/shaping.h"
#include "core/status.h"
#include "core/view/row_change.h"
#include "core/view/view.h"
#include "kvevict/experimental.h"

namespace kvevict {

class Context;
class Rope;

// ---- What an operation is told: a job per layer, and what all layers share ----
//
// Everything has been checked. Pointers but for views are to memory of the device.

// Query rows of one layer, and what is known of them. Row w, the query of token
// n_tokens - n_rows + w, is stored row (first_row + w) % ring_rows.
struct QueryRows {
  PlainRows rows;
  int64_t head_stride = 0;
  uint32_t n_rows = 0;  // the window's; 0: none are given
  uint32_t first_row = 0;
  uint32_t ring_rows = UINT32_MAX;  // this: they do not wrap
  // Natural log-sum-exps in the same order; NULL if unknown. Strides in bytes.
  const float* lse = nullptr;
  int64_t lse_row_stride = 0;
  int64_t lse_head_stride = 0;
};

// Rows of one chunk into the rings of layers.
struct ObserveArgs {
  // [n_heads, first_row + n_rows] rows each; strides may be 0 for packed.
  Jobs<const kvevict_plane*> layers;
  uint32_t n_heads;
  uint32_t first_row;       // those before it would not stay
  uint32_t n_rows;          // <= ring_rows
  uint32_t first_position;  // of first_row
  // Not NULL: first_position counts from the position that stands there when
  // the work runs.
  const uint32_t* position_address;
  // [layers, ring_rows, n_heads, packed row]; position p in row p % ring_rows
  uint8_t* rings;
  uint32_t ring_rows;
};

// Floats of every head, packed within it.
struct FloatRows {
  const float* data = nullptr;
  uint64_t head_stride = 0;  // elements
};

// What a layer's slots got of the attention of a chunk, into its sums.
struct AddSumsJob {
  FloatRows from;           // [n_from, slots with the chunk's]
  uint32_t n_from = 0;      // a multiple of n_rows
  uint32_t first_from = 0;  // where `from` is a ring: the first of those to add
  float* sums = nullptr;    // [n_rows, AddSumsArgs::stride]
  uint32_t n_rows = 0;
  // Slots before the chunk's, per list, of which rows in the same order have one, or as
  // many each.
  ListCounts tokens;
  uint32_t n_lists = 1;
  bool begins = false;  // nothing has been added: slots before begin at 0 too
  // Not NULL: sums are a ring, and when the work runs here stands, modulo sums_ring,
  // which of its rows is written.
  const uint32_t* turn = nullptr;
};

// Rows that one row of sums stands for are reduced; of each slot and the next pool - 1
// the maximum is added.
struct AddSumsArgs {
  Jobs<AddSumsJob> jobs;
  uint32_t n_new;   // slots of the chunk, which begin at 0
  uint64_t stride;  // of rows of sums, which have as many slots; elements
  uint32_t pool;
  kvevict_reduce reduce;
  bool clears = false;  // slots behind the chunk's become 0, up to the stride
  // Rows of the ring that it is; 0: it is none.
  uint32_t from_ring = 0;
  uint32_t sums_ring = 0;
};

struct ScoreJob {
  ListCounts tokens;                   // slots held, per KV head
  const kvevict_view* view = nullptr;  // where the signal reads keys
  QueryRows queries;                   // where it reads queries
  // Natural logits [n_q_heads] that take part in their softmax, and do so in its
  // log-sum-exps; NULL: none.
  const float* sinks = nullptr;
  SlotPositions slots;
  float* rows = nullptr;  // out: [ScoreArgs::n_rows, tokens.most]
  // What else the signal needs, of the caller's.
  FloatRows caller;  // [n_kv_heads, tokens.most] scores
  // [n_sum_heads, tokens.most] of attention; none: to be made of `queries`
  FloatRows sums;
  uint32_t n_sum_heads = 0;  // n_q_heads, n_kv_heads, or 1 of all of them
  uint32_t n_seen = 0;       // tokens so far, and as many queries
  // Of these, `sums` are at most of so many last ones.
  uint32_t n_summed = INT32_MAX;
  uint32_t n_sink = 0;         // first slots, which stay whatever they score
  uint32_t next_position = 0;  // of the next one, as RoPE will see it
  uint32_t layer = 0;          // its number in the model
  ListCounts keep;             // slots that lists are to keep, of job.slots
  FloatRows query_mean;        // [n_q_heads, k_head_dim]
  FloatRows query_covariance;  // [n_q_heads, k_head_dim, k_head_dim], or none
  FloatRows key_filter;        // [n_kv_heads, k_head_dim]
  FloatRows query_centers;     // [n_q_heads, 3, rope.n_frequencies()]
  FloatRows weights;           // [n_kv_heads, tokens.most], for weighing
  float* measure = nullptr;    // out: a LayerMeasure, where the policy wants it
};

// One signal's numbers for every token, a row per KV head, or per query head
// where shaping wants them apart.
struct ScoreArgs {
  const kvevict_layer_geometry& layer;  // of all jobs
  const Policy& policy;                 // the signal's own parameters
  const Rope& rope;
  float softmax_scale;
  bool per_query_head;
  uint32_t n_tokens;  // the most of any layer, of these jobs or beside them
  Jobs<ScoreJob> jobs;
  std::span<uint8_t> scratch;  // ScoreOp::scratch_bytes()

  uint32_t n_rows() const {
    return per_query_head ? layer.n_q_heads : layer.n_kv_heads;
  }
};

struct ShapeJob {
  ListCounts tokens;      // per KV head
  float* rows = nullptr;  // [n_kv_heads * n_terms, tokens.most]; is written to
  float* scores = nullptr;  // out: [n_kv_heads, tokens.most]; may be `rows`
  // What weighing and diversifying read.
  const kvevict_view* view = nullptr;  // by norms values, by redundancy keys
  FloatRows weights;  // [n_kv_heads, tokens.most], the caller's
};

// Pools rows along the tokens and reduces the n_terms rows of each KV head. The
// last n_unpooled tokens of a row are left out and become +infinity.
struct ShapeArgs {
  Shaping shaping;
  uint32_t n_kv_heads;
  Jobs<ShapeJob> jobs;
  std::span<uint8_t> scratch;  // Backend::shape_scratch_bytes()
};

// Makes shaped scores (score + epsilon) * weight, in place, as the policy says,
// which has weights; +infinity stays.
struct WeighArgs {
  const kvevict_layer_geometry& layer;  // of all jobs
  const Policy& policy;
  Jobs<ShapeJob> jobs;
};

// Takes the redundancy of a head's keys off its weighed scores, in place, as the
// policy says, whose redundancy is above 0; +infinity stays.
struct DiversifyArgs {
  const kvevict_layer_geometry& layer;  // of all jobs
  const Policy& policy;
  uint32_t n_tokens;  // the most of any layer, of these jobs or beside them
  Jobs<ShapeJob> jobs;
  std::span<uint8_t> scratch;  // Backend::diversify_scratch_bytes()
};

struct ReduceJob {
  uint32_t n_tokens = 0;
  const float* rows = nullptr;  // [n_rows, n_tokens], end to end
  float* out = nullptr;         // [n_tokens]; may be the first row
};

// Rows of heads, layers and ranks that share a keep list become one.
struct ReduceArgs {
  Jobs<ReduceJob> jobs;
  uint32_t n_rows;
  kvevict_reduce reduce;
};

// Which slots must stay, per keep list.
struct Forced {
  uint32_t n_sink = 0;
  uint32_t n_recent = 0;
  // Ascending positions, in host memory; those not held are ignored.
  std::span<const int32_t> protect;
};

// How many a list keeps, where the scores of its layer decide.
struct HeadSplit {
  HeadRule kind = HeadRule::kEqual;
  double floor = 0.0;
  double threshold = 0.0;

  bool Counts() const { return kind != HeadRule::kEqual; }
  // What a list keeps whatever others have: its best tokens; of a blend, beside what
  // must stay.
  uint32_t OwnOf(uint32_t budget, const Forced& forced) const {
    if (kind == HeadRule::kAdaptive) {
      return std::max(1u, static_cast<uint32_t>(budget * floor));
    }
    return static_cast<uint32_t>(RoomOf(budget, forced) * floor);
  }
  // What a budget has beside what must stay.
  static uint32_t RoomOf(uint32_t budget, const Forced& forced) {
    const uint64_t n_forced =
        uint64_t{forced.n_sink} + forced.n_recent + forced.protect.size();
    return static_cast<uint32_t>(budget - std::min<uint64_t>(n_forced, budget));
  }
  float won_part() const { return static_cast<float>(1.0 - floor); }
};

struct SelectJob {
  ListCounts tokens;  // per list
  // [n_lists, tokens.most]; NULL: nothing is ranked
  const float* scores = nullptr;
  uint32_t* keys = nullptr;  // scratch, likewise; may be the scores
  KeepLists keep;            // out: ascending; count.Of(i) <= tokens.Of(i)
  SlotPositions slots;  // what is kept is slots.first + a place in `scores`
  // Where scores decide how many: the budget of a list, and where keep.count.each is
  // to be written. No list keeps more than keep.count.most.
  uint32_t budget = 0;
  uint32_t* counts = nullptr;
  Mass* masses = nullptr;  // [n_lists], where they are measured
};

struct SelectArgs {
  Jobs<SelectJob> jobs;  // with as many lists each
  kvevict_tie tie;
  Forced forced;
  std::span<uint8_t> scratch;  // Backend::select_scratch_bytes()
  HeadSplit heads;
  // What stays or goes together: the slots of a block have the mean of its scores, and
  // what must stay keeps its block. Lists lose a multiple of the size.
  SlotBlocks blocks = {};
  // Which tokens come before others whatever their scores, once it is known how many
  // each list keeps. Host memory.
  std::span<const TokenRange> ranges = {};
};

// Measures what the keep lists of selected jobs have of their scores, which are still
// there; adds: to what was measured before, of other slots.
struct MassArgs {
  Jobs<SelectJob> jobs;  // with as many lists each
  bool adds = false;
};

// What changes scores by which of a list are the best, what must stay before all.
//
// normalize: writes a list's scores times the share that its best have in the sum of
// them, as many as the budget has beside what must stay, which is in neither sum, nor
// is NaN. Where that is not a finite number above 0 it writes them as they are.
//
// secure: of what a list keeps the best `share`, rounded down in f32, get +infinity,
// and where heads are adaptive, those of its floor. Where scores decide how many a list
// keeps, they do so here. Ranges rank the best of secure, and do not count in normalize.
struct BestArgs {
  SelectArgs select;  // whose lists are scratch
  // Their scores are written to: of secure not the keys, of normalize either.
  Jobs<ShapeJob> shapes;
  double share = 0.0;

  // Of any list of a layer.
  uint32_t LeastSecured(const SelectJob& job) const {
    return select.heads.kind == HeadRule::kAdaptive
               ? select.heads.OwnOf(job.budget, select.forced)
               : 0;
  }
};

struct RescueJob {
  float* scores = nullptr;  // those of the select job, which are written to
  FloatRows marks;  // per list: of half of the slots the highest are marked
  uint32_t n_blocks = 0;  // how many of each list; 0: it is left alone
  uint32_t layer = 0;     // its number in the model
  uint32_t n_seen = 0;    // tokens so far
};

// Some blocks that would go stay: see Policy.rescue. Of each list, slots between
// both ends that stay get +infinity, all others NaN.
struct RescueArgs {
  SelectArgs select;  // before; its lists are scratch, and keys not the scores
  Jobs<RescueJob> jobs;
  Anchor anchor;
  uint64_t seed;
};

struct VaryJob {
  float* scores = nullptr;  // those of the select job, which are written to
  const kvevict_view* view = nullptr;  // whose keys are compared
};

// Beyond a share of the mass blocks stay by how unlike their keys are: see
// Policy.diverse_mass. Of each list whose best blocks do not use up its room,
// slots between both ends that stay get +infinity, all others NaN.
struct VaryArgs {
  SelectArgs select;  // before; its lists are scratch, and keys not the scores
  const kvevict_layer_geometry& layer;  // of all jobs
  float mass;
  uint32_t n_tokens;  // the most of any layer, of these jobs or beside them
  Jobs<VaryJob> jobs;
  // Backend::diversify_scratch_bytes(); that of `select` too
  std::span<uint8_t> scratch;
};

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
  Jobs<MoveJob> jobs;
  std::span<uint8_t> scratch;  // Backend::merge_scratch_bytes()
};

// Moves the kept rows of each job's view down to slots [first_slot, first_slot +
// count), or copies them to those of its destination; but those that change. There
// `keep.slots` may be NULL: 0, 1, ...
struct CompactArgs {
  Jobs<MoveJob> jobs;
  // Backend::compact_scratch_bytes(); it works with less too, maybe slower.
  std::span<uint8_t> scratch;
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
  Jobs<MoveJob> jobs;
  std::span<uint8_t> scratch;  // Backend::reorder_scratch_bytes(), the most
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

// A CUstream; nothing on the CPU.
using Stream = kvevict_stream;

// What a context keeps for its backend.
class DeviceState;

// Scratch in which an operation runs, and what it can make use of. Results are the
// same in any.
struct ScratchNeeds {
  CheckedSize least{0};
  CheckedSize best{0};

  ScratchNeeds() = default;
  ScratchNeeds(CheckedSize least_bytes, CheckedSize best_bytes)
      : least(least_bytes), best(best_bytes) {}
  // NOLINTNEXTLINE: most have one size
  ScratchNeeds(CheckedSize bytes) : least(bytes), best(bytes) {}
};

// For jobs of n_layers, of up to n_tokens each.
using ScratchBytes = ScratchNeeds (*)(const Context& context,
                                      const kvevict_layer_geometry& layer,
                                      const Policy& policy, uint32_t n_layers,
                                      uint32_t n_tokens);

// What a plan says of the calls to come beside geometry and policy.
struct ScoreTraits {
  bool is_ragged = false;  // heads may have unlike lengths
  bool has_sinks = false;
};

// How a device scores by one signal.
struct ScoreOp {
  Status (*run)(const Context& context, Stream stream, const ScoreArgs& args);
  ScratchBytes scratch_bytes;
  // Compiles what calls with this geometry and policy launch beyond what all do; null
  // for nothing.
  Status (*prepare)(const Context& context, const kvevict_layer_geometry& layer,
                    const Policy& policy, const ScoreTraits& traits);
  // Whether all jobs can run, asked before the first one does: rows that the device
  // can load, code that is there while a stream is captured. Jobs have no `rows` yet.
  // Null where nothing can be wrong.
  Status (*check)(const Context& context, Stream stream,
                  const ScoreArgs& args) = nullptr;
};

// Operations are queued on a stream; a failure to queue is their Status.
struct Backend {
  const char* name;
  size_t workspace_alignment;
  bool on_host;  // device memory can be read and written by this code

  // UNAVAILABLE, with the reason, where no context can be made here.
  Status (*check)();
  // Null where there is none to list.
  Status (*gpu_at)(uint32_t index, kvevict_gpu_info* out);
  Status (*open)(const Context& context, const kvevict_context_options& options,
                 DeviceState** out);
  void (*close)(DeviceState* state);
  // Compiles what all calls launch.
  Status (*prepare)(const Context& context);

  // UNSUPPORTED if the stream is captured into a graph, where an eviction by this
  // policy would have to wait or to compile, also to rank tokens by ranges, or to
  // measure mass.
  Status (*check_capture)(const Context& context, Stream stream,
                          const Policy& policy, bool ranks, bool measures);

  // Aligned to 256, with any content.
  Status (*allocate)(const Context& context, const char* what, size_t n_bytes,
                     void** out);
  void (*free)(const Context& context, void* memory, size_t n_bytes);
  // Fills with zeros, at once.
  Status (*clear)(const Context& context, void* memory, size_t n_bytes);
  // Both wait until `host` has been written or may be overwritten; UNSUPPORTED if
  // the stream is captured into a graph.
  Status (*read)(const Context& context, Stream stream, const void* device,
                 size_t n_bytes, void* host);
  Status (*write)(const Context& context, Stream stream, const void* host,
                  size_t n_bytes, void* device);
  // Queued; both are memory of the device, apart from each other.
  Status (*copy)(const Context& context, Stream stream, const void* from,
                 size_t n_bytes, void* to);

  ScratchBytes shape_scratch_bytes;
  ScratchBytes diversify_scratch_bytes;
  // For jobs with n_lists of up to n_tokens in all.
  CheckedSize (*select_scratch_bytes)(const Context& context, uint32_t n_tokens,
                                      uint64_t n_lists);
  // For jobs of n_layers.
  ScratchNeeds (*merge_scratch_bytes)(const Context& context,
                                      const MergeShape& shape,
                                      uint32_t n_layers);
  // Of jobs only view and count of the lists matter.
  CheckedSize (*compact_scratch_bytes)(const Context& context,
                                       Jobs<MoveJob> jobs);
  CheckedSize (*reorder_scratch_bytes)(const Context& context,
                                       const MoveJob& job);
  // Of jobs only shapes and strides matter.
  ScratchNeeds (*attend_scratch_bytes)(const Context& context,
                                       Jobs<AttendJob> jobs);

  const ScoreOp* no_score = nullptr;  // of signals that rank nothing
#define KVEVICT_SCORE_OP(name) const ScoreOp* name;
#define KVEVICT_OP(name, Args) \
  Status (*name)(const Context& context, Stream stream, const Args& args);
#include "core/ops.inc"

  // Whether jobs of a policy with weights can be weighed: see ScoreOp::check. NULL
  // where nothing can be wrong.
  Status (*check_weighing)(const Context& context, Stream stream,
                           const ScoreArgs& args);

  // The same of a policy with redundancy.
  Status (*check_diversifying)(const Context& context, Stream stream,
                               const ScoreArgs& args);

  // The same of a policy with a diverse mass.
  Status (*check_varying)(const Context& context, Stream stream,
                          const ScoreArgs& args);

  // Whether jobs can be merged, asked before the first byte changes; they have no keep
  // lists yet. NULL where nothing can be wrong.
  Status (*check_merging)(const Context& context, Stream stream,
                          Jobs<MoveJob> jobs);

  // Whether rows of jobs can be stored anew, likewise.
  Status (*check_requantizing)(const Context& context, Stream stream,
                               Jobs<MoveJob> jobs);

  // Whether keys of jobs can be turned, likewise.
  Status (*check_rotating)(const Context& context, Stream stream,
                           Jobs<RotateJob> jobs);

  // Whether jobs can attend, likewise.
  Status (*check_attending)(const Context& context, Stream stream,
                            Jobs<AttendJob> jobs);

  // shape and then select, by the same lists; scores stay as they were. For one
  // row per KV head, each with its list. NULL where this is nothing more than
  // both.
  Status (*shape_and_select)(const Context& context, Stream stream,
                             const ShapeArgs& shape, const SelectArgs& select);
};

extern const Backend kCpuBackend;
extern const Backend kCudaBackend;

Status FindBackend(kvevict_device device, const Backend** out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_BACKEND_H_
