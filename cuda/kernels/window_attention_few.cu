// Attention of a few query rows over the keys of every layer and KV head. Keys
// are read once: the first kernel stores the rows' logits, from which the
// second computes scores.
//
// Both kernels: grid (n_splits, n_kv_heads, n_layers), as window_attention.cu,
// whose constants and arguments these are. It has the other forms: KV_USE_MMA,
// KV_PART, KV_CHUNKS, KV_LISTED, KV_SPREAD, KV_MEASURE, KV_LOGIT_HEADS, and
// KV_OUT 3. Key rows are packed, and begin at multiples of 16 bytes.
#include "device.cuh"
#include "few_products.cuh"
#include "tanh.cuh"
#include "window_attention_few.h"
#include "window_attention_lse.cuh"
#include "window_attention_rows.cuh"

namespace kvevict::cuda {
namespace {

constexpr uint32_t kRows = kGroup * kWindow;
static_assert(TakesFewRows(KV_Q_DTYPE, KV_K_DTYPE, kHeadDim, kRows));
static_assert(KV_USE_MMA == 0 && KV_PART == 0 && KV_CHUNKS == 0 &&
              KV_LISTED == 0 && KV_MEASURE == 0 && KV_SPREAD == 0 &&
              kLogitHeads == 1 && KV_OUT <= 2);

constexpr DTypeTag<KV_K_DTYPE> kKeys;
constexpr uint32_t kPer16 = DTypeTag<KV_K_DTYPE>::kPer16;
constexpr uint32_t kLoads = kHeadDim / kPer16;  // of a key
// A team of lanes multiplies some keys by all rows at once.
constexpr uint32_t kLanes = kLoads > 8 ? 16 : 8;
constexpr uint32_t kLoadsPerLane = CeilDiv(kLoads, kLanes);
constexpr uint32_t kTeams = kFewRowThreads / kLanes;
constexpr uint32_t kAtOnce = kRows > 8 ? 2 : kRows > 2 ? 4 : 8;
constexpr uint32_t kTeamKeys = kTeams * kAtOnce;

// Sums of a lane: those of key s and row r are s * kRows + r. Those of all
// lanes of a team are added, and then divided among them.
constexpr uint32_t PowerOfTwoFrom(uint32_t n) {
  uint32_t power = 1;
  while (power < n) power *= 2;
  return power;
}
constexpr uint32_t kUsedSums = kAtOnce * kRows;
constexpr uint32_t kSums = PowerOfTwoFrom(kUsedSums);
constexpr uint32_t kOwnSums = kSums > kLanes ? kSums / kLanes : 1;
constexpr uint32_t kLanesOfSum = kSums < kLanes ? kLanes / kSums : 1;

// The number of a row in FindQueryRow(), which begins each head at a tile.
static_assert(kShape.n_blocks == 1 && kShape.tiles_per_head == 1);
KV_DEVICE uint32_t RowInTiles(uint32_t row) {
  return row / kWindow * kTileRows + row % kWindow;
}

// The address of a row's logit, of f32 [n_layers, n_kv_heads, rows, keys].
KV_DEVICE uint64_t LogitAddress(const Work& work, uint32_t row, uint32_t key) {
  const uint64_t head = uint64_t{blockIdx.z} * work.p.n_kv_heads + work.kv_head;
  return work.p.logits + 4 * ((head * kRows + row) * work.p.logit_stride + key);
}

KV_DEVICE uint32_t EndOfSplit(const Work& work) {
  const uint32_t end = work.first_key + work.p.keys_per_split;
  return end < work.n_tokens() ? end : work.n_tokens();
}

// ---- Logits ----

// Loads the queries as f32.
KV_DEVICE void LoadQueries(const Work& work, float* queries) {
  for (uint32_t i = threadIdx.x; i < kRows * kHeadDim; i += kFewRowThreads) {
    const uint32_t row = i / kHeadDim;
    const uint32_t e = i % kHeadDim;
    const ElementPlace place = {e * work.p.query_element_stride, 0, 0, e};
    const uint64_t address = QueryAddress(work, 0, RowInTiles(row));
    const uint32_t to = FewPlace<kPer16>(row, e, kLoads);
    queries[to] =
        ToFloat<KV_Q_DTYPE>(LoadCode(DTypeTag<KV_Q_DTYPE>(), address, place));
  }
}

// The keys of a team that are on their way.
struct Ahead {
  uint64_t rows[kAtOnce];
  Bytes16 words[kAtOnce];

