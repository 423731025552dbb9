// Attention by tensor cores, in splits that attend_finish joins.
//
// Query rows of a KV head, of all its query heads, are in tiles of 16. A warp has
// a tile of rows, and of 64 slots those of its group. It keeps the softmax so far
// and the weighted sums of all elements in registers; weights go from products to
// products without shared memory. f32 queries, weights and rows that are not f16
// or bf16 are taken in two parts, see parts.cuh.
#include "attention_mma.h"

#include "attention_mma_products.cuh"
#include "attention_mma_rows.cuh"
#include "counts.cuh"
#include "device.cuh"

namespace kvevict::cuda {
namespace {

// Weights are at most 2^this, since f16 has few numbers below 1.
constexpr float kHighestWeight = ValueTile::kElement == kF16 ? 15.0f : 0.0f;

// The rows and slots of a block.
struct Part {
  const AttendParams& p;
  const AttendLayer& layer;
  uint32_t head;
  uint32_t split;
  uint32_t first_block;  // of those of the launch
  uint32_t n_tokens;
  uint32_t begin;  // slots that any row sees
  uint32_t end;
  uint32_t begin_of_all;  // slots that all rows see
  uint32_t end_of_all;

  KV_DEVICE QueryRow Row(uint32_t i) const {
    const uint32_t r = (p.first_block + first_block) * kAttendRows + i;
    return FindRow(p, layer, r / p.group, head * p.group + r % p.group,
                   n_tokens);
  }
  KV_DEVICE bool IsUsed(uint32_t slot) const {
    return slot >= begin && slot < end;
  }
  KV_DEVICE bool AllSee(uint32_t first) const {
    return first >= begin_of_all && first + kAttendSlots <= end_of_all;
  }

  // 0 for slots that no row sees.
  KV_DEVICE float Bias(uint32_t slot) const {
    return IsUsed(slot) ? BiasOf(p, head, slot) : 0.0f;
  }

  KV_DEVICE void StartKeys(uint32_t first, uint8_t* tile) const {
    StartTile<KeyTile>(
        p.keys,
        [&](uint32_t i) {
          return IsUsed(first + i) ? FindRow(p.keys, layer.keys,
                                             layer.block_table, head, first + i)
                                   : CacheRow{};
        },
        tile);
  }
  KV_DEVICE void StartValues(uint32_t first, uint8_t* tile) const {
    StartTile<ValueTile>(
        p.values,
        [&](uint32_t i) {
          return IsUsed(first + i) ? FindRow(p.values, layer.values,
                                             layer.block_table, head, first + i)
                                   : CacheRow{};
        },
        tile);
  }
};

KV_DEVICE Part PartOfBlock(const AttendParams& p) {
  const AttendLayer& layer = p.layers[blockIdx.z];
  Part part = {p,
               layer,
               blockIdx.y,
               blockIdx.x % p.n_splits,
               blockIdx.x / p.n_splits * kShape.row_warps,
               0,
               0,
               0,
               0,
               0};
  part.n_tokens =
      CountOf(p.tokens, layer.first_count, part.head, layer.n_tokens);
  // Later queries begin and end later.
  const uint32_t first_r = (p.first_block + part.first_block) * kAttendRows;
  uint32_t last_query = (first_r + kBlockRows - 1) / p.group;
  if (last_query >= p.n_queries) last_query = p.n_queries - 1;
  const QueryRow first = FindRow(p, layer, first_r / p.group, 0, part.n_tokens);
  const QueryRow last = FindRow(p, layer, last_query, 0, part.n_tokens);
  part.begin = first.begin;
  part.end = last.end;
  part.begin_of_all = last.begin;
  part.end_of_all = first.end;
  const uint32_t slots = SlotsOfSplit(layer.n_tokens, p.most_splits);
  const uint32_t split_begin = part.split * slots;
  if (part.begin < split_begin) part.begin = split_begin;
  if (part.end > split_begin + slots) part.end = split_begin + slots;
  return part;
}

// Whether warps share no rows of tiles: one that has all query rows uses those
// that it stored itself. Keys and values in one place must lie alike.
constexpr bool kWarpsAreAlone =
    kShape.row_warps == 1 &&
    (kShape.two_tiles || KeyTile::kPitch == ValueTile::kPitch);

// For all threads that share rows of tiles.
KV_DEVICE void TileSync() {
  if constexpr (kWarpsAreAlone) {
    WarpSync();
  } else {
    BlockSync();
  }
}

// The softmax of a lane's two rows so far.
struct Softmax {
  uint32_t begin[2];
  uint32_t end[2];
  float reference[2];
  float sum[2];  // of this lane's slots

  KV_DEVICE bool Sees(uint32_t row, uint32_t slot) const {
    return slot >= begin[row] && slot < end[row];
  }

