// What the kernels that fit values and biases share: a head's part of the scratch,
// logits, and reading by a softmax.
#ifndef KVEVICT_CUDA_KERNELS_FIT_HEAD_CUH_
#define KVEVICT_CUDA_KERNELS_FIT_HEAD_CUH_

#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "fit_values.h"
#include "row_address.cuh"
#include "tanh.cuh"

namespace kvevict::cuda {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr uint32_t kEach = kFitTile / kFitWarps;  // rows of a tile, per warp

KV_DEVICE double LoadDouble(uint64_t base, uint64_t i) {
  return LoadGlobal<double>(base + i * sizeof(double));
}
KV_DEVICE void StoreDouble(uint64_t base, uint64_t i, double v) {
  StoreGlobal(base + i * sizeof(double), v);
}
KV_DEVICE float LoadFloat(uint64_t base, uint64_t i) {
  return LoadGlobal<float>(base + i * sizeof(float));
}

// A KV head, and its part of the scratch.
struct FitHead {
  const FitParams& p;
  uint32_t head;
  uint32_t n;     // queries
  uint32_t t;     // rows that stay
  bool is_idle;   // nothing is lost, or nothing stays
  bool by_slots;  // the unknowns are queries
  uint32_t n_unknowns;
  uint64_t keep;
  uint64_t matrix;
  uint64_t residuals;
  uint64_t weights;
  uint64_t gram;  // these and the next ones only while biases are fitted
  uint64_t wanted;
  uint64_t next_wanted;
  uint64_t held;
  uint64_t point;
  uint64_t masses;

