#include "core/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/budgets/budgets.h"
#include "core/dtype.h"
#include "core/kernels/leverage.h"
#include "core/number_text.h"
#include "core/policy/policy.h"
#include "core/policy/policy_text.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

constexpr uint32_t kMaxHeadDim = 65536;

Status CheckRange(const char* name, uint32_t value, uint32_t low,
                  uint32_t high) {
  if (value >= low && value <= high) return Status();
  return InvalidArgument("%s %u is not in [%u, %u]", name, value, low, high);
}

// Checks a tensor of the cache. Its rows have elements, or are opaque and have
// none.
Status CheckTensor(const char* name, kvevict_dtype dtype, const char* dim_name,
                   uint32_t head_dim, bool may_be_absent) {
  const DTypeInfo* info = nullptr;
  KV_RETURN_IF_ERROR(FindBuiltDType(name, dtype, &info));
  if (info->dtype == DType::kOpaque && head_dim != 0) {
    return InvalidArgument("%s %u is not 0, but %s is opaque", dim_name,
                           head_dim, name);
  }
  if (info->block_elements > 1 && head_dim % info->block_elements != 0) {
    return InvalidArgument("%s %u is not a multiple of %u of %s %s", dim_name,
                           head_dim, info->block_elements, name, info->name);
  }
  const bool may_be_zero = may_be_absent || info->dtype == DType::kOpaque;
  return CheckRange(dim_name, head_dim, may_be_zero ? 0 : 1, kMaxHeadDim);
}

// Checks a layer with a full cache.
Status CheckLayer(const kvevict_layer_geometry& g) {
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
  const DTypeInfo* queries = nullptr;
  KV_RETURN_IF_ERROR(FindBuiltDType("q_dtype", g.q_dtype, &queries));
  // Written so that NaN fails.
  const auto check = [](const char* name, float value) {
    if (value >= 0.0f && std::isfinite(value)) return Status();
    return InvalidArgument("%s %s is not a finite number >= 0", name,
                           NumberText(value).c_str());
  };
  KV_RETURN_IF_ERROR(check("softmax_scale", g.softmax_scale));
  KV_RETURN_IF_ERROR(check("logit_softcap", g.logit_softcap));
  if (g.reserved == 0) return Status();
  return InvalidArgument("reserved %u is not 0", g.reserved);
}

Status CheckGeometry(const kvevict_geometry& g) {
  KV_RETURN_IF_ERROR(CheckRange("n_layers", g.n_layers, 1, kMaxLayers));
  KV_RETURN_IF_ERROR(CheckRange("max_tokens", g.max_tokens, 1, INT32_MAX));
  return Status();
}

// Finds whether a layer has rows to evict.
Status FindCache(const kvevict_layer_geometry& g, bool* out_is_full) {
  switch (g.cache) {
    case KVEVICT_LAYER_CACHE_FULL:
    case KVEVICT_LAYER_CACHE_WINDOW:
    case KVEVICT_LAYER_CACHE_NONE:
      *out_is_full = g.cache == KVEVICT_LAYER_CACHE_FULL;
      return *out_is_full ? CheckLayer(g) : Status();
  }
  return InvalidArgument("cache %d is no kind of cache",
                         static_cast<int>(g.cache));
}

}  // namespace

float PlanLayer::softmax_scale() const {
  if (geometry.softmax_scale != 0.0f) return geometry.softmax_scale;
  return 1.0f / std::sqrt(static_cast<float>(geometry.k_head_dim));
}

uint64_t PlanLayer::query_bytes() const {
  return uint64_t{geometry.n_q_heads} * geometry.k_head_dim *
         ElementBytes(static_cast<DType>(geometry.q_dtype));
}

bool AreAlike(const PlanLayer& a, const PlanLayer& b) {
  const kvevict_layer_geometry& g = a.geometry;
  const kvevict_layer_geometry& h = b.geometry;
  return g.n_q_heads == h.n_q_heads && g.n_kv_heads == h.n_kv_heads &&
         g.k_head_dim == h.k_head_dim && g.v_head_dim == h.v_head_dim &&
         g.q_dtype == h.q_dtype && g.k_dtype == h.k_dtype &&
         g.v_dtype == h.v_dtype && a.softmax_scale() == b.softmax_scale() &&
         g.logit_softcap == h.logit_softcap;
}

