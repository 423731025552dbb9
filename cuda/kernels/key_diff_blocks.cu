// Compares keys with the mean direction of those in a set, block by block, with
// the rule and the sums of core/kernels/key_diff.cc.
//
// A thread block processes the tokens of one head by itself. A token that
// leaves subtracts exactly what it added to the sum of directions, in units of
// 2^-30 rounded towards 0: integers can be added in any order.
#include "key_diff_blocks.h"
#include "topk.h"

#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "key_direction.cuh"
#include "row_products.cuh"
#include "topk.cuh"

namespace kvevict::cuda {

namespace {

constexpr float kUnits = 1073741824.0f;

// A head's tokens, and its part of the scratch.
struct Head {
  const KeyDiffBlocksParams& p;
  const KeyDiffBlocksLayer& layer;
  uint32_t head;
  uint64_t out;  // scores; norms for tokens of the set
  uint64_t sums;
  uint64_t direction;
  uint64_t tokens;
  uint64_t scores;
  uint64_t places;

  KV_DEVICE Head(const KeyDiffBlocksParams& params, uint32_t layer_index,
                 uint32_t head_index)
      : p(params), layer(params.layers[layer_index]), head(head_index) {
    const KeyDiffBlocksScratch s =
        LayOutKeyDiffBlocks(p.keys.head_dim, p.n_most);
    const uint64_t base =
        p.scratch +
        (uint64_t{layer_index} * p.n_kv_heads + head_index) * s.n_bytes;
    out = layer.scores + uint64_t{head} * layer.n_tokens * sizeof(float);
    sums = base + s.sums;
    direction = base + s.direction;
    tokens = base + s.tokens;
    scores = base + s.scores;
    places = base + s.places;
  }

