// The table of operations that each device fills in: core/backend_cpu.cc with
// Highway kernels, cuda/backend_cuda.cc with launches. Policies, plans and
// sequences do not know which one runs.
#ifndef KVEVICT_CORE_BACKEND_H_
#define KVEVICT_CORE_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/checked_math.h"
#include "core/kernels/row_source.h"
#include "core/status.h"

namespace kvevict {

class Context;

// Which positions a layer's slots hold: those of the first n_kept are listed,
// the rest count up. By itself: slot and position are the same.
struct SlotPositions {
  const int32_t* kept = nullptr;  // [n_lists, n_kept], ascending per list
  uint32_t n_kept = 0;
  uint32_t tail_position = 0;  // of slot n_kept

  int32_t PositionOf(uint32_t list, uint32_t slot) const;
  // The slot of `position` among n_tokens, or -1.
  int64_t SlotOf(uint32_t list, int32_t position, uint32_t n_tokens) const;
};

// One layer's part in an operation. Everything has been checked. Pointers but
// for the view are to memory of the device.
struct LayerJob {
  const kvevict_view* view = nullptr;
  // Window row w, the query of token n_tokens - window + w, is row
  // (first_row + w) % window.
  RowSource queries;
  int64_t query_head_stride = 0;
  uint32_t first_row = 0;
  // Natural log-sum-exps of the query rows, in the same order; NULL if unknown.
  const float* row_lse = nullptr;
  int64_t lse_row_stride = 0;  // bytes
  int64_t lse_head_stride = 0;
  uint32_t layer = 0;
  uint32_t owner = 0;     // the first layer with the same cache; mostly `layer`
  uint32_t n_tokens = 0;  // slots held
  uint32_t n_keep = 0;    // slots that survive, <= n_tokens
  SlotPositions slots;    // before the eviction
  // The caller's, f32 [n_kv_heads, n_tokens] with a stride in elements.
  const float* caller_scores = nullptr;
  uint64_t caller_head_stride = 0;
  float* scores = nullptr;  // [n_kv_heads, n_tokens]
  uint32_t* keys =
      nullptr;  // select's scratch, [n_lists, n_tokens]; may be scores
  int32_t* keep = nullptr;  // [n_lists, n_keep]; n_lists is 1 or n_kv_heads
  int32_t* new_positions = nullptr;  // [n_lists, n_keep], of the survivors
};

// Rows of one chunk into the rings of layers.
struct CaptureArgs {
  std::span<const kvevict_plane> layers;  // of [n_heads, first_row + n_rows]
  uint32_t n_heads;
  uint32_t first_row;       // those before it would not stay
  uint32_t n_rows;          // <= window
  uint32_t first_position;  // of first_row
  // Not NULL: first_position counts from the position that stands there when
  // the work runs.
  const uint32_t* position_address;
  // [layers, window, n_heads, packed row]; position p in row p % window
  uint8_t* rings;
  uint32_t window;
};

// Attention of the window, reduced and pooled, into each job's scores. A kept
// window's own tokens get +infinity.
struct ScoreWindowArgs {
  const kvevict_geometry& geometry;
  const kvevict_policy& policy;
  float softmax_scale;
  std::span<const LayerJob> jobs;
  std::span<uint8_t> scratch;  // Backend::score_scratch_bytes()
};

// A number drawn for every token and KV head, into each job's scores.
struct ScoreRandomArgs {
  const kvevict_geometry& geometry;
  const kvevict_policy& policy;
  std::span<const LayerJob> jobs;
};

// The caller's scores into each job's.
struct ScoreCallerArgs {
  const kvevict_geometry& geometry;
  std::span<const LayerJob> jobs;
};

// Which slots must stay, per keep list.
struct Forced {
  uint32_t n_sink = 0;
  uint32_t n_recent = 0;
  // Ascending positions, in host memory; those not held are ignored.
  std::span<const int32_t> protect;
};

// Scores to ascending keep lists, as scope and tie rule say. Reads no scores
// where the policy ranks no tokens.
struct SelectArgs {
  const kvevict_geometry& geometry;
  const kvevict_policy& policy;
  std::span<const LayerJob> jobs;
  // Scope model: layers whose scores, [n_layers, n_kv_heads, n_tokens], lie end
  // to end from jobs[0].scores on. Otherwise 1.
  uint32_t n_shared_layers = 1;
  Forced forced;
  std::span<uint8_t> scratch;  // Backend::select_scratch_bytes()
  // Lists to write: ListsPerLayer(), or n_kv_heads alike where that is 1.
  uint32_t n_lists;
};

// Moves the kept rows of each job's view down to slots [0, n_keep).
struct CompactArgs {
  std::span<const LayerJob> jobs;
  uint32_t n_lists;
  // For a single job Backend::compact_view_scratch_bytes() are enough; it works
  // with less too, maybe slower.
  std::span<uint8_t> scratch;
};

// Moves row keep[i] of the job's view to slot i for i < n_keep, as if all were
// read first; keep lists are in any order and may repeat slots.
struct ReorderArgs {
  const LayerJob& job;
  uint32_t n_lists;
  std::span<uint8_t> scratch;  // Backend::reorder_scratch_bytes()
};

// Writes each job's new_positions: of slots `keep`, or of the first n_keep.
struct MapPositionsArgs {
  std::span<const LayerJob> jobs;
  uint32_t n_lists;
};

// {stored, logical} of every layer, u32 [n_layers, 2].
struct SetLengthsArgs {
  uint32_t* lengths;
  std::span<const uint32_t> stored;  // host memory
  uint32_t logical;
};

struct AdvanceLengthsArgs {
  uint32_t* lengths;
  uint32_t n_layers;
  uint32_t n_tokens;  // added to both
};

// What shares a keep list. Where nothing is ranked every head keeps the same.
kvevict_scope EffectiveScope(const kvevict_policy& policy);

// Keep lists of a layer; under scope MODEL all layers share the one list.
uint32_t ListsPerLayer(const kvevict_geometry& geometry,
                       const kvevict_policy& policy);

// A CUstream; nothing on the CPU.
using Stream = kvevict_stream;

// What a context keeps for its backend.
class DeviceState;

// Scratch for jobs of n_layers at max_tokens.
using ScratchBytes = CheckedSize (*)(const Context& context,
                                     const kvevict_geometry& geometry,
                                     const kvevict_policy& policy,
                                     uint32_t n_layers);

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
  // Compiles what calls with this geometry and policy launch; NULL: what all do.
  Status (*prepare)(const Context& context, const kvevict_geometry* geometry,
                    const kvevict_policy* policy);

