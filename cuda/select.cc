// Scores to keep lists: one launch where nothing but the ends must stay, slot by slot,
// and a block holds a list, shaping included where shared memory does.
#include <algorithm>

#include "core/policy.h"
#include "cuda/device_state.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/pool_select.h"
#include "cuda/kernels/topk.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

bool FitsShared(const Context& context, uint32_t n_tokens) {
  const auto sm = static_cast<uint32_t>(DeviceOf(context).sm());
  return n_tokens <= MostPoolSelectTokens(sm);
}

class Selector {
 public:
  // `shaping` is still to be done, and pool_select can; see CanShape().
  Selector(const Context& context, Stream stream, const SelectArgs& args,
           const Shaping& shaping)
      : context_(context),
        stream_(stream),
        args_(args),
        shaping_(shaping),
        n_lists_(args.jobs.front().keep.n_lists) {}

  Status Run(Jobs<SelectJob> jobs) const;

 private:
  SelectParams ParamsFor(Jobs<SelectJob> jobs) const;
  Status MakeKeys(Jobs<SelectJob> jobs, SelectParams* p) const;
  Status Pin(Jobs<SelectJob> jobs) const;
  Status CountKept(Jobs<SelectJob> jobs, const SelectParams& p) const;
  Status SelectInShared(Jobs<SelectJob> jobs, const SelectParams& p) const;
  Status SelectShort(Jobs<SelectJob> jobs, const SelectParams& p) const;
  Status SelectLong(Jobs<SelectJob> jobs, SelectParams p) const;

  const Context& context_;
  const Stream stream_;
  const SelectArgs& args_;
  const Shaping shaping_;
  const uint32_t n_lists_;
};

Status Selector::Run(Jobs<SelectJob> jobs) const {
  SelectParams p = ParamsFor(jobs);
  if (!args_.forced.protect.empty() || args_.blocks.size > 1) {
    KV_RETURN_IF_ERROR(MakeKeys(jobs, &p));
    KV_RETURN_IF_ERROR(Pin(jobs));
  }
  if (args_.heads.Counts()) KV_RETURN_IF_ERROR(CountKept(jobs, p));
  const uint32_t longest = LongestOf(jobs);
  if (p.input == kSelectScores && FitsShared(context_, longest)) {
    return SelectInShared(jobs, p);
  }
  return longest <= kMaxShortKeys ? SelectShort(jobs, p) : SelectLong(jobs, p);
}

SelectParams Selector::ParamsFor(Jobs<SelectJob> jobs) const {
  const SelectJob& first = jobs.front();
  const Counts tokens(first.tokens);
  const Counts keep(first.keep.count);
  SelectParams p{};
  p.lists = {tokens.table(),
             keep.table(),
             KeepStride(first.keep),
             n_lists_,
             args_.tie == KVEVICT_TIE_HIGHER_POSITION,
             args_.forced.n_sink,
             args_.forced.n_recent,
             args_.blocks.size};
  p.input = first.scores == nullptr ? kSelectNothing : kSelectScores;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const SelectJob& job = jobs[i];
    p.layers[i] = {AddressOf(job.scores),
                   AddressOf(job.keep.slots),
                   job.tokens.most,
                   job.keep.count.most,
                   tokens.FirstOf(job.tokens),
                   keep.FirstOf(job.keep.count)};
  }
  return p;
}

Status Selector::MakeKeys(Jobs<SelectJob> jobs, SelectParams* p) const {
  SelectParams make = *p;
  for (size_t i = 0; i < jobs.size(); ++i) {
    make.layers[i].keep = p->layers[i].scores = AddressOf(jobs[i].keys);
  }
  p->input = kSelectKeys;
  return Launch(context_, stream_, KernelId::make_keys,
                {BlocksFor(args_.blocks.Count(LongestOf(jobs)), kKeysThreads),
                 n_lists_, Size(jobs), kKeysThreads},
                make);
}