  KV_DEVICE CacheRow RowOf(uint32_t token) const {
    return FindRow(p.keys, layer.keys, layer.block_table, head, token);
  }
  KV_DEVICE float NormOf(uint32_t token) const {
    return LoadGlobal<float>(out + uint64_t{token} * 4);
  }
  KV_DEVICE uint32_t At(uint64_t list, uint32_t i) const {
    return LoadGlobal<uint32_t>(list + uint64_t{i} * 4);
  }
};

// Calls visit(first, step, rows) with rows first, first + step, ... of n_rows.
// row_of(i) is row i. Rows past the last are missing.
template <class RowOf, class Visit>
KV_DEVICE void ForEachRows(const CacheRows& keys, uint32_t n_rows,
                           const RowOf& row_of, const Visit& visit) {
  const uint32_t step = kSelectThreads / keys.lanes;
  for (uint32_t begin = 0; begin < n_rows; begin += step * kBlockwiseRows) {
    const uint32_t first = begin + threadIdx.x / keys.lanes;
    CacheRow rows[kBlockwiseRows];
#pragma unroll
    for (uint32_t r = 0; r < kBlockwiseRows; ++r) {
      const uint32_t i = first + r * step;
      rows[r] = i < n_rows ? row_of(i) : CacheRow{};
    }
    visit(first, step, rows);
  }
}

// Writes norms of tokens [begin, end) to `out`; one barrier after.
KV_DEVICE void FindNorms(const Head& h, uint32_t begin, uint32_t end) {
  const uint32_t lanes = h.p.keys.lanes;
  const uint32_t lane = threadIdx.x % lanes;
  ForEachRows(
      h.p.keys, end - begin, [&](uint32_t i) { return h.RowOf(begin + i); },
      [&](uint32_t first, uint32_t step,
          const CacheRow(&rows)[kBlockwiseRows]) {
        float squares[kBlockwiseRows] = {};
        VisitRows(h.p.keys, rows, lane, [&](uint32_t r, uint32_t, float v) {
          squares[r] = Fma(v, v, squares[r]);
        });
#pragma unroll
        for (uint32_t r = 0; r < kBlockwiseRows; ++r) {
          const float norm = SquareRoot(SumOverLanes(squares[r], lanes));
          if (lane != 0 || rows[r].address == 0) continue;
          StoreGlobal(h.out + uint64_t{begin + first + r * step} * 4, norm);
        }
      });
}

// A direction that the sum loses or gains.
struct Change {
  uint32_t token;
  float norm;
  int32_t sign;
};

// Adds the directions of n changes to the sums; change_of(i) is one. A thread
// has some elements of all of them.
template <class ChangeOf>
KV_DEVICE void AddDirections(const Head& h, uint32_t n,
                             const ChangeOf& change_of) {
  WithDType(h.p.keys.dtype, [&](auto tag) {
    for (uint32_t i = threadIdx.x; i < h.p.keys.head_dim; i += kSelectThreads) {
      const ElementPlace place = FindElement(tag, h.p.keys, i);
      const uint64_t at = h.sums + uint64_t{i} * 8;
      int64_t sum = LoadGlobal<int64_t>(at);
#pragma unroll 2
      for (uint32_t t = 0; t < n; ++t) {
        const Change change = change_of(t);
        const float v =
            LoadElement(tag, h.p.keys, h.RowOf(change.token), place);
        const float scale = 1.0f / AtLeast(change.norm, kLeastNorm);
        const float units = Multiply(Multiply(v, scale), kUnits);
        if (!HasDirection(change.norm)) continue;
        sum += change.sign * static_cast<int32_t>(units);
      }
      StoreGlobal(at, sum);
    }
  });
}

// Writes the scores of the n tokens of the set to h.scores.
KV_DEVICE void Compare(const Head& h, uint32_t n) {
  for (uint32_t i = threadIdx.x; i < h.p.keys.head_dim; i += kSelectThreads) {
    const int64_t sum = LoadGlobal<int64_t>(h.sums + uint64_t{i} * 8);
    StoreGlobal(h.direction + uint64_t{i} * 4,
                static_cast<float>(sum) * (1.0f / kUnits));
  }
  BlockSync();
  const uint32_t lanes = h.p.keys.lanes;
  const uint32_t lane = threadIdx.x % lanes;
  const float count = static_cast<float>(n);
  ForEachRows(
      h.p.keys, n, [&](uint32_t i) { return h.RowOf(h.At(h.tokens, i)); },
      [&](uint32_t first, uint32_t step,
          const CacheRow(&rows)[kBlockwiseRows]) {
        float dots[kBlockwiseRows] = {};
        float square = 0.0f;  // of the sum; divided by n it is the mean's
        VisitRowsWith(h.p.keys, rows, lane, h.direction,
                      [&](uint32_t r, float v, float a) {
                        dots[r] = Fma(v, a, dots[r]);
                        if (r == 0) square = Fma(a, a, square);
                      });
        const float length = AtLeast(
            SquareRoot(SumOverLanes(square, lanes)) / count, kLeastCosine);
#pragma unroll
        for (uint32_t r = 0; r < kBlockwiseRows; ++r) {
          const float dot = SumOverLanes(dots[r], lanes) / count;
          if (lane != 0 || rows[r].address == 0) continue;
          const uint32_t i = first + r * step;
          const float norm = h.NormOf(h.At(h.tokens, i));
          StoreGlobal(h.scores + uint64_t{i} * 4, KeyDiff(dot, norm, length));
        }
      });
  BlockSync();
}

// Adds tokens [begin, end) to the set, after its n tokens. The sum still
// contains the n_left tokens that left before: they are in h.scores, and their
// norms at h.places. A thread has its own elements of the sum until Compare().
KV_DEVICE void Come(const Head& h, uint32_t n, uint32_t begin, uint32_t end,
                    uint32_t n_left) {
  FindNorms(h, begin, end);
  for (uint32_t i = threadIdx.x; i < end - begin; i += kSelectThreads) {
    StoreGlobal(h.tokens + uint64_t{n + i} * 4, begin + i);
  }
  BlockSync();
  AddDirections(h, n_left + end - begin, [&](uint32_t i) {
    if (i < n_left) {
      return Change{h.At(h.scores, i),
                    LoadGlobal<float>(h.places + uint64_t{i} * 4), -1};
    }
    const uint32_t token = begin + i - n_left;
    return Change{token, h.NormOf(token), 1};
  });
}

// Writes the scores of tokens that stay to the end: all of the set, or those at
// the places.
KV_DEVICE void ScoreStaying(const Head& h, uint32_t n, bool all) {
  for (uint32_t j = threadIdx.x; j < n; j += kSelectThreads) {
    const uint32_t place = all ? j : h.At(h.places, j);
    StoreGlobal(h.out + uint64_t{h.At(h.tokens, place)} * 4,
                h.At(h.scores, place));
  }
  BlockSync();
}

// Lists in h.scores, in order, those of n tokens that are not among the n_keep
// places.
KV_DEVICE void ListLeaving(const Head& h, uint32_t n, uint32_t n_keep) {
  for (uint32_t j = threadIdx.x; j <= n_keep; j += kSelectThreads) {
    uint32_t place = j == 0 ? 0 : h.At(h.places, j - 1) + 1;
    const uint32_t end = j == n_keep ? n : h.At(h.places, j);
    for (; place < end; ++place) {
      StoreGlobal(h.scores + uint64_t{place - j} * 4, h.At(h.tokens, place));
    }
  }
}

// Moves the tokens at the places down, in order; none moves up. There is at
// least one barrier before the first one moves.
KV_DEVICE void MoveDown(const Head& h, uint32_t n_keep) {
  for (uint32_t first = 0; first < n_keep; first += kSelectThreads) {
    const uint32_t j = first + threadIdx.x;
    const uint32_t token = j < n_keep ? h.At(h.tokens, h.At(h.places, j)) : 0;
    BlockSync();
    if (j < n_keep) StoreGlobal(h.tokens + uint64_t{j} * 4, token);
  }
}

// Writes the scores of n tokens that leave n_later blocks before the last.
// Their norms go to h.places.
KV_DEVICE void ScoreLeaving(const Head& h, uint32_t n, uint32_t n_later) {
  for (uint32_t i = threadIdx.x; i < n; i += kSelectThreads) {
    const uint32_t token = h.At(h.scores, i);
    const float norm = h.NormOf(token);
    StoreGlobal(h.places + uint64_t{i} * 4, norm);
    StoreGlobal(h.out + uint64_t{token} * 4,
                HasDirection(norm) ? -2.0f - static_cast<float>(n_later)
                                   : ToFloat<kF32>(kNaNBits));
  }
}

// The n scores from which Keys are made.
struct ScoreList {
  SelectLists lists;
  uint32_t input;
};

}  // namespace

// Grid (n_kv_heads, n_layers). A thread block processes one head. 8.4 KiB
// shared. For each block of tokens it reads the keys of the set and of the
// block once, those of the block twice more, and those that leave once more.
KV_KERNEL(key_diff_blocks, KeyDiffBlocksParams, kSelectThreads, 2) {
  KV_SHARED(SelectShared, shared, 1);
  const Head h(p, blockIdx.y, blockIdx.x);
  const uint32_t n_tokens =
      CountOf(p.tokens, h.layer.first_count, h.head, h.layer.n_tokens);
  if (n_tokens == 0) return;
  uint32_t n_keep =
      CountOf(p.keep, h.layer.first_keep_count, h.head, h.layer.n_keep);
  if (n_keep == 0) n_keep = 1;
  if (n_keep > n_tokens) n_keep = n_tokens;
  for (uint32_t i = threadIdx.x; i < p.keys.head_dim; i += kSelectThreads) {
    StoreGlobal(h.sums + uint64_t{i} * 8, int64_t{0});
  }
  uint32_t n_left = 0;
  for (uint32_t end = 0; end < n_tokens;) {
    const uint32_t begin = end;
    const uint32_t n_before = begin == 0 ? 0 : n_keep;
    const uint32_t n_most = begin == 0 ? n_keep : p.block;
    end = n_tokens - begin < n_most ? n_tokens : begin + n_most;
    Come(h, n_before, begin, end, n_left);
    const bool is_last = end == n_tokens;
    if (begin == 0 && !is_last) continue;
    const uint32_t n = n_before + end - begin;
    n_left = n - n_keep;
    Compare(h, n);
    if (n_left > 0) {
      const ScoreList list = {{}, kSelectScores};
      SelectLayer layer = {};
      layer.scores = h.scores;
      layer.n_tokens = n;
      BlockSelect(Keys(list, layer, 0), n, n_keep, p.higher_wins != 0,
                  {h.places, 0}, *shared);
      BlockSync();
    }
    if (is_last) ScoreStaying(h, n_keep, n_left == 0);
    if (n_left == 0) return;
    ListLeaving(h, n, n_keep);
    MoveDown(h, n_keep);
    ScoreLeaving(h, n_left, (n_tokens - end + p.block - 1) / p.block);
  }
}

}  // namespace kvevict::cuda
