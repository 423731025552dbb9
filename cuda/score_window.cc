// The window's attention: two launches for layers with the same layout. More
// rows than a window has, for attention sums and within chunks, are processed
// part by part.
#include <algorithm>

#include "core/dtype.h"
#include "core/policy/policy.h"
#include "core/policy/shaping.h"
#include "core/signals/signal.h"
#include "core/view/view.h"
#include "cuda/device_state.h"
#include "cuda/kernels/add_measures.h"
#include "cuda/kernels/pool1d.h"
#include "cuda/kernels/row_pool.h"
#include "cuda/kernels/window_attention.h"
#include "cuda/kernels/window_attention_few.h"
#include "cuda/launch.h"
#include "cuda/list_rows.h"
#include "cuda/ops.h"
#include "cuda/reduce_rows.h"
#include "cuda/row_layout.h"
#include "cuda/score_window.h"
#include "cuda/window_form.h"
#include "cuda/window_jobs.h"

namespace kvevict::cuda {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;

bool DTypesAllowMma(const Context& context, const kvevict_layer_geometry& g,
                    const WindowForm& form) {
  return form.logit_heads == 1 && !form.few &&
         CanUseMma(static_cast<uint32_t>(g.q_dtype),
                   static_cast<uint32_t>(g.k_dtype), g.k_head_dim, form.window,
                   SmOf(context));
}

// Scratch: the log-sum-exps of one launch, then rows of query heads.
CheckedSize PartialBytes(const kvevict_layer_geometry& g,
                         const WindowForm& form, uint32_t n_layers,
                         uint32_t n_tokens) {
  return (CheckedSize(std::min(n_layers, form.MaxLayers())) *
          CheckedSize(g.n_q_heads) * CheckedSize(form.window) *
          CheckedSize(form.MostSplits(n_tokens)) * CheckedSize(sizeof(float)))
      .AlignUp(256);
}

// After these come the measures of the blocks of one launch.
CheckedSize MeasureBytes(const kvevict_layer_geometry& g,
                         const WindowForm& form, uint32_t n_layers,
                         uint32_t n_tokens) {
  if (form.measure == Measure::kNone) return CheckedSize(0);
  return (CheckedSize(std::min(n_layers, ScoreParams::kMaxLayers)) *
          CheckedSize(g.n_kv_heads) * CheckedSize(form.MostSplits(n_tokens)) *
          CheckedSize(2 * sizeof(float)))
      .AlignUp(256);
}

// f32 [layers, n_q_heads, window, n_tokens], the logits of one launch of few
// rows, at the end.
CheckedSize LogitBytes(const kvevict_layer_geometry& g, const WindowForm& form,
                       uint32_t n_layers, uint32_t n_tokens) {
  if (!form.few) return CheckedSize(0);
  return CheckedSize(std::min(n_layers, form.MaxLayers())) *
         CheckedSize(g.n_q_heads) * CheckedSize(form.window) *
         CheckedSize(n_tokens) * CheckedSize(sizeof(float));
}

CheckedSize FormBytes(const kvevict_layer_geometry& g, const WindowForm& form,
                      uint32_t n_layers, uint32_t n_tokens) {
  CheckedSize bytes = PartialBytes(g, form, n_layers, n_tokens) +
                      MeasureBytes(g, form, n_layers, n_tokens);
  if (form.reduces_after) {
    bytes = bytes + CheckedSize(std::min(n_layers, form.MaxLayers())) *
                        CheckedSize(g.n_q_heads) *
                        CheckedSize(form.RowsPerHead()) *
                        CheckedSize(n_tokens) * CheckedSize(sizeof(float));
  }
  if (form.pools_rows) {  // the factors of rows
    bytes = bytes + CheckedSize(g.n_q_heads) * CheckedSize(form.window) *
                        CheckedSize(sizeof(float));
  }
  return bytes + LogitBytes(g, form, n_layers, n_tokens);
}

// ---- Launches ----

// The rows of a job that a launch takes: form.window of them, ending n_after
// before the last one. In chunks, from row first_row of each on.
struct Part {
  uint32_t n_after = 0;
  uint32_t first_row = 0;
  // Where the sums of the first job go, followed by those of the others; 0:
  // computes scores.
  uint64_t sums = 0;
  // See ScoreParams.
  uint64_t list = 0;
  uint32_t n_masked = 0;
};

class WindowScorer {
 public:
  WindowScorer(const Context& context, Stream stream, const ScoreArgs& args,
               const WindowForm& form)
      : context_(context),
        stream_(stream),
        args_(args),
        g_(args.layer),
        policy_(args.policy),
        form_(form) {}

