// Updates positions of slots, lengths and counts.
#include <algorithm>

#include "cuda/kernels/params.h"
#include "cuda/kernels/positions.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

Status RunMapPositions(const Context& context, Stream stream,
                       const MapPositionsArgs& args) {
  return ForEachBatch(
      args.jobs, PositionsParams::kMaxLayers,
      [](const MapJob& a, const MapJob& b) {
        return a.keep.n_lists == b.keep.n_lists &&
               KeepStride(a.keep) == KeepStride(b.keep) &&
               InOneTable(a.keep.count, b.keep.count) &&
               InOneTable(a.slots.n_kept, b.slots.n_kept);
      },
      [&](Jobs<MapJob> batch) {
        const MapJob& first = batch.front();
        const Counts counts(first.keep.count);
        const Counts kept(first.slots.n_kept);
        PositionsParams p{};
        p.n_lists = first.keep.n_lists;
        p.keep_stride = KeepStride(first.keep);
        p.counts = counts.table();
        p.kept = kept.table();
        uint32_t longest = 0;
        for (size_t i = 0; i < batch.size(); ++i) {
          const MapJob& job = batch[i];
          p.layers[i] = {AddressOf(job.keep.slots), AddressOf(job.out),
                         ParamsOf(job.slots, kept), job.keep.count.most,
                         counts.FirstOf(job.keep.count)};
          longest = std::max(longest, job.keep.count.most);
        }
        if (longest == 0) return Status();
        return Launch(context, stream, KernelId::map_positions,
                      {BlocksFor(longest, kPositionsThreads), p.n_lists,
                       Size(batch), kPositionsThreads},
                      p);
      });
}

// Sends values of lists, as many at a time as fit in one argument.
Status SendValues(const Context& context, Stream stream, KernelId kernel,
                  LengthsParams p, std::span<const uint32_t> values) {
  for (; !values.empty(); values = values.subspan(p.n_lists)) {
    p.n_lists = static_cast<uint32_t>(
        std::min<size_t>(values.size(), LengthsParams::kMaxLists));
    std::copy_n(values.begin(), p.n_lists, p.values);
    KV_RETURN_IF_ERROR(Launch(
        context, stream, kernel,
        {BlocksFor(p.n_lists, kPositionsThreads), 1, 1, kPositionsThreads}, p));
    p.first_list += p.n_lists;
  }
  return Status();
}

Status RunSetLengths(const Context& context, Stream stream,
                     const SetLengthsArgs& args) {
  LengthsParams p{};
  p.lengths = AddressOf(args.lengths);
  p.logical = args.logical;
  return SendValues(context, stream, KernelId::set_lengths, p, args.stored);
}

Status RunSetCounts(const Context& context, Stream stream,
                    const SetCountsArgs& args) {
  LengthsParams p{};
  p.lengths = AddressOf(args.counts);
  return SendValues(context, stream, KernelId::set_counts, p, args.values);
}

Status RunAdvanceCounts(const Context& context, Stream stream,
                        const AdvanceCountsArgs& args) {
  LengthsParams p{};
  p.lengths = AddressOf(args.counts);
  p.n_lists = args.n;
  p.more = args.more;
  return Launch(
      context, stream, KernelId::advance_counts,
      {BlocksFor(p.n_lists, kPositionsThreads), 1, 1, kPositionsThreads}, p);
}

}  // namespace

const Op<MapPositionsArgs> kOp_map_positions = {RunMapPositions};

const Op<SetLengthsArgs> kOp_set_lengths = {RunSetLengths};

const Op<SetCountsArgs> kOp_set_counts = {RunSetCounts};

const Op<AdvanceCountsArgs> kOp_advance_counts = {RunAdvanceCounts};

}  // namespace kvevict::cuda
