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
#include "near_cosines.cuh"
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

namespace {

// The evicted slots of a block, and the most similar row that stays of each so
// far, all in shared memory. Slots that take no part have the similarity
// infinity, which none exceeds.
struct MergeSearch {
  const MergeHead& my;
  uint32_t n_rows;
  const uint32_t* slots;  // [kCosineTile]
  float* best;            // [kCosineTile]
  uint32_t* targets;      // [kCosineTile]

  KV_DEVICE Direction RowOf(uint32_t i) const {
    return i < n_rows ? my.DirectionOf(slots[i]) : Direction{{}, 0.0f};
  }
  KV_DEVICE Direction ColumnOf(uint32_t i) const {
    return i < my.n_keep ? my.DirectionOf(my.Kept(i)) : Direction{{}, 0.0f};
  }
  // Whether the first similarity wins: it is higher, or its target lower.
  KV_DEVICE static bool Wins(float similarity, uint32_t target, float other,
                             uint32_t other_target) {
    return similarity > other || (similarity == other && target < other_target);
  }
  // Combines what `lanes` adjacent threads found for a row.
  KV_DEVICE void Take(uint32_t row, float similarity, uint32_t target,
                      uint32_t lanes) const {
    for (uint32_t mask = lanes / 2; mask > 0; mask /= 2) {
      const float other = ShuffleXor(similarity, mask);
      const uint32_t other_target = ShuffleXor(target, mask);
      if (!Wins(other, other_target, similarity, target)) continue;
      similarity = other;
      target = other_target;
    }
    if (threadIdx.x % lanes != 0) return;
    if (!Wins(similarity, target, best[row], targets[row])) return;
    best[row] = similarity;
    targets[row] = target;
  }

  // Compares the rows with all of a tile. A thread owns four rows and four
  // columns, and 16 adjacent threads share the rows.
  KV_DEVICE void TakeFromAll(uint32_t tile, float* tiles) const {
    const uint32_t my_row = threadIdx.x / 16 * 4;
    const uint32_t my_column = threadIdx.x % 16 * 4;
    const auto column = [&](uint32_t i) { return ColumnOf(tile + i); };
    float cosines[4][4] = {};
    MultiplyTiles(
        my.p.keys, [&](uint32_t i) { return RowOf(i); }, column, tiles,
        tiles + kTileFloats, cosines);
    bool is_there[4];
#pragma unroll
    for (uint32_t c = 0; c < 4; ++c) {
      is_there[c] = column(my_column + c).scale != 0.0f;
    }
#pragma unroll
    for (uint32_t r = 0; r < 4; ++r) {
      float mine = -ToFloat<kF32>(kInfinityBits);
      uint32_t target = kNone;
#pragma unroll
      for (uint32_t c = 0; c < 4; ++c) {
        if (!is_there[c] || !(cosines[r][c] > mine)) continue;
        mine = cosines[r][c];
        target = tile + my_column + c;
      }
      Take(my_row + r, mine, target, 16);
    }
  }

  // Compares the rows with those that they are near to. Four threads have a
  // row.
  KV_DEVICE void TakeFromNear(NearPairs& near, uint32_t n_pairs) const {
    near.Compute(
        my.p.keys, n_pairs, [&](uint32_t i) { return RowOf(i); },
        [&](uint32_t i) { return ColumnOf(i); });
    const uint32_t row = threadIdx.x / 4;
    float mine = -ToFloat<kF32>(kInfinityBits);
    uint32_t target = kNone;
    for (uint32_t i = threadIdx.x % 4; i < n_pairs; i += 4) {
      if (near.rows[i] != row) continue;
      if (!Wins(near.cosines[i], near.columns[i], mine, target)) continue;
      mine = near.cosines[i];
      target = near.columns[i];
    }
    Take(row, mine, target, 4);
  }

