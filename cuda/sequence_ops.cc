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

bool SameCallerStride(const LayerJob& a, const LayerJob& b) {
  return a.caller_head_stride == b.caller_head_stride;
}

// Random and the caller's scores: `p` but for what jobs say.
Status FillScores(const Context& context, Stream stream,
                  std::span<const LayerJob> jobs, KernelId kernel,
                  FillScoresParams p) {
  return ForEachBatch(
      jobs, FillScoresParams::kMaxLayers, SameCallerStride,
      [&](std::span<const LayerJob> batch) {
        p.caller_head_stride = batch[0].caller_head_stride;
        uint32_t longest = 0;
        for (size_t i = 0; i < batch.size(); ++i) {
          const LayerJob& job = batch[i];
          p.layers[i] = {AddressOf(job.scores), AddressOf(job.caller_scores),
                         ParamsOf(job.slots), job.n_tokens, job.layer};
          longest = std::max(longest, job.n_tokens);
        }
        return Launch(context, stream, kernel,
                      {BlocksFor(longest, kFillThreads), p.n_kv_heads,
                       Size(batch), kFillThreads},
                      p);
      });
}

// Shape and dtype are the geometry's.
bool SameStrides(const kvevict_plane& a, const kvevict_plane& b) {
  return a.token_stride_bytes == b.token_stride_bytes &&
         a.head_stride_bytes == b.head_stride_bytes &&
         ElementStride(a) == ElementStride(b);
}

Status CaptureBatch(const Context& context, Stream stream,
                    const CaptureArgs& args,
                    std::span<const kvevict_plane> layers, uint8_t* rings) {
  const kvevict_plane& rows = layers[0];
  CaptureParams p{};
  p.rings = AddressOf(rings);
  p.position_address = AddressOf(args.position_address);
  p.from_row_stride = rows.token_stride_bytes;
  p.from_head_stride = rows.head_stride_bytes;
  p.from_element_stride = ElementStride(rows);
  p.n_heads = args.n_heads;
  p.n_elements = rows.head_dim;
  p.element_bytes = RowBytes(rows) / rows.head_dim;
  p.window = args.window;
  p.n_layers = static_cast<uint32_t>(layers.size());
  for (uint32_t done = 0; done < args.n_rows; done += p.n_rows) {
    p.n_rows = std::min(args.n_rows - done, kMaxGridY);
    p.first_position = args.first_position + done;
    const uint64_t row = uint64_t{args.first_row} + done;
    for (uint32_t l = 0; l < p.n_layers; ++l) {
      p.from[l] =
          layers[l].data + row * static_cast<uint64_t>(p.from_row_stride);
    }
    p.unit = CaptureUnit(p);
    KV_RETURN_IF_ERROR(
        Launch(context, stream, KernelId::capture_rows,
               {CaptureBlocks(p), p.n_rows, p.n_layers, kCaptureThreads}, p));
  }
  return Status();
}

}  // namespace

Status Run_capture(const Context& context, Stream stream,
                   const CaptureArgs& args) {
  uint8_t* rings = args.rings;
  return ForEachBatch(
      args.layers, CaptureParams::kMaxLayers, SameStrides,
      [&](std::span<const kvevict_plane> layers) {
        KV_RETURN_IF_ERROR(CaptureBatch(context, stream, args, layers, rings));
        rings += layers.size() * args.window * args.n_heads *
                 uint64_t{RowBytes(layers[0])};
        return Status();
      });
}

Status Run_score_random(const Context& context, Stream stream,
                        const ScoreRandomArgs& args) {
  FillScoresParams p{};
  p.seed = args.policy.seed;
  p.n_kv_heads = args.geometry.n_kv_heads;
  p.n_lists = ListsPerLayer(args.geometry, args.policy);
  return FillScores(context, stream, args.jobs, KernelId::random_scores, p);
}

Status Run_score_caller(const Context& context, Stream stream,
                        const ScoreCallerArgs& args) {
  FillScoresParams p{};
  p.n_kv_heads = args.geometry.n_kv_heads;
  p.n_lists = 1;
  return FillScores(context, stream, args.jobs, KernelId::caller_scores, p);
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
