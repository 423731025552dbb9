#include "tools/engine/evictor.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "kvevict/experimental.h"
#include "tools/engine/policies.h"

namespace kvevict::tools {
namespace {

// All layers are alike.
kvevict_layer_geometry LayerGeometry(const KvShape& cache,
                                     const QueryShape& queries) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = queries.n_q_heads;
  layer.n_kv_heads = cache.n_kv_heads;
  layer.k_head_dim = cache.k_head_dim;
  layer.v_head_dim = cache.v_head_dim;
  layer.q_dtype = KVEVICT_DTYPE_F32;
  layer.k_dtype = cache.dtype;
  layer.v_dtype = cache.dtype;
  layer.softmax_scale = queries.softmax_scale;
  return layer;
}

}  // namespace

// Step 1. The plan checks geometry and policy once and knows the workspace
// size; nothing is allocated after this.
Evictor::Evictor(const KvShape& cache, const QueryShape& queries,
                 const Policy& policy, ThreadPool& pool,
                 const char* simd_target, const Rope& rope, bool reports_mass)
    : n_layers_(cache.n_layers),
      n_q_heads_(queries.n_q_heads),
      n_kv_heads_(cache.n_kv_heads),
      head_dim_(cache.k_head_dim),
      policy_(policy),
      wants_all_queries_(WantsAllQueries(policy)),
      context_(CreateContext(pool, simd_target)) {
  const kvevict_layer_geometry layer = LayerGeometry(cache, queries);
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = cache.n_layers;
  geometry.max_tokens = cache.capacity;
  geometry.layers = &layer;
  geometry.layers_len = 1;
  const std::vector<float> inv_freq(rope.inv_freq.begin(), rope.inv_freq.end());
  geometry.rope_inv_freq = inv_freq.data();
  geometry.rope_inv_freq_len = inv_freq.size();
  geometry.rope_layout =
      rope.halves ? KVEVICT_ROPE_LAYOUT_HALF : KVEVICT_ROPE_LAYOUT_INTERLEAVED;
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.report_mass = reports_mass ? 1 : 0;
  kvevict_plan* plan = nullptr;
  Check(kvevict_plan_create(context_.get(), &geometry, policy.get(), &options,
                            &plan));
  plan_.reset(plan);

  kvevict_sequence* sequence = nullptr;
  Check(kvevict_sequence_create(plan, &sequence));
  sequence_.reset(sequence);
  Check(kvevict_sequence_begin_observing(sequence, nullptr, 0));

  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_plan_workspace(plan, KVEVICT_OPERATION_EVICT, 0, &size));
  workspace_.Fit(size);
}

// Step 2. Rows are described by strides, so the engine's array is used as it
// is.
kvevict_plane Evictor::QueryRows(const float* queries) const {
  kvevict_plane rows = {};
  rows.data = reinterpret_cast<uintptr_t>(queries);
  rows.head_stride_bytes = int64_t{head_dim_} * sizeof(float);
  rows.token_stride_bytes = rows.head_stride_bytes * n_q_heads_;
  rows.dtype = KVEVICT_DTYPE_F32;
  rows.head_dim = head_dim_;
  return rows;
}

void Evictor::Observe(uint32_t layer, const float* queries, uint32_t n_rows,
                      uint32_t first_position) {
  const kvevict_plane rows = QueryRows(queries);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = &rows;
  const kvevict_observation shown = {sizeof(shown), layer, &inputs};
  Check(kvevict_sequence_observe(sequence_.get(), &shown, 1, n_rows,
                                 first_position, nullptr));
}

void Evictor::ObserveSums(uint32_t layer, std::span<const float> sums,
                          uint32_t n_rows, uint32_t first_position) {
  kvevict_plane plane = {};
  plane.data = reinterpret_cast<uintptr_t>(sums.data());
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = 1;
  plane.token_stride_bytes = sizeof(float);
  plane.head_stride_bytes =
      static_cast<int64_t>(sums.size_bytes() / n_kv_heads_);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.n_sum_heads = n_kv_heads_;
  inputs.attention_sums = &plane;
  const kvevict_observation shown = {sizeof(shown), layer, &inputs};
  Check(kvevict_sequence_observe(sequence_.get(), &shown, 1, n_rows,
                                 first_position, nullptr));
}

void Evictor::Score(uint32_t layer, KvCache& cache, const float* queries,
                    uint32_t n_rows, std::span<float> out) {
  const kvevict_plane rows = QueryRows(queries);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = &rows;
  inputs.n_query_rows = n_rows;
  const kvevict_view view = cache.View(layer);
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.layer = layer;
  job.n_tokens = job.n_seen = cache.length(layer);
  job.view = &view;
  job.inputs = &inputs;
  job.scores = out.data();
  job.scores_len = out.size();
  Check(kvevict_score(plan_.get(), &job, 1, workspace_.data(),
                      workspace_.size(), nullptr));
}