  // Compares the rows with all tiles. Near are the pairs whose products are not
  // clearly less than the greatest of the row among a warp's columns so far,
  // and not clearly less than the row's best. They wait until there are many.
  // If there is no room for those of a tile, the rows are compared with all of
  // its keys.
  KV_DEVICE void TakeByFilter(float* tiles) const {
    KV_SHARED(NearPairs, pairs, 1);
    NearPairs& near = *pairs;
    const float error = CosineError(my.p.keys.head_dim);
    if (threadIdx.x == 0) near.n = 0;
    float most[2];  // of a lane's two rows
    most[0] = most[1] = -ToFloat<kF32>(kInfinityBits);
    uint32_t n_waiting = 0;
    for (uint32_t tile = 0; tile < my.n_keep; tile += kCosineTile) {
      NearCosines products;
      near.MultiplyHalves(
          my.p.keys, [&](uint32_t i) { return RowOf(i); },
          [&](uint32_t i) { return ColumnOf(tile + i); }, tile > 0,
          reinterpret_cast<uint8_t*>(tiles), &products);
      float limits[2];
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
#pragma unroll
        for (uint32_t m = 0; m < 4; ++m) {
#pragma unroll
          for (uint32_t i = 2 * r; i < 2 * r + 2; ++i) {
            const bool is_there =
                near.column_scales[NearCosines::ColumnOf(m, i)] != 0.0f;
            const float x = products.x[m][i];
            most[r] = is_there && x > most[r] ? x : most[r];
          }
        }
        for (uint32_t mask = 2; mask > 0; mask /= 2) {
          const float other = ShuffleXor(most[r], mask);
          most[r] = other > most[r] ? other : most[r];
        }
        const float of_best = best[NearCosines::RowOf(2 * r)] - error;
        const float of_most = most[r] - 2.0f * error;
        limits[r] = of_best > of_most ? of_best : of_most;
      }
      near.Add(products, tile,
               [&](uint32_t row, uint32_t column, float cosine) {
                 const bool is_last = row == NearCosines::RowOf(2);
                 return near.column_scales[column] != 0.0f &&
                        cosine >= limits[is_last ? 1 : 0];
               });
      BlockSync();
      const uint32_t n = near.n;
      if (n < kMostPairs / 2 && tile + kCosineTile < my.n_keep) {
        n_waiting = n;
        continue;
      }
      const bool fits = n <= kMostPairs;
      TakeFromNear(near, fits ? n : n_waiting);
      n_waiting = 0;
      if (!fits) TakeFromAll(tile, tiles);
    }
  }
};

}  // namespace

// Grid (tiles of the most evicted slots from p.first_tile on, n_kv_heads,
// n_layers). A block has kCosineTile evicted slots, and compares them with
// tiles of those that stay in ascending order. From sm_80 on it computes only
// the cosines that may be a row's greatest, unless there are many. 39 KiB
// shared. Reads the keys that stay once per block.
KV_KERNEL(merge_search, MergeParams, kMergeThreads, 2) {
  KV_SHARED(float, tiles, 2 * kTileFloats);
  KV_SHARED(uint32_t, slots, kCosineTile);
  KV_SHARED(float, best, kCosineTile);
  KV_SHARED(uint32_t, targets, kCosineTile);
  const MergeHead my(p, blockIdx.z, blockIdx.y);
  const uint32_t first = (p.first_tile + blockIdx.x) * kCosineTile;
  if (my.IsIdle() || first >= my.n_tokens - my.n_keep) return;
  const uint32_t n_left = my.n_tokens - my.n_keep - first;
  const MergeSearch search{my, n_left < kCosineTile ? n_left : kCosineTile,
                           slots, best, targets};
  if (threadIdx.x < kCosineTile) {
    float similarity = ToFloat<kF32>(kInfinityBits);
    if (threadIdx.x < search.n_rows) {
      slots[threadIdx.x] = my.Gone(first + threadIdx.x);
      if (my.FloatAt(my.scales, slots[threadIdx.x]) != 0.0f) {
        similarity = -similarity;
      }
    }
    best[threadIdx.x] = similarity;
    targets[threadIdx.x] = kNone;
  }
  // Products begin with a barrier.
  if constexpr (kFiltersCosines) {
    search.TakeByFilter(tiles);
  } else {
    for (uint32_t tile = 0; tile < my.n_keep; tile += kCosineTile) {
      search.TakeFromAll(tile, tiles);
    }
  }
  BlockSync();
  if (threadIdx.x >= search.n_rows) return;
  if (my.FloatAt(my.scales, slots[threadIdx.x]) == 0.0f) return;
  const uint64_t at = uint64_t{slots[threadIdx.x]} * sizeof(float);
  StoreGlobal(my.similarities + at, best[threadIdx.x]);
  StoreGlobal(my.targets + at, targets[threadIdx.x]);
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
