// kvevict_score(): scores without a sequence.
#include <algorithm>

#include "core/budgets/budgets.h"
#include "core/doors/checks.h"
#include "core/doors/doors.h"
#include "core/policy/policy.h"
#include "core/signals/score.h"
#include "core/signals/signal_inputs.h"
#include "core/view/overlap.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

// Signals that process keys block by block keep the layer's budget of them.
Status FindKeep(const Plan& plan, const ScoreRequest& request, ScoreJob* out) {
  if (!plan.KeepsByBlocks()) return Status();
  uint32_t budgets[kMaxLayers];
  KV_RETURN_IF_ERROR(
      plan.LayerBudgets(plan.ContextOf(request.n_seen, request.n_tokens),
                        std::span(budgets).first(plan.n_layers())));
  out->keep = BlocksOf(plan.policy())
                  .Within(budgets[request.inputs.layer], request.n_tokens);
  return Status();
}

// The share of the context that a layer's budget is.
double ShareOfBudget(const Plan& plan, uint32_t layer,
                     const ScoreRequest& request) {
  const Policy of_layer = plan.PolicyOf(layer);
  if (!CountsTokens(of_layer)) return of_layer.budget;
  return of_layer.budget /
         std::max(1u, plan.ContextOf(request.n_seen, request.n_tokens));
}

// Checks the inputs that the policy's signal needs for a layer, and fills the
// job.
Status CheckJob(const Plan& plan, const ScoreRequest& request, ScoreJob* out) {
  const PlanLayer& layer = plan.layer(request.inputs.layer);
  const kvevict_layer_geometry& g = layer.geometry;
  const SignalInfo& signal = plan.signal();
  const bool on_host = plan.context().backend().on_host;
  const bool by_queries = IsScoredByQueries(plan, request.inputs);
  const bool reads_queries =
      by_queries && (!signal.HasWindow() || WindowScores(plan.policy()));
  const uint32_t window = signal.HasWindow() ? plan.policy().window.count : 1;
  KV_RETURN_IF_ERROR(CheckTokenCount(request.n_tokens, window,
                                     plan.max_tokens(), "max_tokens"));
  if (HasChunks(plan.policy()) && request.n_tokens > plan.policy().chunk) {
    return Unsupported(
        "n_tokens %u > chunk %u: only kvevict_sequence_evict() scores chunk by "
        "chunk",
        request.n_tokens, plan.policy().chunk);
  }
  uint32_t n_rows = signal.HasWindow() ? window : 0;
  if (reads_queries) {
    KV_RETURN_IF_ERROR(
        FindQueryCount(plan, request.n_tokens, request.inputs, &n_rows));
  }
  if (request.n_seen < request.n_tokens || request.n_seen > INT32_MAX) {
    return InvalidArgument("n_seen %u is not in [n_tokens %u, %d]",
                           request.n_seen, request.n_tokens, INT32_MAX);
  }
  KV_RETURN_IF_ERROR(FindKeep(plan, request, out));
  out->layer = layer.number;
  out->n_seen = request.n_seen;
  out->n_sink = plan.policy().sink.count;
  out->n_recent = ForcedRecentTokens(InTokens(
      plan.policy(), plan.ContextOf(request.n_seen, request.n_tokens)));
  out->next_position =
      plan.policy().rotate != 0 ? request.n_tokens : request.n_seen;
  out->tokens = {request.n_tokens, request.token_counts};
  const ListCounts& tokens = out->tokens;
  KV_RETURN_IF_ERROR(
      CheckCounts(plan.context(), "token_counts", tokens, g.n_kv_heads));
  const bool of_last = !signal.Needs(kAllQueries);
  for (uint32_t h = 0;
       of_last && on_host && tokens.each != nullptr && h < g.n_kv_heads; ++h) {
    if (tokens.Of(h) >= n_rows) continue;
    return InvalidArgument("token_counts[%u] %u < %u rows of queries", h,
                           tokens.Of(h), n_rows);
  }
  if (plan.ReadsRows() || by_queries) {
    KV_RETURN_IF_ERROR(plan.CheckCanScore(layer, by_queries));
    Status status = ValidateView(request.view, tokens, on_host);
    if (status.ok()) status = MatchGeometry(request.view, g);
    if (status.ok() && (plan.ReadsKeys() || by_queries) &&
        !IsPresent(request.view.k)) {
      status = InvalidArgument("k.data is 0: no keys to score");
    }
    if (status.ok() && plan.ReadsValues() && !IsPresent(request.view.v)) {
      status = InvalidArgument("v.data is 0: no values to score by");
    }
    if (status.ok()) {
      status = CheckScales(request.view, plan.ReadsKeys() || by_queries,
                           plan.ReadsValues());
    }
    if (!status.ok()) return Prefixed(status, "view: ");
    out->view = &request.view;
  }
  KV_RETURN_IF_ERROR(
      FindInputs(plan, layer, request.n_tokens, request.inputs, out));
  if (reads_queries) {
    KV_RETURN_IF_ERROR(FindQueries(plan, layer, n_rows, request.inputs, out));
  }
  if (request.scores.size() != uint64_t{g.n_kv_heads} * request.n_tokens) {
    return InvalidArgument("scores_len %zu is not n_kv_heads %u * n_tokens %u",
                           request.scores.size(), g.n_kv_heads,
                           request.n_tokens);
  }
  return Status();
}

// The jobs of one layer.
struct ScoredLayer {
  uint32_t layer = 0;
  ScoreJob score;
  ShapeJob shape;
};