Status Plan::Create(const Context& context, const kvevict_geometry& geometry,
                    std::span<const kvevict_layer_geometry> layers,
                    const Policy& policy, const kvevict_plan_options& options,
                    Plan** out) {
  if (Status status = CheckGeometry(geometry); !status.ok()) {
    return Prefixed(status, "geometry: ");
  }
  if (Status status = ValidatePolicy(policy); !status.ok()) {
    return Prefixed(status, "policy: ");
  }
  // With a ratio, shares become counts once the context is known.
  Plan* plan = NewObject<Plan>(
      context, context, geometry,
      CountsTokens(policy) ? InTokens(policy, geometry.max_tokens) : policy);
  if (plan == nullptr)
    return OutOfMemory("plan: no memory for %zu bytes", sizeof(Plan));
  Status status = plan->CopyLayers(layers);
  if (status.ok()) status = plan->CopyRope(geometry);
  if (status.ok()) status = plan->CopySinks(geometry);
  if (!status.ok()) status = Prefixed(status, "geometry: ");
  if (status.ok()) status = plan->CheckFitRows();
  if (status.ok()) status = plan->CopyBudgets(options);
  if (status.ok()) status = plan->CopyFlags(options);
  if (status.ok()) {
    plan->CountLists();
    status = plan->CheckSizes();
  }
  if (!status.ok()) {
    plan->Unref();
    return status;
  }
  char text[kMaxPolicyText];
  FormatPolicy(policy, text);
  context.Log(KVEVICT_LOG_DEBUG,
              "plan %s, %u of %u layers, evict workspace up to %zu bytes", text,
              plan->n_layers(), plan->n_model_layers(),
              plan->WorkspaceFor(KVEVICT_OPERATION_EVICT, geometry.max_tokens)
                  .best.value());
  if (AwaitsPrompt(policy)) {
    context.Log(KVEVICT_LOG_INFO,
                "plan %s: evictions do nothing until "
                "kvevict_sequence_end_prompt()",
                text);
  }
  *out = plan;
  return Status();
}

