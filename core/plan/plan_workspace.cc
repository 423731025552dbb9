// Lays out the memory that calls work in.
#include <algorithm>

#include "core/budgets/budgets.h"
#include "core/evict/stages.h"
#include "core/plan/plan.h"
#include "core/policy/policy.h"

namespace kvevict {
namespace {

constexpr size_t kPartAlignment = 256;

// Hands out aligned parts of a workspace.
class Layout {
 public:
  size_t Add(CheckedSize n, size_t element_bytes) {
    const size_t offset = end_.value();
    end_ = (end_ + n * CheckedSize(element_bytes)).AlignUp(kPartAlignment);
    return offset;
  }
  // Adds scratch as the last part of a layout.
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

// The most layers at once that still have the best scratch, which saves more
// time than more layers do.
template <typename Parts, typename Make>
Parts LargestThatFits(uint32_t fewest, uint32_t most, size_t bytes,
                      const Make& make) {
  for (uint32_t n = most;; --n) {
    WorkspaceNeeds needs;
    Parts parts = make(n, &needs);
    parts.bytes = std::min(bytes, needs.best.value());
    if (n == fewest || needs.best.value() <= bytes) return parts;
  }
}

}  // namespace

uint32_t Plan::MostRows() const {
  uint32_t most = 0;
  for (const PlanLayer& layer : layers_) {
    most = std::max(
        most, signal().Ranks() ? layer.geometry.n_kv_heads : layer.n_lists);
  }
  return most;
}

// Elements of the rows that shaping reads per query head, for n_layers at a
// time.
CheckedSize Plan::ApartRows(uint32_t n_layers, uint32_t n_tokens) const {
  uint32_t most = 0;
  for (const PlanLayer& layer : layers_) {
    if (ShapingOf(layer).n_terms == 1) continue;
    most = std::max(most, layer.geometry.n_q_heads);
  }
  return CheckedSize(std::min(n_layers, kMostApart)) * CheckedSize(most) *
         CheckedSize(n_tokens);
}

ScratchNeeds Plan::NeedsOf(decltype(Op<ScoreArgs>::scratch) scratch,
                           uint32_t n_layers, uint32_t n_tokens) const {
  ScratchNeeds most;
  for (size_t l = 0; l < layers_.size(); ++l) {
    if (!CanScore(layers_[l])) continue;
    if (l > 0 && AreAlike(layers_[l], layers_[l - 1])) continue;
    most = Larger(most, scratch(context(), {layers_[l].geometry, policy_,
                                            n_layers, n_tokens}));
  }
  return most;
}

CheckedSize Plan::RewriteBytes(uint32_t n_tokens) const {
  CheckedSize most(0);
  const Backend& backend = context().backend();
  for (const PlanLayer& layer : layers_) {
    const kvevict_layer_geometry& g = layer.geometry;
    if (RewriteReason(layer) != KVEVICT_REASON_NONE) continue;
    const ScratchNeeds needs =
        FitsValues(policy_)
            ? backend.fit_values.scratch(context(), {g, policy_, 1, n_tokens})
            : backend.merge.scratch(context(), {g.n_kv_heads, g.k_head_dim,
                                                g.v_head_dim, n_tokens, 1});
    most = Larger(most, needs.least);
  }
  return most;
}

size_t Plan::n_scores() const {
  return uint64_t{n_layers()} * MostRows() * ChunkTokens(policy_, max_tokens_);
}

// Layers that share a list are reduced together. Layers that share a budget by
// score are all scored before any of them is selected.
uint32_t Plan::FewestLayersAtOnce() const {
  const bool together =
      scope() == KVEVICT_SCOPE_MODEL || SplitsByScore(policy_);
  return together ? n_layers() : 1;
}

ScoreWorkspace Plan::ScoreParts(uint32_t n_layers, uint32_t n_tokens,
                                WorkspaceNeeds* needs) const {
  ScoreWorkspace parts;
  Layout layout;
  parts.n_layers = n_layers;
  parts.rows = layout.Add(ApartRows(n_layers, n_tokens), sizeof(float));
  parts.scratch = layout.AddScratch(
      ScratchOfStages(*this, n_layers, n_tokens, true, false), needs);
  return parts;
}

EvictWorkspace Plan::EvictParts(uint32_t n_layers, uint32_t n_tokens,
                                WorkspaceNeeds* needs) const {
  EvictWorkspace parts;
  Layout layout;
  // No layer keeps more than it holds.
  const CheckedSize all = CheckedSize(n_lists()) * CheckedSize(n_tokens);
  parts.keep =
      layout.Add(all.ok() ? CheckedSize(std::min(all.value(), keep_capacity_))
                          : CheckedSize(keep_capacity_),
                 sizeof(int32_t));
  // Only one chunk of a layer is scored at a time.
  const uint32_t n_at_once = ChunkTokens(policy_, n_tokens);
  parts.n_layers = n_layers;
  parts.scores = layout.Add(
      CheckedSize(n_layers) * CheckedSize(MostRows()) * CheckedSize(n_at_once),
      sizeof(float));
  if (NeedsKeys()) {
    parts.keys = layout.Add(CheckedSize(n_layers) * CheckedSize(MostRows()) *
                                CheckedSize(n_at_once),
                            sizeof(uint32_t));
  }
  if (signal().Ranks()) {
    parts.rows = layout.Add(ApartRows(n_layers, n_at_once), sizeof(float));
  }
  if (SecuresMass(policy_)) {
    parts.masses = layout.Add(CheckedSize(n_layers) * CheckedSize(MostRows()) *
                                  CheckedSize(n_at_once),
                              sizeof(float));
  }
  if (MeasuresLayers(policy_)) {
    parts.measures =
        layout.Add(CheckedSize(Plan::n_layers()), sizeof(LayerMeasure));
  }
  if (LayersCompete(policy_)) {
    parts.winners = layout.Add(CheckedSize(n_lists()), sizeof(ListWinners));
  }
  parts.scratch = layout.AddScratch(
      ScratchOfStages(*this, n_layers, n_at_once, signal().Ranks(), true),
      needs);
  if (RewritesRows()) {  // after selection only the keep lists stay
    const CheckedSize rewriting =
        (CheckedSize(parts.scores) + RewriteBytes(n_tokens))
            .AlignUp(kPartAlignment);
    needs->least = Larger(needs->least, rewriting);
    needs->best = Larger(needs->best, rewriting);
  }
  return parts;
}

WorkspaceNeeds Plan::WorkspaceFor(kvevict_operation operation,
                                  uint32_t n_tokens) const {
  WorkspaceNeeds needs;
  WorkspaceNeeds fewest;
  switch (operation) {
    case KVEVICT_OPERATION_EVICT:
      if (TouchesNothing(policy_)) break;
      EvictParts(FewestLayersAtOnce(), n_tokens, &fewest);
      EvictParts(n_layers(), n_tokens, &needs);
      needs.least = fewest.least;
      break;
    case KVEVICT_OPERATION_SCORE:
      if (!signal().Ranks()) break;
      ScoreParts(1, n_tokens, &fewest);
      ScoreParts(n_layers(), n_tokens, &needs);
      needs.least = fewest.least;
      break;
    case KVEVICT_OPERATION_OBSERVE:
      needs.least = needs.best =
          ObservesSums() ? SumMemory() : QueryMemory(nullptr);
      break;
  }
  return needs;
}

CheckedSize Plan::QueryMemory(CheckedSize* out_lse_offset) const {
  if (!ObservesQueries()) return CheckedSize(0);
  const Backend& backend = context().backend();
  const PlanLayer& last = layers_[n_layers() - 1];
  const CheckedSize ring_rows(QueryRingRows());
  const CheckedSize rows =
      (ring_rows * CheckedSize(last.query_bytes_before + last.query_bytes()))
          .AlignUp(backend.workspace_alignment);
  if (out_lse_offset != nullptr) *out_lse_offset = rows;
  if (!ReadsLse()) return rows;
  return rows + ring_rows *
                    CheckedSize(last.q_heads_before + last.geometry.n_q_heads) *
                    CheckedSize(sizeof(float));
}

uint32_t Plan::SumRowsOf(const PlanLayer& layer) const {
  if (!ObservesSums()) return 0;
  switch (policy_.sums) {
    case SumRows::kHead:
      return layer.geometry.n_kv_heads;
    case SumRows::kQuery:
      return layer.geometry.n_q_heads;
    case SumRows::kLayer:
      return 1;
  }
  return 0;
}

CheckedSize Plan::SumMemory() const {
  const PlanLayer& last = layers_[n_layers() - 1];
  return CheckedSize(last.sum_rows_before + SumRowsOf(last)) *
         CheckedSize(RowsPerSum()) * CheckedSize(max_tokens_) *
         CheckedSize(sizeof(float));
}

ScoreWorkspace Plan::LayOutScore(uint32_t n_layers, uint32_t n_tokens,
                                 size_t bytes) const {
  return LargestThatFits<ScoreWorkspace>(
      1, n_layers, bytes, [&](uint32_t n, WorkspaceNeeds* needs) {
        return ScoreParts(n, n_tokens, needs);
      });
}

EvictWorkspace Plan::LayOutEvict(uint32_t n_tokens, size_t bytes) const {
  return LargestThatFits<EvictWorkspace>(
      FewestLayersAtOnce(), n_layers(), bytes,
      [&](uint32_t n, WorkspaceNeeds* needs) {
        return EvictParts(n, n_tokens, needs);
      });
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
    return InvalidArgument(
        "workspace_bytes %zu < %zu, the least; the best is %zu",
        workspace_bytes, needs.least.value(), needs.best.value());
  }
  return CheckMemory("workspace", context, workspace, workspace_bytes,
                     needs.least.value());
}

}  // namespace kvevict
