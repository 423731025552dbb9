// The window's attention: two launches for layers that lie alike.
#include <algorithm>

#include "core/dtype.h"
#include "core/shaping.h"
#include "core/signal.h"
#include "core/view.h"
#include "cuda/alignment.h"
#include "cuda/device_state.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/window_attention.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/reduce_rows.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;

// ---- What the policy asks for, as the kernels have it ----

enum Out : uint32_t { kSumOfGroup = 0, kMaxOfGroup = 1, kRowPerHead = 2 };

struct Form {
  uint32_t group;
  uint32_t window;
  Out out;
  bool reduces_after;  // rows of query heads, reduced by a launch of their own

  Form(const kvevict_layer_geometry& g, const kvevict_policy& policy,
       bool per_query_head)
      : group(g.n_q_heads / g.n_kv_heads), window(policy.obs_window) {
    const bool max = policy.group_reduce == KVEVICT_REDUCE_MAX;
    const bool reduces = group > 1 && !per_query_head;
    reduces_after = reduces && max && !CanReduceByMax(window);
    if (per_query_head || reduces_after) {
      out = group == 1 ? kSumOfGroup : kRowPerHead;
    } else {
      out = reduces && max ? kMaxOfGroup : kSumOfGroup;
    }
  }

  // By the plan's own form.
  Form(const kvevict_layer_geometry& g, const kvevict_policy& policy)
      : Form(g, policy,
             MakeShaping(policy, InfoOf(Signal::kWindowAttention),
                         g.n_q_heads / g.n_kv_heads)
                     .n_terms > 1) {}
};

// Of the summed weights of a row of scores.
float WeightScale(const Form& form, const kvevict_policy& policy) {
  float scale = 1.0f;
  if (policy.window_reduce == KVEVICT_REDUCE_MEAN) {
    scale /= static_cast<float>(form.window);
  }
  if (form.out == kSumOfGroup && policy.group_reduce == KVEVICT_REDUCE_MEAN) {
    scale /= static_cast<float>(form.group);
  }
  return scale;
}

uint32_t SmOf(const Context& context) {
  return static_cast<uint32_t>(DeviceOf(context).sm());
}

// Of a scorer, what depends on the caches.
struct Variant {
  bool paged;
  bool ragged;  // heads have lengths of their own
  bool mma;
};

ModuleKey ScorerOf(const Context& context, const kvevict_layer_geometry& g,
                   const kvevict_policy& policy, const Variant& variant) {
  const Form form(g, policy);
  const uint32_t tile_keys = TileKeys(variant.mma, g.k_head_dim, SmOf(context));
  ModuleKey key;
  key.module = ModuleId::window_attention;
  key.Add("KV_Q_DTYPE", g.q_dtype);
  key.Add("KV_K_DTYPE", g.k_dtype);
  key.Add("KV_HEAD_DIM", g.k_head_dim);
  key.Add("KV_WINDOW", form.window);
  key.Add("KV_GROUP", form.group);
  key.Add("KV_PAGED", variant.paged);
  key.Add("KV_RAGGED", variant.ragged);
  key.Add("KV_USE_MMA", variant.mma);
  key.Add("KV_TILE_KEYS", tile_keys);
  key.Add("KV_OUT", form.out);
  key.dynamic_shared_bytes =
      ShapeWindowAttention(variant.mma, g.k_head_dim, form.window, form.group,
                           tile_keys)
          .dynamic_shared_bytes;
  return key;
}

bool DTypesAllowMma(const Context& context, const kvevict_layer_geometry& g,
                    const kvevict_policy& policy) {
  return CanUseMma(static_cast<uint32_t>(g.q_dtype),
                   static_cast<uint32_t>(g.k_dtype), g.k_head_dim,
                   policy.obs_window, SmOf(context));
}

// Elements where they can be loaded.
Status CheckJobAligned(const ScoreJob& job, const kvevict_layer_geometry& g) {
  KV_RETURN_IF_ERROR(CheckKeysAligned(job));
  KV_RETURN_IF_ERROR(CheckAligned(
      "queries", AddressOf(job.queries.rows.base),
      {job.queries.rows.row_stride, job.queries.rows.element_stride,
       g.n_q_heads > 1 ? job.queries.head_stride : 0},
      ElementBytes(job.queries.rows.dtype)));
  if (job.queries.lse == nullptr) return Status();
  return CheckAligned("row_lse", AddressOf(job.queries.lse),
                      {job.queries.lse_row_stride,
                       g.n_q_heads > 1 ? job.queries.lse_head_stride : 0},
                      sizeof(float));
}

// ---- Layers that go in one launch ----

bool IsMultipleOf(uint64_t unit, std::initializer_list<uint64_t> values) {
  return std::all_of(values.begin(), values.end(),
                     [unit](uint64_t v) { return v % unit == 0; });
}

