// Merges evicted rows into those that stay; see core/kernels/merge.h. The bytes
// are the same as there on targets with a fused multiply-add: every sum is
// added in the same order.
//
// merge_norms computes the scales that turn keys into directions, and which
// tokens take part. merge_search finds the target of each evicted token.
// merge_cutoff finds the similarity that a head's fraction requires. merge_rows
// writes the rows that others are merged into.
#include "merge.h"

#include "cache_rows.cuh"
#include "cosines.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "over_block.cuh"

namespace kvevict::cuda {

namespace {

constexpr float kLeastNorm = 1e-6f;  // least divisor of a key
constexpr float kPlus = 1e-6f;  // added to a sum of norms before dividing by it
constexpr float kLeastWeight = 1e-6f;
constexpr uint32_t kNone = 0xffffffffu;

// One head's rows and its scratch.
struct MergeHead {
  const MergeLayer& layer;
  const MergeParams& p;
  uint32_t head;
  uint32_t n_tokens;
  uint32_t n_keep;
  uint64_t keep;
  uint64_t scales;        // [stride]
  uint64_t norms;         // [stride]
  uint64_t similarities;  // [stride]
  uint64_t targets;       // [stride]
  uint64_t cutoff;

  KV_DEVICE MergeHead(const MergeParams& params, uint32_t l, uint32_t h)
      : layer(params.layers[l]), p(params), head(h) {
    const uint32_t list = p.n_lists == 1 ? 0 : h;
    const uint32_t keep_stride =
        p.keep_stride == 0 ? layer.n_keep : p.keep_stride;
    n_tokens = CountOf(p.tokens, layer.first_token_count, h, layer.n_tokens);
    n_keep = CountOf(p.counts, layer.first_keep_count, list, layer.n_keep);
    keep = layer.keep + uint64_t{list} * keep_stride * sizeof(int32_t);
    const uint64_t place = uint64_t{l} * p.n_kv_heads + h;
    const uint64_t row_bytes = uint64_t{p.stride} * sizeof(float);
    scales = p.rows + place * 4 * row_bytes;
    norms = scales + row_bytes;
    similarities = norms + row_bytes;
    targets = similarities + row_bytes;
    cutoff = p.cutoffs + place * sizeof(float);
  }
  // True if nothing is evicted or nothing stays.
  KV_DEVICE bool IsIdle() const { return n_keep == 0 || n_keep >= n_tokens; }
  KV_DEVICE CacheRow KeyRow(uint32_t slot) const {
    return FindRow(p.keys, layer.keys, layer.block_table, head, slot);
  }
  KV_DEVICE CacheRow ValueRow(uint32_t slot) const {
    return FindRow(p.values, layer.values, layer.block_table, head, slot);
  }
  KV_DEVICE float FloatAt(uint64_t row, uint32_t slot) const {
    return LoadGlobal<float>(row + uint64_t{slot} * sizeof(float));
  }
  KV_DEVICE uint32_t Kept(uint32_t i) const {
    return LoadGlobal<uint32_t>(keep + uint64_t{i} * sizeof(int32_t));
  }
  // The e-th evicted slot: among the first kept[i] slots, kept[i] - i are
  // evicted.
  KV_DEVICE uint32_t Gone(uint32_t e) const {
    uint32_t low = 0, high = n_keep;
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (Kept(middle) - middle > e) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return e + low;
  }
  KV_DEVICE Direction DirectionOf(uint32_t slot) const {
    return {KeyRow(slot), FloatAt(scales, slot)};
  }
};

KV_DEVICE float NormOf(const CacheRows& rows, const CacheRow& row) {
  float square = 0.0f;
  VisitRow(rows, row, [&](uint32_t, float v) { square = Fma(v, v, square); });
  return SquareRoot(square);
}

}  // namespace

// Grid (tokens of the longest layer / kMergeThreads, n_kv_heads, n_layers). A
// thread has a slot. Reads every key and value once.
KV_KERNEL(merge_norms, MergeParams, kMergeThreads, 4) {
  const MergeHead my(p, blockIdx.z, blockIdx.y);
  const uint32_t slot = blockIdx.x * kMergeThreads + threadIdx.x;
  if (slot >= my.n_tokens || my.IsIdle()) return;
  const float infinity = ToFloat<kF32>(kInfinityBits);
  const float norm = NormOf(p.keys, my.KeyRow(slot));
  bool takes_part = norm < infinity;
  const uint64_t at = uint64_t{slot} * sizeof(float);
  if (my.layer.values != 0) {
    const float value_norm = NormOf(p.values, my.ValueRow(slot));
    takes_part = takes_part && value_norm < infinity;
    StoreGlobal(my.norms + at, value_norm);
  }
  const float divisor = norm < kLeastNorm ? kLeastNorm : norm;
  StoreGlobal(my.scales + at, takes_part ? 1.0f / divisor : 0.0f);
  StoreGlobal(my.targets + at, uint32_t{kNone});
}

// Grid (most evicted slots / kCosineTile, n_kv_heads, n_layers). A block has
// kCosineTile evicted slots, and compares them with tiles of those that stay in
// ascending order. A thread owns four rows and four columns of a tile, and 16
// adjacent threads share the rows. 18 KiB shared. Reads the keys that stay once
// per block.
KV_KERNEL(merge_search, MergeParams, kMergeThreads, 2) {
  KV_SHARED(float, row_keys, kTileFloats);
  KV_SHARED(float, column_keys, kTileFloats);
  KV_SHARED(uint32_t, slots, kCosineTile);
  const MergeHead my(p, blockIdx.z, blockIdx.y);
  const uint32_t first = blockIdx.x * kCosineTile;
  if (my.IsIdle() || first >= my.n_tokens - my.n_keep) return;
  const uint32_t n_left = my.n_tokens - my.n_keep - first;
  const uint32_t n_rows = n_left < kCosineTile ? n_left : kCosineTile;
  // MultiplyTiles() has a barrier before it reads them.
  if (threadIdx.x < n_rows) slots[threadIdx.x] = my.Gone(first + threadIdx.x);
  const uint32_t my_row = threadIdx.x / 16 * 4;
  const uint32_t my_column = threadIdx.x % 16 * 4;
  const float lowest = -ToFloat<kF32>(kInfinityBits);
  float best[4];
  uint32_t target[4];
#pragma unroll
  for (uint32_t r = 0; r < 4; ++r) {
    best[r] = lowest;
    target[r] = kNone;
  }
  for (uint32_t tile = 0; tile < my.n_keep; tile += kCosineTile) {
    const auto column = [&](uint32_t i) {
      return tile + i < my.n_keep ? my.DirectionOf(my.Kept(tile + i))
                                  : Direction{{}, 0.0f};
    };
    float cosines[4][4] = {};
    MultiplyTiles(
        p.keys,
        [&](uint32_t i) {
          return i < n_rows ? my.DirectionOf(slots[i]) : Direction{{}, 0.0f};
        },
        column, row_keys, column_keys, cosines);
#pragma unroll
    for (uint32_t c = 0; c < 4; ++c) {
      if (column(my_column + c).scale == 0.0f) continue;
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) {
        if (!(cosines[r][c] > best[r])) continue;
        best[r] = cosines[r][c];
        target[r] = tile + my_column + c;
      }
    }
  }
#pragma unroll
  for (uint32_t r = 0; r < 4; ++r) {
    for (uint32_t mask = 8; mask > 0; mask /= 2) {
      const float other = ShuffleXor(best[r], mask);
      const uint32_t other_target = ShuffleXor(target[r], mask);
      if (other < best[r] || (other == best[r] && other_target >= target[r])) {
        continue;
      }
      best[r] = other;
      target[r] = other_target;
    }
    const uint32_t row = my_row + r;
    if (my_column != 0 || row >= n_rows) continue;
    if (my.FloatAt(my.scales, slots[row]) == 0.0f) continue;
    const uint64_t at = uint64_t{slots[row]} * sizeof(float);
    StoreGlobal(my.similarities + at, best[r]);
    StoreGlobal(my.targets + at, target[r]);
  }
}