  // Checks what a launch needs.
  Status Check(Jobs<ScoreJob> jobs) const {
    if (!form_.listed) return CheckRows(jobs);
    const ListedJobs listed(args_, jobs, ListedScratch());
    KV_RETURN_IF_ERROR(listed.Check(context_, stream_));
    return CheckRows(listed.jobs());
  }

  Status CheckRows(Jobs<ScoreJob> jobs) const {
    for (const ScoreJob& job : jobs) {
      KV_RETURN_IF_ERROR(CheckJobAligned(job, g_));
    }
    return Require(context_, stream_, ScorerOf(jobs[0]));
  }

  Status Run(Jobs<ScoreJob> jobs) const {
    if (!form_.listed) return RunRows(jobs, Part());
    const ListedJobs listed(args_, jobs, ListedScratch());
    KV_RETURN_IF_ERROR(listed.Run(context_, stream_));
    Part part;
    part.list = listed.list();
    part.n_masked = listed.n_masked();
    return RunRows(listed.jobs(), part);
  }

  Status RunRows(Jobs<ScoreJob> jobs, const Part& part) const {
    KV_RETURN_IF_ERROR(Attend(jobs, part));
    if (jobs[0].measure != nullptr) KV_RETURN_IF_ERROR(AddMeasures(jobs));
    if (form_.pools_rows) return PoolRows(jobs[0]);
    return form_.reduces_after ? ReduceGroups(jobs) : Status();
  }

  // Processes all rows of jobs with equally many. The last part, which reaches
  // every key, comes first.
  Status SumParts(Jobs<ScoreJob> jobs, uint64_t sums) const {
    for (uint32_t n = 0; n < jobs[0].queries.n_rows; n += form_.window) {
      KV_RETURN_IF_ERROR(Attend(jobs, {n, 0, sums}));
    }
    return Status();
  }

  // Processes all rows of every chunk.
  Status RunChunks(Jobs<ScoreJob> jobs) const {
    if (policy_.ends == Ends::kOut) KV_RETURN_IF_ERROR(ClearRows(jobs));
    const uint32_t n_rows = std::min(form_.chunk, LongestOf(jobs));
    for (uint32_t first = 0; first < n_rows; first += form_.window) {
      KV_RETURN_IF_ERROR(Attend(jobs, {0, first, 0}));
    }
    return form_.reduces_after ? ReduceGroups(jobs) : Status();
  }

 private:
  uint64_t MeasuresOfBlocks() const {
    return AddressOf(args_.scratch.data()) +
           PartialBytes(g_, form_, Size(args_.jobs), args_.n_tokens).value();
  }
  uint64_t Logits() const {
    const uint32_t n_layers = Size(args_.jobs);
    return AddressOf(args_.scratch.data()) +
           FormBytes(g_, form_, n_layers, args_.n_tokens).value() -
           LogitBytes(g_, form_, n_layers, args_.n_tokens).value();
  }
  // What ListedJobs need follows all that a form needs.
  uint64_t ListedScratch() const {
    return AddressOf(args_.scratch.data()) +
           FormBytes(g_, form_, Size(args_.jobs), args_.n_tokens)
               .AlignUp(256)
               .value();
  }
  // The address of f32 [n_q_heads, n_tokens] of a job, if rows are reduced
  // afterwards.
  uint64_t ApartRowsOf(Jobs<ScoreJob> jobs, size_t i) const {
    uint64_t address =
        MeasuresOfBlocks() +
        MeasureBytes(g_, form_, Size(args_.jobs), args_.n_tokens).value();
    for (size_t j = 0; j < i; ++j) {
      address += uint64_t{g_.n_q_heads} * form_.RowsPerHead() *
                 jobs[j].tokens.most * sizeof(float);
    }
    return address;
  }

