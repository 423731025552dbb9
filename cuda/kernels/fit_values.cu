// Fits the values that stay to queries; see core/kernels/fit_values.h. What the
// queries read from all rows comes from attention.
//
// fit_queries brings the queries together. fit_read finds what they read from
// the rows that stay. fit_weights and fit_sums add up the normal equations, some
// rows at a time. fit_panel and fit_update factor them, some unknowns at a time,
// and fit_solve solves them. fit_change writes the values. The order of every
// sum is fixed.
#include "fit_values.h"

#include "fit_head.cuh"

namespace kvevict::cuda {

// Grid (n / kFitWarps, n_kv_heads). A warp copies a query as f32.
KV_KERNEL(fit_queries, FitParams, kFitThreads, 2) {
  const FitHead my(p, blockIdx.y);
  const uint32_t query = blockIdx.x * kFitWarps + threadIdx.x / 32;
  if (query >= my.n) return;
  const uint32_t g = query / p.n_queries;
  const uint32_t left = p.ring_rows - p.first_row;
  const uint32_t i = query % p.n_queries;
  const uint32_t row = i < left ? p.first_row + i : i - left;
  const uint64_t from =
      p.given + static_cast<uint64_t>(int64_t{row} * p.given_row_stride +
                                      int64_t{my.head * p.group + g} *
                                          p.given_head_stride);
  for (uint32_t e = threadIdx.x % 32; e < p.k_dim; e += 32) {
    const uint64_t at =
        from + static_cast<uint64_t>(int64_t{e} * p.given_element_stride);
    StoreGlobal(p.queries + ((uint64_t{my.head} * my.n + query) * p.k_dim + e) *
                                sizeof(float),
                LoadNumber(p.given_dtype, at));
  }
}

// Grid (n / kFitWarps, n_kv_heads). A warp has a query, and reads all kept rows
// once for the softmax and once for each 128 elements of values. Writes what the
// query reads from all rows, less what it reads from these.
KV_KERNEL(fit_read, FitParams, kFitThreads, 2) {
  const FitHead my(p, blockIdx.y);
  const uint32_t query = blockIdx.x * kFitWarps + threadIdx.x / 32;
  if (blockIdx.x == 0 && threadIdx.x == 0) my.SetState(kFitRuns);
  if (my.is_idle || query >= my.n) return;
  const auto slot_at = [&](uint32_t i) { return my.SlotOf(i); };
  const Softmax softmax = SoftmaxOf(my, query, my.t, slot_at);
  const uint64_t place = uint64_t{my.head} * my.n + query;
  StoreSoftmax(p, place, softmax);
  ReadValues(my, query, softmax, my.t, slot_at, [&](uint32_t e, float read) {
    const double left =
        double{LoadFloat(p.reads, place * p.v_dim + e)} - double{read};
    if (my.by_slots) {
      StoreDouble(my.RowAt(query), p.n_unknowns + e, left);
    } else {
      StoreDouble(my.residuals, uint64_t{query} * p.v_dim + e, left);
    }
  });
}

// Grid (n_unknowns / kFitTile, kFitRows / kFitTile, n_kv_heads). A block has a
// tile of the rows from p.first on of X, or of X', a thread four weights. 8.25
// KiB shared.
KV_KERNEL(fit_weights, FitParams, kFitThreads, 2) {
  constexpr uint32_t kPitch = kFitTile + 1;
  KV_SHARED(float, of_rows, kFitTile* kPitch);
  KV_SHARED(float, of_columns, kFitTile* kPitch);
  const FitHead my(p, blockIdx.z);
  const uint32_t first_row = p.first + blockIdx.y * kFitTile;
  const uint32_t first_column = blockIdx.x * kFitTile;
  if (my.is_idle || first_row >= my.n_rows() || first_column >= my.n_unknowns ||
      (p.only_slots != 0 && !my.by_slots) || my.IsOver()) {
    return;
  }
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  float x[kEach] = {};
  for (uint32_t begin = 0; begin < p.k_dim; begin += kFitTile) {
    for (uint32_t k = threadIdx.x; k < kFitTile * kFitTile; k += kFitThreads) {
      const uint32_t e = begin + k % kFitTile;
      const uint32_t r = k / kFitTile;
      const auto load = [&](uint32_t i, uint32_t n, bool is_key) {
        if (i >= n || e >= p.k_dim) return 0.0f;
        return is_key ? Element(p.keys, my.KeyRow(my.SlotOf(i)), e)
                      : my.Query(i, e);
      };
      of_rows[r * kPitch + k % kFitTile] =
          load(first_row + r, my.n_rows(), my.by_slots);
      of_columns[r * kPitch + k % kFitTile] =
          load(first_column + r, my.n_unknowns, !my.by_slots);
    }
    BlockSync();
    for (uint32_t e = 0; e < kFitTile; ++e) {
      const float v = of_columns[lane * kPitch + e];
#pragma unroll
      for (uint32_t a = 0; a < kEach; ++a) {
        x[a] = Fma(of_rows[(warp * kEach + a) * kPitch + e], v, x[a]);
      }
    }
    BlockSync();
  }
  const uint32_t column = first_column + lane;
  if (column >= my.n_unknowns) return;
#pragma unroll
  for (uint32_t a = 0; a < kEach; ++a) {
    const uint32_t row = first_row + warp * kEach + a;
    if (row >= my.n_rows()) continue;
    const uint64_t place =
        uint64_t{my.head} * my.n + (my.by_slots ? column : row);
    const float logit =
        LogitOf(my, my.SlotOf(my.by_slots ? row : column), x[a]);
    const float w = Exp2(logit - BaseOf(LoadFloat(p.references, place))) *
                    LoadFloat(p.inverses, place);
    StoreGlobal(my.weights + (uint64_t{row - p.first} * p.n_unknowns + column) *
                                 sizeof(float),
                w);
  }
}

// Grid (FitTiles(), n_kv_heads). Adds the products of the columns of kFitRows
// rows from p.first on to a tile of the matrix, and to one of the right-hand
// side, if the unknowns are slots, those with the residuals. While biases are
// fitted rows of X' that are held count for the right-hand side alone.
KV_KERNEL(fit_sums, FitParams, kFitThreads, 2) {
  const FitHead my(p, blockIdx.y);
  const Tile tile(p);
  const uint32_t n_columns = tile.is_right ? p.v_dim : my.n_unknowns;
  const bool holds = p.held != 0 && my.by_slots;
  if (my.is_idle || p.first >= my.n_rows() || tile.is_lower ||
      (tile.is_right && my.by_slots && !holds) || tile.j >= n_columns ||
      (p.only_slots != 0 && !my.by_slots) || my.IsOver()) {
    return;
  }
  const uint32_t left = my.n_rows() - p.first;
  const uint32_t n = left < kFitRows ? left : kFitRows;
  const uint32_t column = tile.is_right ? p.n_unknowns + tile.j : tile.j;
  double sums[kEach];
#pragma unroll
  for (uint32_t a = 0; a < kEach; ++a) {
    sums[a] = p.first == 0 || tile.i + a >= my.n_unknowns
                  ? 0.0
                  : LoadDouble(my.RowAt(tile.i + a), column);
  }
  for (uint32_t r = 0; r < n; ++r) {
    const uint64_t row = uint64_t{r} * p.n_unknowns;
    const double held = holds ? LoadDouble(my.held, p.first + r) : 0.0;
    if (!tile.is_right && held != 0.0) continue;
    const double right =
        !tile.is_right ? double{LoadFloat(my.weights, row + tile.j)}
        : holds        ? -held
                       : LoadDouble(my.residuals,
                                    uint64_t{p.first + r} * p.v_dim + tile.j);
#pragma unroll
    for (uint32_t a = 0; a < kEach; ++a) {
      if (tile.i + a >= my.n_unknowns) continue;
      sums[a] =
          Fma(double{LoadFloat(my.weights, row + tile.i + a)}, right, sums[a]);
    }
  }
#pragma unroll
  for (uint32_t a = 0; a < kEach; ++a) {
    if (tile.i + a >= my.n_unknowns) continue;
    StoreDouble(my.RowAt(tile.i + a), column, sums[a]);
  }
}

// Grid (n_kv_heads). A block factors kFitTile rows of a head's matrix from
// p.first on, and eliminates in its right-hand side; before the first it adds the
// ridge. 2 KiB shared.
KV_KERNEL(fit_panel, FitParams, kFitThreads, 1) {
  KV_SHARED(double, parts, kFitThreads);
  const FitHead my(p, blockIdx.x);
  const uint32_t m = my.n_unknowns;
  if (my.is_idle || p.first >= m || my.IsOver()) return;
  if (p.first == 0) {
    double part = 0.0;
    for (uint32_t i = threadIdx.x; i < m; i += kFitThreads) {
      part += LoadDouble(my.RowAt(i), i);
    }
    parts[threadIdx.x] = part;
    BlockSync();
    double trace = 0.0;
    for (uint32_t k = 0; k < kFitThreads; ++k) trace += parts[k];
    const double ridge = p.ridge * trace / static_cast<double>(my.t);
    for (uint32_t i = threadIdx.x; i < m; i += kFitThreads) {
      StoreDouble(my.RowAt(i), i, LoadDouble(my.RowAt(i), i) + ridge);
    }
  }
  const uint32_t end = m - p.first < kFitTile ? m : p.first + kFitTile;
  // Columns from j on, and those of the right-hand side.
  const auto for_columns = [&](uint32_t j, const auto& visit) {
    const uint32_t n = m - j;
    for (uint32_t c = threadIdx.x; c < n + p.v_dim; c += kFitThreads) {
      visit(c < n ? j + c : p.n_unknowns + (c - n));
    }
  };
  for (uint32_t k = p.first; k < end; ++k) {
    BlockSync();
    const uint64_t row = my.RowAt(k);
    const double pivot = LoadDouble(row, k);
    if (!(pivot > 0.0 && pivot <= 1.7976931348623157e308)) {
      if (threadIdx.x == 0) {
        my.SetState(kFitFailed);
      }
      return;
    }
    const double root = SquareRoot(pivot);
    BlockSync();  // all have read the pivot
    for_columns(
        k, [&](uint32_t c) { StoreDouble(row, c, LoadDouble(row, c) / root); });
    BlockSync();
    for (uint32_t i = k + 1; i < end; ++i) {
      const double factor = LoadDouble(row, i);
      for_columns(i, [&](uint32_t c) {
        StoreDouble(
            my.RowAt(i), c,
            Fma(-factor, LoadDouble(row, c), LoadDouble(my.RowAt(i), c)));
      });
    }
  }
}

// Grid (FitTiles(), n_kv_heads). Subtracts the products of the columns of the
// rows that fit_panel factored from a tile of the rows behind them.
KV_KERNEL(fit_update, FitParams, kFitThreads, 2) {
  const FitHead my(p, blockIdx.y);
  const Tile tile(p);
  const uint32_t m = my.n_unknowns;
  const uint32_t n_columns = tile.is_right ? p.v_dim : m;
  if (my.is_idle || p.first >= m || m - p.first <= kFitTile || tile.is_lower ||
      tile.i < p.first + kFitTile || tile.j >= n_columns || my.IsOver()) {
    return;
  }
  const uint32_t column = tile.is_right ? p.n_unknowns + tile.j : tile.j;
  double sums[kEach];
#pragma unroll
  for (uint32_t a = 0; a < kEach; ++a) {
    sums[a] = tile.i + a < m ? LoadDouble(my.RowAt(tile.i + a), column) : 0.0;
  }
  for (uint32_t k = p.first; k < p.first + kFitTile; ++k) {
    const uint64_t row = my.RowAt(k);
    const double right = LoadDouble(row, column);
#pragma unroll
    for (uint32_t a = 0; a < kEach; ++a) {
      if (tile.i + a >= m) continue;
      sums[a] = Fma(-LoadDouble(row, tile.i + a), right, sums[a]);
    }
  }
#pragma unroll
  for (uint32_t a = 0; a < kEach; ++a) {
    if (tile.i + a >= m) continue;
    StoreDouble(my.RowAt(tile.i + a), column, sums[a]);
  }
}

// Grid (v_dim / 32, n_kv_heads). A block substitutes back for 32 elements, a
// lane has one; from the last rows on, some rows at a time.
KV_KERNEL(fit_solve, FitParams, kFitThreads, 1) {
  const FitHead my(p, blockIdx.y);
  const uint32_t m = my.n_unknowns;
  if (my.is_idle || my.IsOver()) return;
  const uint32_t e = blockIdx.x * 32 + threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t column = p.n_unknowns + e;
  const bool is_there = e < p.v_dim;
  for (uint32_t n_left = (m + kFitTile - 1) / kFitTile; n_left-- > 0;) {
    const uint32_t first = n_left * kFitTile;
    const uint32_t end = m - first < kFitTile ? m : first + kFitTile;
    for (uint32_t a = 0; a < kEach && is_there; ++a) {
      const uint32_t i = first + warp * kEach + a;
      if (i >= end) continue;
      double v = LoadDouble(my.RowAt(i), column);
      for (uint32_t k = end; k < m; ++k) {
        v = Fma(-LoadDouble(my.RowAt(i), k), LoadDouble(my.RowAt(k), column),
                v);
      }
      StoreDouble(my.RowAt(i), column, v);
    }
    BlockSync();
    for (uint32_t i = end; i-- > first && warp == 0 && is_there;) {
      double v = LoadDouble(my.RowAt(i), column);
      for (uint32_t k = i + 1; k < end; ++k) {
        v = Fma(-LoadDouble(my.RowAt(i), k), LoadDouble(my.RowAt(k), column),
                v);
      }
      StoreDouble(my.RowAt(i), column, v / LoadDouble(my.RowAt(i), i));
    }
    BlockSync();
  }
}

// Grid (v_dim / 32, kFitRows / kFitTile, n_kv_heads). A lane has an element of
// four of the kept rows from p.first on.
KV_KERNEL(fit_change, FitParams, kFitThreads, 2) {
  const FitHead my(p, blockIdx.z);
  const uint32_t e = blockIdx.x * 32 + threadIdx.x % 32;
  const uint32_t local = blockIdx.y * kFitTile + threadIdx.x / 32 * kEach;
  const uint32_t column = p.n_unknowns + e;
  if (my.is_idle || my.IsOver() || e >= p.v_dim) return;
  const double largest = p.values.dtype == kF16    ? 65504.0
                         : p.values.dtype == kBF16 ? 3.3895313892515355e38
                                                   : 3.4028234663852886e38;
  for (uint32_t a = 0; a < kEach; ++a) {
    const uint32_t i = p.first + local + a;
    if (i >= my.t) return;
    double change = 0.0;
    if (my.by_slots) {
      const uint64_t row = uint64_t{local + a} * p.n_unknowns;
      for (uint32_t q = 0; q < my.n; ++q) {
        change = Fma(double{LoadFloat(my.weights, row + q)},
                     LoadDouble(my.RowAt(q), column), change);
      }
    } else {
      change = LoadDouble(my.RowAt(i), column);
    }
    const CacheRow row = my.ValueRow(my.SlotOf(i));
    WithDType(p.values.dtype, [&](auto tag) {
      const double fitted = double{LoadElement(tag, p.values, row,
                                               FindElement(tag, p.values, e))} +
                            change;
      // Written so that NaN fails.
      if (!(fitted <= largest && fitted >= -largest)) return;
      if constexpr (decltype(tag)::kIsPlain) {
        const uint64_t to = row.address + ElementOffset(p.values.layout, e);
        const uint32_t bits =
            FromFloat<decltype(tag)::kValue>(static_cast<float>(fitted));
        if constexpr (decltype(tag)::kBytes == 4) {
          StoreGlobal(to, bits);
        } else {
          StoreGlobal(to, static_cast<uint16_t>(bits));
        }
      }
    });
  }
}

}  // namespace kvevict::cuda
