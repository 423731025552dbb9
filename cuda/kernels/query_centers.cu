// Scores keys by the centers of queries before RoPE, and scales rows of these
// scores by their mean and deviation.
#include "query_centers.h"

#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "over_block.cuh"

namespace kvevict::cuda {

namespace {

// The factors of a key's pair for a query head.
struct alignas(16) Center {
  float re;
  float im;
  float length;
  float unused;
};

// One element more for every eight pairs, so that the lanes of a row, which are
// eight or four pairs apart, read different banks.
constexpr uint32_t kCenterPlaces = CentersParams::kMaxPairs / 8 * 9;
KV_DEVICE uint32_t PlaceOf(uint32_t pair) { return pair + pair / 8; }

// Rotates the centers of up to kCentersHeads query heads from `first` on.
// Missing heads get zeros.
KV_DEVICE void TurnCenters(const CentersParams& p, uint64_t centers,
                           uint32_t first, uint32_t n_heads, Center* to) {
  for (uint32_t h = 0; h < kCentersHeads; ++h) {
    const uint64_t head =
        centers + (first + h) * p.center_stride * sizeof(float);
    for (uint32_t f = threadIdx.x; f < p.n_pairs; f += kCentersThreads) {
      Center center = {};
      if (h < n_heads) {
        const auto at = [&](uint32_t row) {
          return LoadGlobal<float>(head + (uint64_t{row} * p.n_pairs + f) *
                                              sizeof(float));
        };
        const float re = at(0), im = at(1);
        const CentersTurn turn = p.turns[f];
        const float rest = at(2) - SquareRoot(Fma(re, re, im * im));
        center.re = Fma(re, turn.re, -(im * turn.im));
        center.im = Fma(re, turn.im, im * turn.re);
        center.length = rest > 0.0f ? rest : 0.0f;
      }
      to[h * kCenterPlaces + PlaceOf(f)] = center;
    }
  }
}

template <class Tag>
KV_DEVICE float ElementOf(Tag tag, const CacheRow& row, const Bytes16& words,
                          uint32_t i) {
  float v[Tag::kPer16];
  Unpack(tag, row, words, v);
  return v[i];
}

// Calls visit(f, re, im) with the pairs that lane `lane` of the rows has: of
// each row its two elements, zeros if the row is missing.
template <class Tag, class Visit>
KV_DEVICE void VisitPairs(Tag tag, const CentersParams& p,
                          const CacheRow (&rows)[kCentersRows], uint32_t lane,
                          const Visit& visit) {
  constexpr uint32_t kPer16 = Tag::kPer16;
  const bool interleaved = p.is_interleaved != 0;
  float re[kCentersRows], im[kCentersRows];
  if (!AreWide(tag, p.keys)) {
    for (uint32_t f = lane; f < p.n_pairs; f += p.keys.lanes) {
      const ElementPlace of_re =
          FindElement(tag, p.keys, interleaved ? 2 * f : f);
      const ElementPlace of_im =
          FindElement(tag, p.keys, interleaved ? 2 * f + 1 : p.n_pairs + f);
#pragma unroll
      for (uint32_t r = 0; r < kCentersRows; ++r) {
        re[r] = im[r] = 0.0f;
        if (rows[r].address == 0) continue;
        re[r] = LoadElement(tag, p.keys, rows[r], of_re);
        im[r] = LoadElement(tag, p.keys, rows[r], of_im);
      }
      visit(f, re, im);
    }
    return;
  }
  const auto load = [&](Bytes16(&words)[kCentersRows], uint32_t place) {
    const uint64_t offset = uint64_t{place} * p.keys.wide;
#pragma unroll
    for (uint32_t r = 0; r < kCentersRows; ++r) {
      words[r] = rows[r].address == 0
                     ? Bytes16{}
                     : LoadGlobal<Bytes16>(rows[r].address + offset);
    }
  };
  const uint32_t n_loads =
      CentersElements(p.n_pairs, p.is_interleaved) / kPer16;
  Bytes16 first[kCentersRows], second[kCentersRows];
  for (uint32_t i = lane; i < n_loads; i += p.keys.lanes) {
    load(first, i);
    if (interleaved) {
#pragma unroll
      for (uint32_t j = 0; j < kPer16; j += 2) {
#pragma unroll
        for (uint32_t r = 0; r < kCentersRows; ++r) {
          re[r] = ElementOf(tag, rows[r], first[r], j);
          im[r] = ElementOf(tag, rows[r], first[r], j + 1);
        }
        visit((i * kPer16 + j) / 2, re, im);
      }
    } else {
      load(second, n_loads + i);
#pragma unroll
      for (uint32_t j = 0; j < kPer16; ++j) {
#pragma unroll
        for (uint32_t r = 0; r < kCentersRows; ++r) {
          re[r] = ElementOf(tag, rows[r], first[r], j);
          im[r] = ElementOf(tag, rows[r], second[r], j);
        }
        visit(i * kPer16 + j, re, im);
      }
    }
  }
}

}  // namespace

// Grid (n_tokens / CentersBlockRows() of the longest layer, n_kv_heads,
// n_layers). p.keys.lanes threads share a row, and each has its part of
// kCentersRows rows for kCentersHeads query heads. 18 KiB shared. Reads every
// key once, and once more from a cache for every four further query heads.
// Writes 4 bytes per key and query head.
KV_KERNEL(center_scores, CentersParams, kCentersThreads, 2) {
  KV_SHARED(Center, centers, kCentersHeads * kCenterPlaces);
  const CentersLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t lanes = p.keys.lanes;
  const uint32_t lane = threadIdx.x % lanes;
  const uint32_t step = kCentersThreads / lanes;
  const uint32_t first_row = blockIdx.x * (step * kCentersRows);
  if (first_row >= n_tokens) return;
  const uint32_t first = first_row + threadIdx.x / lanes;
  CacheRow rows[kCentersRows];
#pragma unroll
  for (uint32_t r = 0; r < kCentersRows; ++r) {
    const uint32_t slot = first + r * step;
    rows[r] = slot < n_tokens && slot >= p.n_sink
                  ? FindRow(p.keys, layer.keys, layer.block_table, head, slot)
                  : CacheRow{};
  }
  for (uint32_t h0 = 0; h0 < p.group; h0 += kCentersHeads) {
    const uint32_t n_heads =
        p.group - h0 < kCentersHeads ? p.group - h0 : kCentersHeads;
    const uint32_t q_head = head * p.group + h0;
    if (h0 > 0) BlockSync();  // all have read what is overwritten
    TurnCenters(p, layer.centers, q_head, n_heads, centers);
    BlockSync();
    float sums[kCentersRows][kCentersHeads] = {};
    const auto add = [&](uint32_t f, const float(&re)[kCentersRows],
                         const float(&im)[kCentersRows]) {
      float length[kCentersRows];
#pragma unroll
      for (uint32_t r = 0; r < kCentersRows; ++r) {
        length[r] = SquareRoot(Fma(re[r], re[r], im[r] * im[r]));
      }
#pragma unroll
      for (uint32_t h = 0; h < kCentersHeads; ++h) {
        const Center center = centers[h * kCenterPlaces + PlaceOf(f)];
#pragma unroll
        for (uint32_t r = 0; r < kCentersRows; ++r) {
          sums[r][h] = Fma(center.re, re[r], sums[r][h]);
          sums[r][h] = Fma(center.im, im[r], sums[r][h]);
          sums[r][h] = Fma(center.length, length[r], sums[r][h]);
        }
      }
    };
    WithDType(p.keys.dtype,
              [&](auto tag) { VisitPairs(tag, p, rows, lane, add); });
#pragma unroll
    for (uint32_t r = 0; r < kCentersRows; ++r) {
#pragma unroll
      for (uint32_t h = 0; h < kCentersHeads; ++h) {
        const float sum = SumOverLanes(sums[r][h], lanes);
        if (lane != 0 || rows[r].address == 0 || h >= n_heads) continue;
        const uint64_t place =
            uint64_t{q_head + h} * layer.n_tokens + first + r * step;
        StoreGlobal(layer.rows + place * sizeof(float), sum);
      }
    }
  }
}

// Grid (n_q_heads, n_layers). A block has a row of scores, in place. Finite
// scores are reduced by their mean and divided by their standard deviation;
// others become NaN. The first n_sink become 0. Reads a row three times and
// writes it once.
KV_KERNEL(standardise_rows, CentersParams, kCentersThreads, 1) {
  constexpr uint32_t kWarps = kCentersThreads / 32;
  KV_SHARED(float, counts, kWarps);
  KV_SHARED(float, sums, kWarps);
  KV_SHARED(float, distances, kWarps);
  KV_SHARED(float, squares, kWarps);
  const CentersLayer& layer = p.layers[blockIdx.y];
  const uint32_t n_tokens = CountOf(p.tokens, layer.first_count,
                                    blockIdx.x / p.group, layer.n_tokens);
  const uint64_t row =
      layer.rows + uint64_t{blockIdx.x} * layer.n_tokens * sizeof(float);
  const auto at = [&](uint32_t i) { return row + uint64_t{i} * sizeof(float); };
  const auto is_finite = [](uint32_t bits) {
    return (bits & kInfinityBits) != kInfinityBits;
  };
  const auto over_block = [](float v, float* warps) {
    return OverBlock<kCentersThreads>(v, warps,
                                      [](float a, float b) { return a + b; });
  };
  const uint32_t first = p.n_sink + threadIdx.x;
  float count = 0.0f, sum = 0.0f;
#pragma unroll 4
  for (uint32_t i = first; i < n_tokens; i += kCentersThreads) {
    const uint32_t bits = LoadGlobal<uint32_t>(at(i));
    if (!is_finite(bits)) continue;
    count += 1.0f;
    sum += ToFloat<kF32>(bits);
  }
  count = over_block(count, counts);
  const float near = over_block(sum, sums) / count;
  // Sums around the rounded mean; its remainder is added to it.
  float distance = 0.0f, square = 0.0f;
#pragma unroll 4
  for (uint32_t i = first; i < n_tokens; i += kCentersThreads) {
    const uint32_t bits = LoadGlobal<uint32_t>(at(i));
    if (!is_finite(bits)) continue;
    const float v = ToFloat<kF32>(bits) - near;
    distance += v;
    square = Fma(v, v, square);
  }
  const float rest = over_block(distance, distances) / count;
  const float variance = Fma(-rest, rest, over_block(square, squares) / count);
  const float deviation = variance > 1e-12f ? SquareRoot(variance) : 1e-6f;
  const float scale = 1.0f / deviation;
#pragma unroll 4
  for (uint32_t i = first; i < n_tokens; i += kCentersThreads) {
    const uint32_t bits = LoadGlobal<uint32_t>(at(i));
    const float v = ToFloat<kF32>(bits) - near - rest;
    StoreGlobal(at(i), is_finite(bits) ? v * scale : ToFloat<kF32>(kNaNBits));
  }
  for (uint32_t i = threadIdx.x; i < p.n_sink && i < n_tokens;
       i += kCentersThreads) {
    StoreGlobal(at(i), 0.0f);
  }
}

}  // namespace kvevict::cuda