namespace {

// A key, not 0, with the order of similarities that reach the threshold, which
// is at least 0. 0 for slots that do not.
KV_DEVICE uint32_t KeyOf(const MergeHead& my, uint32_t slot) {
  const uint64_t at = uint64_t{slot} * sizeof(float);
  if (LoadGlobal<uint32_t>(my.targets + at) == kNone) return 0;
  const float similarity = LoadGlobal<float>(my.similarities + at);
  if (!(similarity >= my.p.threshold)) return 0;
  return similarity == 0.0f ? 1 : FromFloat<kF32>(similarity) + 1;
}

}  // namespace

// Grid (n_kv_heads, n_layers). A block finds the similarities at a head's
// quantile digit by digit. Reads 8 bytes per slot six times.
KV_KERNEL(merge_cutoff, MergeParams, kMergeThreads, 2) {
  KV_SHARED(uint32_t, counts, kMergeThreads);
  KV_SHARED(uint32_t, found, 4);  // digit, rank among its keys, their number
  KV_SHARED(float, warps, kMergeThreads / 32);
  const MergeHead my(p, blockIdx.y, blockIdx.x);
  if (my.IsIdle()) return;
  // Slots without a key count as -infinity, below all others.
  if (threadIdx.x == 0) found[0] = 0;
  BlockSync();
  uint32_t n_mine = 0;
  for (uint32_t i = threadIdx.x; i < my.n_tokens; i += kMergeThreads) {
    n_mine += KeyOf(my, i) != 0;
  }
  AtomicAddShared(&found[0], n_mine);
  BlockSync();
  const uint32_t n = my.n_tokens - my.n_keep;
  const uint32_t n_without = n - found[0];
  const float rank =
      Multiply(p.quantile, static_cast<float>(static_cast<int32_t>(n - 1)));
  uint32_t below = static_cast<uint32_t>(static_cast<int32_t>(rank));
  below = below < n - 1 ? below : n - 1;
  const float part = rank - static_cast<float>(static_cast<int32_t>(below));
  if (below < n_without) {
    if (threadIdx.x == 0) StoreGlobal(my.cutoff, p.threshold);
    return;
  }
  uint32_t left = below - n_without;
  uint32_t prefix = 0;
  uint32_t n_equal = 0;
  for (uint32_t shift = 32; shift > 0;) {
    shift -= 8;
    counts[threadIdx.x] = 0;
    BlockSync();
    for (uint32_t i = threadIdx.x; i < my.n_tokens; i += kMergeThreads) {
      const uint32_t key = KeyOf(my, i);
      if (key == 0 || uint64_t{key ^ prefix} >> (shift + 8) != 0) continue;
      AtomicAddShared(&counts[key >> shift & 255], 1);
    }
    BlockSync();
    if (threadIdx.x == 0) {
      uint32_t digit = 0;
      for (; left >= counts[digit]; ++digit) left -= counts[digit];
      found[0] = digit;
      found[1] = left;
      found[2] = counts[digit];
    }
    BlockSync();
    prefix |= found[0] << shift;
    left = found[1];
    n_equal = found[2];
  }
  const float low = ToFloat<kF32>(prefix - 1);
  // The next one: equal, or the least that is higher.
  float high = ToFloat<kF32>(kInfinityBits);
  for (uint32_t i = threadIdx.x; i < my.n_tokens; i += kMergeThreads) {
    const uint32_t key = KeyOf(my, i);
    if (key <= prefix) continue;
    const float similarity = ToFloat<kF32>(key - 1);
    high = similarity < high ? similarity : high;
  }
  high = OverBlock<kMergeThreads>(
      high, warps, [](float a, float b) { return b < a ? b : a; });
  if (left + 1 < n_equal) high = low;
  if (threadIdx.x != 0) return;
  StoreGlobal(my.cutoff, part == 0.0f || below + 1 == n
                             ? low
                             : Fma(part, high - low, low));
}

