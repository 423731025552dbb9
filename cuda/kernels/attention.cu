// Attention of queries over caches in any layout, in splits of the slots that
// are joined afterwards.
#include "attention.h"

#include "attention.cuh"
#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "over_block.cuh"

namespace kvevict::cuda {

namespace {

constexpr uint32_t kLanesOfRow = kAttendThreads / kAttendRows;  // 16
constexpr uint32_t kKeysOfLane = kAttendSlots / kLanesOfRow;    // 4
constexpr uint32_t kKeyStride = kAttendSlots + 4;  // keys are [element, slot]
// values in shared memory at a time
constexpr uint32_t kHalf = kAttendSlots / 2;

// Loads elements [first, first + kAttendChunk) of a row with `lanes` threads,
// to to[i * stride]. Missing elements are 0.
KV_DEVICE void LoadChunk(const CacheRows& rows, const CacheRow& row,
                         uint32_t first, uint32_t lane, uint32_t lanes,
                         uint32_t stride, float* to) {
  const uint32_t left = rows.head_dim - first;
  uint32_t n = left < kAttendChunk ? left : kAttendChunk;
  if (row.address == 0) n = 0;
  const CacheRow at[1] = {row};
  VisitRows(rows, {first, n, lanes}, at, lane,
            [&](uint32_t, uint32_t i, float v) { to[i * stride] = v; });
  for (uint32_t i = n + lane; i < kAttendChunk; i += lanes) {
    to[i * stride] = 0.0f;
  }
}

// The logits, in base 2, of a thread's row and four slots from first + 4 * lane
// on. Shared memory may be reused once all threads have returned and met at a
// barrier.
KV_DEVICE void LogitsOf(const AttendParams& p, const AttendLayer& layer,
                        uint32_t head, const QueryRow& row, uint32_t first,
                        uint32_t n_tokens, float* queries, float* keys,
                        float (&x)[kKeysOfLane]) {
  constexpr uint32_t kLanesOfKey = kAttendThreads / kAttendSlots;
  const uint32_t my_row = threadIdx.x / kLanesOfRow;
  const uint32_t my_keys = threadIdx.x % kLanesOfRow * kKeysOfLane;
  const uint32_t key = threadIdx.x / kLanesOfKey;
  const uint32_t slot = first + key < n_tokens ? first + key : n_tokens - 1;
  const CacheRow key_row =
      FindRow(p.keys, layer.keys, layer.block_table, head, slot);
#pragma unroll
  for (uint32_t k = 0; k < kKeysOfLane; ++k) x[k] = 0.0f;
  for (uint32_t e = 0; e < p.keys.head_dim; e += kAttendChunk) {
    if (e > 0) BlockSync();  // all have read what is overwritten
    LoadChunk(p.keys, key_row, e, threadIdx.x % kLanesOfKey, kLanesOfKey,
              kKeyStride, keys + key);
    LoadChunk(p.queries, row.stored, e, threadIdx.x % kLanesOfRow, kLanesOfRow,
              1, queries + my_row * kAttendChunk);
    BlockSync();
#pragma unroll 8
    for (uint32_t i = 0; i < kAttendChunk; ++i) {
      const float q = queries[my_row * kAttendChunk + i];
#pragma unroll
      for (uint32_t k = 0; k < kKeysOfLane; ++k) {
        x[k] = Fma(q, keys[i * kKeyStride + my_keys + k], x[k]);
      }
    }
  }
#pragma unroll
  for (uint32_t k = 0; k < kKeysOfLane; ++k) x[k] = LogitOf(p, x[k]);
#if KV_BIAS
#pragma unroll
  for (uint32_t k = 0; k < kKeysOfLane; ++k) {
    const uint32_t at = first + my_keys + k;
    x[k] += BiasOf(p, head, at < n_tokens ? at : n_tokens - 1);
  }
#endif
}

// Combines the values of a row's threads in a fixed order.
template <class Combine>
KV_DEVICE float OverRow(float v, const Combine& combine) {
  for (uint32_t mask = kLanesOfRow / 2; mask > 0; mask /= 2) {
    v = combine(v, ShuffleXor(v, mask));
  }
  return v;
}

}  // namespace

// Grid (n_splits * n_blocks * chunks of values, n_kv_heads, n_layers). A block
// has 16 query rows of a KV head, a split of its slots and 128 elements of its
// values. In a tile of 64 slots a thread first owns a row's logits of 4 slots,
// then 4 elements of the weighted sums of two rows. 32 KiB shared. Reads K once
// per block, and V once for all blocks that share rows.
KV_KERNEL(attend_split, AttendParams, kAttendThreads, 2) {
  KV_SHARED(float, keys, kAttendChunk* kKeyStride);
  KV_SHARED(float, queries, kAttendRows* kAttendChunk);
  KV_SHARED(float, weights, kAttendSlots* kAttendRows);
  KV_SHARED(float, factors, kAttendRows);
  KV_SHARED(float, values, kHalf* kAttendValues);
  const AttendLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t split = blockIdx.x % p.n_splits;
  const uint32_t block = blockIdx.x / p.n_splits % p.n_blocks;
  const uint32_t first_value =
      blockIdx.x / p.n_splits / p.n_blocks * kAttendValues;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t my_row = threadIdx.x / kLanesOfRow;
  const uint32_t r = (p.first_block + block) * kAttendRows + my_row;
  const QueryRow row =
      FindRow(p, layer, r / p.group, head * p.group + r % p.group, n_tokens);
  // The slots that any row of the block sees, from those of the first and the
  // last row.
  const uint32_t first_r = (p.first_block + block) * kAttendRows;
  uint32_t last_query = (first_r + kAttendRows - 1) / p.group;
  if (last_query >= p.n_queries) last_query = p.n_queries - 1;
  uint32_t begin = FindRow(p, layer, first_r / p.group, 0, n_tokens).begin;
  uint32_t end = FindRow(p, layer, last_query, 0, n_tokens).end;
  begin = begin / kAttendSlots * kAttendSlots;
  const uint32_t slots = SlotsOfSplit(layer.n_tokens, p.most_splits);
  const uint32_t split_begin = split * slots;
  if (begin < split_begin) begin = split_begin;
  if (end > split_begin + slots) {
    end = split_begin + slots;
  }
  const uint32_t my_element = threadIdx.x % 32 * 4;
  const uint32_t my_rows = threadIdx.x / 32 * 2;
  float gathered[2][4] = {};
  float reference = MinusInfinity();
  float sum = 0.0f;
  for (uint32_t slot = begin; slot < end; slot += kAttendSlots) {
    float x[kKeysOfLane];
    LogitsOf(p, layer, head, row, slot, n_tokens, queries, keys, x);
    const uint32_t mine = slot + threadIdx.x % kLanesOfRow * kKeysOfLane;
    float most = MinusInfinity();
#pragma unroll
    for (uint32_t k = 0; k < kKeysOfLane; ++k) {
      if (IsSeen(row, mine + k) && x[k] > most) most = x[k];
    }
    most = OverRow(most, [](float a, float b) { return b > a ? b : a; });
    const float raised = most > reference ? most : reference;
    const bool is_nothing = raised == MinusInfinity();
    const float factor = reference == raised ? 1.0f : Exp2(reference - raised);
    const float base = is_nothing ? 0.0f : raised;
    reference = raised;
    float more = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < kKeysOfLane; ++k) {
      const bool is_seen = IsSeen(row, mine + k);
      const float weight = is_seen ? Exp2(x[k] - base) : kUnseen;
      if (is_seen) more += weight;
      weights[(mine - slot + k) * kAttendRows + my_row] = weight;
    }
    sum =
        Fma(sum, factor, OverRow(more, [](float a, float b) { return a + b; }));
    if (threadIdx.x % kLanesOfRow == 0) factors[my_row] = factor;
    for (uint32_t half = 0; half < kAttendSlots; half += kHalf) {
      // Eight threads share a row.
      const uint32_t value = half + threadIdx.x / 8;
      const uint32_t at = slot + value < n_tokens ? slot + value : n_tokens - 1;
      const CacheRow value_row =
          FindRow(p.values, layer.values, layer.block_table, head, at);
      if (half > 0) BlockSync();  // all have added the first half
      for (uint32_t e = 0; e < kAttendValues; e += kAttendChunk) {
        float* const to = values + threadIdx.x / 8 * kAttendValues + e;
        if (first_value + e < p.values.head_dim) {
          LoadChunk(p.values, value_row, first_value + e, threadIdx.x % 8, 8, 1,
                    to);
        }
      }
      BlockSync();
      if (half == 0) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
#pragma unroll
          for (uint32_t j = 0; j < 4; ++j) {
            gathered[i][j] *= factors[my_rows + i];
          }
        }
      }
      for (uint32_t t = 0; t < kHalf; ++t) {
        const float* const v = values + t * kAttendValues + my_element;
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          const float weight = weights[(half + t) * kAttendRows + my_rows + i];
          if (weight < 0.0f) continue;  // unseen, maybe NaN
#pragma unroll
          for (uint32_t j = 0; j < 4; ++j) {
            gathered[i][j] = Fma(weight, v[j], gathered[i][j]);
          }
        }
      }
    }
    // The next step writes keys and queries, and the rest only after barriers
    // of its own.
  }
  if (first_value == 0 && threadIdx.x % kLanesOfRow == 0) {
    const uint64_t state = StateOf(p, blockIdx.z, head, block, split, my_row);
    StoreGlobal(state, reference);
    StoreGlobal(state + sizeof(float), sum);
  }
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint64_t state =
        StateOf(p, blockIdx.z, head, block, split, my_rows + i);
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t e = first_value + my_element + j;
      if (e < p.values.head_dim) {
        StoreGlobal(state + uint64_t{2 + e} * sizeof(float), gathered[i][j]);
      }
    }
  }
}

