// The window's attention: two launches for layers that lie alike, then pooling.
#include <algorithm>

#include "core/dtype.h"
#include "core/policy.h"
#include "core/view.h"
#include "cuda/device_state.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/pool1d.h"
#include "cuda/kernels/window_attention.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

static_assert(kvevict::kMaxPoolKernel <= kMaxPoolKernel);

constexpr float kLog2E = 1.44269504088896340736f;

// ---- What the policy asks for, as the kernels have it ----

enum Out : uint32_t { kSumOfGroup = 0, kMaxOfGroup = 1, kRowPerHead = 2 };

struct Shaping {
  uint32_t group;
  uint32_t window;
  bool pools;
  bool pools_first;  // rows of query heads, reduced afterwards
  Out out;

  Shaping(const kvevict_geometry& g, const kvevict_policy& policy)
      : group(g.n_q_heads / g.n_kv_heads),
        window(policy.obs_window),
        pools(policy.pool != KVEVICT_POOL_NONE && policy.pool_kernel > 1) {
    const bool max = policy.group_reduce == KVEVICT_REDUCE_MAX;
    const bool commutes = max == (policy.pool == KVEVICT_POOL_MAX);
    pools_first = pools && group > 1 && !commutes &&
                  policy.shaping_order == KVEVICT_SHAPING_POOL_THEN_REDUCE;
    if (group == 1) {
      out = kSumOfGroup;
    } else if (pools_first || (max && !CanReduceByMax(window))) {
      out = kRowPerHead;
    } else {
      out = max ? kMaxOfGroup : kSumOfGroup;
    }
  }
};

// Of the summed weights of a row of scores.
float WeightScale(const Shaping& shaping, const kvevict_policy& policy) {
  float scale = 1.0f;
  if (policy.window_reduce == KVEVICT_REDUCE_MEAN) {
    scale /= static_cast<float>(shaping.window);
  }
  if (shaping.out == kSumOfGroup &&
      policy.group_reduce == KVEVICT_REDUCE_MEAN) {
    scale /= static_cast<float>(shaping.group);
  }
  return scale;
}

uint32_t SmOf(const Context& context) {
  return static_cast<uint32_t>(DeviceOf(context).sm());
}

ModuleKey ScorerOf(const Context& context, const kvevict_geometry& g,
                   const kvevict_policy& policy, bool paged, bool mma) {
  const Shaping shaping(g, policy);
  const uint32_t tile_keys = TileKeys(mma, g.k_head_dim, SmOf(context));
  ModuleKey key;
  key.module = ModuleId::window_attention;
  key.Add("KV_Q_DTYPE", g.q_dtype);
  key.Add("KV_K_DTYPE", g.k_dtype);
  key.Add("KV_HEAD_DIM", g.k_head_dim);
  key.Add("KV_WINDOW", shaping.window);
  key.Add("KV_GROUP", shaping.group);
  key.Add("KV_PAGED", paged);
  key.Add("KV_USE_MMA", mma);
  key.Add("KV_TILE_KEYS", tile_keys);
  key.Add("KV_OUT", shaping.out);
  key.dynamic_shared_bytes =
      ShapeWindowAttention(mma, g.k_head_dim, shaping.window, shaping.group,
                           tile_keys)
          .dynamic_shared_bytes;
  return key;
}

bool DTypesAllowMma(const Context& context, const kvevict_geometry& g,
                    const kvevict_policy& policy) {
  return CanUseMma(static_cast<uint32_t>(g.q_dtype),
                   static_cast<uint32_t>(g.k_dtype), g.k_head_dim,
                   policy.obs_window, SmOf(context));
}

// ---- Elements where they can be loaded ----

// Elements are loaded whole. A stride of 0 stands for an axis of one step.
Status CheckAligned(const char* what, uint64_t data,
                    std::initializer_list<int64_t> strides,
                    uint32_t element_bytes) {
  uint64_t all = data;
  for (const int64_t stride : strides) all |= static_cast<uint64_t>(stride);
  if (all % element_bytes == 0) return Status();
  return Unsupported(
      "%s at 0x%llx: address and strides are not multiples of %u bytes, the "
      "size of an element, as CUDA needs to read them",
      what, static_cast<unsigned long long>(data), element_bytes);
}