// Whether the rows of a job lie as the tensor cores want them.
bool LayoutAllowsMma(const ScoreJob& job) {
  const RowLayout keys = LayoutOf(*job.view, job.view->k);
  const auto u = [](int64_t v) { return static_cast<uint64_t>(v); };
  const int64_t element = ElementBytes(job.queries.rows.dtype);
  return keys.element_stride == element &&
         job.queries.rows.element_stride == element &&
         IsMultipleOf(16, {job.view->k.data, u(keys.row_stride),
                           u(keys.head_stride), u(keys.block_stride)}) &&
         IsMultipleOf(
             16, {AddressOf(job.queries.rows.base),
                  u(job.queries.rows.row_stride), u(job.queries.head_stride)});
}

bool GoTogether(const ScoreJob& a, const ScoreJob& b) {
  return SameLayout(LayoutOf(*a.view, a.view->k),
                    LayoutOf(*b.view, b.view->k)) &&
         a.queries.rows.row_stride == b.queries.rows.row_stride &&
         a.queries.rows.element_stride == b.queries.rows.element_stride &&
         a.queries.head_stride == b.queries.head_stride &&
         (a.queries.lse == nullptr) == (b.queries.lse == nullptr) &&
         a.queries.lse_row_stride == b.queries.lse_row_stride &&
         a.queries.lse_head_stride == b.queries.lse_head_stride &&
         a.queries.first_row == b.queries.first_row &&
         InOneTable(a.tokens, b.tokens) &&
         LayoutAllowsMma(a) == LayoutAllowsMma(b);
}

// The most splits of any length up to n_tokens.
uint32_t MostSplits(uint32_t n_tokens) {
  return std::clamp(n_tokens / 1024, 1u, 64u);
}

// Scratch: the log-sum-exps of one launch, then rows of query heads.
CheckedSize PartialBytes(const kvevict_layer_geometry& g, const Form& form,
                         uint32_t n_layers, uint32_t n_tokens) {
  return (CheckedSize(std::min(n_layers, ScoreParams::kMaxLayers)) *
          CheckedSize(g.n_q_heads) * CheckedSize(form.window) *
          CheckedSize(MostSplits(n_tokens)) * CheckedSize(sizeof(float)))
      .AlignUp(256);
}

// ---- Launches ----

class Scorer {
 public:
  Scorer(const Context& context, Stream stream, const ScoreArgs& args)
      : context_(context),
        stream_(stream),
        args_(args),
        g_(args.layer),
        policy_(args.policy),
        form_(g_, policy_, args.per_query_head) {}

  // What a launch needs.
  Status Check(Jobs<ScoreJob> jobs) const {
    for (const ScoreJob& job : jobs) {
      KV_RETURN_IF_ERROR(CheckJobAligned(job, g_));
    }
    return Require(context_, stream_, ScorerOf(jobs[0]));
  }

  Status Run(Jobs<ScoreJob> jobs) const {
    KV_RETURN_IF_ERROR(Attend(jobs));
    return form_.reduces_after ? ReduceGroups(jobs) : Status();
  }

 private:
  // f32 [n_q_heads, n_tokens] of a job, where they are reduced afterwards.
  uint64_t ApartRowsOf(Jobs<ScoreJob> jobs, size_t i) const {
    uint64_t address =
        AddressOf(args_.scratch.data()) +
        PartialBytes(g_, form_, Size(args_.jobs), args_.n_tokens).value();
    for (size_t j = 0; j < i; ++j) {
      address += uint64_t{g_.n_q_heads} * jobs[j].tokens.most * sizeof(float);
    }
    return address;
  }

  bool UsesMma(const ScoreJob& job) const {
    return DTypesAllowMma(context_, g_, policy_) && LayoutAllowsMma(job);
  }
  ModuleKey ScorerOf(const ScoreJob& job) const {
    return cuda::ScorerOf(
        context_, g_, policy_,
        {job.view->block_size != 0, job.tokens.each != nullptr, UsesMma(job)});
  }
  Status Attend(Jobs<ScoreJob> jobs) const;
  Status ReduceGroups(Jobs<ScoreJob> jobs) const;

  const Context& context_;
  const Stream stream_;
  const ScoreArgs& args_;
  const kvevict_layer_geometry& g_;
  const kvevict_policy& policy_;
  const Form form_;
};