  bool TakesFew(const ScoreJob& job) const {
    return form_.few && LayoutAllowsFew(job);
  }
  bool UsesMma(const ScoreJob& job) const {
    return DTypesAllowMma(context_, g_, form_) && LayoutAllowsMma(job);
  }
  ModuleKey ScorerOf(const ScoreJob& job) const {
    const RowLayout keys = LayoutOf(*job.view, job.view->k);
    const uint32_t paged = keys.block_size == 0 ? 0 : keys.far == 0 ? 1 : 2;
    return cuda::ScorerOf(
        context_, g_, form_,
        {paged, job.tokens.each != nullptr, UsesMma(job), TakesFew(job),
         HasSinks(job), BiasesOf(*job.view) != nullptr,
         KindsOf(RowsOf(*job.view, job.view->k)).token_groups});
  }
  Status Attend(Jobs<ScoreJob> jobs, const Part& part) const;
  Status ReduceGroups(Jobs<ScoreJob> jobs) const;
  Status ClearRows(Jobs<ScoreJob> jobs) const;
  Status PoolRows(const ScoreJob& job) const;
  Status AddMeasures(Jobs<ScoreJob> jobs) const;
  // Given log-sum-exps are those of the causal softmax of every query head.
  bool KnowsLse(const ScoreJob& job) const {
    return job.queries.lse != nullptr && !form_.softmax_past &&
           form_.logit_heads == 1;
  }
  // Given log-sum-exps include the sinks.
  bool HasSinks(const ScoreJob& job) const {
    return job.sinks != nullptr && form_.chunk == 0 && !KnowsLse(job);
  }

  const Context& context_;
  const Stream stream_;
  const ScoreArgs& args_;
  const kvevict_layer_geometry& g_;
  const Policy& policy_;
  const WindowForm form_;
};

// Zeroes the scores of chunks, since no chunk has the slots at both ends.
Status WindowScorer::ClearRows(Jobs<ScoreJob> jobs) const {
  for (size_t i = 0; i < jobs.size(); ++i) {
    const bool apart = form_.reduces_after;
    const uint32_t n_rows =
        apart ? g_.n_q_heads * form_.RowsPerHead() : args_.n_rows();
    KV_RETURN_IF_ERROR(
        Clear(context_, stream_,
              apart ? ApartRowsOf(jobs, i) : AddressOf(jobs[i].rows),
              uint64_t{n_rows} * jobs[i].tokens.most * sizeof(float)));
  }
  return Status();
}

Status WindowScorer::Attend(Jobs<ScoreJob> jobs, const Part& part) const {
  const ScoreJob& first = jobs[0];
  // The first row of the launch among the job's. It is negative if the part is
  // not full.
  const int64_t first_row = form_.chunk > 0
                                ? 0
                                : int64_t{first.queries.n_rows} - part.n_after -
                                      int64_t{form_.window};
  const auto at_first_row = [&](const void* rows, int64_t stride) {
    return AddressOf(rows) + static_cast<uint64_t>(first_row * stride);
  };
  // Splits do not depend on how layers are grouped, since results depend on
  // them.
  const KeySplits splits = form_.SplitsOf(args_.n_tokens);
  const Counts tokens(first.tokens);
  ScoreParams p{};
  p.keys = LayoutOf(*first.view, first.view->k);
  p.scale = NumbersOf(*first.view, first.view->k, false);
  p.minimum = NumbersOf(*first.view, first.view->k, true);
  p.recent = RecentRowsOf(*first.view, first.view->k);
  p.query_row_stride = first.queries.rows.row_stride;
  p.query_head_stride = first.queries.head_stride;
  p.query_element_stride = first.queries.rows.element_stride;
  p.lse_row_stride = first.queries.lse_row_stride;
  p.lse_head_stride = first.queries.lse_head_stride;
  p.partial_lse = AddressOf(args_.scratch.data());
  p.scale_log2e = form_.chunk > 0 ? kLog2E : args_.softmax_scale * kLog2E;
  if (form_.caps) {
    p.scale_log2e = g_.logit_softcap * kLog2E;
    p.scale_by_cap = args_.softmax_scale / g_.logit_softcap;
  }
  p.weight_scale = form_.WeightScale(policy_);
  p.n_kv_heads = g_.n_kv_heads;
  p.n_splits = splits.n_splits;
  p.keys_per_split = splits.keys_per_split;
  p.first_row = form_.chunk > 0 ? part.first_row : first.queries.first_row;
  p.ring_rows = first.queries.ring_rows;
  p.n_after = part.n_after;
  p.n_absent = static_cast<uint32_t>(std::max<int64_t>(0, -first_row));
  p.adds = part.n_after > 0 || part.first_row > 0;
  p.n_first = policy_.sink.count;
  p.n_last = policy_.recent.count + policy_.window.count;
  if (form_.chunk > 0) {
    const bool out = policy_.ends == Ends::kOut;
    p.n_first = out ? first.n_sink : 0;
    p.n_last = out ? first.n_recent : 0;
  }
  p.spread = form_.spread;
  p.measures = MeasuresOfBlocks();
  p.list = part.list;
  p.n_masked = part.n_masked;
  if (form_.few) {
    p.logits = Logits();
    p.logit_stride = args_.n_tokens;
  }
  p.tokens = tokens.table();
  const kvevict_plane* const biases = BiasesOf(*first.view);
  if (biases != nullptr) p.biases = LayoutOf(*first.view, *biases);
  uint64_t sums = part.sums;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const ScoreJob& job = jobs[i];
    ScoreLayer& layer = p.layers[i];
    layer.queries = at_first_row(job.queries.rows.base, p.query_row_stride);
    layer.keys = BaseOf(job.view->k);
    layer.block_table = AddressOf(job.view->block_table);
    if (KnowsLse(job)) {
      layer.row_lse = at_first_row(job.queries.lse, p.lse_row_stride);
    } else if (HasSinks(job)) {
      layer.row_lse = AddressOf(job.sinks);
    }
    layer.scores = form_.is_part         ? sums
                   : form_.reduces_after ? ApartRowsOf(jobs, i)
                                         : AddressOf(job.rows);
    sums += uint64_t{g_.n_q_heads} * job.tokens.most * sizeof(float);
    layer.n_tokens = job.tokens.most;
    layer.first_count = tokens.FirstOf(job.tokens);
    if (biases != nullptr) p.bias_bases[i] = BaseOf(*BiasesOf(*job.view));
  }
  const ModuleKey module = ScorerOf(first);
  if (TakesFew(first)) {
    const LaunchShape launch{splits.n_splits, g_.n_kv_heads,
                             static_cast<uint32_t>(jobs.size()),
                             kFewRowThreads};
    KV_RETURN_IF_ERROR(
        Launch(context_, stream_, module, KernelId::few_logits, launch, p));
    return Launch(context_, stream_, module, KernelId::few_scores, launch, p);
  }
  const bool mma = UsesMma(first);
  const WindowAttentionShape shape = ShapeWindowAttention(
      mma, static_cast<uint32_t>(g_.q_dtype), g_.k_head_dim, form_.window,
      form_.group, TileKeysOf(context_, g_, form_, mma));
  const LaunchShape launch{splits.n_splits, g_.n_kv_heads,
                           static_cast<uint32_t>(jobs.size()), shape.threads,
                           module.dynamic_shared_bytes};
  if (!KnowsLse(first)) {
    KV_RETURN_IF_ERROR(
        Launch(context_, stream_, module, KernelId::window_lse, launch, p));
  }
  return Launch(context_, stream_, module, KernelId::window_scores, launch, p);
}

