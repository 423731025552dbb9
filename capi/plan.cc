#include "core/plan/plan.h"

#include "capi/guard.h"
#include "core/budgets/budgets.h"
#include "core/dtype.h"
#include "core/sequence/query_ring.h"
#include "kvevict/experimental.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

namespace {

Status CopyGeometry(const kvevict_geometry& geometry,
                    Array<kvevict_layer_geometry>* out) {
  const size_t n = geometry.layers_len;
  if (n != 1 && n != geometry.n_layers) {
    return InvalidArgument("geometry: layers_len %zu is not 1 or n_layers %u",
                           n, geometry.n_layers);
  }
  KV_RETURN_IF_ERROR(CheckNotNull("geometry.layers", geometry.layers));
  if (n > kMaxLayers) {
    return InvalidArgument("geometry: n_layers %zu > %u", n, kMaxLayers);
  }
  KV_RETURN_IF_ERROR(out->Allocate("layers", CheckedSize(n)));
  return ForEachStruct("geometry.layers", geometry.layers, n,
                       [&](size_t l, const kvevict_layer_geometry* in) {
                         (*out)[l] = KVEVICT_LAYER_GEOMETRY_INIT;
                         return CopyIn("layer", in, &(*out)[l]);
                       });
}

Status CheckOperation(kvevict_operation operation) {
  switch (operation) {
    case KVEVICT_OPERATION_EVICT:
    case KVEVICT_OPERATION_SCORE:
    case KVEVICT_OPERATION_OBSERVE:
      return Status();
  }
  return InvalidArgument("operation %d is no operation",
                         static_cast<int>(operation));
}

}  // namespace

extern "C" {

kvevict_status kvevict_plan_create(const kvevict_context* context,
                                   const kvevict_geometry* geometry,
                                   const kvevict_policy* policy,
                                   const kvevict_plan_options* options,
                                   kvevict_plan** out_plan) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    KV_RETURN_IF_ERROR(CheckNotNull("out_plan", out_plan));
    kvevict_geometry g = KVEVICT_GEOMETRY_INIT;
    KV_RETURN_IF_ERROR(CopyIn("geometry", geometry, &g));
    Array<kvevict_layer_geometry> layers(Core(context));
    KV_RETURN_IF_ERROR(CopyGeometry(g, &layers));
    KV_RETURN_IF_ERROR(CheckNotNull("policy", policy));
    Plan* plan = nullptr;
    kvevict_plan_options o = KVEVICT_PLAN_OPTIONS_INIT;
    if (options != nullptr) KV_RETURN_IF_ERROR(CopyIn("options", options, &o));
    KV_RETURN_IF_ERROR(Plan::Create(Core(context), g,
                                    {layers.data(), layers.size()},
                                    Core(policy), o, &plan));
    *out_plan = reinterpret_cast<kvevict_plan*>(plan);
    return Status();
  });
}

void kvevict_plan_destroy(kvevict_plan* plan) noexcept {
  if (plan != nullptr) Core(plan).Unref();
}

kvevict_status kvevict_plan_layer(const kvevict_plan* plan, uint32_t layer,
                                  kvevict_layer_info* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    KV_RETURN_IF_ERROR(CheckLayer(Core(plan), layer));
    kvevict_layer_info info{};
    info.cache = Core(plan).CacheKindOf(layer);
    for (const PlanLayer& of_plan : Core(plan).layers()) {
      if (of_plan.number > layer) break;
      info.first_list = of_plan.first_list;
      if (of_plan.number < layer) {
        info.first_list += of_plan.n_lists;
        continue;
      }
      info.n_q_heads = of_plan.geometry.n_q_heads;
      info.n_kv_heads = of_plan.geometry.n_kv_heads;
      info.n_lists = of_plan.n_lists;
    }
    CopyOut(info, out);
    return Status();
  });
}

kvevict_status kvevict_plan_workspace(const kvevict_plan* plan,
                                      kvevict_operation operation,
                                      uint32_t n_tokens,
                                      kvevict_workspace* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    KV_RETURN_IF_ERROR(CheckOperation(operation));
    const Plan& p = Core(plan);
    if (operation != KVEVICT_OPERATION_OBSERVE && n_tokens > p.max_tokens()) {
      return InvalidArgument("n_tokens %u > max_tokens %u", n_tokens,
                             p.max_tokens());
    }
    return CopyOut(
        p.context(),
        p.WorkspaceFor(operation, n_tokens == 0 ? p.max_tokens() : n_tokens),
        out);
  });
}

kvevict_status kvevict_plan_layer_budgets(const kvevict_plan* plan,
                                          uint32_t n_tokens, uint32_t* budgets,
                                          size_t budgets_len) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    const Plan& p = Core(plan);
    if (budgets_len != p.n_model_layers()) {
      return InvalidArgument("budgets_len %zu is not n_layers %u", budgets_len,
                             p.n_model_layers());
    }
    KV_RETURN_IF_ERROR(CheckNotNull("budgets", budgets));
    if (n_tokens < 1 || n_tokens > INT32_MAX) {
      return InvalidArgument("n_tokens %u is not in [1, %d]", n_tokens,
                             INT32_MAX);
    }
    KV_RETURN_IF_ERROR(p.LayerBudgets(p.ContextOf(n_tokens, n_tokens),
                                      {budgets, p.n_layers()}));
    // Moves each budget to its layer in the model, which is never an earlier
    // index.
    for (uint32_t l = p.n_model_layers(); l-- > 0;) {
      budgets[l] = p.Find(l) < 0 ? 0 : budgets[p.Find(l)];
    }
    return Status();
  });
}

kvevict_status kvevict_plan_capabilities(const kvevict_plan* plan,
                                         uint32_t layer,
                                         kvevict_capabilities* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    const Plan& p = Core(plan);
    KV_RETURN_IF_ERROR(CheckLayer(p, layer));
    kvevict_capabilities c{};
    c.move_reason = c.score_reason = c.rotate_reason =
        KVEVICT_REASON_NO_FULL_CACHE;
    if (const int32_t place = p.Find(layer); place >= 0) {
      c.move_reason = KVEVICT_REASON_NONE;
      const PlanLayer& of_plan = p.layer(static_cast<uint32_t>(place));
      c.score_reason = p.ScoreReason(of_plan);
      if (c.score_reason == KVEVICT_REASON_NONE) {
        c.score_reason = p.RewriteReason(of_plan);
      }
      c.rotate_reason = p.RotateReason(of_plan);
      c.needs_score = p.ReadsRows() || p.RewritesRows();
      c.table_block = BlocksOf(p.policy()).size;
      c.needs_head_tables = of_plan.n_lists > 1;
      c.needs_layer_tables = p.n_layers() > 1 && !p.LayersKeepAlike();
    }
    c.can_move = c.move_reason == KVEVICT_REASON_NONE;
    c.can_score = c.score_reason == KVEVICT_REASON_NONE;
    c.can_rotate = c.rotate_reason == KVEVICT_REASON_NONE;
    CopyOut(c, out);
    return Status();
  });
}

const char* kvevict_reason_text(kvevict_reason reason) noexcept {
  return ReasonText(reason);
}

}  // extern "C"
