#include <algorithm>
#include <cstring>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/requantize.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

void ObserveLayer(const ObserveArgs& args, const kvevict_plane& given,
                  uint8_t* ring) {
  const uint32_t row_bytes = RowBytes(given);
  const kvevict_plane rows =
      WithPackedStrides(given, row_bytes, args.first_row + args.n_rows);
  const uint32_t element = row_bytes / rows.head_dim;
  const int64_t stride = ElementStride(rows);
  const uint8_t* base = reinterpret_cast<const uint8_t*>(rows.data);
  const uint32_t first =
      args.first_position +
      (args.position_address == nullptr ? 0 : *args.position_address);
  for (uint32_t r = 0; r < args.n_rows; ++r) {
    uint8_t* to = ring + uint64_t{(first + r) % args.ring_rows} * args.n_heads *
                             row_bytes;
    for (uint32_t h = 0; h < args.n_heads; ++h, to += row_bytes) {
      const uint8_t* from =
          base + (int64_t{args.first_row} + r) * rows.token_stride_bytes +
          int64_t{h} * rows.head_stride_bytes;
      if (stride == element) {
        std::memcpy(to, from, row_bytes);
        continue;
      }
      for (uint32_t e = 0; e < rows.head_dim; ++e) {
        std::memcpy(to + uint64_t{e} * element, from + e * stride, element);
      }
    }
  }
}

// Rounds rows, which are f32, to those of the ring.
void RoundLayer(const Context& context, const ObserveArgs& args,
                const kvevict_plane& rows, const kvevict_plane& ring) {
  kvevict_view from = KVEVICT_VIEW_INIT;
  from.n_kv_heads = args.n_heads;
  from.k =
      WithPackedStrides(rows, RowBytes(rows), args.first_row + args.n_rows);
  kvevict_view to = from;
  to.k = ring;
  const uint32_t first =
      args.first_position +
      (args.position_address == nullptr ? 0 : *args.position_address);
  RequantizeRowsArgs run;
  run.begin = args.first_row;
  const uint32_t end = args.first_row + args.n_rows;
  for (uint32_t slot = first % args.ring_rows; run.begin < end; slot = 0) {
    run.end = std::min(end, run.begin + args.ring_rows - slot);
    run.first_row = slot - run.begin;  // modulo 2^32
    for (uint32_t h = 0; h < args.n_heads; h += run.n_heads) {
      run.n_heads = std::min(kMostHeads, args.n_heads - h);
      for (uint32_t i = 0; i < run.n_heads; ++i) {
        run.from[i] = HeadRows(from, from.k, h + i);
        run.to[i] = HeadRows(to, to.k, h + i);
      }
      RequantizeRows(context.simd(), run);
    }
    run.begin = run.end;
  }
}

Status RunObserve(const Context& context, Stream, const ObserveArgs& args) {
  uint8_t* at = args.rings;
  for (const kvevict_plane* rows : args.layers) {
    kvevict_plane ring{};
    ring.data = reinterpret_cast<uintptr_t>(at);
    ring.dtype = static_cast<kvevict_dtype>(args.dtype);
    ring.head_dim = rows->head_dim;
    ring.head_stride_bytes = RowBytes(ring);
    ring.token_stride_bytes = int64_t{args.n_heads} * RowBytes(ring);
    if (rows->dtype == ring.dtype) {
      ObserveLayer(args, *rows, at);
    } else {
      RoundLayer(context, args, *rows, ring);
    }
    at += uint64_t{args.ring_rows} * args.n_heads * RowBytes(ring);
  }
  return Status();
}

}  // namespace

const Op<ObserveArgs> kOp_observe = {RunObserve};

}  // namespace kvevict::cpu
