#include "core/evict.h"

#include <algorithm>
#include <limits>
#include <new>

#include "core/budgets/budgets.h"
#include "core/overlap.h"
#include "core/policy.h"
#include "core/view.h"

namespace kvevict {
namespace {

// ---- Checks that every policy shares ----

Status CheckOptions(const Sequence& sequence,
                    const kvevict_evict_options& options) {
  if (options.reserved != 0) {
    return InvalidArgument("options.reserved %u is not 0", options.reserved);
  }
  if (options.scores != nullptr &&
      SignalOf(sequence.plan().policy()) != Signal::kCaller) {
    return InvalidArgument("scores given, but the policy is not custom");
  }
  if (options.protected_positions_len > 0 &&
      options.protected_positions == nullptr) {
    return InvalidArgument(
        "protected_positions is NULL, but protected_positions_len is %zu",
        options.protected_positions_len);
  }
  int32_t least = 0;
  for (size_t i = 0; i < options.protected_positions_len; ++i) {
    const int32_t position = options.protected_positions[i];
    if (position < least ||
        static_cast<uint32_t>(position) >= sequence.logical_length()) {
      return InvalidArgument(
          "protected_positions[%zu] %d: ascending positions in [%d, %u) are "
          "wanted",
          i, position, least, sequence.logical_length());
    }
    least = position + 1;
  }
  return Status();
}

// Checks a layer's view and finds the first layer that uses the same cache, which may
// be itself: layers that share one are counted and compacted once.
Status CheckView(const Sequence& sequence, const ViewList& views,
                 uint32_t layer, uint32_t* owner) {
  const uint32_t n_tokens = sequence.slots(layer).stored;
  const bool on_host = sequence.plan().context().backend().on_host;
  Status status = ValidateView(views[layer], n_tokens, on_host);
  if (status.ok()) {
    status = MatchGeometry(views[layer], sequence.plan().geometry());
  }
  if (status.ok()) {
    status = CheckComplete(views[layer], sequence.plan().geometry());
  }
  if (!status.ok()) return Prefixed(status, "views[%u]: ", layer);
  *owner = layer;
  for (uint32_t l = 0; l < layer; ++l) {
    const Sharing sharing =
        CompareViews(views[l], views[layer], n_tokens, on_host);
    if (sharing == Sharing::kNone) continue;
    if (sharing == Sharing::kOverlap || sequence.slots(l).stored != n_tokens) {
      return InvalidArgument(
          "views[%u] and views[%u] overlap, but are not equal", l, layer);
    }
    *owner = l;
    return Status();
  }
  return Status();
}

// One call of Evict(): its parts read each other's results in order.
class Eviction {
 public:
  Eviction(Sequence* sequence, const ViewList& views,
           const kvevict_evict_options& options, void* workspace)
      : sequence_(*sequence),
        plan_(sequence->plan()),
        context_(plan_.context()),
        g_(plan_.geometry()),
        policy_(plan_.policy()),
        signal_(SignalOf(policy_)),
        views_(views),
        options_(options),
        layout_(plan_.evict_workspace()),
        workspace_(static_cast<uint8_t*>(workspace)) {}

  Status Check();
  bool HasWork() const { return !active_.empty(); }
  Status Run();
  void FillReport(kvevict_evict_report* report) const;

 private:
  template <typename T>
  T* Part(size_t offset) const {
    return reinterpret_cast<T*>(workspace_ + offset);
  }

  Status CheckViews();
  Status CheckBudgets();
  Status FindForced(uint32_t n_context);
  Status CheckForcedFit(const LayerJob& job) const;
  Status CheckSignal();
  Status FindCallerScores();
  void LayOutScoresAndLists();
  Status Score();
  Status Select(const Backend& backend, std::span<const LayerJob> jobs) const;
  Status SelectOnHost() const;

  Sequence& sequence_;
  const Plan& plan_;
  const Context& context_;
  const kvevict_geometry& g_;
  const kvevict_policy& policy_;
  const Signal signal_;
  const ViewList& views_;
  const kvevict_evict_options& options_;
  const EvictWorkspace& layout_;
  uint8_t* const workspace_;

