#include "tools/engine/evictor.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace kvevict::tools {
namespace {

// The library asks for 64-byte alignment.
constexpr size_t kWorkspaceAlignment = 64;

void* AllocateWorkspace(size_t n_bytes) {
  const size_t rounded = (n_bytes + kWorkspaceAlignment - 1) /
                         kWorkspaceAlignment * kWorkspaceAlignment;
  void* memory = std::aligned_alloc(kWorkspaceAlignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, rounded);  // page faults now, not while evicting
  return memory;
}

kvevict_geometry Geometry(const KvShape& cache, const QueryShape& queries) {
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = cache.n_layers;
  geometry.n_q_heads = queries.n_q_heads;
  geometry.n_kv_heads = cache.n_kv_heads;
  geometry.k_head_dim = cache.k_head_dim;
  geometry.v_head_dim = cache.v_head_dim;
  geometry.q_dtype = KVEVICT_DTYPE_F32;
  geometry.k_dtype = cache.dtype;
  geometry.v_dtype = cache.dtype;
  geometry.max_tokens = cache.capacity;
  geometry.softmax_scale = queries.softmax_scale;
  return geometry;
}

}  // namespace

// Step 1. The plan checks geometry and policy once and knows the workspace size;
// nothing is allocated after this.
Evictor::Evictor(const KvShape& cache, const QueryShape& queries,
                 const kvevict_policy& policy, ThreadPool& pool,
                 const char* simd_target)
    : n_layers_(cache.n_layers),
      n_q_heads_(queries.n_q_heads),
      head_dim_(cache.k_head_dim) {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.n_threads = pool.n_threads();
  options.parallel = &ThreadPool::Run;
  options.parallel_user_data = &pool;
  options.simd_target = simd_target;
  kvevict_context* context = nullptr;
  Check(kvevict_context_create(&options, &context));
  context_.reset(context);

  const kvevict_geometry geometry = Geometry(cache, queries);
  kvevict_plan* plan = nullptr;
  Check(kvevict_plan_create(context, &geometry, &policy, nullptr, &plan));
  plan_.reset(plan);

  kvevict_sequence* sequence = nullptr;
  Check(kvevict_sequence_create(plan, &sequence));
  sequence_.reset(sequence);
  Check(kvevict_sequence_begin_observing(sequence, nullptr, 0));

  Check(kvevict_plan_workspace_bytes(plan, KVEVICT_OPERATION_EVICT, 0,
                                     &workspace_bytes_));
  if (workspace_bytes_ > 0) {
    workspace_.reset(AllocateWorkspace(workspace_bytes_));
  }
}

void Evictor::AlignedFree::operator()(void* memory) const { std::free(memory); }

// Step 2. Rows are described by strides, so the engine's array is used as it is.
void Evictor::Observe(uint32_t layer, const float* queries, uint32_t n_rows,
                      uint32_t first_position) {
  kvevict_plane rows = {};
  rows.data = reinterpret_cast<uintptr_t>(queries);
  rows.head_stride_bytes = int64_t{head_dim_} * sizeof(float);
  rows.token_stride_bytes = rows.head_stride_bytes * n_q_heads_;
  rows.dtype = KVEVICT_DTYPE_F32;
  rows.head_dim = head_dim_;
  Check(kvevict_sequence_observe(sequence_.get(), layer, &rows, n_rows,
                                 first_position));
}

void Evictor::Append(uint32_t n_tokens) {
  Check(kvevict_sequence_append(sequence_.get(), n_tokens));
}

// Step 3.
Evictor::Report Evictor::Evict(KvCache& cache) {
  std::vector<kvevict_view> views;
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    views.push_back(cache.View(layer));
  }
  kvevict_evict_report report = {};
  report.struct_size = sizeof(report);
  const auto start = std::chrono::steady_clock::now();
  Check(kvevict_sequence_evict(sequence_.get(), views.data(), views.size(),
                               nullptr, workspace_.get(), workspace_bytes_,
                               &report));
  const auto end = std::chrono::steady_clock::now();
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    cache.set_length(layer, stored_length(layer));
  }
  return {.bytes_before = report.bytes_before,
          .bytes_after = report.bytes_after,
          .evicted = report.evicted != 0,
          .milliseconds =
              std::chrono::duration<double, std::milli>(end - start).count()};
}

// Step 4.
uint32_t Evictor::stored_length(uint32_t layer) const {
  uint32_t length = 0;
  Check(kvevict_sequence_stored_length(sequence_.get(), layer, 0, &length));
  return length;
}

uint32_t Evictor::logical_length() const {
  uint32_t length = 0;
  Check(kvevict_sequence_logical_length(sequence_.get(), &length));
  return length;
}

}  // namespace kvevict::tools
