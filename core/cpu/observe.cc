#include <cstring>

#include "core/cpu/cpu.h"
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

Status RunObserve(const Context&, Stream, const ObserveArgs& args) {
  uint8_t* ring = args.rings;
  for (const kvevict_plane* rows : args.layers) {
    ObserveLayer(args, *rows, ring);
    ring += uint64_t{args.ring_rows} * args.n_heads * RowBytes(*rows);
  }
  return Status();
}

}  // namespace

const Op<ObserveArgs> kOp_observe = {RunObserve};

}  // namespace kvevict::cpu
