// What a sequence keeps on the device, and the scores that need no attention.
#include <algorithm>

#include "core/view.h"
#include "cuda/kernels/capture.h"
#include "cuda/kernels/fill_scores.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/positions.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

bool Always(const LayerJob&, const LayerJob&) { return true; }

SlotPositions ParamsOf(const kvevict::SlotPositions& slots) {
  return {AddressOf(slots.kept), slots.n_kept, slots.tail_position};
}

uint32_t Size(std::span<const LayerJob> jobs) {
  return static_cast<uint32_t>(jobs.size());
}

// Random and the caller's scores: `p` but for its layers.
Status FillScores(const Context& context, Stream stream,
                  std::span<const LayerJob> jobs, KernelId kernel,
                  FillScoresParams p, uint64_t caller,
                  uint64_t caller_layer_stride) {
  return ForEachBatch(
      jobs, FillScoresParams::kMaxLayers, Always,
      [&](std::span<const LayerJob> batch) {
        uint32_t longest = 0;
        for (size_t i = 0; i < batch.size(); ++i) {
          const LayerJob& job = batch[i];
          p.layers[i] = {
              AddressOf(job.scores),
              caller + job.layer * caller_layer_stride * sizeof(float),
              ParamsOf(job.slots), job.n_tokens, job.layer};
          longest = std::max(longest, job.n_tokens);
        }
        return Launch(context, stream, kernel,
                      {BlocksFor(longest, kFillThreads), p.n_kv_heads,
                       Size(batch), kFillThreads},
                      p);
      });
}

}  // namespace

Status Run_capture(const Context& context, Stream stream,
                   const CaptureArgs& args) {
  const kvevict_plane& rows = *args.rows;
  CaptureParams p{};
  p.from = rows.data;
  p.ring = AddressOf(args.ring);
  p.position_address = AddressOf(args.position_address);
  p.from_row_stride = rows.token_stride_bytes;
  p.from_head_stride = rows.head_stride_bytes;
  p.from_element_stride = ElementStride(rows);
  p.n_heads = args.n_heads;
  p.n_elements = rows.head_dim;
  p.element_bytes = RowBytes(rows) / rows.head_dim;
  p.window = args.window;
  p.unit = CaptureUnit(p);
  for (uint32_t done = 0; done < args.n_rows; done += p.n_rows) {
    p.n_rows = std::min(args.n_rows - done, kMaxGridY);
    p.first_position = args.first_position + done;
    p.from = rows.data + done * static_cast<uint64_t>(p.from_row_stride);
    KV_RETURN_IF_ERROR(Launch(context, stream, KernelId::capture_rows,
                              {CaptureBlocks(p), p.n_rows, 1, kCaptureThreads},
                              p));
  }
  return Status();
}

Status Run_score_random(const Context& context, Stream stream,
                        const ScoreRandomArgs& args) {
  FillScoresParams p{};
  p.seed = args.policy.seed;
  p.n_kv_heads = args.geometry.n_kv_heads;
  p.n_lists = ListsPerLayer(args.geometry, args.policy);
  return FillScores(context, stream, args.jobs, KernelId::random_scores, p, 0,
                    0);
}

Status Run_score_caller(const Context& context, Stream stream,
                        const ScoreCallerArgs& args) {
  FillScoresParams p{};
  p.caller_head_stride = args.head_stride;
  p.n_kv_heads = args.geometry.n_kv_heads;
  p.n_lists = 1;
  return FillScores(context, stream, args.jobs, KernelId::caller_scores, p,
                    AddressOf(args.scores), args.layer_stride);
}

Status Run_map_positions(const Context& context, Stream stream,
                         const MapPositionsArgs& args) {
  return ForEachBatch(
      args.jobs, PositionsParams::kMaxLayers, Always,
      [&](std::span<const LayerJob> batch) {
        PositionsParams p{};
        p.n_lists = args.n_lists;
        uint32_t longest = 0;
        for (size_t i = 0; i < batch.size(); ++i) {
          const LayerJob& job = batch[i];
          p.layers[i] = {AddressOf(job.keep), AddressOf(job.new_positions),
                         ParamsOf(job.slots), job.n_keep, 0};
          longest = std::max(longest, job.n_keep);
        }
        if (longest == 0) return Status();
        return Launch(context, stream, KernelId::map_positions,
                      {BlocksFor(longest, kPositionsThreads), args.n_lists,
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
