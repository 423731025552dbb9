// Writes query rows to the rings of a sequence.
#include <algorithm>

#include "core/dtype.h"
#include "core/view/view.h"
#include "cuda/kernels/observe.h"
#include "cuda/kernels/params.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

// Compares strides only, since shape and dtype are those of the geometry.
bool SameStrides(const kvevict_plane* a, const kvevict_plane* b) {
  return a->token_stride_bytes == b->token_stride_bytes &&
         a->head_stride_bytes == b->head_stride_bytes &&
         ElementStride(*a) == ElementStride(*b);
}

Status ObserveBatch(const Context& context, Stream stream,
                    const ObserveArgs& args, Jobs<const kvevict_plane*> layers,
                    uint8_t* rings) {
  const kvevict_plane rows = WithPackedStrides(*layers[0], RowBytes(*layers[0]),
                                               args.first_row + args.n_rows);
  ObserveParams p{};
  p.rings = AddressOf(rings);
  p.position_address = AddressOf(args.position_address);
  p.from_row_stride = rows.token_stride_bytes;
  p.from_head_stride = rows.head_stride_bytes;
  p.from_element_stride = ElementStride(rows);
  p.n_heads = args.n_heads;
  p.n_elements = rows.head_dim;
  p.element_bytes = ElementBytes(args.dtype);
  const bool rounds = static_cast<DType>(rows.dtype) != args.dtype;
  p.rounds_to = rounds ? static_cast<uint32_t>(args.dtype) : 0;
  p.ring_rows = args.ring_rows;
  p.n_layers = static_cast<uint32_t>(layers.size());
  for (uint32_t done = 0; done < args.n_rows; done += p.n_rows) {
    p.n_rows = std::min(args.n_rows - done, kMaxGridY);
    p.first_position = args.first_position + done;
    const uint64_t row = uint64_t{args.first_row} + done;
    for (uint32_t l = 0; l < p.n_layers; ++l) {
      p.from[l] =
          layers[l]->data + row * static_cast<uint64_t>(p.from_row_stride);
    }
    p.unit = rounds ? p.element_bytes : ObserveUnit(p);
    KV_RETURN_IF_ERROR(
        Launch(context, stream, KernelId::observe_rows,
               {ObserveBlocks(p), p.n_rows, p.n_layers, kObserveThreads}, p));
  }
  return Status();
}

Status RunObserve(const Context& context, Stream stream,
                  const ObserveArgs& args) {
  uint8_t* rings = args.rings;
  return ForEachBatch(
      args.layers, ObserveParams::kMaxLayers, SameStrides,
      [&](Jobs<const kvevict_plane*> layers) {
        KV_RETURN_IF_ERROR(ObserveBatch(context, stream, args, layers, rings));
        rings += layers.size() * args.ring_rows * args.n_heads *
                 uint64_t{layers[0]->head_dim} * ElementBytes(args.dtype);
        return Status();
      });
}

}  // namespace

const Op<ObserveArgs> kOp_observe = {RunObserve};

}  // namespace kvevict::cuda
