// Fits biases of the slots that stay; see core/kernels/fit_biases-inl.h, whose
// Newton steps these are.
//
// fit_read_all finds what queries read from all rows with their biases, and what
// weight they lack. fit_sums of fit_values.cu adds up the products of weights in
// `gram`, again in each step where the unknowns are queries, and fit_ridge takes
// the ridge from the first ones. A step is fit_hold, which makes the matrix of
// the slots that are not held; the launches of fit_values.cu that solve it;
// fit_next, which finds where a whole step leads; and fit_step, which takes it or
// a part of it. fit_biases writes the biases. The order of every sum is fixed.
#include "fit_head.cuh"

namespace kvevict::cuda {

namespace {

// The factors' limits less 1: e^-3 - 1 and e^3 - 1.
constexpr double kLeast = -0.950212931632136056;
constexpr double kMost = 19.0855369231876677;

KV_DEVICE double Cut(double x) {
  return x < kLeast ? kLeast : x > kMost ? kMost : x;
}

// The natural logarithm of a number from e^-3 to e^3.
KV_DEVICE double LogOf(double v) {
  double log = 0.0;
  for (; v > 1.5; v *= 0.5) log += 0.69314718055994530942;
  for (; v < 0.75; v *= 2.0) log -= 0.69314718055994530942;
  const double s = (v - 1.0) / (v + 1.0);  // |s| is at most 0.2
  double sum = 0.0;
  for (int k = 23; k > 0; k -= 2) {
    sum = Fma(sum, s * s, 1.0 / static_cast<double>(k));
  }
  return log + 2.0 * s * sum;
}

KV_DEVICE bool IsFinite(double v) { return v - v == 0.0; }

KV_DEVICE double SumOverWarp(double v) {
  for (unsigned mask = 16; mask > 0; mask /= 2) v += ShuffleXor(v, mask);
  return v;
}

KV_DEVICE uint64_t GramRow(const FitHead& my, uint32_t i) {
  return my.gram + uint64_t{i} * (my.p.n_unknowns + 1) * sizeof(double);
}
// An element of the matrix before its ridge, which is symmetric.
KV_DEVICE double GramAt(const FitHead& my, uint32_t i, uint32_t j) {
  return i <= j ? LoadDouble(GramRow(my, i), j) : LoadDouble(GramRow(my, j), i);
}
KV_DEVICE double RightAt(const FitHead& my, uint32_t i) {
  return LoadDouble(GramRow(my, i), my.p.n_unknowns);
}

// A warp's product of row i and a column, value_at(j).
template <class ValueAt>
KV_DEVICE double GramTimes(const FitHead& my, uint32_t i,
                           const ValueAt& value_at) {
  double sum = 0.0;
  for (uint32_t j = threadIdx.x % 32; j < my.n_unknowns; j += 32) {
    sum = Fma(GramAt(my, i, j), value_at(j), sum);
  }
  return SumOverWarp(sum);
}

// A block's sum of what its threads have, once all are done with the last one.
KV_DEVICE double SumOverBlock(double* parts, double part) {
  parts[threadIdx.x] = part;
  BlockSync();
  double sum = 0.0;
  for (uint32_t k = 0; k < kFitThreads; ++k) sum += parts[k];
  return sum;
}

KV_DEVICE bool AnyOverBlock(double* parts, bool v) {
  return SumOverBlock(parts, v ? 1.0 : 0.0) != 0.0;
}

KV_DEVICE double Between(double from, double to, double step) {
  return step == 1.0 ? to : from + step * (to - from);
}

// A step of a head, of which a thread has some unknowns and some slots.
struct FitStep {
  const FitHead& my;
  double ridge;

  KV_DEVICE double NextPoint(uint32_t i) const {
    return LoadDouble(my.RowAt(i), my.p.n_unknowns);
  }
  template <class Visit>
  KV_DEVICE static void ForEach(uint32_t n, const Visit& visit) {
    for (uint32_t i = threadIdx.x; i < n; i += kFitThreads) visit(i);
  }