Status Scorer::Attend(Jobs<ScoreJob> jobs) const {
  const ScoreJob& first = jobs[0];
  // By what no grouping of layers changes, since results depend on it.
  const KeySplits splits = SplitKeys(args_.n_tokens);
  const Counts tokens(first.tokens);
  ScoreParams p{};
  p.keys = LayoutOf(*first.view, first.view->k);
  p.query_row_stride = first.queries.rows.row_stride;
  p.query_head_stride = first.queries.head_stride;
  p.query_element_stride = first.queries.rows.element_stride;
  p.lse_row_stride = first.queries.lse_row_stride;
  p.lse_head_stride = first.queries.lse_head_stride;
  p.partial_lse = AddressOf(args_.scratch.data());
  p.scale_log2e = args_.softmax_scale * kLog2E;
  p.weight_scale = WeightScale(form_, policy_);
  p.n_kv_heads = g_.n_kv_heads;
  p.n_splits = splits.n_splits;
  p.keys_per_split = splits.keys_per_split;
  p.first_row = first.queries.first_row;
  p.tokens = tokens.table();
  for (size_t i = 0; i < jobs.size(); ++i) {
    const ScoreJob& job = jobs[i];
    ScoreLayer& layer = p.layers[i];
    layer.queries = AddressOf(job.queries.rows.base);
    layer.keys = job.view->k.data;
    layer.block_table = AddressOf(job.view->block_table);
    layer.row_lse = AddressOf(job.queries.lse);
    layer.scores =
        form_.reduces_after ? ApartRowsOf(jobs, i) : AddressOf(job.rows);
    layer.n_tokens = job.tokens.most;
    layer.first_count = tokens.FirstOf(job.tokens);
  }
  const bool mma = UsesMma(first);
  const WindowAttentionShape shape =
      ShapeWindowAttention(mma, g_.k_head_dim, form_.window, form_.group,
                           TileKeys(mma, g_.k_head_dim, SmOf(context_)));
  const ModuleKey module = ScorerOf(first);
  const LaunchShape launch{splits.n_splits, g_.n_kv_heads,
                           static_cast<uint32_t>(jobs.size()), shape.threads,
                           shape.dynamic_shared_bytes};
  if (first.queries.lse == nullptr) {
    KV_RETURN_IF_ERROR(
        Launch(context_, stream_, module, KernelId::window_lse, launch, p));
  }
  return Launch(context_, stream_, module, KernelId::window_scores, launch, p);
}

Status Scorer::ReduceGroups(Jobs<ScoreJob> jobs) const {
  ReduceParams p = ReductionOf(policy_.group_reduce, form_.group);
  p.n_out_rows = g_.n_kv_heads;
  for (size_t i = 0; i < jobs.size(); ++i) {
    p.layers[i] = {ApartRowsOf(jobs, i), AddressOf(jobs[i].rows),
                   jobs[i].tokens.most, 0};
  }
  return LaunchReduction(context_, stream_, p, LongestOf(jobs), Size(jobs));
}

ScratchNeeds ScratchBytes(const Context&, const kvevict_layer_geometry& g,
                          const kvevict_policy& policy, uint32_t n_layers,
                          uint32_t n_tokens) {
  const Form form(g, policy);
  CheckedSize bytes = PartialBytes(g, form, n_layers, n_tokens);
  if (form.reduces_after) {
    bytes = bytes + CheckedSize(std::min(n_layers, ScoreParams::kMaxLayers)) *
                        CheckedSize(g.n_q_heads) * CheckedSize(n_tokens) *
                        CheckedSize(sizeof(float));
  }
  return bytes;
}

// Every form that calls may launch.
Status Prepare(const Context& context, const kvevict_layer_geometry& g,
               const kvevict_policy& policy, bool is_ragged) {
  if (!FindDType(g.q_dtype)->can_score || !FindDType(g.k_dtype)->can_score) {
    return Status();
  }
  ContextScope scope(DeviceOf(context).driver());
  KV_RETURN_IF_ERROR(DeviceOf(context).Enter(&scope));
  const bool mma = DTypesAllowMma(context, g, policy);
  for (const uint32_t i : {0, 1, 2, 3, 4, 5, 6, 7}) {
    const Variant variant{(i & 1) != 0, (i & 2) != 0, (i & 4) != 0};
    if ((variant.mma && !mma) || (variant.ragged && !is_ragged)) continue;
    const Module* module;
    KV_RETURN_IF_ERROR(
        DeviceOf(context).modules().Find(ScorerOf(context, g, policy, variant),
                                         DeviceOf(context).stream(), &module));
  }
  return Status();
}

Status Check(const Context& context, Stream stream, const ScoreArgs& args) {
  const Scorer scorer(context, stream, args);
  KV_RETURN_IF_ERROR(RequireShaping(context, stream));
  return ForEachBatch(args.jobs, ScoreParams::kMaxLayers, GoTogether,
                      [&](Jobs<ScoreJob> jobs) { return scorer.Check(jobs); });
}

Status Run(const Context& context, Stream stream, const ScoreArgs& args) {
  const Scorer scorer(context, stream, args);
  return ForEachBatch(args.jobs, ScoreParams::kMaxLayers, GoTogether,
                      [&](Jobs<ScoreJob> jobs) { return scorer.Run(jobs); });
}

}  // namespace

const ScoreOp kOp_score_window = {Run, ScratchBytes, Prepare, Check};

}  // namespace kvevict::cuda