uint32_t Evictor::BudgetForMass(double mass, KvCache& cache,
                                std::span<const kvevict_signal_inputs> inputs) {
  std::vector<std::vector<float>> scores(n_layers_);
  std::vector<kvevict_layer_scores> layers(n_layers_,
                                           KVEVICT_LAYER_SCORES_INIT);
  for (uint32_t l = 0; l < n_layers_; ++l) {
    const uint32_t n_tokens = cache.length(l);
    scores[l].resize(size_t{n_kv_heads_} * n_tokens);
    const kvevict_view view = cache.View(l);
    kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
    job.layer = l;
    job.n_tokens = job.n_seen = n_tokens;
    job.view = &view;
    job.inputs = &inputs[l];
    job.scores = scores[l].data();
    job.scores_len = scores[l].size();
    Check(kvevict_score(plan_.get(), &job, 1, workspace_.data(),
                        workspace_.size(), nullptr));
    layers[l].n_rows = n_kv_heads_;
    layers[l].scores = scores[l].data();
    layers[l].scores_len = scores[l].size();
    layers[l].n_tokens = n_tokens;
  }
  kvevict_mass_options options = KVEVICT_MASS_OPTIONS_INIT;
  options.scope = KVEVICT_SCOPE_MODEL;
  options.mass = mass;
  options.n_sink = static_cast<uint32_t>(policy_.Number("sink"));
  options.n_recent = static_cast<uint32_t>(policy_.Number("recent"));
  if (policy_.Get("keep_window") == "yes") {
    options.n_recent = std::max(options.n_recent, WindowOf(policy_));
  }
  uint32_t budget = 0;
  Check(kvevict_budget_for_mass(context_.get(), layers.data(), layers.size(),
                                &options, &budget, 1));
  return budget;
}

void Evictor::Append(uint32_t n_tokens) {
  Check(kvevict_sequence_append(sequence_.get(), n_tokens, nullptr));
}

void Evictor::EndPrompt() {
  Check(kvevict_sequence_end_prompt(sequence_.get()));
}

// Step 3.
Evictor::Report Evictor::Evict(KvCache& cache,
                               std::span<const kvevict_signal_inputs> inputs) {
  std::vector<kvevict_signal_inputs> read(inputs.begin(), inputs.end());
  for (kvevict_signal_inputs& layer : read) {
    if (!wants_all_queries_) layer.queries = nullptr;
  }
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = read.data();
  options.inputs_len = read.size();
  std::vector<kvevict_view> views;
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    views.push_back(cache.View(layer));
  }
  const auto start = std::chrono::steady_clock::now();
  Check(kvevict_sequence_evict(sequence_.get(), views.data(), views.size(),
                               &options, workspace_.data(), workspace_.size(),
                               nullptr));
  const auto end = std::chrono::steady_clock::now();
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  Check(kvevict_sequence_report(sequence_.get(), &report, nullptr, 0));
  std::vector<uint32_t> lengths(cache.shape().n_kv_heads);
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t head = 0; head < lengths.size(); ++head) {
      lengths[head] = stored_length(layer, head);
    }
    cache.set_lengths(layer, lengths);
  }
  return {.bytes_before = report.bytes_before,
          .bytes_after = report.bytes_after,
          .evicted = report.evicted != 0,
          .milliseconds =
              std::chrono::duration<double, std::milli>(end - start).count()};
}

float Evictor::MassKept() const {
  std::vector<kvevict_list_report> lists;
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    kvevict_layer_info info = {};
    info.struct_size = sizeof info;
    Check(kvevict_plan_layer(plan_.get(), layer, &info));
    lists.resize(lists.size() + info.n_lists, KVEVICT_LIST_REPORT_INIT);
  }
  Check(kvevict_sequence_report(sequence_.get(), nullptr, lists.data(),
                                lists.size()));
  double sum = 0;
  for (const kvevict_list_report& list : lists) sum += double{list.mass_kept};
  return static_cast<float>(sum / static_cast<double>(lists.size()));
}

// Step 4.
uint32_t Evictor::stored_length(uint32_t layer, uint32_t kv_head) const {
  uint32_t length = 0;
  Check(
      kvevict_sequence_stored_length(sequence_.get(), layer, kv_head, &length));
  return length;
}

uint32_t Evictor::logical_length() const {
  uint32_t length = 0;
  Check(kvevict_sequence_logical_length(sequence_.get(), &length));
  return length;
}

}  // namespace kvevict::tools
