// Attention of a few query rows, as in decoding, in splits that attend_finish
// joins. Keys and values go from memory to registers, where they are used for
// all rows.
#include "attention.cuh"
#include "attention.h"
#include "counts.cuh"
#include "device.cuh"
#include "few_products.cuh"

namespace kvevict::cuda {

namespace {

constexpr uint32_t kFewLanes = 16;  // threads of a key
constexpr uint32_t kFewWarps = kAttendThreads / 32;
// Keys or values that a team of threads loads at once.
constexpr uint32_t FewAtOnce(uint32_t n_rows) { return kFewLanes / n_rows; }

// The rows of a block, in shared memory.
struct FewRows {
  uint32_t begin[kFewRows];  // first slot that is seen
  uint32_t end[kFewRows];
  // The softmax so far, and the factor by which the last slots scaled it down.
  float reference[kFewRows];
  float sum[kFewRows];
  float factor[kFewRows];
  float warps[kFewWarps * kFewRows];

  KV_DEVICE bool Sees(uint32_t r, uint32_t slot) const {
    return slot >= begin[r] && slot < end[r];
  }
};

// The work of a block: slots of a head that any row sees.
struct FewPart {
  const AttendParams& p;
  const AttendLayer& layer;
  uint32_t head;
  uint32_t n_rows;
  uint32_t begin;
  uint32_t end;