  KV_DEVICE FitHead(const FitParams& params, uint32_t h) : p(params), head(h) {
    const uint32_t list = p.n_lists == 1 ? 0 : h;
    n = p.group * p.n_queries;
    t = CountOf(p.counts, 0, list, p.n_keep);
    is_idle = t == 0 || t >= CountOf(p.tokens, 0, h, p.n_tokens);
    by_slots = t > n;
    n_unknowns = by_slots ? n : t;
    keep = p.keep + uint64_t{list} * p.keep_stride * sizeof(int32_t);
    matrix = p.matrix + uint64_t{h} * p.n_unknowns * width() * sizeof(double);
    residuals = p.residuals + uint64_t{h} * n * p.v_dim * sizeof(double);
    weights = p.weights + uint64_t{h} * kFitRows * p.n_unknowns * sizeof(float);
    gram = p.gram +
           uint64_t{h} * p.n_unknowns * (p.n_unknowns + 1) * sizeof(double);
    wanted = p.wanted + uint64_t{h} * p.n_keep * sizeof(double);
    next_wanted = p.next_wanted + uint64_t{h} * p.n_keep * sizeof(double);
    held = p.held + uint64_t{h} * p.n_keep * sizeof(double);
    point = p.point + uint64_t{h} * p.n_unknowns * sizeof(double);
    masses = p.masses + uint64_t{h} * n * sizeof(double);
  }
  // Elements of a row of the matrix and its right-hand side.
  KV_DEVICE uint32_t width() const { return p.n_unknowns + p.v_dim; }
  KV_DEVICE uint64_t RowAt(uint32_t i) const {
    return matrix + uint64_t{i} * width() * sizeof(double);
  }
  KV_DEVICE uint32_t SlotOf(uint32_t i) const {
    return LoadGlobal<uint32_t>(keep + uint64_t{i} * sizeof(int32_t));
  }
  KV_DEVICE uint64_t BiasAddress(uint32_t slot) const {
    return RowAddress(p.biases, p.bias_base, p.block_table, head, slot);
  }
  // Rows of X, or of X'.
  KV_DEVICE uint32_t n_rows() const { return by_slots ? t : n; }
  KV_DEVICE float Query(uint32_t i, uint32_t e) const {
    return LoadFloat(p.queries, (uint64_t{head} * n + i) * p.k_dim + e);
  }
  KV_DEVICE CacheRow KeyRow(uint32_t slot) const {
    return FindRow(p.keys, p.key_base, p.block_table, head, slot);
  }
  KV_DEVICE CacheRow ValueRow(uint32_t slot) const {
    return FindRow(p.values, p.value_base, p.block_table, head, slot);
  }
  KV_DEVICE uint32_t State() const {
    return LoadGlobal<uint32_t>(p.state + head * sizeof(uint32_t));
  }
  KV_DEVICE void SetState(uint32_t state) const {
    StoreGlobal(p.state + head * sizeof(uint32_t), state);
  }
  KV_DEVICE bool IsOver() const { return State() != kFitRuns; }
};

// The logit, in base 2, of a slot with this product of a query and its key.
KV_DEVICE float LogitOf(const FitHead& my, uint32_t slot, float product) {
  const FitParams& p = my.p;
  const float x = product * p.query_scale;
  const float logit = p.cap == 0.0f ? x : p.cap * Tanh(x);
  if (p.bias_base == 0) return logit;
  return logit + LoadGlobal<float>(my.BiasAddress(slot)) * kLog2E;
}

// What logits are taken relative to: 0 if all are -infinity.
KV_DEVICE float BaseOf(float reference) {
  return reference == -ToFloat<kF32>(kInfinityBits) ? 0.0f : reference;
}

KV_DEVICE float Element(const CacheRows& rows, const CacheRow& row,
                        uint32_t e) {
  float v = 0.0f;
  WithDType(rows.dtype, [&](auto tag) {
    v = LoadElement(tag, rows, row, FindElement(tag, rows, e));
  });
  return v;
}

// The logit of a warp's query and a slot; every lane has it.
KV_DEVICE float WarpLogit(const FitHead& my, uint32_t query, uint32_t slot) {
  const FitParams& p = my.p;
  const CacheRow row = my.KeyRow(slot);
  float sum = 0.0f;
  WithDType(p.keys.dtype, [&](auto tag) {
    for (uint32_t e = threadIdx.x % 32; e < p.k_dim; e += 32) {
      sum =
          Fma(my.Query(query, e),
              LoadElement(tag, p.keys, row, FindElement(tag, p.keys, e)), sum);
    }
  });
  return LogitOf(my, slot, SumOverLanes(sum, 32));
}

// A softmax: weight = inverse * 2^(logit - reference).
struct Softmax {
  float reference;
  float inverse;
  float sum;  // of the exponentials, without the sink's
};

// That of a warp's query over n slots, slot_at(i) being the i-th.
template <class SlotAt>
KV_DEVICE Softmax SoftmaxOf(const FitHead& my, uint32_t query, uint32_t n,
                            const SlotAt& slot_at) {
  const FitParams& p = my.p;
  const float lowest = -ToFloat<kF32>(kInfinityBits);
  Softmax s = {lowest, 0.0f, 0.0f};
  for (uint32_t i = 0; i < n; ++i) {
    const float x = WarpLogit(my, query, slot_at(i));
    if (x > s.reference) {
      s.sum = s.sum * Exp2(s.reference - x) + 1.0f;
      s.reference = x;
    } else if (x != lowest) {  // NaN, too
      s.sum += Exp2(x - s.reference);
    }
  }
  float total = s.sum;
  if (p.sinks != 0) {
    const float sink =
        LoadFloat(p.sinks, my.head * p.group + query / p.n_queries);
    total += Exp2(sink * kLog2E - s.reference);
  }
  s.inverse = total == 0.0f ? 0.0f : 1.0f / total;
  return s;
}

// Calls emit(e, value) for the elements of a lane of what a warp's query reads.
template <class SlotAt, class Emit>
KV_DEVICE void ReadValues(const FitHead& my, uint32_t query, const Softmax& s,
                          uint32_t n, const SlotAt& slot_at, const Emit& emit) {
  constexpr uint32_t kPerLane = 4;
  const FitParams& p = my.p;
  const uint32_t lane = threadIdx.x % 32;
  const float base = BaseOf(s.reference);
  for (uint32_t begin = 0; begin < p.v_dim; begin += 32 * kPerLane) {
    float sums[kPerLane] = {};
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t slot = slot_at(i);
      const float w = Exp2(WarpLogit(my, query, slot) - base);
      const CacheRow row = my.ValueRow(slot);
      WithDType(p.values.dtype, [&](auto tag) {
#pragma unroll
        for (uint32_t k = 0; k < kPerLane; ++k) {
          const uint32_t e = begin + k * 32 + lane;
          if (e >= p.v_dim) continue;
          sums[k] = Fma(
              w, LoadElement(tag, p.values, row, FindElement(tag, p.values, e)),
              sums[k]);
        }
      });
    }
#pragma unroll
    for (uint32_t k = 0; k < kPerLane; ++k) {
      const uint32_t e = begin + k * 32 + lane;
      if (e < p.v_dim) emit(e, sums[k] * s.inverse);
    }
  }
}

KV_DEVICE void StoreSoftmax(const FitParams& p, uint64_t place,
                            const Softmax& s) {
  if (threadIdx.x % 32 != 0) return;
  StoreGlobal(p.references + place * sizeof(float), s.reference);
  StoreGlobal(p.inverses + place * sizeof(float), s.inverse);
}

// The tile of a block: rows from i on, of a warp kEach, and a column per lane,
// of the matrix or, behind the last, of the right-hand side.
struct Tile {
  uint32_t i;
  uint32_t j;
  bool is_right;
  bool is_lower;  // below the diagonal

  KV_DEVICE explicit Tile(const FitParams& p) {
    const uint32_t n = (p.n_unknowns + kFitTile - 1) / kFitTile;
    const uint32_t across = n + (p.v_dim + kFitTile - 1) / kFitTile;
    const uint32_t row = blockIdx.x / across;
    const uint32_t column = blockIdx.x % across;
    is_right = column >= n;
    is_lower = column < row;
    i = row * kFitTile + threadIdx.x / 32 * kEach;
    j = (is_right ? column - n : column) * kFitTile + threadIdx.x % 32;
  }
};

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_FIT_HEAD_CUH_