  std::span<LayerJob> jobs_;  // one per layer
  std::span<LayerJob>
      active_;  // of the layers that lose tokens, shared ones once
  Forced forced_;
};

// ---- Checks, before the first byte moves ----

Status Eviction::Check() {
  jobs_ = sequence_.jobs();
  active_ = sequence_.active_jobs().first(0);
  std::fill(jobs_.begin(), jobs_.end(), LayerJob());
  KV_RETURN_IF_ERROR(CheckViews());
  KV_RETURN_IF_ERROR(CheckBudgets());
  KV_RETURN_IF_ERROR(CheckSignal());
  if (!HasWork()) return Status();
  return context_.backend().check_capture(context_, sequence_.stream(),
                                          policy_);
}

Status Eviction::CheckViews() {
  for (uint32_t l = 0; l < g_.n_layers; ++l) {
    LayerJob& job = jobs_[l];
    job.view = &views_[l];
    job.layer = l;
    job.n_tokens = sequence_.slots(l).stored;
    job.slots = sequence_.DevicePositions(l);
    KV_RETURN_IF_ERROR(CheckView(sequence_, views_, l, &job.owner));
  }
  return Status();
}

Status Eviction::CheckBudgets() {
  // A ratio is one of the context, which never exceeds what the plan is for.
  const uint32_t n_context =
      std::min(sequence_.logical_length(), g_.max_tokens);
  const std::span<uint32_t> budgets = sequence_.counts();
  if (n_context == 0) {
    std::fill(budgets.begin(), budgets.end(), 0);
  } else {
    KV_RETURN_IF_ERROR(LayerBudgets(policy_, n_context, budgets));
  }
  for (LayerJob& job : jobs_) {
    job.n_keep = std::min(budgets[job.owner], job.n_tokens);
    if (job.n_keep == job.n_tokens || job.owner != job.layer) continue;
    if (!HasWork()) KV_RETURN_IF_ERROR(FindForced(n_context));
    KV_RETURN_IF_ERROR(CheckForcedFit(job));
    active_ = {active_.data(), active_.size() + 1};
    active_.back() = job;
  }
  if (EffectiveScope(policy_) != KVEVICT_SCOPE_MODEL) return Status();
  for (const LayerJob& job : jobs_) {
    if (job.n_tokens != jobs_[0].n_tokens) {
      return InvalidArgument(
          "scope model: layer %u holds %u tokens, layer 0 %u", job.layer,
          job.n_tokens, jobs_[0].n_tokens);
    }
  }
  return Status();
}

Status Eviction::FindForced(uint32_t n_context) {
  kvevict_resolved_policy resolved;
  KV_RETURN_IF_ERROR(ResolvePolicy(policy_, n_context, &resolved));
  forced_.n_sink = resolved.n_sink;
  forced_.n_recent = resolved.n_recent;
  forced_.protect = {options_.protected_positions,
                     options_.protected_positions_len};
  return Status();
}

// What must stay has to fit the layer's budget, in every list.
Status Eviction::CheckForcedFit(const LayerJob& job) const {
  const uint64_t ends = uint64_t{forced_.n_sink} + forced_.n_recent;
  // Mostly all of them would fit, and then it does not matter which are held: a
  // device may have to be waited for to know.
  if (ends + forced_.protect.size() <= job.n_keep) return Status();
  SlotPositions positions;
  KV_RETURN_IF_ERROR(sequence_.HostPositions(job.layer, &positions));
  for (uint32_t list = 0; list < plan_.n_lists(); ++list) {
    const uint64_t n_protected = std::count_if(
        forced_.protect.begin(), forced_.protect.end(), [&](int32_t position) {
          const int64_t slot = positions.SlotOf(list, position, job.n_tokens);
          return slot >= forced_.n_sink &&
                 slot < int64_t{job.n_tokens} - forced_.n_recent;
        });
    if (ends + n_protected > job.n_keep) {
      return InvalidArgument(
          "layer %u: budget %u < n_sink %u + n_recent %u + %llu protected "
          "positions",
          job.layer, job.n_keep, forced_.n_sink, forced_.n_recent,
          static_cast<unsigned long long>(n_protected));
    }
  }
  return Status();
}

Status Eviction::CheckSignal() {
  if (!HasWork()) return Status();
  if (signal_ == Signal::kCaller) return FindCallerScores();
  if (signal_ != Signal::kWindowAttention) return Status();
  KV_RETURN_IF_ERROR(plan_.CheckCanScore());
  for (const LayerJob& job : active_) {
    KV_RETURN_IF_ERROR(sequence_.CheckWindow(job.layer));
  }
  return Status();
}

// Strides of 0 are packed: rows and layers follow each other, and so a layer's place
// depends on the lengths of those before it.
Status Eviction::FindCallerScores() {
  if (options_.scores == nullptr) {
    return InvalidArgument("scores is NULL, but the policy is custom");
  }
  const CheckedSize layer_stride(options_.scores_layer_stride);
  CheckedSize next(0);
  auto active = active_.begin();
  for (const LayerJob& job : jobs_) {
    const uint64_t row = options_.scores_head_stride == 0
                             ? job.n_tokens
                             : options_.scores_head_stride;
    const CheckedSize begin = options_.scores_layer_stride == 0
                                  ? next
                                  : CheckedSize(job.layer) * layer_stride;
    next = begin + CheckedSize(g_.n_kv_heads) * CheckedSize(row);
    if (active == active_.end()) break;
    if (active->layer != job.layer) continue;
    const CheckedSize end = begin +
                            CheckedSize(g_.n_kv_heads - 1) * CheckedSize(row) +
                            CheckedSize(job.n_tokens);
    if (!end.ok() || end.value() > options_.scores_len) {
      return InvalidArgument(
          "scores_len %zu: layer %u of %u tokens ends beyond it with "
          "scores_layer_stride %llu, scores_head_stride %llu",
          options_.scores_len, job.layer, job.n_tokens,
          static_cast<unsigned long long>(options_.scores_layer_stride),
          static_cast<unsigned long long>(options_.scores_head_stride));
    }
    active->caller_scores = options_.scores + begin.value();
    active->caller_head_stride = row;
    ++active;
  }
  return Status();
}

// ---- Work ----

Status Eviction::Run() {
  LayOutScoresAndLists();
  const Backend& backend = context_.backend();
  KV_RETURN_IF_ERROR(Score());
  KV_RETURN_IF_ERROR(sequence_.selects_on_host() ? SelectOnHost()
                                                 : Select(backend, active_));
  KV_RETURN_IF_ERROR(backend.compact(
      context_, sequence_.stream(),
      {active_,
       plan_.n_lists(),
       {Part<uint8_t>(layout_.scores), layout_.bytes - layout_.scores}}));
  return sequence_.Commit(jobs_, forced_.n_recent);
}

void Eviction::LayOutScoresAndLists() {
  const uint64_t rows = RanksTokens(signal_) ? g_.n_kv_heads : 1;
  const bool one_list = EffectiveScope(policy_) == KVEVICT_SCOPE_MODEL;
  float* scores = Part<float>(layout_.scores);
  int32_t* keep = Part<int32_t>(layout_.keep);
  for (LayerJob& job : active_) {
    job.scores = scores;
    job.keys = reinterpret_cast<uint32_t*>(scores);
    job.keep = keep;
    scores += rows * job.n_tokens;
    if (!one_list) keep += uint64_t{plan_.n_lists()} * job.n_keep;
    if (signal_ == Signal::kWindowAttention) sequence_.FillQueries(&job);
    jobs_[job.layer] = job;
  }
}

Status Eviction::Score() {
  const Backend& backend = context_.backend();
  const Stream stream = sequence_.stream();
  switch (signal_) {
    case Signal::kNone:
    case Signal::kPosition:
      return Status();
    case Signal::kWindowAttention:
      return backend.score_window(context_, stream,
                                  {g_,
                                   policy_,
                                   plan_.softmax_scale(),
                                   active_,
                                   {Part<uint8_t>(layout_.score_scratch),
                                    layout_.score_scratch_bytes}});
    case Signal::kRandom:
      return backend.score_random(context_, stream, {g_, policy_, active_});
    case Signal::kCaller:
      return backend.score_caller(context_, stream, {g_, active_});
  }
  return Status();
}

Status Eviction::Select(const Backend& backend,
                        std::span<const LayerJob> jobs) const {
  const bool model = EffectiveScope(policy_) == KVEVICT_SCOPE_MODEL;
  return backend.select(
      context_, sequence_.stream(),
      {g_,
       policy_,
       jobs,
       model ? static_cast<uint32_t>(active_.size()) : 1,
       forced_,
       {Part<uint8_t>(layout_.select_scratch), layout_.select_scratch_bytes},
       plan_.n_lists()});
}

// Scores come down, keep lists go up; jobs of the same shape on the host.
Status Eviction::SelectOnHost() const {
  const Backend& device = context_.backend();
  const Stream stream = sequence_.stream();
  const HostCopy copy = sequence_.host_copy();
  const float* scores = active_[0].scores;
  const int32_t* keep = active_[0].keep;
  const auto n_scores =
      static_cast<size_t>(active_.back().scores - scores +
                          uint64_t{RanksTokens(signal_) ? g_.n_kv_heads : 1} *
                              active_.back().n_tokens);
  if (RanksTokens(signal_)) {
    KV_RETURN_IF_ERROR(device.read(context_, stream, scores,
                                   n_scores * sizeof(float), copy.scores));
  }
  for (size_t i = 0; i < active_.size(); ++i) {
    LayerJob& job = copy.jobs[i];
    job = active_[i];
    job.scores = copy.scores + (job.scores - scores);
    job.keys = reinterpret_cast<uint32_t*>(job.scores);
    job.keep = copy.keep + (job.keep - keep);
    KV_RETURN_IF_ERROR(sequence_.HostPositions(job.layer, &job.slots));
  }
  KV_RETURN_IF_ERROR(Select(kCpuBackend, copy.jobs.first(active_.size())));
  const size_t n_keep = active_.back().keep - keep +
                        uint64_t{plan_.n_lists()} * active_.back().n_keep;
  return device.write(context_, stream, copy.keep, n_keep * sizeof(int32_t),
                      active_[0].keep);
}

// ---- Report ----

void AddLayer(const LayerJob& job, kvevict_evict_report* report) {
  const uint64_t token_bytes = TokenBytes(*job.view);
  report->tokens_before += job.n_tokens;
  report->tokens_after += job.n_keep;
  report->bytes_before += job.n_tokens * token_bytes;
  report->bytes_after += job.n_keep * token_bytes;
  if (const uint64_t block = job.view->block_size; block > 0) {
    report->blocks_freed +=
        (job.n_tokens + block - 1) / block - (job.n_keep + block - 1) / block;
  }
}

void Eviction::FillReport(kvevict_evict_report* report) const {
  for (const LayerJob& job : jobs_) {
    if (job.owner == job.layer) AddLayer(job, report);
  }
  report->evicted = HasWork();
}

// Policy none keeps no workspace; it only looks.
Status CheckAndReportNone(const Sequence& sequence, const ViewList& views,
                          kvevict_evict_report* report) {
  for (uint32_t l = 0; l < views.size(); ++l) {
    LayerJob job;
    job.view = &views[l];
    job.n_tokens = job.n_keep = sequence.slots(l).stored;
    KV_RETURN_IF_ERROR(CheckView(sequence, views, l, &job.owner));
    if (job.owner != l) continue;
    AddLayer(job, report);
  }
  return Status();
}

}  // namespace

Status Evict(Sequence* sequence, const ViewList& views,
             const kvevict_evict_options& options, void* workspace,
             size_t workspace_bytes, kvevict_evict_report* report) {
  const Plan& plan = sequence->plan();
  KV_RETURN_IF_ERROR(CheckWorkspace(plan.context(), workspace, workspace_bytes,
                                    plan.evict_workspace().bytes));
  KV_RETURN_IF_ERROR(CheckOptions(*sequence, options));
  kvevict_evict_report filled{};
  filled.struct_size = sizeof(filled);
  if (SignalOf(plan.policy()) == Signal::kNone) {
    KV_RETURN_IF_ERROR(CheckAndReportNone(*sequence, views, &filled));
  } else {
    Eviction eviction(sequence, views, options, workspace);
    KV_RETURN_IF_ERROR(eviction.Check());
    eviction.FillReport(&filled);
    if (eviction.HasWork()) KV_RETURN_IF_ERROR(eviction.Run());
  }
  *report = filled;
  return Status();
}

}  // namespace kvevict