namespace {

// The weight that an evicted slot has in its target; 0 if it does not merge.
KV_DEVICE float WeightOf(const MergeHead& my, uint32_t slot, float cutoff,
                         float target_norm) {
  const float similarity = my.FloatAt(my.similarities, slot);
  if (my.p.rule == kMergePivot) return 0.5f;
  if (my.p.rule == kMergeWeighted) {
    const float weight = (similarity + 1.0f) * 0.5f;
    return weight < kLeastWeight ? kLeastWeight : weight;
  }
  if (!(similarity >= cutoff)) return 0.0f;
  const float mine = my.FloatAt(my.norms, slot);
  const float positive = similarity > 0.0f ? similarity : 0.0f;
  return Multiply(positive, mine) / (mine + target_norm + kPlus);
}

// Calls visit(slot, weight) for what merges into a row, by a warp, in ascending
// order.
template <class Visit>
KV_DEVICE void ForEachMerged(const MergeHead& my, uint32_t target, float cutoff,
                             float target_norm, const Visit& visit) {
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t first = 0; first < my.n_tokens; first += 32) {
    const uint32_t slot = first + lane;
    const bool is_mine =
        slot < my.n_tokens &&
        LoadGlobal<uint32_t>(my.targets + uint64_t{slot} * sizeof(uint32_t)) ==
            target;
    unsigned merged = Ballot(is_mine);
    if (merged == 0) continue;
    const float weight =
        is_mine ? WeightOf(my, slot, cutoff, target_norm) : 0.0f;
    while (merged != 0) {
      const uint32_t next = 31 - CountLeadingZeros(merged & (0 - merged));
      merged &= merged - 1;
      const float of_next = Shuffle(weight, next);
      if (of_next > 0.0f) visit(first + next, of_next);
    }
  }
}

