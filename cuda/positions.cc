// Positions of slots, and lengths.
#include <algorithm>

#include "cuda/kernels/params.h"
#include "cuda/kernels/positions.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {

Status Run_map_positions(const Context& context, Stream stream,
                         const MapPositionsArgs& args) {
  return ForEachBatch(
      args.jobs, PositionsParams::kMaxLayers,
      [](const MapJob& a, const MapJob& b) {
        return a.keep.n_lists == b.keep.n_lists;
      },
      [&](Jobs<MapJob> batch) {
        PositionsParams p{};
        p.n_lists = batch.front().keep.n_lists;
        uint32_t longest = 0;
        for (size_t i = 0; i < batch.size(); ++i) {
          const MapJob& job = batch[i];
          p.layers[i] = {AddressOf(job.keep.slots), AddressOf(job.out),
                         ParamsOf(job.slots), job.keep.count, 0};
          longest = std::max(longest, job.keep.count);
        }
        if (longest == 0) return Status();
        return Launch(context, stream, KernelId::map_positions,
                      {BlocksFor(longest, kPositionsThreads), p.n_lists,
                       Size(batch), kPositionsThreads},
                      p);
      });
}

Status Run_set_lengths(const Context& context, Stream stream,
                       const SetLengthsArgs& args) {
  for (size_t first = 0; first < args.stored.size();
       first += LengthsParams::kMaxLayers) {
    LengthsParams p{};
    p.lengths = AddressOf(args.lengths);
    p.first_layer = static_cast<uint32_t>(first);
    p.n_layers = static_cast<uint32_t>(std::min<size_t>(
        args.stored.size() - first, LengthsParams::kMaxLayers));
    p.logical = args.logical;
    std::copy_n(args.stored.begin() + first, p.n_layers, p.stored);
    KV_RETURN_IF_ERROR(Launch(
        context, stream, KernelId::set_lengths,
        {BlocksFor(p.n_layers, kPositionsThreads), 1, 1, kPositionsThreads},
        p));
  }
  return Status();
}

Status Run_advance_lengths(const Context& context, Stream stream,
                           const AdvanceLengthsArgs& args) {
  LengthsParams p{};
  p.lengths = AddressOf(args.lengths);
  p.n_layers = args.n_layers;
  p.n_tokens = args.n_tokens;
  return Launch(
      context, stream, KernelId::advance_lengths,
      {BlocksFor(p.n_layers, kPositionsThreads), 1, 1, kPositionsThreads}, p);
}

}  // namespace kvevict::cuda