Status Selector::Pin(Jobs<SelectJob> jobs) const {
  std::span<const int32_t> rest = args_.forced.protect;
  while (!rest.empty()) {
    const size_t n = std::min<size_t>(rest.size(), PinParams::kMaxPositions);
    PinParams p{};
    p.n_lists = n_lists_;
    p.n_positions = static_cast<uint32_t>(n);
    p.block = args_.blocks.size;
    std::copy_n(rest.begin(), n, p.positions);
    KV_RETURN_IF_ERROR(
        ForEachBatch(jobs, PinParams::kMaxLayers, [&](Jobs<SelectJob> batch) {
          const Counts tokens(batch.front().tokens);
          const Counts kept(batch.front().slots.n_kept);
          p.tokens = tokens.table();
          p.kept = kept.table();
          for (size_t i = 0; i < batch.size(); ++i) {
            const SelectJob& job = batch[i];
            p.layers[i] = {AddressOf(job.keys), ParamsOf(job.slots, kept),
                           job.tokens.most, tokens.FirstOf(job.tokens)};
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

// Counts of lists, to where selection reads them.
Status Selector::CountKept(Jobs<SelectJob> jobs, const SelectParams& p) const {
  const HeadSplit& heads = args_.heads;
  static_assert(int{kHeadsAdaptive} == int{KVEVICT_HEAD_SPLIT_ADAPTIVE} &&
                int{kHeadsBlend} == int{KVEVICT_HEAD_SPLIT_ADAPTIVE_BLEND} &&
                int{kHeadsThreshold} == int{KVEVICT_HEAD_SPLIT_THRESHOLD});
  HeadSplitParams q{};
  q.lists = p.lists;
  q.input = p.input;
  q.kind = heads.kind;
  q.won_part = heads.won_part();
  q.threshold = static_cast<float>(heads.threshold);
  for (size_t i = 0; i < jobs.size();) {
    const size_t n =
        std::min<size_t>(jobs.size() - i, HeadSplitParams::kMaxLayers);
    for (size_t j = 0; j < n; ++j) {
      const uint32_t budget = jobs[i + j].budget;
      q.layers[j] = {p.layers[i + j], budget,
                     heads.OwnOf(budget, args_.forced)};
    }
    KV_RETURN_IF_ERROR(Launch(context_, stream_, KernelId::count_kept,
                              {static_cast<uint32_t>(n), 1, 1, kSelectThreads},
                              q));
    i += n;
  }
  return Status();
}

Status Selector::SelectInShared(Jobs<SelectJob> jobs,
                                const SelectParams& p) const {
  PoolSelectParams q{};
  q.lists = p.lists;
  q.kernel = shaping_.Pools() ? shaping_.pool_kernel : 1;
  q.is_max = shaping_.pool == KVEVICT_POOL_MAX;
  q.edge_shrinks = shaping_.pool_edge == KVEVICT_POOL_EDGE_SHRINK;
  q.n_unpooled = shaping_.n_unpooled;
  std::copy_n(p.layers, jobs.size(), q.layers);
  return Launch(context_, stream_, KernelId::pool_select,
                {n_lists_, Size(jobs), 1, kSelectThreads,
                 PoolSelectBytes(LongestOf(jobs))},
                q);
}

Status Selector::SelectShort(Jobs<SelectJob> jobs,
                             const SelectParams& p) const {
  return Launch(context_, stream_, KernelId::select_topk,
                {n_lists_, Size(jobs), 1, kSelectThreads}, p);
}

Status Selector::SelectLong(Jobs<SelectJob> jobs, SelectParams p) const {
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

// Whether pool_select does both. What else touches scores, to pin some or to average
// blocks, wants them shaped.
bool CanShape(const Context& context, const Shaping& shaping,
              const SelectArgs& args) {
  return args.forced.protect.empty() && args.blocks.size == 1 &&
         shaping.pool_kernel <= kMostSelectPoolKernel &&
         FitsShared(context, LongestOf(args.jobs));
}

Status Select(const Context& context, Stream stream, const SelectArgs& args,
              const Shaping& shaping) {
  const Selector selector(context, stream, args, shaping);
  KV_RETURN_IF_ERROR(RequireSelection(context, stream));
  if (args.heads.Counts()) {
    KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::head_split));
  }
  return ForEachBatch(
      args.jobs, SelectParams::kMaxLayers,
      [](const SelectJob& a, const SelectJob& b) {
        return a.keep.n_lists == b.keep.n_lists &&
               KeepStride(a.keep) == KeepStride(b.keep) &&
               InOneTable(a.tokens, b.tokens) &&
               InOneTable(a.keep.count, b.keep.count) &&
               InOneTable(a.slots.n_kept, b.slots.n_kept) &&
               (a.scores == nullptr) == (b.scores == nullptr);
      },
      [&](Jobs<SelectJob> jobs) { return selector.Run(jobs); });
}

}  // namespace

// Launches take turns with it.
CheckedSize SelectScratchBytes(const Context&, uint32_t n_tokens,
                               uint64_t n_lists) {
  if (n_tokens <= kMaxShortKeys) return CheckedSize(0);
  return CheckedSize(sizeof(uint32_t)) *
         CheckedSize(LongWords(LongChunks(n_tokens))) * CheckedSize(n_lists);
}

Status RequireSelection(const Context& context, Stream stream) {
  for (const ModuleId module : {ModuleId::topk, ModuleId::pool_select}) {
    KV_RETURN_IF_ERROR(Require(context, stream, module));
  }
  return Status();
}

Status Run_select(const Context& context, Stream stream,
                  const SelectArgs& args) {
  return Select(context, stream, args, Shaping());
}

Status ShapeAndSelect(const Context& context, Stream stream,
                      const ShapeArgs& shape, const SelectArgs& select) {
  if (CanShape(context, shape.shaping, select)) {
    return Select(context, stream, select, shape.shaping);
  }
  KV_RETURN_IF_ERROR(RequireSelection(context, stream));
  if (!shape.shaping.IsIdentity()) {
    KV_RETURN_IF_ERROR(Run_shape(context, stream, shape));
  }
  return Run_select(context, stream, select);
}

}  // namespace kvevict::cuda