  // Turns products of slots from `first` on into logits with their biases.
  KV_DEVICE static void AddBiases(const Part& part, uint32_t first,
                                  Chunk (&x)[kChunks]) {
#pragma unroll
    for (uint32_t c = 0; c < kChunks; ++c) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const float bias = part.Bias(first + c * 16 + SlotOf(i));
#pragma unroll
        for (uint32_t row = 0; row < 2; ++row) {
          float& logit = x[c].At(row, i);
          logit = LogitOf(part.p, logit) + bias;
        }
      }
    }
  }

  // Turns products of slots from `first` on into weights, 0 for slots that a row
  // does not see. factors: what sums so far are multiplied by.
  template <bool kAllSee>
  KV_DEVICE void Weigh(const Part& part, uint32_t first, Chunk (&x)[kChunks],
                       float (&factors)[2]) {
    if constexpr (KV_BIAS != 0) AddBiases(part, first, x);
#pragma unroll
    for (uint32_t row = 0; row < 2; ++row) {
      float most = MinusInfinity();
#pragma unroll
      for (uint32_t c = 0; c < kChunks; ++c) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          float& logit = x[c].At(row, i);
          if constexpr (KV_BIAS == 0) logit = LogitOf(part.p, logit);
          const bool is_seen = kAllSee || Sees(row, first + c * 16 + SlotOf(i));
          if (is_seen && logit > most) most = logit;
        }
      }
#pragma unroll
      for (uint32_t mask = 1; mask < 4; mask *= 2) {
        const float other = ShuffleXor(most, mask);
        most = other > most ? other : most;
      }
      const float before = reference[row];
      most -= kHighestWeight;
      const float raised = most > before ? most : before;
      const float base = raised == MinusInfinity() ? 0.0f : raised;
      factors[row] = before == raised ? 1.0f : Exp2(before - raised);
      reference[row] = raised;
      float more = 0.0f;
#pragma unroll
      for (uint32_t c = 0; c < kChunks; ++c) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          float& weight = x[c].At(row, i);
          const bool is_seen = kAllSee || Sees(row, first + c * 16 + SlotOf(i));
          weight = is_seen ? Exp2(weight - base) : 0.0f;
          more += weight;
        }
      }
      sum[row] = Fma(sum[row], factors[row], more);
    }
  }
};

struct alignas(8) SumPair {
  float x[2];
};

// Adds the sums of all warps' slots in the order of their groups, and stores the
// states. `memory` is free for all threads.
KV_DEVICE void StoreStates(const Part& part, Softmax& softmax, const Sums& sums,
                           float* memory) {
  KV_SHARED(float, references, kAttendMmaWarps* kAttendRows);
  KV_SHARED(float, totals, kAttendMmaWarps* kAttendRows);
  KV_SHARED(float, factors, kAttendMmaWarps* kAttendRows);
  constexpr uint32_t kStride = AttendSumStride(kValueDim);
  // Warps are [key group][rows].
#pragma unroll
  for (uint32_t row = 0; row < 2; ++row) {
    float& sum = softmax.sum[row];
#pragma unroll
    for (uint32_t mask = 1; mask < 4; mask *= 2) sum += ShuffleXor(sum, mask);
    const uint32_t at = Warp() * kAttendRows + Lane() / 4 + row * 8;
    if (Lane() % 4 == 0) {
      references[at] = softmax.reference[row];
      totals[at] = sum;
    }
#pragma unroll
    for (uint32_t j = 0; j < kValueDim / 8; ++j) {
      *reinterpret_cast<SumPair*>(
          &memory[at * kStride + j * 8 + Lane() % 4 * 2]) = {
          {sums[j][2 * row], sums[j][2 * row + 1]}};
    }
  }
  BlockSync();
  const auto state_of = [&](uint32_t row) {
    return StateOf(part.p, blockIdx.z, part.head,
                   part.first_block + row / kAttendRows, part.split,
                   row % kAttendRows);
  };
  const auto is_there = [&](uint32_t row) {
    return part.first_block + row / kAttendRows < part.p.n_blocks;
  };
  if (threadIdx.x < kBlockRows) {
    const uint32_t row = threadIdx.x;
    float most = MinusInfinity();
#pragma unroll
    for (uint32_t g = 0; g < kShape.key_groups; ++g) {
      const float of_group = references[g * kBlockRows + row];
      most = of_group > most ? of_group : most;
    }
    float total = 0.0f;
#pragma unroll
    for (uint32_t g = 0; g < kShape.key_groups; ++g) {
      const uint32_t at = g * kBlockRows + row;
      const float of_group = references[at];
      // A row that sees nothing has only minus infinity here, and sums of 0.
      factors[at] = of_group == most ? 1.0f : Exp2(of_group - most);
      total = Fma(factors[at], totals[at], total);
    }
    if (is_there(row)) {
      StoreGlobal(state_of(row), most);
      StoreGlobal(state_of(row) + sizeof(float), total);
    }
  }
  BlockSync();
#pragma unroll 1
  for (uint32_t row = Warp(); row < kBlockRows; row += kAttendMmaWarps) {
    if (!is_there(row)) continue;
    const uint64_t state = state_of(row) + 2 * sizeof(float);
    for (uint32_t e = Lane(); e < part.p.values.head_dim; e += 32) {
      float v = 0.0f;
#pragma unroll
      for (uint32_t g = 0; g < kShape.key_groups; ++g) {
        const uint32_t at = g * kBlockRows + row;
        v = Fma(factors[at], memory[at * kStride + e], v);
      }
      StoreGlobal(state + uint64_t{e} * sizeof(float), v);
    }
  }
}

}  // namespace