  KV_DEVICE CacheRow Key(uint32_t slot) const {
    return FindRow(p.keys, layer.keys, layer.block_table, head, slot);
  }
  KV_DEVICE CacheRow Value(uint32_t slot) const {
    return FindRow(p.values, layer.values, layer.block_table, head, slot);
  }
};

// Whether all rows see slots [first, last).
KV_DEVICE bool AllSee(const FewPart& part, const FewRows& rows, uint32_t first,
                      uint32_t last) {
  for (uint32_t r = 0; r < part.n_rows; ++r) {
    if (first < rows.begin[r] || last > rows.end[r]) return false;
  }
  return true;
}

// Loads a row's query as f32, zeros if it is missing.
template <class Tag>
KV_DEVICE void LoadQuery(Tag, const AttendParams& p, const CacheRow& row,
                         uint32_t r, float* queries) {
  const uint32_t dim = p.keys.head_dim;
  const uint32_t n_loads = dim / Tag::kPer16;
  for (uint32_t e = threadIdx.x; e < dim; e += kAttendThreads) {
    float v = 0.0f;
    if (row.address != 0) {
      WithPlainDType(p.queries.dtype, [&](auto query) {
        v = LoadElement(query, p.queries, row,
                        FindElement(query, p.queries, e));
      });
    }
    queries[FewPlace<Tag::kPer16>(r, e, n_loads)] = v;
  }
}

// Lane l returns the sum of x[l] over all 16 lanes.
KV_DEVICE float SumAcross(float (&x)[kFewLanes], uint32_t lane) {
#pragma unroll
  for (uint32_t n = kFewLanes / 2; n > 0; n /= 2) {
    const bool is_upper = (lane & n) != 0;
#pragma unroll
    for (uint32_t i = 0; i < n; ++i) {
      const float theirs = is_upper ? x[i] : x[i + n];
      const float mine = is_upper ? x[i + n] : x[i];
      x[i] = mine + ShuffleXor(theirs, n);
    }
  }
  return x[0];
}

// The logits of slots [first, last), to [slot, row].
template <uint32_t kRows, class Tag>
KV_DEVICE void FindLogits(Tag tag, const FewPart& part, uint32_t first,
                          uint32_t last, const float* queries, float* logits) {
  constexpr uint32_t kTeams = kAttendThreads / kFewLanes;
  constexpr uint32_t kAtOnce = FewAtOnce(kRows);
  const CacheRows& rows = part.p.keys;
  const uint32_t lane = threadIdx.x % kFewLanes;
  const uint32_t n_loads = rows.head_dim / Tag::kPer16;
  for (uint32_t batch = first; batch < last; batch += kTeams * kAtOnce) {
    const uint32_t mine = batch + threadIdx.x / kFewLanes * kAtOnce;
    CacheRow keys[kAtOnce];
#pragma unroll
    for (uint32_t s = 0; s < kAtOnce; ++s) {
      keys[s] = part.Key(mine + s < last ? mine + s : last - 1);
    }
    float sums[kFewLanes] = {};
    for (uint32_t load = lane; load < n_loads; load += kFewLanes) {
      Bytes16 words[kAtOnce];
#pragma unroll
      for (uint32_t s = 0; s < kAtOnce; ++s) {
        words[s] =
            LoadGlobal<Bytes16>(keys[s].address + uint64_t{load} * rows.wide);
      }
      float v[kAtOnce][Tag::kPer16];
#pragma unroll
      for (uint32_t s = 0; s < kAtOnce; ++s) {
        Unpack(tag, keys[s], words[s], v[s]);
      }
      AddFewProducts<kRows>(v, load, n_loads, queries, sums);
    }
    const float product = SumAcross(sums, lane);
    const uint32_t slot = mine + lane / kRows;
    if (slot < last) {
      float logit = LogitOf(part.p, product);
#if KV_BIAS
      logit += BiasOf(part.p, part.head, slot);
#endif
      logits[(slot - first) * kRows + lane % kRows] = logit;
    }
  }
}

// Combines the values of all warps in a fixed order.
template <uint32_t kRows, class Combine>
KV_DEVICE void OverWarps(float (&v)[kRows], float* warps,
                         const Combine& combine) {
#pragma unroll
  for (uint32_t r = 0; r < kRows; ++r) {
#pragma unroll
    for (uint32_t mask = 16; mask > 0; mask /= 2) {
      v[r] = combine(v[r], ShuffleXor(v[r], mask));
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32 * kRows + r] = v[r];
  }
}

// Turns logits of slots [first, last) into weights, kUnseen for slots that a
// row does not see. Begins and ends with a barrier.
template <uint32_t kRows>
KV_DEVICE void FindWeights(uint32_t first, uint32_t last, float* weights,
                           FewRows& rows) {
  BlockSync();
  float most[kRows];
#pragma unroll
  for (uint32_t r = 0; r < kRows; ++r) most[r] = MinusInfinity();
  for (uint32_t slot = first + threadIdx.x; slot < last;
       slot += kAttendThreads) {
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      const float x = weights[(slot - first) * kRows + r];
      if (rows.Sees(r, slot) && x > most[r]) most[r] = x;
    }
  }
  OverWarps(most, rows.warps, [](float a, float b) { return b > a ? b : a; });
  BlockSync();
  if (threadIdx.x < kRows) {
    const uint32_t r = threadIdx.x;
    const float before = rows.reference[r];
    float raised = before;
    for (uint32_t w = 0; w < kFewWarps; ++w) {
      const float of_warp = rows.warps[w * kRows + r];
      raised = of_warp > raised ? of_warp : raised;
    }
    rows.factor[r] = before == raised ? 1.0f : Exp2(before - raised);
    rows.reference[r] = raised;
  }
  BlockSync();
  float more[kRows] = {};
  for (uint32_t slot = first + threadIdx.x; slot < last;
       slot += kAttendThreads) {
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      const float reference = rows.reference[r];
      const float base = reference == MinusInfinity() ? 0.0f : reference;
      float& weight = weights[(slot - first) * kRows + r];
      const bool is_seen = rows.Sees(r, slot);
      weight = is_seen ? Exp2(weight - base) : kUnseen;
      if (is_seen) more[r] += weight;
    }
  }
  OverWarps(more, rows.warps, [](float a, float b) { return a + b; });
  BlockSync();
  if (threadIdx.x < kRows) {
    const uint32_t r = threadIdx.x;
    float sum = 0.0f;
    for (uint32_t w = 0; w < kFewWarps; ++w) sum += rows.warps[w * kRows + r];
    rows.sum[r] = Fma(rows.sum[r], rows.factor[r], sum);
  }
}

