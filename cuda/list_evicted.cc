// Lists the slots that are not in keep lists: a launch for layers whose lists
// have the same layout. Their rows are copied next.
#include <algorithm>

#include "cuda/kernels/list_evicted.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

Status RunListEvicted(const Context& context, Stream stream,
                      const ListEvictedArgs& args) {
  for (const ModuleId module : {ModuleId::list_evicted, ModuleId::copy_rows}) {
    KV_RETURN_IF_ERROR(Require(context, stream, module));
  }
  return ForEachBatch(
      args.jobs, EvictedParams::kMaxLayers,
      [](const EvictedJob& a, const EvictedJob& b) {
        return a.keep.n_lists == b.keep.n_lists &&
               KeepStride(a.keep) == KeepStride(b.keep) &&
               InOneTable(a.keep.count, b.keep.count) &&
               InOneTable(a.tokens, b.tokens);
      },
      [&](Jobs<EvictedJob> batch) {
        const EvictedJob& first = batch.front();
        const Counts tokens(first.tokens);
        const Counts keep(first.keep.count);
        EvictedParams p{};
        p.n_lists = first.keep.n_lists;
        p.keep_stride = KeepStride(first.keep);
        p.tokens = tokens.table();
        p.keep = keep.table();
        uint32_t longest = 0;
        for (size_t i = 0; i < batch.size(); ++i) {
          const EvictedJob& job = batch[i];
          p.layers[i] = {AddressOf(job.keep.slots),
                         AddressOf(job.slots),
                         AddressOf(job.counts),
                         job.tokens.most,
                         job.keep.count.most,
                         tokens.FirstOf(job.tokens),
                         keep.FirstOf(job.keep.count),
                         job.stride,
                         0};
          longest = std::max(longest, job.stride);
        }
        return Launch(context, stream, KernelId::list_evicted,
                      {BlocksFor(longest, kEvictedThreads), p.n_lists,
                       Size(batch), kEvictedThreads},
                      p);
      });
}

}  // namespace

const Op<ListEvictedArgs> kOp_list_evicted = {RunListEvicted};

}  // namespace kvevict::cuda