constexpr uint32_t kPerLane = 4;  // elements of a row that a lane has at a time

// Writes a warp's row. `row_of` finds the rows of slots.
template <class Tag, class RowOf>
KV_DEVICE void MergeRow(Tag tag, const MergeHead& my, const CacheRows& rows,
                        uint32_t target, uint32_t slot, float cutoff,
                        float target_norm, const RowOf& row_of) {
  const uint32_t lane = threadIdx.x % 32;
  const CacheRow row = row_of(slot);
  for (uint32_t begin = 0; begin < rows.head_dim; begin += 32 * kPerLane) {
    const auto load = [&](const CacheRow& from, uint32_t j) {
      const uint32_t i = begin + j * 32 + lane;
      return i < rows.head_dim
                 ? LoadElement(tag, rows, from, FindElement(tag, rows, i))
                 : 0.0f;
    };
    float own[kPerLane];
    float sums[kPerLane];
#pragma unroll
    for (uint32_t j = 0; j < kPerLane; ++j) sums[j] = own[j] = load(row, j);
    float weights = 0.0f;
    ForEachMerged(my, target, cutoff, target_norm,
                  [&](uint32_t other, float weight) {
                    const CacheRow from = row_of(other);
#pragma unroll
                    for (uint32_t j = 0; j < kPerLane; ++j) {
                      sums[j] = Fma(load(from, j), weight, sums[j]);
                    }
                    weights += weight;
                  });
    if (!(weights > 0.0f)) return;
    if (my.p.rule == kMergePivot) {  // half of the row itself for each
#pragma unroll
      for (uint32_t j = 0; j < kPerLane; ++j) {
        sums[j] = Fma(own[j], weights, sums[j]);
      }
      weights *= 2.0f;
    }
#pragma unroll
    for (uint32_t j = 0; j < kPerLane; ++j) {
      const uint32_t i = begin + j * 32 + lane;
      if (i >= rows.head_dim) continue;
      const uint64_t to = row.address + ElementOffset(rows.layout, i);
      const uint32_t bits = FromFloat<Tag::kValue>(sums[j] / (1.0f + weights));
      if constexpr (Tag::kBytes == 4) {
        StoreGlobal(to, bits);
      } else {
        StoreGlobal(to, static_cast<uint16_t>(bits));
      }
    }
  }
}

}  // namespace

// Grid (most slots that stay / kMergeRows, n_kv_heads, n_layers). A warp has a
// row that stays, and checks the targets of all slots, once for 128 elements.
// It writes rows that stay and reads evicted ones, so no two warps conflict.
KV_KERNEL(merge_rows, MergeParams, kMergeThreads, 2) {
  const MergeHead my(p, blockIdx.z, blockIdx.y);
  const uint32_t target = blockIdx.x * kMergeRows + threadIdx.x / 32;
  if (my.IsIdle() || target >= my.n_keep) return;
  const uint32_t slot = my.Kept(target);
  if (my.FloatAt(my.scales, slot) == 0.0f) return;
  const float target_norm =
      my.layer.values == 0 ? 0.0f : my.FloatAt(my.norms, slot);
  const float cutoff =
      p.quantile == 0.0f ? p.threshold : LoadGlobal<float>(my.cutoff);
  if (p.rule != kMergeValues) {
    WithDType(p.keys.dtype, [&](auto tag) {
      MergeRow(tag, my, p.keys, target, slot, cutoff, target_norm,
               [&](uint32_t s) { return my.KeyRow(s); });
    });
  }
  if (my.layer.values == 0) return;
  WithDType(p.values.dtype, [&](auto tag) {
    MergeRow(tag, my, p.values, target, slot, cutoff, target_norm,
             [&](uint32_t s) { return my.ValueRow(s); });
  });
}

}  // namespace kvevict::cuda
