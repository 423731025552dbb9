// Scores to keep lists: one launch where nothing but the ends must stay and a
// block holds a list.
#include <algorithm>

#include "core/policy.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/pool1d.h"
#include "cuda/kernels/topk.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

constexpr uint32_t kMaxLayers =
    std::min(SelectParams::kMaxLayers, ReduceParams::kMaxLayers);

bool IsRanked(const SelectArgs& args) {
  return RanksTokens(SignalOf(args.policy));
}

class Selector {
 public:
  Selector(const Context& context, Stream stream, const SelectArgs& args)
      : context_(context),
        stream_(stream),
        args_(args),
        n_lists_(ListsPerLayer(args.geometry, args.policy)) {}

  Status Run(std::span<const LayerJob> jobs) const;

 private:
  uint32_t Size(std::span<const LayerJob> jobs) const {
    return static_cast<uint32_t>(jobs.size());
  }

  SelectParams ParamsOf(std::span<const LayerJob> jobs, bool reduced) const;
  Status ReduceShared(std::span<const LayerJob> jobs) const;
  Status MakeKeys(std::span<const LayerJob> jobs, SelectParams* p) const;
  Status Pin(std::span<const LayerJob> jobs) const;
  Status SelectShort(std::span<const LayerJob> jobs,
                     const SelectParams& p) const;
  Status SelectLong(std::span<const LayerJob> jobs, SelectParams p) const;

  const Context& context_;
  const Stream stream_;
  const SelectArgs& args_;
  const uint32_t n_lists_;
};

Status Selector::Run(std::span<const LayerJob> jobs) const {
  const bool shared = IsRanked(args_) && n_lists_ == 1;
  if (shared) KV_RETURN_IF_ERROR(ReduceShared(jobs));
  SelectParams p = ParamsOf(jobs, shared);
  if (!args_.forced.protect.empty()) {
    KV_RETURN_IF_ERROR(MakeKeys(jobs, &p));
    KV_RETURN_IF_ERROR(Pin(jobs));
  }
  // Further lists, which a policy that ranks nothing is asked for, are alike.
  for (uint32_t list = 0; list < args_.n_lists; list += n_lists_) {
    KV_RETURN_IF_ERROR(LongestOf(jobs) <= kMaxShortKeys ? SelectShort(jobs, p)
                                                        : SelectLong(jobs, p));
    for (size_t i = 0; i < jobs.size(); ++i) {
      p.layers[i].keep += uint64_t{n_lists_} * jobs[i].n_keep * sizeof(int32_t);
    }
  }
  return Status();
}

SelectParams Selector::ParamsOf(std::span<const LayerJob> jobs,
                                bool reduced) const {
  SelectParams p{};
  p.n_lists = n_lists_;
  p.input = IsRanked(args_) ? kSelectScores : kSelectNothing;
  p.higher_wins = args_.policy.tie == KVEVICT_TIE_HIGHER_POSITION;
  p.n_sink = args_.forced.n_sink;
  p.n_recent = args_.forced.n_recent;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const LayerJob& job = jobs[i];
    p.layers[i] = {reduced ? AddressOf(job.keys) : AddressOf(job.scores),
                   AddressOf(job.keep), job.n_tokens, job.n_keep};
  }
  return p;
}

// All rows that share a list, into the place of the keys.
Status Selector::ReduceShared(std::span<const LayerJob> jobs) const {
  const uint32_t n_terms = args_.geometry.n_kv_heads * args_.n_shared_layers;
  ReduceParams p{};
  p.n_out_rows = 1;
  p.n_terms = n_terms;
  p.is_max = args_.policy.scope_reduce == KVEVICT_REDUCE_MAX;
  p.scale = args_.policy.scope_reduce == KVEVICT_REDUCE_MEAN
                ? 1.0f / static_cast<float>(n_terms)
                : 1.0f;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const LayerJob& job = jobs[i];
    p.layers[i] = {AddressOf(job.scores), AddressOf(job.keys), job.n_tokens,
                   job.n_tokens};
  }
  return Launch(context_, stream_, KernelId::reduce_rows,
                {ReduceBlocks(LongestOf(jobs)), 1, Size(jobs), kReduceThreads},
                p);
}

