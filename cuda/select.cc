// Scores to keep lists: one launch where nothing but the ends must stay, slot by slot,
// and a block holds a list, shaping included where shared memory does.
#include <algorithm>

#include "cuda/device_state.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/pool_select.h"
#include "cuda/kernels/topk.h"
#include "cuda/launch.h"
#include "cuda/list_keys.h"
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
  SelectParams p{};
  KV_RETURN_IF_ERROR(MakeKeys(context_, stream_, args_, jobs, &p));
  if (args_.heads.Counts()) {
    KV_RETURN_IF_ERROR(CountKept(context_, stream_, args_, jobs, p));
  }
  KV_RETURN_IF_ERROR(RankKeys(context_, stream_, args_, jobs, p));
  const uint32_t longest = LongestOf(jobs);
  if (p.input == kSelectScores && FitsShared(context_, longest)) {
    return SelectInShared(jobs, p);
  }
  return longest <= kMaxShortKeys ? SelectShort(jobs, p) : SelectLong(jobs, p);
}

Status Selector::SelectInShared(Jobs<SelectJob> jobs,
                                const SelectParams& p) const {
  PoolSelectParams q{};
  q.lists = p.lists;
  q.kernel = shaping_.Pools() ? shaping_.pool.width : 1;
  q.is_max = shaping_.pool.kind == PoolKind::kMax;
  q.edge_shrinks = shaping_.edge == PoolEdge::kShrink;
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

// Whether pool_select does both. What else touches scores, to pin or rank some or to
// average blocks, wants them shaped.
bool CanShape(const Context& context, const Shaping& shaping,
              const SelectArgs& args) {
  return args.forced.protect.empty() && args.blocks.size == 1 &&
         args.ranges.empty() && shaping.pool.width <= kMostSelectPoolKernel &&
         FitsShared(context, LongestOf(args.jobs));
}

Status Select(const Context& context, Stream stream, const SelectArgs& args,
              const Shaping& shaping) {
  const Selector selector(context, stream, args, shaping);
  KV_RETURN_IF_ERROR(RequireSelection(context, stream));
  KV_RETURN_IF_ERROR(RequireCounting(context, stream, args));
  KV_RETURN_IF_ERROR(RequireRanking(context, stream, args));
  return ForEachBatch(args.jobs, SelectParams::kMaxLayers, SelectTogether,
                      [&](Jobs<SelectJob> jobs) { return selector.Run(jobs); });
}

// Launches take turns with it.
ScratchNeeds SelectScratchBytes(const Context&, const SelectArgs::Size& size) {
  if (size.n_tokens <= kMaxShortKeys) return CheckedSize(0);
  return CheckedSize(sizeof(uint32_t)) *
         CheckedSize(LongWords(LongChunks(size.n_tokens))) *
         CheckedSize(size.n_lists);
}

Status RunSelect(const Context& context, Stream stream,
                 const SelectArgs& args) {
  return Select(context, stream, args, Shaping());
}

Status RunShapeAndSelect(const Context& context, Stream stream,
                         const ShapeAndSelectArgs& args) {
  const auto& [shape, select] = args;
  if (CanShape(context, shape.shaping, select)) {
    return Select(context, stream, select, shape.shaping);
  }
  KV_RETURN_IF_ERROR(RequireSelection(context, stream));
  if (!shape.shaping.IsIdentity()) {
    KV_RETURN_IF_ERROR(kOp_shape(context, stream, shape));
  }
  return kOp_select(context, stream, select);
}

}  // namespace

Status RequireSelection(const Context& context, Stream stream) {
  for (const ModuleId module : {ModuleId::topk, ModuleId::pool_select}) {
    KV_RETURN_IF_ERROR(Require(context, stream, module));
  }
  return Status();
}

const Op<SelectArgs> kOp_select = {RunSelect, SelectScratchBytes};

const Op<ShapeAndSelectArgs> kOp_shape_and_select = {RunShapeAndSelect};

}  // namespace kvevict::cuda
