// Rotates keys by RoPE, in place, with the bits of core/kernels/rotate_rows.cc
// on targets with a fused multiply-add.
#include "rotate_rows.h"

#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "turn.cuh"

namespace kvevict::cuda {

namespace {

template <class Tag>
KV_DEVICE void StoreElement(Tag, uint64_t address, float v) {
  const uint32_t bits = FromFloat<Tag::kValue>(v);
  if constexpr (Tag::kBytes == 4) {
    StoreGlobal(address, bits);
  } else {
    StoreGlobal(address, static_cast<uint16_t>(bits));
  }
}

}  // namespace

// Grid (n_tokens / kRotateRows of the longest layer, n_kv_heads, n_layers). A
// warp rotates every 8th of a block's rows, a lane every 32nd pair. Reads and
// writes the pairs of keys that move once.
KV_KERNEL(rotate_rows, RotateParams, kRotateThreads, 4) {
  constexpr uint32_t kWarp = 32;
  const RotateLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t lane = threadIdx.x % kWarp;
  const uint64_t list = p.n_lists == 1 ? 0 : head;
  const uint64_t offsets =
      layer.offsets + list * layer.n_tokens * sizeof(int32_t);
  const bool interleaved = p.is_interleaved != 0;
  for (uint32_t r = threadIdx.x / kWarp; r < kRotateRows;
       r += kRotateThreads / kWarp) {
    const uint32_t slot = blockIdx.x * kRotateRows + r;
    if (slot >= n_tokens) break;
    int64_t offset =
        LoadGlobal<int32_t>(offsets + uint64_t{slot} * sizeof(int32_t));
    if (p.from_slots != 0) offset = slot - offset;
    if (offset == 0) continue;
    const CacheRow row =
        FindRow(p.keys, layer.keys, layer.block_table, head, slot);
    WithDType(p.keys.dtype, [&](auto tag) {
      for (uint32_t f = lane; f < p.n_pairs; f += kWarp) {
        const ElementPlace of_re =
            FindElement(tag, p.keys, interleaved ? 2 * f : f);
        const ElementPlace of_im =
            FindElement(tag, p.keys, interleaved ? 2 * f + 1 : p.n_pairs + f);
        const float re = LoadElement(tag, p.keys, row, of_re);
        const float im = LoadElement(tag, p.keys, row, of_im);
        // Modulo a turn. A negative offset rotates backwards.
        const uint64_t turn = static_cast<uint64_t>(offset) * p.turns[f];
        float cosine, sine;
        CosineAndSine(static_cast<uint32_t>(turn >> 32), &cosine, &sine);
        StoreElement(tag, row.address + of_re.offset,
                     Fma(re, cosine, -(im * sine)));
        StoreElement(tag, row.address + of_im.offset,
                     Fma(re, sine, im * cosine));
      }
    });
  }
}

}  // namespace kvevict::cuda