Status CheckAligned(const LayerJob& job, const kvevict_geometry& g) {
  const RowLayout keys = LayoutOf(*job.view, job.view->k);
  KV_RETURN_IF_ERROR(CheckAligned("keys", job.view->k.data,
                                  {keys.row_stride, keys.element_stride,
                                   g.n_kv_heads > 1 ? keys.head_stride : 0,
                                   keys.block_size > 0 ? keys.block_stride : 0},
                                  ElementBytes(static_cast<DType>(g.k_dtype))));
  KV_RETURN_IF_ERROR(
      CheckAligned("queries", AddressOf(job.queries.base),
                   {job.queries.row_stride, job.queries.element_stride,
                    g.n_q_heads > 1 ? job.query_head_stride : 0},
                   ElementBytes(job.queries.dtype)));
  if (job.row_lse == nullptr) return Status();
  return CheckAligned(
      "row_lse", AddressOf(job.row_lse),
      {job.lse_row_stride, g.n_q_heads > 1 ? job.lse_head_stride : 0},
      sizeof(float));
}

// ---- Layers that go in one launch ----

bool IsMultipleOf(uint64_t unit, std::initializer_list<uint64_t> values) {
  return std::all_of(values.begin(), values.end(),
                     [unit](uint64_t v) { return v % unit == 0; });
}

// Whether the rows of a job lie as the tensor cores want them.
bool LayoutAllowsMma(const LayerJob& job) {
  const RowLayout keys = LayoutOf(*job.view, job.view->k);
  const auto u = [](int64_t v) { return static_cast<uint64_t>(v); };
  const int64_t element = ElementBytes(job.queries.dtype);
  return keys.element_stride == element &&
         job.queries.element_stride == element &&
         IsMultipleOf(16, {job.view->k.data, u(keys.row_stride),
                           u(keys.head_stride), u(keys.block_stride)}) &&
         IsMultipleOf(4, {AddressOf(job.queries.base),
                          u(job.queries.row_stride), u(job.query_head_stride)});
}

bool GoTogether(const LayerJob& a, const LayerJob& b) {
  return SameLayout(LayoutOf(*a.view, a.view->k),
                    LayoutOf(*b.view, b.view->k)) &&
         a.queries.row_stride == b.queries.row_stride &&
         a.queries.element_stride == b.queries.element_stride &&
         a.query_head_stride == b.query_head_stride &&
         (a.row_lse == nullptr) == (b.row_lse == nullptr) &&
         a.lse_row_stride == b.lse_row_stride &&
         a.lse_head_stride == b.lse_head_stride &&
         LayoutAllowsMma(a) == LayoutAllowsMma(b);
}

// The most splits of any length up to max_tokens.
uint32_t MostSplits(uint32_t max_tokens) {
  return std::clamp(max_tokens / 1024, 1u, 64u);
}

// Scratch: the log-sum-exps of one launch, then rows of query heads.
CheckedSize PartialBytes(const kvevict_geometry& g, const Shaping& shaping,
                         uint32_t n_layers) {
  return (CheckedSize(std::min(n_layers, ScoreParams::kMaxLayers)) *
          CheckedSize(g.n_q_heads) * CheckedSize(shaping.window) *
          CheckedSize(MostSplits(g.max_tokens)) * CheckedSize(sizeof(float)))
      .AlignUp(256);
}

// ---- Launches ----

class Scorer {
 public:
  Scorer(const Context& context, Stream stream, const ScoreWindowArgs& args)
      : context_(context),
        stream_(stream),
        args_(args),
        g_(args.geometry),
        policy_(args.policy),
        shaping_(g_, policy_) {}

  // What a launch needs, before the first of them.
  Status Prepare(std::span<const LayerJob> jobs) const {
    for (const LayerJob& job : jobs) KV_RETURN_IF_ERROR(CheckAligned(job, g_));
    return Require(context_, stream_, ScorerOf(jobs[0]));
  }