Status WindowScorer::AddMeasures(Jobs<ScoreJob> jobs) const {
  AddMeasuresParams p{};
  p.parts = MeasuresOfBlocks();
  p.n_parts = g_.n_kv_heads * SplitKeys(args_.n_tokens).n_splits;
  const bool is_mean = form_.measure == Measure::kEnds;
  p.scale = is_mean ? 1.0f / (static_cast<float>(g_.n_q_heads) *
                              static_cast<float>(form_.window))
                    : 1.0f;
  for (size_t i = 0; i < jobs.size(); ++i)
    p.out[i] = AddressOf(jobs[i].measure);
  return Launch(context_, stream_, KernelId::add_measures,
                {Size(jobs), 1, 1, 32}, p);
}

Status WindowScorer::PoolRows(const ScoreJob& job) const {
  const Counts tokens(job.tokens);
  const bool pools = policy_.pool.kind != PoolKind::kNone;
  const uint64_t n_rows = uint64_t{g_.n_q_heads} * form_.window;
  RowPoolParams p{};
  p.rows = ApartRowsOf(Jobs<ScoreJob>(job), 0);
  if (policy_.edge == PoolEdge::kMass && pools && policy_.pool.width > 1) {
    p.factors = p.rows + n_rows * job.tokens.most * sizeof(float);
  }
  p.out = AddressOf(job.rows);
  p.masses = AddressOf(job.masses);
  p.tokens = tokens.table();
  p.first_count = tokens.FirstOf(job.tokens);
  p.n_tokens = job.tokens.most;
  p.group = form_.group;
  p.window = form_.window;
  p.n_unpooled = policy_.keep_window ? policy_.window.count : 0;
  p.kernel = pools ? policy_.pool.width : 1;
  p.pool_is_max = policy_.pool.kind == PoolKind::kMax;
  p.edge_shrinks = policy_.edge == PoolEdge::kShrink;
  p.rows_are_max = policy_.rows == KVEVICT_REDUCE_MAX;
  p.heads_are_max = policy_.group == KVEVICT_REDUCE_MAX;
  p.mass_divisor = static_cast<float>(form_.group * SumOfFactors(policy_));
  p.row_scale = policy_.rows == KVEVICT_REDUCE_MEAN && !form_.listed
                    ? 1.0f / static_cast<float>(form_.window)
                    : 1.0f;
  p.head_scale = policy_.group == KVEVICT_REDUCE_MEAN
                     ? 1.0f / static_cast<float>(form_.group)
                     : 1.0f;
  if (p.factors != 0) {
    KV_RETURN_IF_ERROR(Launch(
        context_, stream_, KernelId::row_factors,
        {form_.group * form_.window, g_.n_kv_heads, 1, kRowPoolThreads}, p));
  }
  return Launch(context_, stream_, KernelId::pool_window_rows,
                {BlocksFor(job.tokens.most, kRowPoolThreads), g_.n_kv_heads, 1,
                 kRowPoolThreads},
                p);
}

