#include "tests/thread/scenario.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/thread/check.h"

namespace kvevict {

void RunInThreads(uint32_t n_items, kvevict_task_fn run, void* task,
                  void* n_threads) {
  std::atomic<uint32_t> next{0};
  const auto work = [&](uint32_t worker) {
    for (uint32_t item = next++; item < n_items; item = next++) {
      run(task, item, worker);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t w = 1; w < *static_cast<uint32_t*>(n_threads); ++w) {
    threads.emplace_back(work, w);
  }
  work(0);
  for (std::thread& thread : threads) thread.join();
}

kvevict_context* NewContext(uint32_t* n_threads) {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.n_threads = *n_threads;
  options.parallel = RunInThreads;
  options.parallel_user_data = n_threads;
  kvevict_context* context = nullptr;
  CHECK_OK(kvevict_context_create(&options, &context));
  return context;
}

kvevict_plan* NewPlan(const kvevict_context* context, const char* policy_text,
                      kvevict_dtype dtype) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = kQHeads;
  layer.n_kv_heads = kKvHeads;
  layer.k_head_dim = layer.v_head_dim = kHeadDim;
  layer.k_dtype = layer.v_dtype = dtype;
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = kLayers;
  geometry.max_tokens = kMaxTokens;
  geometry.layers = &layer;
  geometry.layers_len = 1;
  kvevict_policy* policy = nullptr;
  CHECK_OK(kvevict_policy_create(policy_text, &policy));
  kvevict_plan* plan = nullptr;
  CHECK_OK(kvevict_plan_create(context, &geometry, policy, nullptr, &plan));
  kvevict_policy_destroy(policy);
  return plan;
}

std::vector<float> RandomFloats(uint64_t seed, size_t n) {
  std::vector<float> floats(n);
  uint64_t state = seed * 2654435761u + 1;
  for (float& f : floats) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    f = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-30f;
  }
  return floats;
}

kvevict_plane RowsOf(const float* data, uint32_t n_heads) {
  kvevict_plane plane{};
  plane.data = reinterpret_cast<uint64_t>(data);
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = kHeadDim;
  plane.head_stride_bytes = kHeadDim * sizeof(float);
  plane.token_stride_bytes = n_heads * plane.head_stride_bytes;
  return plane;
}

Workspace::Workspace(const kvevict_workspace& size)
    : memory_(std::aligned_alloc(64, (size.best_bytes + 127) / 64 * 64)),
      n_bytes_(size.best_bytes) {}

Workspace::Workspace(const kvevict_plan* plan, kvevict_operation operation)
    : Workspace([&] {
        kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
        CHECK_OK(kvevict_plan_workspace(plan, operation, 0, &size));
        return size;
      }()) {}

std::vector<float> ScoresOf(const kvevict_plan* plan, uint32_t n_tokens,
                            const kvevict_view& view, const float* queries) {
  const kvevict_plane rows = RowsOf(queries, kQHeads);
  std::vector<float> scores(kKvHeads * n_tokens);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = &rows;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = n_tokens;
  job.view = &view;
  job.inputs = &inputs;
  job.scores = scores.data();
  job.scores_len = scores.size();
  const Workspace workspace(plan, KVEVICT_OPERATION_SCORE);
  CHECK_OK(kvevict_score(plan, &job, 1, workspace.data(), workspace.size(),
                         nullptr));
  return scores;
}

std::vector<int32_t> SlotsOf(const kvevict_context* context,
                             const kvevict_plan* plan, uint32_t n_tokens,
                             const std::vector<float>& scores) {
  kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  CHECK_OK(kvevict_plan_selection(plan, 0, n_tokens, 0, &options, &keep));
  std::vector<int32_t> slots(size_t{keep.n_lists} * keep.count);
  options.scores = scores.data();
  options.scores_len = scores.size();
  keep.slots = slots.data();
  keep.slots_len = slots.size();
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  CHECK_OK(kvevict_select_workspace(context, n_tokens, keep.n_lists, &size));
  const Workspace workspace(size);
  CHECK_OK(kvevict_select(context, &options, &keep, workspace.data(),
                          workspace.size(), nullptr));
  return slots;
}