void Plan::Unref() const {
  if (n_refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  DeleteObject(context(), const_cast<Plan*>(this));
}

Status Plan::CopyLayers(std::span<const kvevict_layer_geometry> layers) {
  const auto of = [&](uint32_t number) -> const kvevict_layer_geometry& {
    return layers[layers.size() == 1 ? 0 : number];
  };
  KV_RETURN_IF_ERROR(
      places_.Allocate("places of the layers", CheckedSize(n_model_layers_)));
  int32_t n_full = 0;
  for (uint32_t number = 0; number < n_model_layers_; ++number) {
    bool is_full = false;
    if (Status status = FindCache(of(number), &is_full); !status.ok()) {
      return Prefixed(status, "layers[%u]: ", layers.size() == 1 ? 0 : number);
    }
    places_[number] =
        is_full ? n_full++ : -static_cast<int32_t>(of(number).cache);
  }
  if (n_full == 0) {
    return InvalidArgument(
        "layers: none has a full cache, so there is nothing to evict");
  }
  KV_RETURN_IF_ERROR(
      layers_.Allocate("layers", CheckedSize(static_cast<size_t>(n_full))));
  uint64_t query_bytes = 0;
  uint64_t q_heads = 0;
  uint64_t sum_rows = 0;
  for (uint32_t number = 0; number < n_model_layers_; ++number) {
    if (Find(number) < 0) continue;
    const auto place = static_cast<size_t>(Find(number));
    PlanLayer& layer = layers_[place];
    layer = {of(number), number, 0, 0, query_bytes, q_heads, sum_rows};
    // Rows of like layers follow each other. Others begin at an offset aligned
    // for any dtype.
    if (place > 0 && !AreAlike(layer, layers_[place - 1])) {
      query_bytes = (query_bytes + 15) / 16 * 16;
      layer.query_bytes_before = query_bytes;
    }
    query_bytes += layer.query_bytes();
    q_heads += layer.geometry.n_q_heads;
    sum_rows += SumRowsOf(layer);
  }
  return Status();
}

Status Plan::CopyRope(const kvevict_geometry& geometry) {
  KV_RETURN_IF_ERROR(CheckRope(geometry));
  const size_t n = geometry.rope_inv_freq_len;
  if (n == 0) {
    if (signal().Needs(kRope) || AddsLeverage()) {
      const Signal reader =
          AddsLeverage() ? Signal::kLeverage : InfoOf(policy_.kind).signal;
      return InvalidArgument(
          "rope_inv_freq is NULL, but the policy scores by %s",
          InfoOf(reader).text);
    }
    if (TouchesNothing(policy_) || policy_.rotate == 0) return Status();
    return InvalidArgument(
        "rope_inv_freq is NULL, but the policy has rotate yes");
  }
  const bool by_leverage =
      AddsLeverage() || InfoOf(policy_.kind).signal == Signal::kLeverage;
  for (const PlanLayer& layer : layers_) {
    if (!by_leverage || layer.geometry.k_head_dim <= kMaxLeverageDim) continue;
    return InvalidArgument(
        "layer %u: k_head_dim %u > %u, the most that leverage can compare",
        layer.number, layer.geometry.k_head_dim, kMaxLeverageDim);
  }
  for (const PlanLayer& layer : layers_) {
    if (layer.geometry.k_dtype == KVEVICT_DTYPE_OPAQUE ||
        2 * n <= layer.geometry.k_head_dim) {
      continue;
    }
    return InvalidArgument(
        "rope_inv_freq_len %zu: layer %u has k_head_dim %u, less than two "
        "elements for each",
        n, layer.number, layer.geometry.k_head_dim);
  }
  return rope_.Copy(geometry);
}

Status Plan::CopySinks(const kvevict_geometry& geometry) {
  const size_t n = geometry.sink_logits_len;
  if (geometry.sink_logits == nullptr) {
    if (n == 0) return Status();
    return InvalidArgument("sink_logits is NULL, but sink_logits_len is %zu",
                           n);
  }
  const PlanLayer& last = layers_[n_layers() - 1];
  const uint64_t n_heads = last.q_heads_before + last.geometry.n_q_heads;
  if (n != n_heads) {
    return InvalidArgument(
        "sink_logits_len %zu is not %llu, the query heads of %u layers with a "
        "full cache",
        n, static_cast<unsigned long long>(n_heads), n_layers());
  }
  for (size_t i = 0; i < n; ++i) {
    const float sink = geometry.sink_logits[i];
    if (sink <= std::numeric_limits<float>::max()) continue;
    return InvalidArgument(
        "sink_logits[%zu] %s is neither finite nor -infinity", i,
        NumberText(sink).c_str());
  }
  KV_RETURN_IF_ERROR(
      sinks_.AllocateUncleared("logits of sinks", CheckedSize(n)));
  has_sinks_ = true;
  return context().backend().write(context(), Stream(), geometry.sink_logits,
                                   n * sizeof(float), sinks_.data());
}

Status Plan::CopyFlags(const kvevict_plan_options& options) {
  if (options.draft_tokens > INT32_MAX) {
    return InvalidArgument("options.draft_tokens %u > %d", options.draft_tokens,
                           INT32_MAX);
  }
  draft_tokens_ = options.draft_tokens;
  const struct {
    const char* name;
    uint32_t value;
    bool* out;
  } flags[] = {
      {"report_mass", options.report_mass, &reports_mass_},
      {"has_destinations", options.has_destinations, &has_destinations_}};
  for (const auto& flag : flags) {
    if (flag.value > 1) {
      return InvalidArgument("options.%s %u is not 0 or 1", flag.name,
                             flag.value);
    }
    *flag.out = flag.value != 0;
  }
  return Status();
}

Status Plan::CopyBudgets(const kvevict_plan_options& options) {
  if (policy_.recent.share > 0.0 &&
      (options.head_budgets != nullptr || options.layer_budgets != nullptr)) {
    return InvalidArgument(
        "head_budgets or layer_budgets with recent %s: it is a share of a "
        "ratio",
        NumberText(policy_.recent.share).c_str());
  }
  KV_RETURN_IF_ERROR(CopyHeadBudgets(options));
  return CopyLayerBudgets(options);
}

Status Plan::CopyHeadBudgets(const kvevict_plan_options& options) {
  if (options.head_budgets == nullptr) {
    if (options.head_budgets_len == 0) return Status();
    return InvalidArgument("head_budgets is NULL, but head_budgets_len is %zu",
                           options.head_budgets_len);
  }
  size_t n = 0;
  for (const PlanLayer& layer : layers_) n += layer.geometry.n_kv_heads;
  if (options.head_budgets_len != n) {
    return InvalidArgument(
        "head_budgets_len %zu is not %zu, the KV heads of %u layers",
        options.head_budgets_len, n, n_layers());
  }
  if (TouchesNothing(policy_)) return Status();
  if (CountsByScore(policy_)) {
    return InvalidArgument(
        "head_budgets cannot be combined with heads that are not equal");
  }
  if (HasChunks(policy_)) {
    return InvalidArgument("head_budgets cannot be combined with chunk %u",
                           policy_.chunk);
  }
  if (SplitsByScore(policy_)) {
    return InvalidArgument("head_budgets cannot be combined with split %s",
                           WordOf(policy_.split));
  }
  if (RescuesBlocks(policy_)) {
    return InvalidArgument("head_budgets cannot be combined with rescue %u",
                           policy_.rescue);
  }
  if (SecuresValues(policy_)) {
    return InvalidArgument(
        "head_budgets cannot be combined with secure_values");
  }
  if (DiversifiesBlocks(policy_)) {
    return InvalidArgument(
        "head_budgets cannot be combined with diverse_mass %s",
        NumberText(policy_.diverse_mass).c_str());
  }
  if (CountsPrompt(policy_)) {
    return InvalidArgument(
        "head_budgets with prompt %s: a prompt has one length per layer",
        WordOf(policy_.prompt));
  }
  if (signal().Ranks() && policy_.scope != KVEVICT_SCOPE_KV_HEAD) {
    return InvalidArgument(
        "head_budgets with scope %s: heads that share a keep list keep the "
        "same",
        policy_.scope == KVEVICT_SCOPE_LAYER ? "layer" : "model");
  }
  KV_RETURN_IF_ERROR(
      head_budgets_.Allocate("budgets of the heads", CheckedSize(n)));
  for (size_t i = 0; i < n; ++i) {  // a head keeps at least a token or a block
    head_budgets_[i] = std::max(options.head_budgets[i], policy_.select_block);
  }
  return CheckHeadBudgets();
}

// Checks that each head's budget has room for what must stay.
Status Plan::CheckHeadBudgets() const {
  const SlotBlocks blocks = BlocksOf(policy_);
  const uint64_t sink = blocks.RoundUp(policy_.sink.count);
  const uint32_t recent = ForcedRecentTokens(policy_);
  for (size_t i = 0; i < head_budgets_.size(); ++i) {
    if (sink + recent <= head_budgets_[i]) continue;
    return InvalidArgument(
        "head_budgets[%zu] %u < sink %llu + recent %u%s", i, head_budgets_[i],
        static_cast<unsigned long long>(sink), recent, BlockWords(blocks).text);
  }
  return Status();
}

Status Plan::CopyLayerBudgets(const kvevict_plan_options& options) {
  const size_t n = options.layer_budgets_len;
  if (options.layer_budgets == nullptr) {
    if (n == 0) return Status();
    return InvalidArgument(
        "layer_budgets is NULL, but layer_budgets_len is %zu", n);
  }
  if (n != n_layers()) {
    return InvalidArgument(
        "layer_budgets_len %zu is not %u, the layers with a full cache", n,
        n_layers());
  }
  if (HasHeadBudgets()) {
    return InvalidArgument(
        "layer_budgets cannot be combined with head_budgets");
  }
  if (SplitsByScore(policy_)) {
    return InvalidArgument("layer_budgets cannot be combined with split %s",
                           WordOf(policy_.split));
  }
  KV_RETURN_IF_ERROR(
      layer_budgets_.Allocate("budgets of the layers", CheckedSize(n)));
  std::copy_n(options.layer_budgets, n, layer_budgets_.begin());
  for (uint32_t l = 0; l < n; ++l) {
    const double budget = layer_budgets_[l];
    if (!(budget > 0.0 && std::isfinite(budget))) {
      return InvalidArgument(
          "layer_budgets[%u]: budget %s is not a finite number > 0", l,
          NumberText(budget).c_str());
    }
    if (Status status = ValidatePolicy(PolicyOf(l)); !status.ok()) {
      return Prefixed(status, "layer_budgets[%u]: ", l);
    }
  }
  if (scope() != KVEVICT_SCOPE_MODEL || LayerBudgetsAreEqual()) return Status();
  return InvalidArgument(
      "layer_budgets with scope model: layers that share a keep list keep the "
      "same");
}

bool Plan::LayerBudgetsAreEqual() const {
  return std::all_of(layer_budgets_.begin(), layer_budgets_.end(),
                     [this](double b) { return b == layer_budgets_[0]; });
}

Policy Plan::PolicyOf(uint32_t layer) const {
  Policy policy = policy_;
  if (!HasLayerBudgets()) return policy;
  policy.budget = layer_budgets_[layer];
  policy.split = LayerSplit::kUniform;
  // If nothing is ranked recent would be the budget.
  if (!signal().Ranks()) policy.recent.count = 0;
  return policy;
}

void Plan::CountLists() {
  uint32_t n = 0;
  for (PlanLayer& layer : layers_) {
    layer.first_list = n;
    layer.n_lists =
        scope() == KVEVICT_SCOPE_KV_HEAD ? layer.geometry.n_kv_heads : 1;
    n += layer.n_lists;
  }
}

kvevict_scope Plan::scope() const {
  if (signal().Ranks()) return policy_.scope;
  return IsRagged() ? KVEVICT_SCOPE_KV_HEAD : KVEVICT_SCOPE_LAYER;
}

uint32_t Plan::ContextOf(uint32_t n_seen, uint32_t n_tokens) const {
  const uint32_t most = std::min(n_seen, max_tokens_);
  const uint32_t size = BlocksOf(policy_).size;
  const uint32_t behind = (most % size + size - n_tokens % size) % size;
  return behind < most ? most - behind : most;
}

Status Plan::LayerBudgets(uint32_t n_context,
                          std::span<uint32_t> budgets) const {
  if (HasLayerBudgets()) {
    for (uint32_t l = 0; l < budgets.size(); ++l) {
      KV_RETURN_IF_ERROR(LayerBudget(l, n_context, &budgets[l]));
    }
    return Status();
  }
  if (!HasHeadBudgets()) {
    return kvevict::LayerBudgets(policy_, n_context, budgets);
  }
  for (uint32_t l = 0; l < budgets.size(); ++l) {
    const std::span<const uint32_t> heads = HeadBudgets(l);
    budgets[l] = BlocksOf(policy_).Within(
        *std::max_element(heads.begin(), heads.end()), n_context);
  }
  return Status();
}

Status Plan::LayerBudget(uint32_t layer, uint32_t n_context,
                         uint32_t* out) const {
  Status status = kvevict::LayerBudgets(PolicyOf(layer), n_context, {out, 1});
  if (status.ok()) return status;
  return Prefixed(status, "layer %u: ", layers_[layer].number);
}

uint32_t Plan::MostOfList(const PlanLayer& layer, uint32_t budget,
                          uint32_t n_tokens) const {
  const uint64_t most =
      HeadsCompete(policy_) ? uint64_t{layer.n_lists} * budget : budget;
  return static_cast<uint32_t>(std::min<uint64_t>(most, n_tokens));
}

CheckedSize Plan::KeepCapacity() const {
  if (HasHeadBudgets()) return KeepCapacityOfHeads();
  uint32_t most_lists = 0;
  for (const PlanLayer& layer : layers_) {
    most_lists = std::max(most_lists, layer.n_lists);
  }
  const CheckedSize lists(most_lists);
  const uint32_t n_apart = scope() == KVEVICT_SCOPE_MODEL ? 1 : n_layers();
  const CheckedSize all = CheckedSize(n_apart) * CheckedSize(max_tokens_);
  if (IsPromptBeside(policy_)) return lists * all;
  if (HasLayerBudgets()) return KeepCapacityOfLayers();
  CheckedSize kept(MaxTotalBudget(policy_, max_tokens_, n_apart));
  kept = kept + CheckedSize(n_apart) * CheckedSize(RescuedTokens(policy_));
  // Budgets that are rounded together are a token larger at most.
  if (policy_.rounding == Rounding::kTogether) {
    kept = kept + CheckedSize(n_apart);
  }
  if (!kept.ok() || kept.value() > all.value()) kept = all;
  if (!HeadsCompete(policy_)) return lists * kept;
  // One list of a layer may get what all of them have together.
  const CheckedSize shared = lists * kept;
  return lists * (shared.ok() && all.ok()
                      ? CheckedSize(std::min(shared.value(), all.value()))
                      : all);
}

CheckedSize Plan::KeepCapacityOfLayers() const {
  CheckedSize n(0);
  for (uint32_t l = 0; l < n_layers(); ++l) {
    if (l > 0 && scope() == KVEVICT_SCOPE_MODEL) break;
    const uint64_t most =
        MaxTotalBudget(PolicyOf(l), max_tokens_, /*n_layers=*/1) +
        RescuedTokens(policy_) + (policy_.rounding == Rounding::kTogether);
    n = n + CheckedSize(layers_[l].n_lists) *
                CheckedSize(MostOfList(layers_[l],
                                       static_cast<uint32_t>(std::min<uint64_t>(
                                           most, max_tokens_)),
                                       max_tokens_));
  }
  return n;
}

CheckedSize Plan::KeepCapacityOfHeads() const {
  CheckedSize n(0);
  for (uint32_t l = 0; l < n_layers(); ++l) {
    const std::span<const uint32_t> heads = HeadBudgets(l);
    const uint32_t most =  // a list may have part of a block
        std::max(*std::max_element(heads.begin(), heads.end()),
                 BlocksOf(policy_).size - 1);
    n = n +
        CheckedSize(heads.size()) * CheckedSize(std::min(most, max_tokens_));
  }
  return n;
}

Shaping Plan::ShapingOf(const PlanLayer& layer) const {
  return MakeShaping(policy_, signal(),
                     layer.geometry.n_q_heads / layer.geometry.n_kv_heads);
}

Status Plan::CheckSizes() {
  const CheckedSize keep = KeepCapacity();
  keep_capacity_ = keep.value();
  if (!WorkspaceFor(KVEVICT_OPERATION_SCORE, max_tokens_).ok()) {
    return InvalidArgument(
        "max_tokens %u and window %u need a workspace of more bytes than "
        "size_t holds",
        max_tokens_, policy_.window.count);
  }
  if (!keep.ok() || !WorkspaceFor(KVEVICT_OPERATION_EVICT, max_tokens_).ok()) {
    return InvalidArgument(
        "n_layers %u of up to %u KV heads and max_tokens %u need a workspace "
        "of more bytes than size_t holds",
        n_model_layers_, MostRows(), max_tokens_);
  }
  return Status();
}

Status Plan::PrepareScoring() const {
  const ScoreOp* op = context().backend().*signal().op;
  if (op == nullptr || op->prepare == nullptr) return Status();
  for (uint32_t l = 0; l < n_layers(); ++l) {
    if (l > 0 && AreAlike(layers_[l], layers_[l - 1])) continue;
    KV_RETURN_IF_ERROR(
        op->prepare(context(), layers_[l].geometry, policy_,
                    {IsRagged(), has_sinks_, FitsBiases(policy_)}));
  }
  return Status();
}

bool Plan::LayersKeepAlike() const {
  if (scope() == KVEVICT_SCOPE_MODEL) return true;
  if (signal().Ranks() || IsRagged()) return false;
  return HasLayerBudgets() ? LayerBudgetsAreEqual()
                           : policy_.split == LayerSplit::kUniform;
}

}  // namespace kvevict