Status Selector::MakeKeys(std::span<const LayerJob> jobs,
                          SelectParams* p) const {
  SelectParams make = *p;
  for (size_t i = 0; i < jobs.size(); ++i) {
    make.layers[i].keep = p->layers[i].scores = AddressOf(jobs[i].keys);
  }
  p->input = kSelectKeys;
  return Launch(context_, stream_, KernelId::make_keys,
                {BlocksFor(LongestOf(jobs), kKeysThreads), n_lists_, Size(jobs),
                 kKeysThreads},
                make);
}

Status Selector::Pin(std::span<const LayerJob> jobs) const {
  std::span<const int32_t> rest = args_.forced.protect;
  while (!rest.empty()) {
    const size_t n = std::min<size_t>(rest.size(), PinParams::kMaxPositions);
    PinParams p{};
    p.n_lists = n_lists_;
    p.n_positions = static_cast<uint32_t>(n);
    std::copy_n(rest.begin(), n, p.positions);
    KV_RETURN_IF_ERROR(ForEachBatch(
        jobs, PinParams::kMaxLayers,
        [](const LayerJob&, const LayerJob&) { return true; },
        [&](std::span<const LayerJob> batch) {
          for (size_t i = 0; i < batch.size(); ++i) {
            const LayerJob& job = batch[i];
            p.layers[i] = {AddressOf(job.keys),
                           {AddressOf(job.slots.kept), job.slots.n_kept,
                            job.slots.tail_position},
                           job.n_tokens,
                           0};
          }
          return Launch(
              context_, stream_, KernelId::pin_positions,
              {BlocksFor(n, kKeysThreads), n_lists_, Size(batch), kKeysThreads},
              p);
        }));
    rest = rest.subspan(n);
  }
  return Status();
}

Status Selector::SelectShort(std::span<const LayerJob> jobs,
                             const SelectParams& p) const {
  return Launch(context_, stream_, KernelId::select_topk,
                {n_lists_, Size(jobs), 1, kSelectThreads}, p);
}

Status Selector::SelectLong(std::span<const LayerJob> jobs,
                            SelectParams p) const {
  p.n_chunks = LongChunks(LongestOf(jobs));
  p.scratch = AddressOf(args_.scratch.data());
  KV_RETURN_IF_ERROR(
      Clear(context_, stream_, p.scratch,
            sizeof(uint32_t) * LongWords(p.n_chunks) * n_lists_ * jobs.size()));
  const LaunchShape shape{p.n_chunks, n_lists_, Size(jobs), kSelectThreads};
  for (p.round = 0; p.round < 3; ++p.round) {
    KV_RETURN_IF_ERROR(
        Launch(context_, stream_, KernelId::select_long_digit, shape, p));
  }
  KV_RETURN_IF_ERROR(
      Launch(context_, stream_, KernelId::select_long_count, shape, p));
  return Launch(context_, stream_, KernelId::select_long_emit, shape, p);
}

}  // namespace

CheckedSize SelectScratchBytes(const Context&, const kvevict_geometry& g,
                               const kvevict_policy& policy,
                               uint32_t n_layers) {
  if (g.max_tokens <= kMaxShortKeys) return CheckedSize(0);
  return CheckedSize(sizeof(uint32_t)) *
         CheckedSize(LongWords(LongChunks(g.max_tokens))) *
         CheckedSize(ListsPerLayer(g, policy)) *
         CheckedSize(std::min(n_layers, kMaxLayers));
}

Status Run_select(const Context& context, Stream stream,
                  const SelectArgs& args) {
  const bool model = EffectiveScope(args.policy) == KVEVICT_SCOPE_MODEL;
  const Selector selector(context, stream, args);
  KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::topk));
  return ForEachBatch(
      model ? args.jobs.first(1) : args.jobs, kMaxLayers,
      [](const LayerJob&, const LayerJob&) { return true; },
      [&](std::span<const LayerJob> jobs) { return selector.Run(jobs); });
}

}  // namespace kvevict::cuda