// Grid (n_splits * groups of KV_ROW_WARPS blocks of rows, n_kv_heads, n_layers). A
// block has these rows and a split of the slots. Dynamic shared memory: queries,
// and a tile of 64 keys and one of values, or one for both in turn. Reads K and V
// once per block.
KV_KERNEL(attend_mma, AttendParams, kAttendMmaThreads, 2) {
  KV_DYNAMIC_SHARED(queries);
  KV_SHARED(float, scales, kScalesQueries ? kBlockRows : 1);
  uint8_t* const keys = queries + kShape.query_bytes;
  uint8_t* const values = keys + (kShape.two_tiles ? kShape.key_bytes : 0);
  const Part part = PartOfBlock(p);
  const uint32_t my_rows = Warp() % kShape.row_warps * kAttendRows;
  const uint32_t my_slots = Warp() / kShape.row_warps * kChunks * 16;
  StoreQueries(
      p.queries, [&](uint32_t r) { return part.Row(r).stored.address; },
      queries, scales);
  if constexpr (kWarpsAreAlone) BlockSync();  // queries are there
  Softmax softmax;
#pragma unroll
  for (uint32_t row = 0; row < 2; ++row) {
    const QueryRow found = part.Row(my_rows + Lane() / 4 + row * 8);
    softmax.begin[row] = found.begin;
    softmax.end[row] = found.end;
    softmax.reference[row] = MinusInfinity();
    softmax.sum[row] = 0.0f;
  }
  Sums sums = {};
  const uint32_t first = part.begin / kAttendSlots * kAttendSlots;
  if (kShape.two_tiles && first < part.end) part.StartKeys(first, keys);
  for (uint32_t tile = first; tile < part.end; tile += kAttendSlots) {
    if (!kShape.two_tiles) {
      if (tile > first) TileSync();  // all have used the values before
      part.StartKeys(tile, keys);
    }
    if constexpr (KeyTile::kParts == 1) CopyAsyncWait<0>();
    TileSync();  // keys are there, and all have used the values before
    if (kShape.two_tiles) part.StartValues(tile, values);
    float row_scales[2] = {1.0f, 1.0f};
    if constexpr (kScalesQueries) {
      row_scales[0] = scales[my_rows + Lane() / 4];
      row_scales[1] = scales[my_rows + Lane() / 4 + 8];
    }
    Chunk x[kChunks];
    MultiplyKeys(queries + my_rows * QueryTile::kPitch,
                 keys + my_slots * KeyTile::kPitch, row_scales, x);
    if (!kShape.two_tiles) {
      TileSync();  // all have used the keys
      part.StartValues(tile, values);
    }
    const uint32_t my_first = tile + my_slots;
    const bool all_see = part.AllSee(tile);
    float factors[2];
    if (all_see) {
      softmax.Weigh<true>(part, my_first, x, factors);
    } else {
      softmax.Weigh<false>(part, my_first, x, factors);
    }
    if (Ballot(factors[0] != 1.0f || factors[1] != 1.0f) != 0) {
#pragma unroll
      for (uint32_t j = 0; j < kValueDim / 8; ++j) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) sums[j][i] *= factors[i / 2];
      }
    }
    if constexpr (ValueTile::kParts == 1) CopyAsyncWait<0>();
    TileSync();  // values are there, and all have used the keys
    const uint32_t next = tile + kAttendSlots;
    if (kShape.two_tiles && next < part.end) part.StartKeys(next, keys);
#pragma unroll
    for (uint32_t c = 0; c < kChunks; ++c) {
      const uint8_t* const of_chunk =
          values + (my_slots + c * 16) * ValueTile::kPitch;
      if (!all_see && HasOddValues(of_chunk)) {
        AddSeenValues(
            of_chunk, x[c],
            [&](uint32_t row, uint32_t slot) {
              return softmax.Sees(row, my_first + c * 16 + slot);
            },
            sums);
      } else {
        AddValues(of_chunk, x[c], sums);
      }
    }
  }
  BlockSync();  // memory is free
  StoreStates(part, softmax, sums, reinterpret_cast<float*>(queries));
}

}  // namespace kvevict::cuda
