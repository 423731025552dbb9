#include "core/plan.h"

#include <algorithm>
#include <cmath>

#include "core/budgets/budgets.h"
#include "core/dtype.h"
#include "core/number_text.h"
#include "core/policy.h"
#include "core/policy_text.h"
#include "core/view.h"

namespace kvevict {
namespace {

constexpr uint32_t kMaxHeadDim = 65536;
constexpr size_t kPartAlignment = 256;

Status CheckRange(const char* name, uint32_t value, uint32_t low,
                  uint32_t high) {
  if (value >= low && value <= high) return Status();
  return InvalidArgument("%s %u is not in [%u, %u]", name, value, low, high);
}

// A tensor of the cache: rows with elements, or opaque ones without.
Status CheckTensor(const char* name, kvevict_dtype dtype, const char* dim_name,
                   uint32_t head_dim, bool may_be_absent) {
  const DTypeInfo* info = FindDType(static_cast<int32_t>(dtype));
  if (info == nullptr) {
    return InvalidArgument("%s %d is no dtype", name, static_cast<int>(dtype));
  }
  if (info->dtype == DType::kOpaque && head_dim != 0) {
    return InvalidArgument("%s %u is not 0, but %s is opaque", dim_name,
                           head_dim, name);
  }
  const bool may_be_zero = may_be_absent || info->dtype == DType::kOpaque;
  return CheckRange(dim_name, head_dim, may_be_zero ? 0 : 1, kMaxHeadDim);
}

Status CheckGeometry(const kvevict_geometry& g) {
  KV_RETURN_IF_ERROR(CheckRange("n_layers", g.n_layers, 1, kMaxLayers));
  KV_RETURN_IF_ERROR(CheckRange("n_kv_heads", g.n_kv_heads, 1, kMaxHeads));
  KV_RETURN_IF_ERROR(CheckRange("n_q_heads", g.n_q_heads, 1, kMaxHeads));
  if (g.n_q_heads % g.n_kv_heads != 0) {
    return InvalidArgument("n_q_heads %u is not a multiple of n_kv_heads %u",
                           g.n_q_heads, g.n_kv_heads);
  }
  KV_RETURN_IF_ERROR(
      CheckTensor("k_dtype", g.k_dtype, "k_head_dim", g.k_head_dim, false));
  KV_RETURN_IF_ERROR(
      CheckTensor("v_dtype", g.v_dtype, "v_head_dim", g.v_head_dim, true));
  if (FindDType(static_cast<int32_t>(g.q_dtype)) == nullptr) {
    return InvalidArgument("q_dtype %d is no dtype",
                           static_cast<int>(g.q_dtype));
  }
  KV_RETURN_IF_ERROR(CheckRange("max_tokens", g.max_tokens, 1, INT32_MAX));
  if (!(g.softmax_scale >= 0.0f && std::isfinite(g.softmax_scale))) {
    return InvalidArgument("softmax_scale %s is not a finite number >= 0",
                           NumberText(g.softmax_scale).c_str());
  }
  if (g.reserved != 0) {
    return InvalidArgument("reserved %u is not 0", g.reserved);
  }
  return Status();
}

// One that does not fit is larger than any.
CheckedSize Larger(CheckedSize a, CheckedSize b) {
  if (!a.ok() || !b.ok()) return a.ok() ? b : a;
  return a.value() < b.value() ? b : a;
}

// Of operations that run one after the other.
ScratchNeeds Larger(const ScratchNeeds& a, const ScratchNeeds& b) {
  return {Larger(a.least, b.least), Larger(a.best, b.best)};
}

// Hands out aligned parts of a workspace.
class Layout {
 public:
  size_t Add(CheckedSize n, size_t element_bytes) {
    const size_t offset = end_.value();
    end_ = (end_ + n * CheckedSize(element_bytes)).AlignUp(kPartAlignment);
    return offset;
  }
  // Of a layout whose last part is scratch.
  size_t AddScratch(const ScratchNeeds& scratch, WorkspaceNeeds* needs) {
    const auto with = [&](CheckedSize bytes) {
      return (end_ + bytes).AlignUp(kPartAlignment);
    };
    *needs = {with(scratch.least), with(scratch.best)};
    return end_.value();
  }