// Grid (n_blocks * kAttendRows, n_kv_heads, n_layers). A block has a row, whose
// splits it joins in order, at most kAttendBlocks. Reads the states once and
// writes the results.
KV_KERNEL(attend_finish, AttendParams, kAttendFinishThreads, 4) {
  constexpr float kLog2E = 1.44269504088896340736f;
  constexpr float kLn2 = 0.693147180559945309417f;
  KV_SHARED(float, weights, kAttendBlocks);
  KV_SHARED(float, warps, 2 * kAttendFinishThreads / 32);
  const AttendLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t block = blockIdx.x / kAttendRows;
  const uint32_t row = blockIdx.x % kAttendRows;
  const uint32_t r = (p.first_block + block) * kAttendRows + row;
  const uint32_t query = r / p.group;
  if (query >= p.n_queries) return;
  const uint32_t q_head = head * p.group + r % p.group;
  const auto state = [&](uint32_t split) {
    return StateOf(p, blockIdx.z, head, block, split, row);
  };
  float sink = MinusInfinity();
  if (layer.sinks != 0) {
    sink = LoadGlobal<float>(layer.sinks + uint64_t{q_head} * sizeof(float)) *
           kLog2E;
  }
  // A thread has the split of its number, and that behind so many.
  constexpr uint32_t kOfThread = kAttendBlocks / kAttendFinishThreads;
  float references[kOfThread];
  float sums[kOfThread];
  float most = sink;
#pragma unroll
  for (uint32_t i = 0; i < kOfThread; ++i) {
    const uint32_t s = i * kAttendFinishThreads + threadIdx.x;
    const bool is_there = s < p.n_splits;
    references[i] = is_there ? LoadGlobal<float>(state(s)) : MinusInfinity();
    sums[i] = is_there ? LoadGlobal<float>(state(s) + sizeof(float)) : 0.0f;
    most = references[i] > most ? references[i] : most;
  }
  most = OverBlock<kAttendFinishThreads>(
      most, warps, [](float a, float b) { return b > a ? b : a; });
  float total = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kOfThread; ++i) {
    // NaN is never the highest, but the sum keeps it.
    const float weight =
        references[i] == MinusInfinity() ? 0.0f : Exp2(references[i] - most);
    weights[i * kAttendFinishThreads + threadIdx.x] = weight;
    total = Fma(weight, sums[i], total);
  }
  total =
      OverBlock<kAttendFinishThreads>(total, warps + kAttendFinishThreads / 32,
                                      [](float a, float b) { return a + b; });
  if (sink != MinusInfinity()) total += Exp2(sink - most);
  const float scale = total == 0.0f ? 0.0f : 1.0f / total;
  const uint64_t out =
      layer.out + query * p.out_row_stride + q_head * p.out_head_stride;
  for (uint32_t e = threadIdx.x; e < p.values.head_dim;
       e += kAttendFinishThreads) {
    float v = 0.0f;
    const uint64_t first = state(0) + uint64_t{2 + e} * sizeof(float);
    const uint64_t of_split = state(1) - state(0);
    // Eight loads at a time.
    for (uint32_t s = 0; s < p.n_splits; s += 8) {
      float parts[8] = {};
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        if (s + i < p.n_splits) {
          parts[i] = LoadGlobal<float>(first + (s + i) * of_split);
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        if (s + i < p.n_splits) v = Fma(weights[s + i], parts[i], v);
      }
    }
    v *= scale;
    const uint64_t to = out + e * p.out_element_stride;
    WithPlainDType(p.out_dtype, [&](auto tag) {
      using Tag = decltype(tag);
      if constexpr (Tag::kBytes == 4) {
        StoreGlobal(to, v);
      } else {
        constexpr uint16_t kNaN = Tag::kValue == kF16 ? 0x7e00 : 0x7fc0;
        StoreGlobal(to, v == v
                            ? static_cast<uint16_t>(FromFloat<Tag::kValue>(v))
                            : kNaN);
      }
    });
  }
  if (threadIdx.x != 0 || layer.lse == 0) return;
  StoreGlobal(layer.lse + query * p.lse_row_stride + q_head * p.lse_head_stride,
              total == 0.0f ? MinusInfinity() : kLn2 * (most + Log2(total)));
}