  Status Run(std::span<const LayerJob> jobs) const {
    KV_RETURN_IF_ERROR(Attend(jobs));
    if (shaping_.out != kRowPerHead) {
      return Pool(jobs, g_.n_kv_heads, /*rows=*/false);
    }
    if (!shaping_.pools_first) {
      KV_RETURN_IF_ERROR(ReduceGroups(jobs));
      return Pool(jobs, g_.n_kv_heads, /*rows=*/false);
    }
    KV_RETURN_IF_ERROR(Pool(jobs, g_.n_q_heads, /*rows=*/true));
    return ReduceGroups(jobs);
  }

 private:
  // f32 [n_q_heads, n_tokens] of a job.
  uint64_t RowsOf(std::span<const LayerJob> jobs, size_t i) const {
    uint64_t address =
        AddressOf(args_.scratch.data()) +
        PartialBytes(g_, shaping_, static_cast<uint32_t>(args_.jobs.size()))
            .value();
    for (size_t j = 0; j < i; ++j) {
      address += uint64_t{g_.n_q_heads} * jobs[j].n_tokens * sizeof(float);
    }
    return address;
  }

  bool UsesMma(const LayerJob& job) const {
    return DTypesAllowMma(context_, g_, policy_) && LayoutAllowsMma(job);
  }
  ModuleKey ScorerOf(const LayerJob& job) const {
    return cuda::ScorerOf(context_, g_, policy_, job.view->block_size != 0,
                          UsesMma(job));
  }
  Status Attend(std::span<const LayerJob> jobs) const;
  Status Pool(std::span<const LayerJob> jobs, uint32_t n_rows, bool rows) const;
  Status ReduceGroups(std::span<const LayerJob> jobs) const;

  const Context& context_;
  const Stream stream_;
  const ScoreWindowArgs& args_;
  const kvevict_geometry& g_;
  const kvevict_policy& policy_;
  const Shaping shaping_;
};

Status Scorer::Attend(std::span<const LayerJob> jobs) const {
  const LayerJob& first = jobs[0];
  const KeySplits splits = SplitKeys(LongestOf(jobs));
  ScoreParams p{};
  p.keys = LayoutOf(*first.view, first.view->k);
  p.query_row_stride = first.queries.row_stride;
  p.query_head_stride = first.query_head_stride;
  p.query_element_stride = first.queries.element_stride;
  p.lse_row_stride = first.lse_row_stride;
  p.lse_head_stride = first.lse_head_stride;
  p.partial_lse = AddressOf(args_.scratch.data());
  p.scale_log2e = args_.softmax_scale * kLog2E;
  p.weight_scale = WeightScale(shaping_, policy_);
  p.n_kv_heads = g_.n_kv_heads;
  p.n_splits = splits.n_splits;
  p.keys_per_split = splits.keys_per_split;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const LayerJob& job = jobs[i];
    ScoreLayer& layer = p.layers[i];
    layer.queries = AddressOf(job.queries.base);
    layer.keys = job.view->k.data;
    layer.block_table = AddressOf(job.view->block_table);
    layer.row_lse = AddressOf(job.row_lse);
    layer.scores =
        shaping_.out == kRowPerHead ? RowsOf(jobs, i) : AddressOf(job.scores);
    layer.n_tokens = job.n_tokens;
    layer.first_row = job.first_row;
  }
  const bool mma = UsesMma(first);
  const WindowAttentionShape shape =
      ShapeWindowAttention(mma, g_.k_head_dim, shaping_.window, shaping_.group,
                           TileKeys(mma, g_.k_head_dim, SmOf(context_)));
  const ModuleKey module = ScorerOf(first);
  const LaunchShape launch{splits.n_splits, g_.n_kv_heads,
                           static_cast<uint32_t>(jobs.size()), shape.threads,
                           shape.dynamic_shared_bytes};
  if (first.row_lse == nullptr) {
    KV_RETURN_IF_ERROR(
        Launch(context_, stream_, module, KernelId::window_lse, launch, p));
  }
  return Launch(context_, stream_, module, KernelId::window_scores, launch, p);
}

