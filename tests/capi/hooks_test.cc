// C++ hooks that throw, which C tests cannot.
#include <criterion/criterion.h>

#include <csignal>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "kvevict/prefill.h"

namespace {

constexpr uint32_t kHeads = 2, kDim = 4, kTokens = 8;

struct Allocator {
  int n_left = 0;  // calls before it throws
  int n_live = 0;
};

void* Alloc(size_t n_bytes, size_t alignment, void* user_data) {
  auto* const a = static_cast<Allocator*>(user_data);
  if (a->n_left-- <= 0) throw std::bad_alloc();
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment < 16 ? 16 : alignment, n_bytes) != 0) {
    throw std::bad_alloc();
  }
  ++a->n_live;
  return memory;
}

void Free(void* memory, size_t, size_t, void* user_data) {
  --static_cast<Allocator*>(user_data)->n_live;
  std::free(memory);
}

void Throw(uint32_t, kvevict_task_fn run, void* task, void*) {
  run(task, 0, 0);
  throw std::runtime_error("a worker is gone");
}

void ThrowLine(kvevict_log_level, const char*, void*) {
  throw std::runtime_error("the log is full");
}

kvevict_status ThrowForward(uint32_t, uint32_t, void*) {
  throw std::runtime_error("the model is gone");
}

kvevict_context* ContextOf(const kvevict_context_options& options) {
  kvevict_context* context = nullptr;
  cr_assert(kvevict_context_create(&options, &context) == KVEVICT_OK);
  return context;
}

kvevict_status PlanOf(kvevict_context* context, kvevict_plan** out) {
  kvevict_policy* policy = nullptr;
  cr_assert(kvevict_policy_create("knorm:budget=4,sink=0", &policy) ==
            KVEVICT_OK);
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = layer.n_kv_heads = kHeads;
  layer.k_head_dim = layer.v_head_dim = kDim;
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = 1;
  geometry.max_tokens = kTokens;
  geometry.layers = &layer;
  geometry.layers_len = 1;
  const kvevict_status status =
      kvevict_plan_create(context, &geometry, policy, nullptr, out);
  kvevict_policy_destroy(policy);
  return status;
}

kvevict_view ViewOf(float* rows) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = kHeads;
  view.k.data = reinterpret_cast<uintptr_t>(rows);
  view.k.dtype = KVEVICT_DTYPE_F32;
  view.k.head_dim = kDim;
  view.k.head_stride_bytes = kDim * sizeof(float);
  view.k.token_stride_bytes = kHeads * kDim * sizeof(float);
  view.v = view.k;
  view.v.data += kTokens * kHeads * kDim * sizeof(float);
  return view;
}

}  // namespace

TestSuite(hooks);

Test(hooks, an_allocator_that_throws_is_out_of_memory) {
  int n_failed = 0;
  for (int n = 0;; ++n) {
    Allocator allocator{n};
    kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
    options.alloc = Alloc;
    options.free = Free;
    options.alloc_user_data = &allocator;
    kvevict_context* context = nullptr;
    kvevict_plan* plan = nullptr;
    kvevict_sequence* sequence = nullptr;
    kvevict_status status = kvevict_context_create(&options, &context);
    if (status == KVEVICT_OK) status = PlanOf(context, &plan);
    if (status == KVEVICT_OK) status = kvevict_sequence_create(plan, &sequence);
    const char* const message = kvevict_last_error_message();
    kvevict_sequence_destroy(sequence);
    kvevict_plan_destroy(plan);
    kvevict_context_destroy(context);
    cr_assert(allocator.n_live == 0, "%d allocations are lost",
              allocator.n_live);
    if (status == KVEVICT_OK) break;
    cr_assert(status == KVEVICT_ERROR_OUT_OF_MEMORY, "after %d: %s", n,
              message);
    ++n_failed;
  }
  cr_assert(n_failed > 2);
}

Test(hooks, a_runner_that_throws_ends_the_process, .signal = SIGABRT) {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.parallel = Throw;
  options.n_threads = 2;
  kvevict_context* const context = ContextOf(options);
  kvevict_plan* plan = nullptr;
  kvevict_sequence* sequence = nullptr;
  cr_assert(PlanOf(context, &plan) == KVEVICT_OK);
  cr_assert(kvevict_sequence_create(plan, &sequence) == KVEVICT_OK);
  cr_assert(kvevict_sequence_append(sequence, kTokens, nullptr) == KVEVICT_OK);
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  cr_assert(kvevict_plan_workspace(plan, KVEVICT_OPERATION_EVICT, 0, &size) ==
            KVEVICT_OK);
  void* const workspace =
      std::aligned_alloc(64, (size.best_bytes + 63) / 64 * 64);
  float rows[2 * kTokens * kHeads * kDim] = {};
  const kvevict_view view = ViewOf(rows);
  (void)kvevict_sequence_evict(sequence, &view, 1, nullptr, workspace,
                               size.best_bytes, nullptr);
}

Test(hooks, a_log_that_throws_ends_the_process, .signal = SIGABRT) {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.log = ThrowLine;
  options.log_level = KVEVICT_LOG_DEBUG;
  kvevict_context* context = nullptr;
  (void)kvevict_context_create(&options, &context);
}

Test(hooks, a_model_that_throws_ends_the_process, .signal = SIGABRT) {
  const kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  kvevict_context* const context = ContextOf(options);
  kvevict_plan* plan = nullptr;
  kvevict_sequence* sequence = nullptr;
  cr_assert(PlanOf(context, &plan) == KVEVICT_OK);
  cr_assert(kvevict_sequence_create(plan, &sequence) == KVEVICT_OK);
  float rows[2 * kTokens * kHeads * kDim] = {};
  const kvevict_view view = ViewOf(rows);
  alignas(64) static unsigned char workspace[1 << 20];
  kvevict_prefill_options o = KVEVICT_PREFILL_OPTIONS_INIT;
  o.n_tokens = o.chunk = kTokens;
  o.forward = ThrowForward;
  o.views = &view;
  o.views_len = 1;
  o.workspace = workspace;
  o.workspace_bytes = sizeof(workspace);
  (void)kvevict_sequence_prefill(sequence, &o, nullptr, nullptr);
}