// Adds the values of a thread's load for slots [first, last), weighted.
template <bool kAllSee, uint32_t kRows, class Tag>
KV_DEVICE void Gather(Tag tag, const FewPart& part, uint32_t first,
                      uint32_t last, const float* weights,
                      float (&out)[kRows][Tag::kPer16]) {
  constexpr uint32_t kAtOnce = FewAtOnce(kRows);
  const CacheRows& rows = part.p.values;
  const uint32_t lane = threadIdx.x % rows.lanes;
  const uint32_t n_teams = kAttendThreads / rows.lanes;
  if (lane >= rows.head_dim / Tag::kPer16) return;
  for (uint32_t mine = first + threadIdx.x / rows.lanes; mine < last;
       mine += kAtOnce * n_teams) {
    CacheRow values[kAtOnce] = {};
    Bytes16 words[kAtOnce];
#pragma unroll
    for (uint32_t s = 0; s < kAtOnce; ++s) {
      const uint32_t slot = mine + s * n_teams;
      if (slot >= last) continue;
      values[s] = part.Value(slot);
      words[s] =
          LoadGlobal<Bytes16>(values[s].address + uint64_t{lane} * rows.wide);
    }
#pragma unroll
    for (uint32_t s = 0; s < kAtOnce; ++s) {
      const uint32_t slot = mine + s * n_teams;
      if (slot >= last) continue;
      float v[Tag::kPer16];
      Unpack(tag, values[s], words[s], v);
#pragma unroll
      for (uint32_t r = 0; r < kRows; ++r) {
        const float weight = weights[(slot - first) * kRows + r];
        if (!kAllSee && weight < 0.0f) continue;  // unseen, maybe NaN
#pragma unroll
        for (uint32_t j = 0; j < Tag::kPer16; ++j) {
          out[r][j] = Fma(weight, v[j], out[r][j]);
        }
      }
    }
  }
}

// Rows whose sums by all warps fit in shared memory where the weights were.
constexpr uint32_t kRowsOfParts =
    kFewRows * kFewSlots / (kFewWarps * kFewElements);

// Adds the sums of all threads to the states of the slots before, some rows at
// a time. parts: [kFewWarps, kRowsOfParts, head_dim], free for all before.
template <uint32_t kRows, class Tag>
KV_DEVICE void AddGathered(Tag, const FewPart& part, const FewRows& rows,
                           bool is_first, float* parts,
                           float (&out)[kRows][Tag::kPer16]) {
  const CacheRows& values = part.p.values;
  const uint32_t dim = values.head_dim;
  const uint32_t lane = threadIdx.x % values.lanes;
  const bool stores =
      threadIdx.x % 32 < values.lanes && lane < dim / Tag::kPer16;
  static_assert(kRows % kRowsOfParts == 0);
#pragma unroll
  for (uint32_t first = 0; first < kRows; first += kRowsOfParts) {
    if (first > 0) BlockSync();  // all have read the sums of the rows before
#pragma unroll
    for (uint32_t i = 0; i < kRowsOfParts; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < Tag::kPer16; ++j) {
        float& sum = out[first + i][j];
        for (uint32_t mask = values.lanes; mask < 32; mask *= 2) {
          sum += ShuffleXor(sum, mask);
        }
        if (!stores) continue;
        parts[(threadIdx.x / 32 * kRowsOfParts + i) * dim + lane * Tag::kPer16 +
              j] = sum;
      }
    }
    BlockSync();
    for (uint32_t i = 0; i < kRowsOfParts && first + i < part.n_rows; ++i) {
      const uint64_t state =
          StateOf(part.p, blockIdx.z, part.head, 0, blockIdx.x, first + i) +
          2 * sizeof(float);
      for (uint32_t e = threadIdx.x; e < dim; e += kAttendThreads) {
        const uint64_t place = state + uint64_t{e} * sizeof(float);
        float sum =
            is_first ? 0.0f : LoadGlobal<float>(place) * rows.factor[first + i];
        for (uint32_t w = 0; w < kFewWarps; ++w) {
          sum += parts[(w * kRowsOfParts + i) * dim + e];
        }
        StoreGlobal(place, sum);
      }
    }
  }
}