Status WindowScorer::ReduceGroups(Jobs<ScoreJob> jobs) const {
  ReduceParams p = ReductionOf(policy_.group, form_.group);
  p.n_out_rows = g_.n_kv_heads;
  for (size_t i = 0; i < jobs.size(); ++i) {
    p.layers[i] = {ApartRowsOf(jobs, i), AddressOf(jobs[i].rows),
                   jobs[i].tokens.most, 0};
  }
  return LaunchReduction(context_, stream_, p, LongestOf(jobs), Size(jobs));
}

ScratchNeeds WindowScratch(const Context&, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  const WindowForm form(g, size.policy);
  const CheckedSize bytes = FormBytes(g, form, size.n_layers, size.n_tokens);
  if (!form.listed) return bytes;
  return bytes.AlignUp(256) + ListedJobs::Bytes(g, size.policy, size.n_layers);
}

// Compiles every variant of a form that calls may launch, except those for far
// rows. If the policy fits biases, evictions have no others.
Status PrepareForm(const Context& context, const kvevict_layer_geometry& g,
                   const WindowForm& form, const ScoreTraits& traits) {
  if (!InfoOf(static_cast<DType>(g.q_dtype)).is_plain() ||
      !InfoOf(static_cast<DType>(g.k_dtype)).is_plain()) {
    return Status();
  }
  ContextScope scope(DeviceOf(context).driver());
  KV_RETURN_IF_ERROR(DeviceOf(context).Enter(&scope));
  const bool mma = DTypesAllowMma(context, g, form);
  for (uint32_t i = 0; i < 8; ++i) {
    const bool is_plain = (i & 2) == 0;  // the form for any layout
    if (!is_plain && !mma && !form.few) continue;
    if (is_plain && form.is_part && form.few) continue;  // FormOfSums()
    const WindowVariant variant{i / 4,
                                (i & 1) != 0,
                                !is_plain && mma,
                                !is_plain && form.few,
                                traits.has_sinks && form.chunk == 0,
                                traits.has_biases,
                                false};
    if (variant.ragged && !traits.is_ragged) continue;
    const Module* module;
    KV_RETURN_IF_ERROR(
        DeviceOf(context).modules().Find(ScorerOf(context, g, form, variant),
                                         DeviceOf(context).stream(), &module));
  }
  return Status();
}

Status PrepareWindow(const Context& context, const kvevict_layer_geometry& g,
                     const Policy& policy, const ScoreTraits& traits) {
  return PrepareForm(context, g, WindowForm(g, policy), traits);
}

WindowForm FormOf(const ScoreArgs& args) {
  return {args.layer, args.policy, args.per_query_head};
}

Status CheckWindow(const Context& context, Stream stream,
                   const ScoreArgs& args) {
  const WindowForm form = FormOf(args);
  const WindowScorer scorer(context, stream, args, form);
  KV_RETURN_IF_ERROR(RequireShaping(context, stream));
  if (form.pools_rows) {
    KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::row_pool));
  }
  return ForEachBatch(args.jobs, form.MaxLayers(), GoTogether,
                      [&](Jobs<ScoreJob> jobs) { return scorer.Check(jobs); });
}

