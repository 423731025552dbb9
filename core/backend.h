// The table of operations that each device fills in: core/backend_cpu.cc with
// Highway kernels. Policies, plans and sequences do not know which one runs.
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

// One layer's part in an operation. Everything has been checked.
struct LayerJob {
  const kvevict_view* view = nullptr;
  RowSource queries;  // row w: the query of token n_tokens - window + w
  int64_t query_head_stride = 0;
  uint32_t layer = 0;
  uint32_t owner = 0;     // the first layer with the same cache; mostly `layer`
  uint32_t n_tokens = 0;  // slots held
  uint32_t n_keep = 0;    // slots that survive, <= n_tokens
  float* scores = nullptr;  // [n_kv_heads, n_tokens]
  uint32_t* keys =
      nullptr;  // select's scratch, [n_lists, n_tokens]; may be scores
  int32_t* keep = nullptr;  // [n_lists, n_keep]; n_lists is 1 or n_kv_heads
};

// Scratch that belongs to one worker at a time.
struct WorkerScratch {
  uint8_t* data = nullptr;
  size_t bytes_per_worker = 0;

  uint8_t* Of(uint32_t worker) const {
    return data + worker * bytes_per_worker;
  }
};

// Attention of the window, reduced and pooled, into each job's scores. A kept
// window's own tokens get +infinity.
struct ScoreWindowArgs {
  const kvevict_geometry& geometry;
  const kvevict_policy& policy;
  float softmax_scale;
  std::span<const LayerJob> jobs;
  WorkerScratch scratch;  // ScoreWindowScratchBytes() each
};

CheckedSize ScoreWindowScratchBytes(const kvevict_geometry& geometry,
                                    const kvevict_policy& policy);

// Which slots must stay, per keep list.
struct Forced {
  uint32_t n_sink = 0;
  uint32_t n_recent = 0;
  // Ascending positions (SlotMap) or slots (no map); those not held are
  // ignored.
  std::span<const int32_t> protect;
};

// Where positions are, for lists whose slots and positions differ.
struct SlotMap {
  // The slot of `position` in a layer's list, or -1.
  virtual int64_t SlotOf(uint32_t layer, uint32_t list,
                         int32_t position) const = 0;

 protected:
  ~SlotMap() = default;
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
  const SlotMap* slot_map = nullptr;
};

// Moves the kept rows of each job's view down to slots [0, n_keep).
struct CompactArgs {
  std::span<const LayerJob> jobs;
  uint32_t n_lists;
};

// What shares a keep list. Where nothing is ranked every head keeps the same.
kvevict_scope EffectiveScope(const kvevict_policy& policy);

// Keep lists of a layer; under scope MODEL all layers share the one list.
uint32_t ListsPerLayer(const kvevict_geometry& geometry,
                       const kvevict_policy& policy);

struct Backend {
  const char* name;
#define KVEVICT_OP(name, Args) \
  void (*name)(const Context& context, const Args& args);
#include "core/ops.inc"
#undef KVEVICT_OP
};

extern const Backend kCpuBackend;

// UNAVAILABLE, with the reason, where the device cannot be used here.
Status FindBackend(kvevict_device device, const Backend** out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_BACKEND_H_
