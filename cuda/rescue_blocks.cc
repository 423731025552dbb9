// Blocks that stay beside the best: a selection, and one launch.
#include "cuda/kernels/params.h"
#include "cuda/kernels/rescue.h"
#include "cuda/launch.h"
#include "cuda/list_keys.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

static_assert(int{kAnchorMean} == static_cast<int>(Anchor::kMean) &&
              int{kAnchorZeros} == static_cast<int>(Anchor::kZeros) &&
              int{kAnchorOnes} == static_cast<int>(Anchor::kOnes) &&
              int{kAnchorAlternating} ==
                  static_cast<int>(Anchor::kAlternating) &&
              int{kAnchorRandom} == static_cast<int>(Anchor::kRandom));
static_assert(kMostRescueBlock == SlotBlocks::kMostSize);

// Lists of a layer have one length.
Status RunRescueBlocks(const Context& context, Stream stream,
                       const RescueBlocksArgs& args) {
  const SelectArgs& select = args.select;
  KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::rescue));
  KV_RETURN_IF_ERROR(kOp_select(context, stream, select));
  Jobs<RescueJob> rescues = args.jobs;
  return ForEachBatch(
      select.jobs, RescueParams::kMaxLayers, SelectTogether,
      [&](Jobs<SelectJob> jobs) {
        RescueParams p{};
        p.seed = args.seed;
        p.keep_stride = KeepStride(jobs.front().keep);
        p.n_sink = select.forced.n_sink;
        p.n_recent = select.forced.n_recent;
        p.block = select.blocks.size;
        p.anchor = static_cast<uint32_t>(args.anchor);
        for (size_t i = 0; i < jobs.size(); ++i) {
          const SelectJob& job = jobs[i];
          const RescueJob& rescue = rescues[i];
          p.layers[i] = {AddressOf(rescue.scores),
                         AddressOf(rescue.marks.data),
                         AddressOf(job.keep.slots),
                         AddressOf(job.keys),
                         rescue.marks.head_stride,
                         job.tokens.most,
                         job.keep.count.most,
                         rescue.n_blocks,
                         rescue.layer,
                         rescue.n_seen,
                         0};
        }
        rescues = rescues.subspan(jobs.size());
        return Launch(
            context, stream, KernelId::rescue_blocks,
            {jobs.front().keep.n_lists, Size(jobs), 1, kRescueThreads}, p);
      });
}

}  // namespace

const Op<RescueBlocksArgs> kOp_rescue_blocks = {RunRescueBlocks};

}  // namespace kvevict::cuda