namespace {

constexpr size_t kKvRow = kKvHeads * kHeadDim;
constexpr size_t kQRow = kQHeads * kHeadDim;

class Request {
 public:
  Request(const kvevict_plan* plan, kvevict_sequence* sequence, uint64_t seed)
      : sequence_(sequence),
        seed_(seed),
        workspace_(plan, KVEVICT_OPERATION_EVICT) {
    for (uint32_t l = 0; l < kLayers; ++l) {
      k_[l].resize(kMaxTokens * kKvRow);
      v_[l].resize(kMaxTokens * kKvRow);
    }
  }

  void Step(uint32_t n) {
    for (uint32_t l = 0; l < kLayers; ++l) {
      uint32_t stored = 0;
      CHECK_OK(kvevict_sequence_stored_length(sequence_, l, 0, &stored));
      const uint64_t seed = seed_ * 1000003 + position_ * 31 + l;
      const std::vector<float> q = RandomFloats(seed, n * kQRow);
      const std::vector<float> k = RandomFloats(seed + 7, n * kKvRow);
      const std::vector<float> v = RandomFloats(seed + 13, n * kKvRow);
      std::copy(k.begin(), k.end(), k_[l].begin() + stored * kKvRow);
      std::copy(v.begin(), v.end(), v_[l].begin() + stored * kKvRow);
      const kvevict_plane rows = RowsOf(q.data(), kQHeads);
      kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
      inputs.queries = &rows;
      kvevict_observation shown = KVEVICT_OBSERVATION_INIT;
      shown.layer = l;
      shown.inputs = &inputs;
      CHECK_OK(kvevict_sequence_observe(sequence_, &shown, 1, n, position_,
                                        nullptr));
    }
    CHECK_OK(kvevict_sequence_append(sequence_, n, nullptr));
    position_ += n;
  }

  void Evict() {
    kvevict_view views[kLayers];
    for (uint32_t l = 0; l < kLayers; ++l) {
      views[l] = KVEVICT_VIEW_INIT;
      views[l].n_kv_heads = kKvHeads;
      views[l].k = RowsOf(k_[l].data(), kKvHeads);
      views[l].v = RowsOf(v_[l].data(), kKvHeads);
    }
    CHECK_OK(kvevict_sequence_evict(sequence_, views, kLayers, nullptr,
                                    workspace_.data(), workspace_.size(),
                                    nullptr));
  }

  Outcome Take() const {
    Outcome outcome;
    for (uint32_t l = 0; l < kLayers; ++l) {
      uint32_t stored = 0;
      CHECK_OK(kvevict_sequence_stored_length(sequence_, l, 0, &stored));
      for (uint32_t h = 0; h < kKvHeads; ++h) {
        std::vector<int32_t> positions(stored);
        size_t n = 0;
        CHECK_OK(kvevict_sequence_keep_positions(
            sequence_, l, h, positions.data(), positions.size(), &n));
        outcome.positions.insert(outcome.positions.end(), positions.begin(),
                                 positions.end());
      }
      for (const auto* rows : {&k_[l], &v_[l]}) {
        outcome.rows.insert(outcome.rows.end(), rows->begin(),
                            rows->begin() + stored * kKvRow);
      }
    }
    return outcome;
  }

 private:
  kvevict_sequence* const sequence_;
  const uint64_t seed_;
  std::vector<float> k_[kLayers];
  std::vector<float> v_[kLayers];
  const Workspace workspace_;
  uint32_t position_ = 0;
};

}  // namespace

Outcome Live(const kvevict_plan* plan, kvevict_sequence* sequence,
             uint64_t seed) {
  Request request(plan, sequence, seed);
  for (uint32_t chunk : {90u, 1u, 60u}) request.Step(chunk);
  request.Evict();
  for (int round = 0; round < 3; ++round) {
    for (int token = 0; token < 20; ++token) request.Step(1);
    request.Evict();
  }
  return request.Take();
}

Outcome Live(const kvevict_plan* plan, uint64_t seed) {
  kvevict_sequence* sequence = nullptr;
  CHECK_OK(kvevict_sequence_create(plan, &sequence));
  CHECK_OK(kvevict_sequence_begin_observing(sequence, nullptr, 0));
  Outcome outcome = Live(plan, sequence, seed);
  kvevict_sequence_destroy(sequence);
  return outcome;
}

}  // namespace kvevict