  // UNSUPPORTED if the stream is captured into a graph, where an eviction by this
  // policy would have to wait or to compile.
  Status (*check_capture)(const Context& context, Stream stream,
                          const kvevict_policy& policy);

  // Zero-filled, aligned to 256.
  Status (*allocate)(const Context& context, const char* what, size_t n_bytes,
                     void** out);
  void (*free)(const Context& context, void* memory, size_t n_bytes);
  // Both wait until `host` has been written or may be overwritten; UNSUPPORTED if
  // the stream is captured into a graph.
  Status (*read)(const Context& context, Stream stream, const void* device,
                 size_t n_bytes, void* host);
  Status (*write)(const Context& context, Stream stream, const void* host,
                  size_t n_bytes, void* device);

  ScratchBytes score_scratch_bytes;
  ScratchBytes select_scratch_bytes;
  // For one job, of which only view and n_keep count.
  CheckedSize (*compact_view_scratch_bytes)(const Context& context,
                                            const LayerJob& job);
  CheckedSize (*reorder_scratch_bytes)(const Context& context,
                                       const LayerJob& job, uint32_t n_lists);

#define KVEVICT_OP(name, Args) \
  Status (*name)(const Context& context, Stream stream, const Args& args);
#include "core/ops.inc"
#undef KVEVICT_OP
};

extern const Backend kCpuBackend;
extern const Backend kCudaBackend;  // cuda/backend_cuda.cc

Status FindBackend(kvevict_device device, const Backend** out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_BACKEND_H_