// Grid (n_tokens / kAttendSlots of the longest layer, n_kv_heads, n_layers). A
// block has some slots, and adds up their weights with the log-sum-exps of all
// queries, 16 rows of a query head at a time. 14 KiB shared. Reads K once for
// every 16 rows, usually from the caches, and the queries once per block.
KV_KERNEL(attend_sums, AttendParams, kAttendThreads, 2) {
  KV_SHARED(float, keys, kAttendChunk* kKeyStride);
  KV_SHARED(float, queries, kAttendRows* kAttendChunk);
  KV_SHARED(float, rows, kAttendRows* kAttendSlots);
  constexpr float kLog2E = 1.44269504088896340736f;
  const AttendLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t first = blockIdx.x * kAttendSlots;
  if (first >= layer.n_tokens) return;
  const uint32_t my_row = threadIdx.x / kLanesOfRow;
  const uint32_t my_keys = threadIdx.x % kLanesOfRow * kKeysOfLane;
  const uint32_t slot = first + threadIdx.x;
  const bool is_mine = threadIdx.x < kAttendSlots && slot < layer.n_tokens;
  const auto store = [&](uint32_t sum_head, float sum) {
    StoreGlobal(
        layer.sums + slot * p.sum_slot_stride + sum_head * p.sum_head_stride,
        sum);
  };
  const uint32_t n_sums = p.sums_are_shared != 0 ? 1 : p.group;
  if (first >= n_tokens) {  // the head is shorter than others
    for (uint32_t i = 0; is_mine && i < n_sums; ++i) {
      store(head * n_sums + i, 0.0f);
    }
    return;
  }
  float sums[kKeysOfLane] = {};
  for (uint32_t g = 0; g < p.group; ++g) {
    const uint32_t q_head = head * p.group + g;
    for (uint32_t query = 0; query < p.n_queries; query += kAttendRows) {
      const QueryRow row = FindRow(p, layer, query + my_row, q_head, n_tokens);
      float lse = MinusInfinity();
      if (row.stored.address != 0) {
        lse =
            LoadGlobal<float>(layer.lse + (query + my_row) * p.lse_row_stride +
                              q_head * p.lse_head_stride);
      }
      float x[kKeysOfLane];
      LogitsOf(p, layer, head, row, first, n_tokens, queries, keys, x);
      BlockSync();  // keys and queries have been read
#pragma unroll
      for (uint32_t k = 0; k < kKeysOfLane; ++k) {
        const bool is_seen = IsSeen(row, first + my_keys + k);
        if (is_seen && lse != MinusInfinity()) {
          sums[k] += Exp2(x[k] - lse * kLog2E);
        }
      }
    }
    if (p.sums_are_shared != 0 && g + 1 < p.group) continue;
#pragma unroll
    for (uint32_t k = 0; k < kKeysOfLane; ++k) {
      rows[my_row * kAttendSlots + my_keys + k] = sums[k];
      sums[k] = 0.0f;
    }
    BlockSync();
    // The next head's rows come after barriers of their own.
    if (is_mine) {
      float sum = 0.0f;
      for (uint32_t i = 0; i < kAttendRows; ++i) {
        sum += rows[i * kAttendSlots + threadIdx.x];
      }
      store(n_sums == p.group ? q_head : head, sum);
    }
  }
}

}  // namespace kvevict::cuda