  // Keys past the end are the last one.
  KV_DEVICE void Find(const Work& work, uint32_t first, uint32_t end) {
#pragma unroll
    for (uint32_t s = 0; s < kAtOnce; ++s) {
      rows[s] = KeyRow(work, first + s < end ? first + s : end - 1);
    }
  }
  KV_DEVICE void Load(uint32_t load) {
#pragma unroll
    for (uint32_t s = 0; s < kAtOnce; ++s) {
      words[s] =
          load < kLoads ? LoadGlobal<Bytes16>(rows[s] + load * 16) : Bytes16{};
    }
  }
};

// Adds the products of a load of each key.
KV_DEVICE void MultiplyLoad(const Bytes16 (&words)[kAtOnce], uint32_t load,
                            const float* queries, float (&sums)[kSums]) {
  if (kLoads % kLanes != 0 && load >= kLoads) return;
  float v[kAtOnce][kPer16];
#pragma unroll
  for (uint32_t s = 0; s < kAtOnce; ++s) {
    Unpack(kKeys, CacheRow{}, words[s], v[s]);
  }
  AddFewProducts<kRows>(v, load, kLoads, queries, sums);
}

// The first kOwnSums of x become a lane's own, summed over the team.
KV_DEVICE void SumAcross(float (&x)[kSums], uint32_t lane) {
  uint32_t n = kSums;
#pragma unroll
  for (uint32_t mask = kLanes / 2; mask > 0; mask /= 2) {
    if (n == 1) {
      x[0] += ShuffleXor(x[0], mask);
      continue;
    }
    n /= 2;
    const bool is_upper = (lane & mask) != 0;
#pragma unroll
    for (uint32_t i = 0; i < kSums / 2; ++i) {
      if (i >= n) break;
      const float theirs = is_upper ? x[i] : x[i + n];
      const float mine = is_upper ? x[i + n] : x[i];
      x[i] = mine + ShuffleXor(theirs, mask);
    }
  }
}

// A lane's own sums are of the same rows for all keys.
struct OwnSum {
  uint32_t key;  // of those at once
  uint32_t row;
  bool is_used;  // by this lane

  KV_DEVICE OwnSum(uint32_t lane, uint32_t i) {
    const uint32_t sum = lane / kLanesOfSum * kOwnSums + i;
    key = sum / kRows;
    row = sum % kRows;
    is_used = sum < kUsedSums && lane % kLanesOfSum == 0;
  }
};

KV_DEVICE void AddLogit(float product, float scale, RowSum& row) {
  float weight = Exp2(Fma(product, scale, -row.reference));
  if (weight > kHighSum) {
    const float logit = product * scale;
    row.sum *= Exp2(row.reference - logit);
    row.reference = logit;
    weight = Exp2(Fma(product, scale, -logit));
  }
  row.sum += weight;
}

// Joins the sums of all teams, a row by a warp, and stores them. Each row has
// one sum for each key that all teams take at once.
KV_DEVICE void StoreSums(const Work& work, const RowSum* sums) {
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t row = threadIdx.x / 32; row < kRows;
       row += kFewRowThreads / 32) {
    RowSum all = sums[row * kTeamKeys + lane];
    for (uint32_t i = 32 + lane; i < kTeamKeys; i += 32) {
      all = Join(all, sums[row * kTeamKeys + i]);
    }
    for (uint32_t mask = 1; mask < 32; mask *= 2) {
      all = Join(all,
                 {ShuffleXor(all.reference, mask), ShuffleXor(all.sum, mask)});
    }
    if (lane != 0) continue;
    StoreGlobal(PartialAddress(work, blockIdx.x,
                               FindQueryRow(work, 0, RowInTiles(row))),
                LogSum(all));
  }
}

// ---- Scores ----

// Keys whose logits a thread loads at once.
constexpr uint32_t kKeysAtOnce = kRows > 8 ? 1 : kRows > 4 ? 2 : 4;

// Stores the scores of a key from the weights of its rows.
KV_DEVICE void StoreKey(const Work& work, uint32_t key,
                        const float (&weights)[kRows]) {
  float score = 0.0f;
#pragma unroll
  for (uint32_t head = 0; head < kGroup; ++head) {
    float of_head = weights[head * kWindow];
#pragma unroll
    for (uint32_t w = 1; w < kWindow; ++w) {
      of_head = Combine(of_head, weights[head * kWindow + w]);
    }
    if constexpr (KV_OUT != 2) {
      score = head == 0     ? of_head
              : KV_OUT == 1 ? Larger(score, of_head)
                            : Combine(score, of_head);
      if (head + 1 < kGroup) continue;
      of_head = score;
    }
    const uint64_t row =
        KV_OUT == 2 ? uint64_t{work.kv_head} * kGroup + head : work.kv_head;
    StoreGlobal(work.layer.scores + 4 * (row * work.layer.n_tokens + key),
                of_head * work.p.weight_scale);
  }
}

}  // namespace

