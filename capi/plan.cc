#include "core/plan.h"

#include "capi/guard.h"
#include "core/budgets/budgets.h"
#include "core/dtype.h"
#include "core/query_ring.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

namespace {

Status FindWorkspace(const kvevict_plan* plan, kvevict_operation operation,
                     uint32_t n_tokens, const size_t* out_bytes,
                     WorkspaceNeeds* needs) {
  KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
  KV_RETURN_IF_ERROR(CheckNotNull("out_bytes", out_bytes));
  const uint32_t max_tokens = Core(plan).geometry().max_tokens;
  if (n_tokens > max_tokens) {
    return InvalidArgument("n_tokens %u > max_tokens %u", n_tokens, max_tokens);
  }
  switch (operation) {
    case KVEVICT_OPERATION_EVICT:
    case KVEVICT_OPERATION_SCORE:
      *needs = Core(plan).WorkspaceFor(operation,
                                       n_tokens == 0 ? max_tokens : n_tokens);
      return Status();
  }
  return InvalidArgument("operation %d is no operation",
                         static_cast<int>(operation));
}

}  // namespace

extern "C" {

kvevict_status kvevict_geometry_init(kvevict_geometry* out,
                                     size_t struct_size) noexcept {
  return Init<kvevict_geometry>(KVEVICT_GEOMETRY_INIT, out, struct_size);
}

kvevict_status kvevict_plan_options_init(kvevict_plan_options* out,
                                         size_t struct_size) noexcept {
  return Init<kvevict_plan_options>(KVEVICT_PLAN_OPTIONS_INIT, out,
                                    struct_size);
}

kvevict_status kvevict_plan_create(const kvevict_context* context,
                                   const kvevict_geometry* geometry,
                                   const kvevict_policy* policy,
                                   const kvevict_plan_options* options,
                                   kvevict_plan** out_plan) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    KV_RETURN_IF_ERROR(CheckNotNull("out_plan", out_plan));
    kvevict_geometry g = KVEVICT_GEOMETRY_INIT;
    kvevict_policy p;
    KV_RETURN_IF_ERROR(CopyIn("geometry", geometry, &g));
    KV_RETURN_IF_ERROR(CopyIn(policy, &p));
    Plan* plan = nullptr;
    kvevict_plan_options o = KVEVICT_PLAN_OPTIONS_INIT;
    if (options != nullptr) KV_RETURN_IF_ERROR(CopyIn("options", options, &o));
    KV_RETURN_IF_ERROR(Plan::Create(Core(context), g, p, o, &plan));
    *out_plan = reinterpret_cast<kvevict_plan*>(plan);
    return Status();
  });
}

void kvevict_plan_destroy(kvevict_plan* plan) noexcept {
  if (plan != nullptr) Core(plan).Unref();
}

kvevict_status kvevict_plan_workspace_bytes(const kvevict_plan* plan,
                                            kvevict_operation operation,
                                            uint32_t n_tokens,
                                            size_t* out_bytes) noexcept {
  return Guard([&] {
    WorkspaceNeeds needs;
    KV_RETURN_IF_ERROR(
        FindWorkspace(plan, operation, n_tokens, out_bytes, &needs));
    *out_bytes = needs.best.value();
    return Status();
  });
}

kvevict_status kvevict_plan_least_workspace_bytes(const kvevict_plan* plan,
                                                  kvevict_operation operation,
                                                  uint32_t n_tokens,
                                                  size_t* out_bytes) noexcept {
  return Guard([&] {
    WorkspaceNeeds needs;
    KV_RETURN_IF_ERROR(
        FindWorkspace(plan, operation, n_tokens, out_bytes, &needs));
    *out_bytes = needs.least.value();
    return Status();
  });
}

kvevict_status kvevict_plan_query_memory_bytes(const kvevict_plan* plan,
                                               size_t* out_bytes) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    KV_RETURN_IF_ERROR(CheckNotNull("out_bytes", out_bytes));
    const CheckedSize bytes = QueryRing::MemoryBytes(Core(plan));
    if (!bytes.ok()) {
      return InvalidArgument("query memory: more bytes than size_t holds");
    }
    *out_bytes = bytes.value();
    return Status();
  });
}

kvevict_status kvevict_plan_layer_budgets(const kvevict_plan* plan,
                                          uint32_t n_tokens, uint32_t* budgets,
                                          size_t budgets_len) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    const uint32_t n_layers = Core(plan).geometry().n_layers;
    if (budgets_len != n_layers) {
      return InvalidArgument("budgets_len %zu is not n_layers %u", budgets_len,
                             n_layers);
    }
    KV_RETURN_IF_ERROR(CheckNotNull("budgets", budgets));
    if (n_tokens < 1 || n_tokens > INT32_MAX) {
      return InvalidArgument("n_tokens %u is not in [1, %d]", n_tokens,
                             INT32_MAX);
    }
    return Core(plan).LayerBudgets(
        std::min(n_tokens, Core(plan).geometry().max_tokens),
        {budgets, budgets_len});
  });
}

kvevict_status kvevict_plan_capabilities(const kvevict_plan* plan,
                                         uint32_t layer,
                                         kvevict_capabilities* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    const Plan& p = Core(plan);
    if (layer >= p.geometry().n_layers) {
      return InvalidArgument("layer %u >= n_layers %u", layer,
                             p.geometry().n_layers);
    }
    kvevict_capabilities c{};
    c.can_move = 1;
    c.move_reason = KVEVICT_REASON_NONE;
    c.score_reason = p.ScoreReason();
    c.can_score = c.score_reason == KVEVICT_REASON_NONE;
    c.rotate_reason = p.RotateReason();
    c.can_rotate = c.rotate_reason == KVEVICT_REASON_NONE;
    c.needs_score = p.signal().Needs(kKeys);
    CopyOut(c, out);
    return Status();
  });
}

const char* kvevict_reason_text(kvevict_reason reason) noexcept {
  return ReasonText(reason);
}

}  // extern "C"