  // This thread's part of the dual.
  KV_DEVICE double DualAt(double step) const {
    double sum = 0.0;
    ForEach(my.n_unknowns, [&](uint32_t i) {
      const double at = Between(LoadDouble(my.point, i), NextPoint(i), step);
      if (my.by_slots) {
        sum += (0.5 * ridge * at - LoadDouble(my.masses, i)) * at;
      } else {
        const double x = Between(LoadDouble(my.wanted, i),
                                 LoadDouble(my.next_wanted, i), step);
        sum += 0.5 * (RightAt(my, i) - ridge * x) * at;
      }
    });
    double integral = 0.0;
    ForEach(my.t, [&](uint32_t i) {
      const double x = Between(LoadDouble(my.wanted, i),
                               LoadDouble(my.next_wanted, i), step);
      integral += Cut(x) * (x - 0.5 * Cut(x));
    });
    return sum + (my.by_slots ? 1.0 : ridge) * integral;
  }
  KV_DEVICE double SlopeOfDual() const {
    double sum = 0.0;
    ForEach(my.n_unknowns, [&](uint32_t i) {
      const double at = LoadDouble(my.point, i);
      const double slope =
          my.by_slots ? ridge * at - LoadDouble(my.masses, i)
                      : RightAt(my, i) - ridge * LoadDouble(my.wanted, i);
      sum += (NextPoint(i) - at) * slope;
    });
    double integral = 0.0;
    ForEach(my.t, [&](uint32_t i) {
      const double x = LoadDouble(my.wanted, i);
      integral += Cut(x) * (LoadDouble(my.next_wanted, i) - x);
    });
    return sum + (my.by_slots ? 1.0 : ridge) * integral;
  }
  // The largest of 1, 1/2, 1/4, ... with which the dual falls by a part of what
  // its slope says.
  KV_DEVICE double Find(double* parts) const {
    constexpr int kMostHalvings = 30;
    BlockSync();
    const double begin = SumOverBlock(parts, DualAt(0.0));
    BlockSync();
    const double slope = SumOverBlock(parts, SlopeOfDual());
    const double slack = 1e-13 * (begin < 0.0 ? -begin : begin);
    double step = 1.0;
#pragma unroll 1
    for (int i = 0; i < kMostHalvings; ++i, step *= 0.5) {
      const double most = begin + 1e-4 * step * slope + slack;
      BlockSync();
      if (SumOverBlock(parts, DualAt(step)) <= most) break;
    }
    return step;
  }
  KV_DEVICE void Move(double step) const {
    ForEach(my.n_unknowns, [&](uint32_t i) {
      StoreDouble(my.point, i,
                  Between(LoadDouble(my.point, i), NextPoint(i), step));
    });
    ForEach(my.t, [&](uint32_t i) {
      StoreDouble(my.wanted, i,
                  Between(LoadDouble(my.wanted, i),
                          LoadDouble(my.next_wanted, i), step));
    });
  }
  // Holds what is beyond a limit there. Returns whether this thread changed any.
  KV_DEVICE bool Hold() const {
    bool changes = false;
    ForEach(my.t, [&](uint32_t i) {
      const double x = LoadDouble(my.wanted, i);
      const double held = Cut(x) == x ? 0.0 : Cut(x);
      changes = changes || held != LoadDouble(my.held, i);
      StoreDouble(my.held, i, held);
    });
    return changes;
  }
};

}  // namespace

// Grid (n / kFitWarps, n_kv_heads). A warp has a query, as in fit_read, but reads
// all rows. If biases are fitted, begins with no slot held.
KV_KERNEL(fit_read_all, FitParams, kFitThreads, 2) {
  const FitHead my(p, blockIdx.y);
  const uint32_t query = blockIdx.x * kFitWarps + threadIdx.x / 32;
  if (blockIdx.x == 0 && threadIdx.x == 0) my.SetState(kFitRuns);
  if (my.is_idle) return;
  if (p.masses != 0 && blockIdx.x == 0) {
    FitStep::ForEach(my.t, [&](uint32_t i) { StoreDouble(my.held, i, 0.0); });
  }
  if (query >= my.n) return;
  const uint32_t n = CountOf(p.tokens, 0, my.head, p.n_tokens);
  const auto slot_at = [](uint32_t i) { return i; };
  const Softmax softmax = SoftmaxOf(my, query, n, slot_at);
  const uint64_t place = uint64_t{my.head} * my.n + query;
  StoreSoftmax(p, place, softmax);
  ReadValues(my, query, softmax, n, slot_at, [&](uint32_t e, float read) {
    StoreGlobal(p.reads + (place * p.v_dim + e) * sizeof(float), read);
  });
  if (p.masses == 0) return;
  const float base = BaseOf(softmax.reference);
  double lacks = double{softmax.sum} * double{softmax.inverse};
  for (uint32_t i = 0; i < my.t; ++i) {
    const float logit = WarpLogit(my, query, my.SlotOf(i));
    lacks -= double{Exp2(logit - base) * softmax.inverse};
  }
  if (threadIdx.x % 32 == 0) StoreDouble(my.masses, query, lacks);
}

// Grid (n_kv_heads). 2 KiB shared.
KV_KERNEL(fit_ridge, FitParams, kFitThreads, 2) {
  KV_SHARED(double, parts, kFitThreads);
  const FitHead my(p, blockIdx.x);
  if (my.is_idle) return;
  double part = 0.0;
  FitStep::ForEach(my.n_unknowns,
                   [&](uint32_t i) { part += GramAt(my, i, i); });
  const double trace = SumOverBlock(parts, part);
  if (threadIdx.x == 0) {
    StoreDouble(p.bias_ridges, my.head,
                p.ridge * trace / static_cast<double>(my.t));
  }
}

// Grid (FitTiles() of one right-hand side, n_kv_heads). Makes a tile of the matrix
// of what is not held, with the ridge; or of its right-hand side.
KV_KERNEL(fit_hold, FitParams, kFitThreads, 2) {
  const FitHead my(p, blockIdx.y);
  const Tile tile(p);
  const uint32_t m = my.n_unknowns;
  if (my.is_idle || tile.is_lower || my.IsOver()) return;
  const double ridge = LoadDouble(p.bias_ridges, my.head);
  const auto held = [&](uint32_t i) {
    return my.by_slots ? 0.0 : LoadDouble(my.held, i);
  };
  for (uint32_t i = tile.i; i < tile.i + kEach && i < m; ++i) {
    const double held_i = held(i);
    if (tile.is_right) {
      double right = RightAt(my, i);
      if (my.by_slots) {
        right += LoadDouble(my.masses, i);
      } else {
        const double moved = GramTimes(my, i, held);
        right = held_i != 0.0 ? held_i : right - moved;
      }
      if (threadIdx.x % 32 == 0) {
        StoreDouble(my.RowAt(i), p.n_unknowns, right);
      }
    } else if (tile.j < m) {
      const bool is_diagonal = i == tile.j;
      const bool holds = held_i != 0.0 || held(tile.j) != 0.0;
      const double v =
          holds        ? (is_diagonal ? 1.0 : 0.0)
          : tile.j < i ? 0.0
                       : GramAt(my, i, tile.j) + (is_diagonal ? ridge : 0.0);
      StoreDouble(my.RowAt(i), tile.j, v);
    }
  }
}

// Grid (kFitRows / kFitWarps, n_kv_heads). A warp finds what one of the kept slots
// from p.first on wants at the end of a whole step.
KV_KERNEL(fit_next, FitParams, kFitThreads, 2) {
  const FitHead my(p, blockIdx.y);
  const uint32_t local = blockIdx.x * kFitWarps + threadIdx.x / 32;
  const uint32_t i = p.first + local;
  if (my.is_idle || i >= my.t || my.IsOver()) return;
  const auto next_point = [&](uint32_t j) {
    return LoadDouble(my.RowAt(j), p.n_unknowns);
  };
  double wanted = 0.0;
  if (my.by_slots) {
    for (uint32_t q = threadIdx.x % 32; q < my.n; q += 32) {
      const uint64_t at = uint64_t{local} * p.n_unknowns + q;
      wanted = Fma(double{LoadFloat(my.weights, at)}, next_point(q), wanted);
    }
    wanted = SumOverWarp(wanted);
  } else if (LoadDouble(my.held, i) == 0.0) {
    wanted = next_point(i);
  } else {
    wanted = (RightAt(my, i) - GramTimes(my, i, next_point)) /
             LoadDouble(p.bias_ridges, my.head);
  }
  if (threadIdx.x % 32 == 0) StoreDouble(my.next_wanted, i, wanted);
}

// Grid (n_kv_heads). A block takes step p.first of a head. The head is settled once
// a whole step leaves every slot on its side. 2 KiB shared.
KV_KERNEL(fit_step, FitParams, kFitThreads, 1) {
  KV_SHARED(double, parts, kFitThreads);
  const FitHead my(p, blockIdx.x);
  if (my.is_idle || my.IsOver()) return;
  const FitStep all = {my, LoadDouble(p.bias_ridges, my.head)};
  bool is_odd = false;
  FitStep::ForEach(my.t, [&](uint32_t i) {
    is_odd = is_odd || !IsFinite(LoadDouble(my.next_wanted, i));
  });
  if (AnyOverBlock(parts, is_odd)) {
    if (threadIdx.x == 0) my.SetState(kFitFailed);
    return;
  }
  const double step = p.first == 0 ? 1.0 : all.Find(parts);
  all.Move(step);
  const bool changed = all.Hold();
  BlockSync();
  const bool changes = AnyOverBlock(parts, changed);
  if (!changes && step == 1.0 && threadIdx.x == 0) my.SetState(kFitSettled);
}

// Grid (n_keep / kFitThreads, n_kv_heads). A thread has a slot that stays.
KV_KERNEL(fit_biases, FitParams, kFitThreads, 2) {
  const FitHead my(p, blockIdx.y);
  const uint32_t i = blockIdx.x * kFitThreads + threadIdx.x;
  if (my.is_idle || i >= my.t || my.State() != kFitSettled) return;
  const uint64_t at = my.BiasAddress(my.SlotOf(i));
  const double change = LogOf(1.0 + Cut(LoadDouble(my.wanted, i)));
  const auto bias = static_cast<float>(double{LoadGlobal<float>(at)} + change);
  StoreGlobal(at, bias);
}

}  // namespace kvevict::cuda