// Stores the logits of the block's split, before LogitScale(), and for
// layers without row_lse the split's partial_lse. A team of 8 or 16 threads
// shares a key; the next ones are on their way while some are multiplied. Up to
// 24 KiB shared. Reads the keys once and writes 4 bytes for each key and row.
KV_KERNEL(few_logits, ScoreParams, kFewRowThreads, 2) {
  KV_SHARED(float, queries, kRows* kHeadDim);
  KV_SHARED(RowSum, row_sums, kRows * kTeamKeys);
  const Work work = WorkOfBlock(p);
  if (work.n_tiles() == 0) return;
  const uint32_t end = EndOfSplit(work);
  const uint32_t lane = threadIdx.x % kLanes;
  const uint32_t first = threadIdx.x / kLanes * kAtOnce;  // of a step's keys
  Ahead ahead;
  ahead.Find(work, work.first_key + first, end);
  ahead.Load(lane);
  LoadQueries(work, queries);
  RowSum rows[kOwnSums];
  uint32_t n_visible[kOwnSums];
#pragma unroll
  for (uint32_t i = 0; i < kOwnSums; ++i) {
    rows[i] = NoKeys();
    const OwnSum own(lane, i);
    n_visible[i] = own.is_used ? VisibleKeys(work, 0, RowInTiles(own.row)) : 0;
    if (n_visible[i] > end) n_visible[i] = end;
  }
  BlockSync();

#pragma unroll 1
  for (uint32_t step = work.first_key; step < end; step += kTeamKeys) {
    float sums[kSums] = {};
#pragma unroll
    for (uint32_t i = 0; i < kLoadsPerLane; ++i) {
      Bytes16 words[kAtOnce];
#pragma unroll
      for (uint32_t s = 0; s < kAtOnce; ++s) words[s] = ahead.words[s];
      if (i + 1 < kLoadsPerLane) {
        ahead.Load(lane + (i + 1) * kLanes);
      } else if (step + kTeamKeys < end) {
        ahead.Find(work, step + kTeamKeys + first, end);
        ahead.Load(lane);
      }
      MultiplyLoad(words, lane + i * kLanes, queries, sums);
    }
    SumAcross(sums, lane);
#pragma unroll
    for (uint32_t i = 0; i < kOwnSums; ++i) {
      const OwnSum own(lane, i);
      const uint32_t key = step + first + own.key;
      if (!own.is_used || key >= end) continue;
      float product = sums[i];
      if constexpr (KV_SOFTCAP != 0) {
        product = Tanh(product * work.p.scale_by_cap);
      }
      if constexpr (KV_BIAS != 0) {
        product = Fma(product, work.p.scale_log2e, BiasOf(work, key));
      }
      StoreGlobal(LogitAddress(work, own.row, key), product);
      if (key < n_visible[i]) AddLogit(product, LogitScale(work), rows[i]);
    }
  }
  if (KnowsLse(work)) return;
#pragma unroll
  for (uint32_t i = 0; i < kOwnSums; ++i) {
    const OwnSum own(lane, i);
    if (own.is_used) row_sums[own.row * kTeamKeys + first + own.key] = rows[i];
  }
  BlockSync();
  StoreSums(work, row_sums);
}

// Computes the scores of the block's split from the logits, a key by a thread.
// Reads these and the row log-sum-exps of all splits.
KV_KERNEL(few_scores, ScoreParams, kFewRowThreads, 4) {
  KV_SHARED(float, references, kRows);
  KV_SHARED(uint32_t, n_visible, kRows);
  const Work work = WorkOfBlock(p);
  if (work.n_tiles() == 0) return;
  if (threadIdx.x < kRows) {
    references[threadIdx.x] = RowReference(work, 0, RowInTiles(threadIdx.x));
    n_visible[threadIdx.x] = VisibleKeys(work, 0, RowInTiles(threadIdx.x));
  }
  BlockSync();
  const uint32_t end = EndOfSplit(work);
  for (uint32_t key = work.first_key + threadIdx.x; key < end;
       key += kKeysAtOnce * kFewRowThreads) {
    float weights[kKeysAtOnce][kRows];
#pragma unroll
    for (uint32_t n = 0; n < kKeysAtOnce; ++n) {
      const uint32_t at = key + n * kFewRowThreads;
#pragma unroll
      for (uint32_t row = 0; row < kRows; ++row) {
        weights[n][row] =
            at < end ? LoadGlobal<float>(LogitAddress(work, row, at)) : 0.0f;
      }
    }
#pragma unroll
    for (uint32_t n = 0; n < kKeysAtOnce; ++n) {
      const uint32_t at = key + n * kFewRowThreads;
      if (at >= end) break;
#pragma unroll
      for (uint32_t row = 0; row < kRows; ++row) {
        const float weight =
            Exp2(Fma(weights[n][row], LogitScale(work), -references[row]));
        weights[n][row] = at < n_visible[row] ? weight : 0.0f;
      }
      StoreKey(work, at, weights[n]);
    }
  }
}

}  // namespace kvevict::cuda