Status RunWindow(const Context& context, Stream stream, const ScoreArgs& args) {
  const WindowForm form = FormOf(args);
  const WindowScorer scorer(context, stream, args, form);
  return ForEachBatch(args.jobs, form.MaxLayers(), GoTogether,
                      [&](Jobs<ScoreJob> jobs) { return scorer.Run(jobs); });
}

}  // namespace

const ScoreOp kOp_score_window = {RunWindow, WindowScratch, CheckWindow,
                                  PrepareWindow};

// ---- Sums over any number of rows ----

namespace {

WindowForm FormOfSums(const kvevict_layer_geometry& g, const ScoreJob& job) {
  const WindowForm one_row = WindowForm::OfOneRow(g);
  const bool is_one = job.queries.n_rows == 1;
  return is_one && one_row.few && LayoutAllowsFew(job) ? one_row
                                                       : WindowForm::OfParts(g);
}

}  // namespace

CheckedSize QuerySumScratchBytes(const kvevict_layer_geometry& g,
                                 uint32_t n_layers, uint32_t n_tokens) {
  return Larger(
      PartialBytes(g, WindowForm::OfParts(g), n_layers, n_tokens),
      FormBytes(g, WindowForm::OfOneRow(g), n_layers, n_tokens).AlignUp(256));
}

Status PrepareQuerySums(const Context& context, const kvevict_layer_geometry& g,
                        const ScoreTraits& traits) {
  const WindowForm one_row = WindowForm::OfOneRow(g);
  if (one_row.few) {
    KV_RETURN_IF_ERROR(PrepareForm(context, g, one_row, traits));
  }
  return PrepareForm(context, g, WindowForm::OfParts(g), traits);
}

Status CheckQuerySums(const Context& context, Stream stream,
                      const ScoreArgs& args, Jobs<ScoreJob> jobs) {
  return WindowScorer(context, stream, args, FormOfSums(args.layer, jobs[0]))
      .Check(jobs);
}

Status SumQueries(const Context& context, Stream stream, const ScoreArgs& args,
                  Jobs<ScoreJob> jobs, uint64_t sums) {
  const auto run = [&](Jobs<ScoreJob> alike) {
    const WindowForm form = FormOfSums(args.layer, alike[0]);
    const WindowScorer scorer(context, stream, args, form);
    return ForEachBatch(alike, form.MaxLayers(), [&](Jobs<ScoreJob> batch) {
      const uint64_t first = sums;
      for (const ScoreJob& job : batch) {
        sums +=
            uint64_t{args.layer.n_q_heads} * job.tokens.most * sizeof(float);
      }
      return scorer.SumParts(batch, first);
    });
  };
  return ForEachBatch(jobs, ScoreParams::kMaxLayers, GoTogether, run);
}

// ---- Within chunks ----

ScratchNeeds ChunkScratchBytes(const Context&, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  const WindowForm form =
      WindowForm::OfChunks(g, size.policy, LeavesHeadsApart(g, size.policy));
  return FormBytes(g, form, size.n_layers, size.n_tokens);
}

Status PrepareChunks(const Context& context, const kvevict_layer_geometry& g,
                     const Policy& policy, const ScoreTraits& traits) {
  const WindowForm form =
      WindowForm::OfChunks(g, policy, LeavesHeadsApart(g, policy));
  return PrepareForm(context, g, form, traits);
}

Status CheckChunks(const Context& context, Stream stream,
                   const ScoreArgs& args) {
  const WindowForm form =
      WindowForm::OfChunks(args.layer, args.policy, args.per_query_head);
  const WindowScorer scorer(context, stream, args, form);
  KV_RETURN_IF_ERROR(RequireShaping(context, stream));
  return ForEachBatch(args.jobs, form.MaxLayers(), GoTogether,
                      [&](Jobs<ScoreJob> jobs) { return scorer.Check(jobs); });
}

Status ScoreChunks(const Context& context, Stream stream,
                   const ScoreArgs& args) {
  const WindowForm form =
      WindowForm::OfChunks(args.layer, args.policy, args.per_query_head);
  const WindowScorer scorer(context, stream, args, form);
  return ForEachBatch(
      args.jobs, form.MaxLayers(), GoTogether,
      [&](Jobs<ScoreJob> jobs) { return scorer.RunChunks(jobs); });
}

}  // namespace kvevict::cuda