 private:
  CheckedSize end_{0};
};

}  // namespace

Status Plan::Create(const Context& context, const kvevict_geometry& geometry,
                    const kvevict_policy& policy,
                    const kvevict_plan_options& options, Plan** out) {
  if (Status status = CheckGeometry(geometry); !status.ok()) {
    return Prefixed(status, "geometry: ");
  }
  if (Status status = ValidatePolicy(policy); !status.ok()) {
    return Prefixed(status, "policy: ");
  }
  Plan* plan = NewObject<Plan>(context, context, geometry, policy);
  if (plan == nullptr) return OutOfMemory("plan: no %zu bytes", sizeof(Plan));
  Status status = plan->CopyHeadBudgets(options);
  if (status.ok()) status = plan->CheckSizes();
  if (!status.ok()) {
    plan->Unref();
    return status;
  }
  char text[kMaxPolicyText];
  FormatPolicy(policy, text);
  context.Log(KVEVICT_LOG_DEBUG,
              "plan %s, %u layers, evict workspace up to %zu bytes", text,
              geometry.n_layers,
              plan->WorkspaceFor(KVEVICT_OPERATION_EVICT, geometry.max_tokens)
                  .best.value());
  *out = plan;
  return Status();
}

void Plan::Unref() const {
  if (n_refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  DeleteObject(context(), const_cast<Plan*>(this));
}

Status Plan::CopyHeadBudgets(const kvevict_plan_options& options) {
  if (options.reserved != 0) {
    return InvalidArgument("options.reserved %u is not 0", options.reserved);
  }
  if (options.head_budgets == nullptr) {
    if (options.head_budgets_len == 0) return Status();
    return InvalidArgument("head_budgets is NULL, but head_budgets_len is %zu",
                           options.head_budgets_len);
  }
  const kvevict_geometry& g = geometry_;
  const size_t n = size_t{g.n_layers} * g.n_kv_heads;
  if (options.head_budgets_len != n) {
    return InvalidArgument(
        "head_budgets_len %zu is not n_layers %u * n_kv_heads %u",
        options.head_budgets_len, g.n_layers, g.n_kv_heads);
  }
  if (policy_.scope != KVEVICT_SCOPE_KV_HEAD) {
    return InvalidArgument(
        "head_budgets with scope %s: heads that share a keep list keep the "
        "same",
        policy_.scope == KVEVICT_SCOPE_LAYER ? "layer" : "model");
  }
  KV_RETURN_IF_ERROR(
      head_budgets_.Allocate("budgets of the heads", CheckedSize(n)));
  std::copy_n(options.head_budgets, n, head_budgets_.begin());
  return Status();
}

kvevict_scope Plan::scope() const {
  return signal().Ranks() || IsRagged() ? policy_.scope : KVEVICT_SCOPE_LAYER;
}

Status Plan::LayerBudgets(uint32_t n_context,
                          std::span<uint32_t> budgets) const {
  if (!IsRagged()) return kvevict::LayerBudgets(policy_, n_context, budgets);
  for (uint32_t l = 0; l < budgets.size(); ++l) {
    const std::span<const uint32_t> heads = HeadBudgets(l);
    budgets[l] =
        std::min(n_context, *std::max_element(heads.begin(), heads.end()));
  }
  return Status();
}

CheckedSize Plan::KeepCapacity() const {
  const kvevict_geometry& g = geometry_;
  if (!IsRagged()) {
    return CheckedSize(n_lists()) *
           CheckedSize(
               MaxTotalBudget(policy_, g.max_tokens,
                              scope() == KVEVICT_SCOPE_MODEL ? 1 : g.n_layers));
  }
  CheckedSize n(0);
  for (uint32_t l = 0; l < g.n_layers; ++l) {
    const std::span<const uint32_t> heads = HeadBudgets(l);
    const uint32_t most = *std::max_element(heads.begin(), heads.end());
    n = n + CheckedSize(n_lists()) * CheckedSize(std::min(most, g.max_tokens));
  }
  return n;
}

float Plan::softmax_scale() const {
  if (geometry_.softmax_scale != 0.0f) return geometry_.softmax_scale;
  return 1.0f / std::sqrt(static_cast<float>(geometry_.k_head_dim));
}

Shaping Plan::ShapingOf(const SignalInfo& signal) const {
  return MakeShaping(policy_, signal,
                     geometry_.n_q_heads / geometry_.n_kv_heads);
}

// Elements of the rows that shaping finds apart, n_layers at a time.
CheckedSize Plan::ApartRows(const Shaping& shaping, uint32_t n_layers,
                            uint32_t n_tokens) const {
  if (shaping.n_terms == 1) return CheckedSize(0);
  return CheckedSize(std::min(n_layers, kMostApart)) *
         CheckedSize(geometry_.n_q_heads) * CheckedSize(n_tokens);
}

ScratchNeeds Plan::NeedsOf(ScratchBytes bytes, uint32_t n_layers,
                           uint32_t n_tokens) const {
  return bytes(context(), geometry_, policy_, n_layers, n_tokens);
}

size_t Plan::n_scores() const {
  return uint64_t{geometry_.n_layers} *
         (signal().Ranks() ? geometry_.n_kv_heads : n_lists()) *
         geometry_.max_tokens;
}

// Layers that share a list are reduced together.
uint32_t Plan::FewestLayersAtOnce() const {
  return scope() == KVEVICT_SCOPE_MODEL ? geometry_.n_layers : 1;
}

ScoreWorkspace Plan::ScoreParts(uint32_t n_tokens,
                                WorkspaceNeeds* needs) const {
  ScoreWorkspace parts;
  Layout layout;
  parts.rows =
      layout.Add(ApartRows(ShapingOf(signal()), 1, n_tokens), sizeof(float));
  parts.scratch = layout.AddScratch(
      Larger(NeedsOf(score_op().scratch_bytes, 1, n_tokens),
             NeedsOf(context().backend().shape_scratch_bytes, 1, n_tokens)),
      needs);
  return parts;
}

EvictWorkspace Plan::EvictParts(uint32_t n_layers, uint32_t n_tokens,
                                WorkspaceNeeds* needs) const {
  const kvevict_geometry& g = geometry_;
  const Backend& backend = context().backend();
  EvictWorkspace parts;
  Layout layout;
  // No layer keeps more than it holds.
  const CheckedSize all =
      CheckedSize(n_lists()) * CheckedSize(g.n_layers) * CheckedSize(n_tokens);
  parts.keep =
      layout.Add(all.ok() ? CheckedSize(std::min(all.value(), keep_capacity_))
                          : CheckedSize(keep_capacity_),
                 sizeof(int32_t));
  parts.n_layers = n_layers;
  parts.scores =
      layout.Add(CheckedSize(n_layers) *
                     CheckedSize(signal().Ranks() ? g.n_kv_heads : n_lists()) *
                     CheckedSize(n_tokens),
                 sizeof(float));
  ScratchNeeds scratch = backend.select_scratch_bytes(
      context(), n_tokens, uint64_t{n_layers} * n_lists());
  if (signal().Ranks() && CanScore()) {
    parts.rows = layout.Add(ApartRows(ShapingOf(signal()), n_layers, n_tokens),
                            sizeof(float));
    scratch = Larger(
        scratch,
        Larger(NeedsOf(score_op().scratch_bytes, n_layers, n_tokens),
               NeedsOf(backend.shape_scratch_bytes, n_layers, n_tokens)));
  }
  parts.scratch = layout.AddScratch(scratch, needs);
  return parts;
}

WorkspaceNeeds Plan::WorkspaceFor(kvevict_operation operation,
                                  uint32_t n_tokens) const {
  WorkspaceNeeds needs;
  switch (operation) {
    case KVEVICT_OPERATION_EVICT: {
      if (TouchesNothing(policy_)) break;
      WorkspaceNeeds fewest;
      EvictParts(FewestLayersAtOnce(), n_tokens, &fewest);
      EvictParts(geometry_.n_layers, n_tokens, &needs);
      needs.least = fewest.least;
      break;
    }
    case KVEVICT_OPERATION_SCORE:
      if (signal().Ranks() && CanScore()) ScoreParts(n_tokens, &needs);
      break;
  }
  return needs;
}

ScoreWorkspace Plan::LayOutScore(uint32_t n_tokens) const {
  WorkspaceNeeds needs;
  return ScoreParts(n_tokens, &needs);
}

// Scratch saves more time than scores of more layers at once do.
EvictWorkspace Plan::LayOutEvict(uint32_t n_tokens, size_t bytes) const {
  const uint32_t fewest = FewestLayersAtOnce();
  EvictWorkspace parts;
  for (uint32_t n = geometry_.n_layers;; --n) {
    WorkspaceNeeds needs;
    parts = EvictParts(n, n_tokens, &needs);
    parts.bytes = std::min(bytes, needs.best.value());
    if (n == fewest || needs.best.value() <= bytes) return parts;
  }
}

Status Plan::CheckSizes() {
  const kvevict_geometry& g = geometry_;
  const CheckedSize keep = KeepCapacity();
  keep_capacity_ = keep.value();
  if (!WorkspaceFor(KVEVICT_OPERATION_SCORE, g.max_tokens).ok()) {
    return InvalidArgument(
        "max_tokens %u and window %u: a workspace over size_t", g.max_tokens,
        policy_.obs_window);
  }
  if (!keep.ok() || !WorkspaceFor(KVEVICT_OPERATION_EVICT, g.max_tokens).ok()) {
    return InvalidArgument(
        "n_layers %u, n_kv_heads %u, max_tokens %u: a workspace over size_t",
        g.n_layers, g.n_kv_heads, g.max_tokens);
  }
  return Status();
}

bool Plan::LayersKeepAlike() const {
  if (scope() == KVEVICT_SCOPE_MODEL) return true;
  return !signal().Ranks() && !IsRagged() &&
         policy_.layer_split == KVEVICT_LAYER_SPLIT_UNIFORM;
}

bool Plan::CanScore() const {
  return !signal().Needs(kKeys) || ScoreReason() == KVEVICT_REASON_NONE;
}

kvevict_reason Plan::ScoreReason() const {
  const auto readable = [](kvevict_dtype dtype) {
    return FindDType(static_cast<int32_t>(dtype))->can_score;
  };
  if (!readable(geometry_.k_dtype)) return KVEVICT_REASON_OPAQUE_KEYS;
  if (!readable(geometry_.q_dtype)) return KVEVICT_REASON_OPAQUE_QUERIES;
  return KVEVICT_REASON_NONE;
}

Status Plan::CheckCanScore() const {
  const kvevict_reason reason = ScoreReason();
  if (reason == KVEVICT_REASON_NONE) return Status();
  return Unsupported("cannot score: %s", ReasonText(reason));
}

const char* ReasonText(kvevict_reason reason) {
  switch (reason) {
    case KVEVICT_REASON_NONE:
      return "";
    case KVEVICT_REASON_OPAQUE_KEYS:
      return "k_dtype is opaque: keys can be moved, not read";
    case KVEVICT_REASON_OPAQUE_QUERIES:
      return "q_dtype is opaque: queries cannot be read";
    case KVEVICT_REASON_NO_ROTATION:
      return "this release does not re-rotate keys to new positions";
  }
  return "";
}

Status CheckMemory(const char* name, const Context& context, const void* memory,
                   size_t memory_bytes, size_t needed_bytes) {
  if (memory_bytes < needed_bytes) {
    return InvalidArgument("%s_bytes %zu < %zu", name, memory_bytes,
                           needed_bytes);
  }
  if (needed_bytes == 0) return Status();
  if (memory == nullptr) {
    return InvalidArgument("%s is NULL, but %zu bytes are needed", name,
                           needed_bytes);
  }
  const size_t alignment = context.backend().workspace_alignment;
  if (reinterpret_cast<uintptr_t>(memory) % alignment != 0) {
    return InvalidArgument("%s %p is not %zu-byte aligned", name, memory,
                           alignment);
  }
  return Status();
}

Status CheckWorkspace(const Context& context, const void* workspace,
                      size_t workspace_bytes, const WorkspaceNeeds& needs) {
  if (workspace_bytes < needs.least.value()) {
    return InvalidArgument("workspace_bytes %zu < %zu, the least; best are %zu",
                           workspace_bytes, needs.least.value(),
                           needs.best.value());
  }
  return CheckMemory("workspace", context, workspace, workspace_bytes,
                     needs.least.value());
}

}  // namespace kvevict