// queries has room for [kRows, head_dim], weights for [kFewSlots, kRows] and
// for the threads' sums.
template <uint32_t kRows, class Tag>
KV_DEVICE void AttendFew(Tag tag, const FewPart& part, float* queries,
                         float* weights, FewRows& rows) {
  for (uint32_t first = part.begin; first < part.end; first += kFewSlots) {
    const uint32_t last =
        part.end - first < kFewSlots ? part.end : first + kFewSlots;
    FindLogits<kRows>(tag, part, first, last, queries, weights);
    FindWeights<kRows>(first, last, weights, rows);
    float out[kRows][Tag::kPer16] = {};
    if (AllSee(part, rows, first, last)) {
      Gather<true, kRows>(tag, part, first, last, weights, out);
    } else {
      Gather<false, kRows>(tag, part, first, last, weights, out);
    }
    BlockSync();  // all have used the weights
    AddGathered<kRows>(tag, part, rows, first == part.begin, weights, out);
    BlockSync();  // all have read the sums
  }
}

}  // namespace

// Grid (n_splits, n_kv_heads, n_layers), for launches that TakeFew(). A block
// has a split of the slots, kFewSlots at a time. 16 threads share a key, and as
// many as a value has loads share a value. 41 KiB shared. Reads K and V once.
KV_KERNEL(attend_few, AttendParams, kAttendThreads, 2) {
  KV_SHARED(float, queries, kFewRows* kFewElements);
  KV_SHARED(float, weights, kFewRows* kFewSlots);
  KV_SHARED(FewRows, rows, 1);
  const AttendLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t n_rows = p.n_queries * p.group;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t slots = SlotsOfSplit(layer.n_tokens, p.most_splits);
  const uint32_t split_begin = blockIdx.x * slots;
  FewPart part = {p, layer, head, n_rows, n_tokens, 0};
  for (uint32_t r = 0; r < kFewRows; ++r) {
    const QueryRow row =
        FindRow(p, layer, r / p.group, head * p.group + r % p.group, n_tokens);
    WithDType(p.keys.dtype,
              [&](auto tag) { LoadQuery(tag, p, row.stored, r, queries); });
    if (threadIdx.x == 0) {
      rows->begin[r] = row.begin;
      rows->end[r] = row.end;
      rows->reference[r] = MinusInfinity();
      rows->sum[r] = 0.0f;
    }
    if (r >= n_rows) continue;
    if (row.begin < part.begin) part.begin = row.begin;
    if (row.end > part.end) part.end = row.end;
  }
  if (part.begin < split_begin) part.begin = split_begin;
  if (part.end > split_begin + slots) {
    part.end = split_begin + slots;
  }
  BlockSync();
  WithDType(p.keys.dtype, [&](auto tag) {
    using Tag = decltype(tag);
    if constexpr (HasFewLoads(Tag::kValue, kFewRows)) {
      if (n_rows > kFewRows / 2) {
        AttendFew<kFewRows>(tag, part, queries, weights, *rows);
        return;
      }
    }
    if constexpr (HasFewLoads(Tag::kValue, kFewRows / 2)) {
      AttendFew<kFewRows / 2>(tag, part, queries, weights, *rows);
    }
  });
  if (part.begin >= part.end) {
    for (uint32_t r = 0; r < n_rows; ++r) {
      const uint64_t state = StateOf(p, blockIdx.z, head, 0, blockIdx.x, r);
      for (uint32_t e = threadIdx.x; e < p.values.head_dim;
           e += kAttendThreads) {
        StoreGlobal(state + uint64_t{2 + e} * sizeof(float), 0.0f);
      }
    }
  }
  if (threadIdx.x >= n_rows) return;
  const uint64_t state =
      StateOf(p, blockIdx.z, head, 0, blockIdx.x, threadIdx.x);
  StoreGlobal(state, rows->reference[threadIdx.x]);
  StoreGlobal(state + sizeof(float), rows->sum[threadIdx.x]);
}

}  // namespace kvevict::cuda
