// Orders block tables: a launch for layers whose lists have the same layout.
#include <algorithm>

#include "cuda/kernels/drop_blocks.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

static_assert(DropBlocksArgs::kTile == kDropThreads);

Status RunDropBlocks(const Context& context, Stream stream,
                     const DropBlocksArgs& args) {
  KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::drop_blocks));
  return ForEachBatch(
      args.jobs, DropBlocksParams::kMaxLayers,
      [](const TableJob& a, const TableJob& b) {
        if (a.entries == nullptr || b.entries == nullptr) return false;
        const KeepLists& keep = a.move->keep;
        const KeepLists& other = b.move->keep;
        return a.are_ids == b.are_ids && keep.n_lists == other.n_lists &&
               KeepStride(keep) == KeepStride(other) &&
               InOneTable(keep.count, other.count) &&
               InOneTable(a.move->tokens, b.move->tokens);
      },
      [&](Jobs<TableJob> batch) {
        if (batch.front().entries == nullptr) return Status();
        const MoveJob& first = *batch.front().move;
        const Counts tokens(first.tokens);
        const Counts keep(first.keep.count);
        DropBlocksParams p{};
        p.n_lists = first.keep.n_lists;
        p.keep_stride = KeepStride(first.keep);
        p.tokens = tokens.table();
        p.keep = keep.table();
        uint32_t most = 0;
        for (size_t i = 0; i < batch.size(); ++i) {
          const TableJob& job = batch[i];
          p.layers[i] = {AddressOf(job.entries),
                         AddressOf(job.move->keep.slots),
                         job.view().block_table_head_stride,
                         job.n_tables(),
                         job.view().block_size,
                         job.move->tokens.most,
                         job.move->keep.count.most,
                         tokens.FirstOf(job.move->tokens),
                         keep.FirstOf(job.move->keep.count)};
          most = std::max(most, job.n_tables());
        }
        const KernelId kernel = batch.front().are_ids
                                    ? KernelId::drop_ids
                                    : KernelId::drop_addresses;
        return Launch(context, stream, kernel,
                      {most, Size(batch), 1, kDropThreads}, p);
      });
}

}  // namespace

const Op<DropBlocksArgs> kOp_drop_blocks = {RunDropBlocks};

}  // namespace kvevict::cuda