Status Scorer::Pool(std::span<const LayerJob> jobs, uint32_t n_rows,
                    bool rows) const {
  if (!shaping_.pools && policy_.keep_window == 0) return Status();
  PoolParams p{};
  p.n_rows = n_rows;
  p.kernel = shaping_.pools ? policy_.pool_kernel : 1;
  p.is_max = policy_.pool == KVEVICT_POOL_MAX;
  p.edge_shrinks = policy_.pool_edge == KVEVICT_POOL_EDGE_SHRINK;
  for (size_t i = 0; i < jobs.size(); ++i) {
    p.layers[i] = {rows ? RowsOf(jobs, i) : AddressOf(jobs[i].scores),
                   jobs[i].n_tokens, PooledTokens(policy_, jobs[i].n_tokens)};
  }
  return Launch(context_, stream_, KernelId::pool_rows,
                {n_rows, static_cast<uint32_t>(jobs.size()), 1, kPoolThreads},
                p);
}

Status Scorer::ReduceGroups(std::span<const LayerJob> jobs) const {
  ReduceParams p{};
  p.n_out_rows = g_.n_kv_heads;
  p.n_terms = shaping_.group;
  p.is_max = policy_.group_reduce == KVEVICT_REDUCE_MAX;
  p.scale = policy_.group_reduce == KVEVICT_REDUCE_MEAN
                ? 1.0f / static_cast<float>(shaping_.group)
                : 1.0f;
  for (size_t i = 0; i < jobs.size(); ++i) {
    p.layers[i] = {RowsOf(jobs, i), AddressOf(jobs[i].scores), jobs[i].n_tokens,
                   PooledTokens(policy_, jobs[i].n_tokens)};
  }
  return Launch(context_, stream_, KernelId::reduce_rows,
                {ReduceBlocks(LongestOf(jobs)), g_.n_kv_heads,
                 static_cast<uint32_t>(jobs.size()), kReduceThreads},
                p);
}

}  // namespace

CheckedSize ScoreScratchBytes(const Context&, const kvevict_geometry& g,
                              const kvevict_policy& policy, uint32_t n_layers) {
  const Shaping shaping(g, policy);
  CheckedSize bytes = PartialBytes(g, shaping, n_layers);
  if (shaping.out == kRowPerHead) {
    bytes = bytes + CheckedSize(std::min(n_layers, ScoreParams::kMaxLayers)) *
                        CheckedSize(g.n_q_heads) * CheckedSize(g.max_tokens) *
                        CheckedSize(sizeof(float));
  }
  return bytes;
}

Status PrepareScoring(const Context& context, const kvevict_geometry& g,
                      const kvevict_policy& policy) {
  if (!FindDType(g.q_dtype)->can_score || !FindDType(g.k_dtype)->can_score) {
    return Status();
  }
  const bool mma = DTypesAllowMma(context, g, policy);
  for (const bool paged : {false, true}) {
    for (const bool use_mma : {false, true}) {
      if (use_mma && !mma) continue;
      const Module* module;
      KV_RETURN_IF_ERROR(DeviceOf(context).modules().Find(
          ScorerOf(context, g, policy, paged, use_mma),
          DeviceOf(context).stream(), &module));
    }
  }
  return Status();
}

Status Run_score_window(const Context& context, Stream stream,
                        const ScoreWindowArgs& args) {
  const Scorer scorer(context, stream, args);
  const auto for_each_launch = [&](const auto& run) {
    return ForEachBatch(args.jobs, ScoreParams::kMaxLayers, GoTogether, run);
  };
  KV_RETURN_IF_ERROR(for_each_launch(
      [&](std::span<const LayerJob> jobs) { return scorer.Prepare(jobs); }));
  KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::pool1d));
  return for_each_launch(
      [&](std::span<const LayerJob> jobs) { return scorer.Run(jobs); });
}

}  // namespace kvevict::cuda
