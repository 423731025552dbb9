// The calls without a sequence for one layer, with lists of one length end to end.
#ifndef KVEVICT_TESTS_GPU_DOORS_H_
#define KVEVICT_TESTS_GPU_DOORS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "kvevict/kvevict.h"

namespace kvevict::gpu {

// A call's scratch, and the stream of its work.
struct Scratch {
  void* memory = nullptr;
  size_t n_bytes = 0;
  kvevict_stream stream = nullptr;
};

struct ScoreCall {
  const kvevict_plan* plan;
  uint32_t layer;
  uint32_t n_tokens;
  const kvevict_view* view;
  const kvevict_plane* queries;
  const kvevict_plane* row_lse = nullptr;
  uint32_t n_query_rows = 0;
};
kvevict_status Score(const ScoreCall& call, float* scores, size_t scores_len,
                     const Scratch& scratch);

// A layer shows this of a chunk.
struct Shown {
  uint32_t layer;
  const kvevict_plane* queries;
  const kvevict_plane* row_lse = nullptr;
};
kvevict_status Observe(kvevict_sequence* sequence,
                       std::span<const Shown> layers, uint32_t n_rows,
                       uint32_t first_position, kvevict_stream stream);
inline kvevict_status Observe(kvevict_sequence* sequence, const Shown& layer,
                              uint32_t n_rows, uint32_t first_position,
                              kvevict_stream stream) {
  return Observe(sequence, std::span(&layer, 1), n_rows, first_position,
                 stream);
}

// The inputs of an eviction for each layer, in order.
class LayerInputs {
 public:
  // f32 rows, so many elements apart.
  void AddScores(const void* address, uint64_t head_stride);
  void AddWindow(const kvevict_plane& queries,
                 const kvevict_plane* row_lse = nullptr);
  void AddNothing() { Add(); }
  // The inputs of the last layer.
  kvevict_signal_inputs* last() { return &inputs_.back(); }
  // The options are valid as long as this object.
  void Lend(kvevict_evict_options* options) const;

 private:
  kvevict_signal_inputs* Add();
  const kvevict_plane* Floats(const void* address, uint64_t head_stride);

  std::deque<kvevict_plane> planes_;  // stay where they are
  std::vector<kvevict_signal_inputs> inputs_;
};

// A selection as the plan's policy wants it.
struct SelectCall {
  const kvevict_context* context;
  const kvevict_plan* plan;
  uint32_t layer;
  uint32_t n_tokens;
  const float* scores;
  size_t scores_len;
  std::span<const int32_t> protect = {};
};
// Scratch for n_lists lists of up to n_tokens.
size_t SelectBytes(const kvevict_context* context, uint32_t n_tokens,
                   uint32_t n_lists);
kvevict_status Select(const SelectCall& call, int32_t* keep, size_t keep_len,
                      uint32_t* n_keep, const Scratch& scratch);

class OneMove {
 public:
  OneMove(const kvevict_view& view, uint32_t n_tokens, const int32_t* slots,
          size_t slots_len, uint32_t n_lists);
  OneMove(const OneMove&) = delete;
  OneMove& operator=(const OneMove&) = delete;

  size_t CompactBytes(const kvevict_context* context) const;
  kvevict_status Compact(const kvevict_context* context,
                         const Scratch& scratch) const;
  size_t ReorderBytes(const kvevict_context* context) const;
  kvevict_status Reorder(const kvevict_context* context,
                         const Scratch& scratch) const;

 private:
  kvevict_keep_lists keep_ = KVEVICT_KEEP_LISTS_INIT;
  kvevict_move move_ = KVEVICT_MOVE_INIT;
};

struct RotateCall {
  const kvevict_plan* plan;
  uint32_t layer;
  uint32_t n_tokens;
  const kvevict_view* view;
  const int32_t* offsets;
  size_t offsets_len;
  uint32_t n_lists;
};
kvevict_status Rotate(const RotateCall& call, kvevict_stream stream);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_DOORS_H_
