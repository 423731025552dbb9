// One request's life: prefill in chunks, evict, decode, evict again. Also the calls
// without a sequence.
#ifndef KVEVICT_TESTS_THREAD_SCENARIO_H_
#define KVEVICT_TESTS_THREAD_SCENARIO_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kvevict/experimental.h"

namespace kvevict {

inline constexpr uint32_t kLayers = 3;
inline constexpr uint32_t kQHeads = 4;
inline constexpr uint32_t kKvHeads = 2;
inline constexpr uint32_t kHeadDim = 24;
inline constexpr uint32_t kMaxTokens = 220;

// A kvevict_parallel_fn whose user_data is a pointer to the number of threads; several
// threads may call it at once. Starts them afresh in every call: slow, and with nothing
// shared between calls.
void RunInThreads(uint32_t n_items, kvevict_task_fn run, void* task,
                  void* n_threads);

// A context on the CPU that runs its work like that; n_threads outlives it.
kvevict_context* NewContext(uint32_t* n_threads);

kvevict_plan* NewPlan(const kvevict_context* context, const char* policy,
                      kvevict_dtype dtype = KVEVICT_DTYPE_F32);

// Numbers that depend on the seed alone.
std::vector<float> RandomFloats(uint64_t seed, size_t n);

// [token, head, dim] rows of f32.
kvevict_plane RowsOf(const float* data, uint32_t n_heads);

// Memory aligned as calls need it.
class Workspace {
 public:
  explicit Workspace(const kvevict_workspace& size);
  Workspace(const kvevict_plan* plan, kvevict_operation operation);

  void* data() const { return memory_.get(); }
  size_t size() const { return n_bytes_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t n_bytes_;
};

// [kKvHeads, n_tokens] of layer 0, from keys and the window's queries.
std::vector<float> ScoresOf(const kvevict_plan* plan, uint32_t n_tokens,
                            const kvevict_view& view, const float* queries);

// The slots of layer 0 that stay by these scores.
std::vector<int32_t> SlotsOf(const kvevict_context* context,
                             const kvevict_plan* plan, uint32_t n_tokens,
                             const std::vector<float>& scores);

// The result: positions of all layers and heads, then all K and V.
struct Outcome {
  std::vector<int32_t> positions;
  std::vector<float> rows;

  bool operator==(const Outcome&) const = default;
};

// Runs the life of request `seed` in `sequence`, which must be new.
Outcome Live(const kvevict_plan* plan, kvevict_sequence* sequence,
             uint64_t seed);

// Runs the life in a sequence of its own.
Outcome Live(const kvevict_plan* plan, uint64_t seed);

}  // namespace kvevict

#endif  // KVEVICT_TESTS_THREAD_SCENARIO_H_