// Checks that the workspace and all scores overlap no view.
Status CheckWrittenApart(const Context& context,
                         std::span<const ScoreRequest> requests,
                         Jobs<ScoreJob> jobs,
                         std::span<const uint8_t> workspace) {
  LayerCache caches[kMaxJobs];
  uint32_t n = 0, number = 0;
  for (const ScoreJob& job : jobs) {
    if (job.view != nullptr) {
      caches[n] =
          CacheOf(*job.view, number, job.tokens, context.backend().on_host);
      caches[n].owner = n;
      ++n;
    }
    ++number;
  }
  const std::span<const LayerCache> all = std::span(caches).first(n);
  KV_RETURN_IF_ERROR(CheckApartFrom("workspace", workspace.data(),
                                    workspace.size(), "jobs", all));
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::span<const float> scores = requests[i].scores;
    const Status status = CheckApartFrom("scores", scores.data(),
                                         scores.size_bytes(), "jobs", all);
    if (!status.ok()) {
      return requests.size() == 1 ? status : Prefixed(status, "jobs[%zu]: ", i);
    }
  }
  return Status();
}

}  // namespace

Status Score(const Plan& plan, std::span<const ScoreRequest> requests,
             const CallMemory& memory) {
  if (requests.empty()) return Status();
  if (!plan.signal().Ranks()) {
    return InvalidArgument(
        "the policy ranks tokens by position: there is nothing to score");
  }
  ScoredLayer scored[kMaxJobs];
  const std::span<ScoredLayer> all = std::span(scored).first(requests.size());
  uint32_t n_tokens = 1;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].layer = requests[i].inputs.layer;
    if (Status status = CheckJob(plan, requests[i], &all[i].score);
        !status.ok()) {
      return all.size() == 1 ? status : Prefixed(status, "jobs[%zu]: ", i);
    }
    all[i].shape.scored = &all[i].score;
    n_tokens = std::max(n_tokens, requests[i].n_tokens);
  }
  KV_RETURN_IF_ERROR(
      CheckWorkspace(plan.context(), memory.workspace, memory.workspace_bytes,
                     plan.WorkspaceFor(KVEVICT_OPERATION_SCORE, n_tokens)));
  KV_RETURN_IF_ERROR(CheckScoring(plan, memory.stream, n_tokens,
                                  Jobs<uint32_t>(all, &ScoredLayer::layer),
                                  Jobs<ScoreJob>(all, &ScoredLayer::score),
                                  Jobs<ShapeJob>(all, &ScoredLayer::shape)));
  auto* const workspace = static_cast<uint8_t*>(memory.workspace);
  const auto n_layers = static_cast<uint32_t>(all.size());
  const size_t n_bytes =
      plan.LayOutScore(n_layers, n_tokens, memory.workspace_bytes).bytes;
  KV_RETURN_IF_ERROR(CheckWrittenApart(plan.context(), requests,
                                       Jobs<ScoreJob>(all, &ScoredLayer::score),
                                       {workspace, n_bytes}));
  for (size_t i = 0; i < all.size();) {
    const ScoreWorkspace parts =
        plan.LayOutScore(static_cast<uint32_t>(all.size() - i), n_tokens,
                         memory.workspace_bytes);
    const std::span<ScoredLayer> now =
        all.subspan(i, std::min<size_t>(parts.n_layers, all.size() - i));
    ApartRows apart(plan, reinterpret_cast<float*>(workspace + parts.rows));
    for (size_t j = 0; j < now.size(); ++j) {
      ScoreJob& job = now[j].score;
      float* const scores = requests[i + j].scores.data();
      job.rows = apart.Next(plan.layer(now[j].layer), job.tokens.most, scores);
      now[j].shape = {&job, job.rows, scores};
      now[j].shape.blend = BlendOf(
          plan.policy(), ShareOfBudget(plan, now[j].layer, requests[i + j]));
    }
    const Jobs<uint32_t> layers(now, &ScoredLayer::layer);
    const Jobs<ShapeJob> shapes(now, &ScoredLayer::shape);
    const std::span<uint8_t> scratch(workspace + parts.scratch,
                                     parts.bytes - parts.scratch);
    KV_RETURN_IF_ERROR(ScoreAndShape(plan, memory.stream, n_tokens, layers,
                                     Jobs<ScoreJob>(now, &ScoredLayer::score),
                                     shapes, scratch));
    if (plan.AppliesWeights() && !plan.WeighsRows()) {
      KV_RETURN_IF_ERROR(ApplyWeights(plan, memory.stream, layers, shapes));
    }
    if (plan.SubtractsRedundancy()) {
      KV_RETURN_IF_ERROR(SubtractRedundancy(plan, memory.stream, n_tokens,
                                            layers, shapes, scratch));
    }
    if (plan.Standardizes()) {
      KV_RETURN_IF_ERROR(Standardize(plan, memory.stream, layers, shapes));
    }
    if (plan.AddsLeverage()) {
      LeverageRows rows(scratch);
      for (ScoredLayer& one : now) {
        one.score.rows = one.shape.leverage =
            rows.Next(plan.layer(one.layer), one.score.tokens.most);
      }
      KV_RETURN_IF_ERROR(AddLeverage(plan, memory.stream, n_tokens, layers,
                                     Jobs<ScoreJob>(now, &ScoredLayer::score),
                                     shapes, rows.rest()));
    }
    if (Draws(plan.policy())) {
      KV_RETURN_IF_ERROR(Draw(plan, memory.stream, layers, shapes));
    }
    i += now.size();
  }
  return Status();
}

}  // namespace kvevict
