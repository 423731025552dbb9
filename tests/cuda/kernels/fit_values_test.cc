// Values, and biases before them, fitted to queries in any layout, against double
// precision.
#include "cuda/kernels/fit_values.cu"
#include "cuda/kernels/fit_biases.cu"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/kernels/fit_values.h"
#include "tests/cuda/kernels/cache_layer.h"
#include "tests/oracle/fit.h"

namespace kvevict {
namespace {

constexpr float kScale = 0.05f;

struct Case {
  cuda::FitParams p = {};
  CacheLayer keys, values, biases;
  bool has_biases = false, fits_biases = false;
  std::vector<int32_t> keep;                  // [n_lists, n_most]
  std::vector<float> queries;                 // [ring, heads * group, k_dim]
  std::vector<float> rows;                    // the same by KV head and query
  std::vector<float> sinks;                   // [heads * group]
  std::vector<std::vector<float>> scratch_f;  // parts of the scratch
  std::vector<std::vector<double>> scratch_d;
  std::vector<uint32_t> states;

  uint64_t Floats(size_t n) {
    scratch_f.emplace_back(n, kNan);
    return Address(scratch_f.back().data());
  }
  uint64_t Doubles(size_t n) {
    scratch_d.emplace_back(n, std::numeric_limits<double>::quiet_NaN());
    return Address(scratch_d.back().data());
  }
};

// What each query reads from all rows, as f32.
void ReadAll(const Case& c, const PlaneShape& k, const PlaneShape& v,
             uint32_t head, uint32_t n_tokens, float* out) {
  const uint32_t n = c.p.group * c.p.n_queries;
  const float cap = c.p.cap / 1.44269504f;
  for (uint32_t i = 0; i < n; ++i) {
    const float* q = &c.rows[(size_t{head} * n + i) * k.head_dim];
    std::vector<double> w(n_tokens);
    double sink = -std::numeric_limits<double>::infinity();
    if (!c.sinks.empty()) {
      sink = c.sinks[head * c.p.group + i / c.p.n_queries];
    }
    double most = sink;
    for (uint32_t t = 0; t < n_tokens; ++t) {
      for (uint32_t e = 0; e < k.head_dim; ++e) {
        w[t] += double{q[e]} * c.keys.Row(k, head, t)[e];
      }
      w[t] *= kScale;
      if (cap != 0.0f) w[t] = cap * std::tanh(w[t] / cap);
      most = std::max(most, w[t]);
    }
    double total = std::exp(sink - most);
    for (double& x : w) total += x = std::exp(x - most);
    for (uint32_t e = 0; e < v.head_dim; ++e) {
      double sum = 0.0;
      for (uint32_t t = 0; t < n_tokens; ++t) {
        sum += w[t] / total * c.values.Row(v, head, t)[e];
      }
      out[size_t{i} * v.head_dim + e] = static_cast<float>(sum);
    }
  }
}

// Launches kernels as cuda/fit_values.cc does.
class Launcher {
 public:
  Launcher(Case* c, uint32_t n_heads, uint32_t turn)
      : c_(*c), p_(c->p), heads_(n_heads), turn_(turn) {}

  void FitBiases() {
    p_.v_dim = 1;
    p_.residuals = p_.masses;
    AddUp(p_.gram);
    On(cuda::fit_ridge, {heads_});
    p_.ridge = 0.0;
    p_.only_slots = 1;
    // A step after all are settled changes nothing.
    bool runs = true;
    for (uint32_t step = 0; runs && step <= kMostBiasSteps; ++step) {
      runs = std::count(c_.states.begin(), c_.states.end(), cuda::kFitRuns) > 0;
      if (step > 0) AddUp(p_.gram);
      On(cuda::fit_hold, Tiles());
      Solve();
      ForKept(cuda::fit_next, {cuda::kFitRows / cuda::kFitWarps, heads_});
      p_.first = step;
      On(cuda::fit_step, {heads_});
    }
    On(cuda::fit_biases, {Blocks(p_.n_keep, cuda::kFitThreads), heads_});
    p_ = c_.p;
  }
  void FitValues() {
    p_.held = 0;
    On(cuda::fit_read, {Blocks(n(), cuda::kFitWarps), heads_});
    AddUp(p_.matrix);
    Solve();
    p_.only_slots = 1;
    ForKept(cuda::fit_change,
            {Blocks(p_.v_dim, 32), cuda::kFitRows / cuda::kFitTile, heads_});
  }

 private:
  using Kernel = void (*)(const cuda::FitParams&);

  uint32_t n() const { return p_.group * p_.n_queries; }
  static uint32_t Blocks(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
  simt::Dim3 Tiles() const {
    return {cuda::FitTiles(p_.n_unknowns, p_.v_dim), heads_};
  }
  void On(Kernel kernel, simt::Dim3 grid) const {
    Run(kernel, grid, cuda::kFitThreads, p_, Schedule(turn_));
  }
  void FindWeights() const {
    On(cuda::fit_weights, {Blocks(p_.n_unknowns, cuda::kFitTile),
                           cuda::kFitRows / cuda::kFitTile, heads_});
  }
  void AddUp(uint64_t matrix) {
    const uint64_t before = p_.matrix;
    p_.matrix = matrix;
    for (p_.first = 0; p_.first < std::max(n(), p_.n_keep);
         p_.first += cuda::kFitRows) {
      FindWeights();
      On(cuda::fit_sums, Tiles());
    }
    p_.matrix = before;
  }
  void Solve() {
    for (p_.first = 0; p_.first < p_.n_unknowns; p_.first += cuda::kFitTile) {
      On(cuda::fit_panel, {heads_});
      On(cuda::fit_update, Tiles());
    }
    On(cuda::fit_solve, {Blocks(p_.v_dim, 32), heads_});
  }
  void ForKept(Kernel kernel, simt::Dim3 grid) {
    for (p_.first = 0; p_.first < p_.n_keep; p_.first += cuda::kFitRows) {
      FindWeights();
      On(kernel, grid);
    }
  }

  Case& c_;
  cuda::FitParams p_;
  const uint32_t heads_;
  const uint32_t turn_;
};

double Decoded(uint32_t dtype, uint32_t bits) {
  return dtype == cuda::kF16    ? cuda::ToFloat<cuda::kF16>(bits)
         : dtype == cuda::kBF16 ? cuda::ToFloat<cuda::kBF16>(bits)
                                : cuda::ToFloat<cuda::kF32>(bits);
}

// Half a unit in the last place of a number.
double StoreError(uint32_t dtype, double v) {
  const int bits = dtype == cuda::kF32 ? 24 : dtype == cuda::kF16 ? 11 : 8;
  return std::abs(v) * std::ldexp(1.0, -bits) +
         (dtype == cuda::kF16 ? 0x1p-25 : 0.0);
}

// The biases of a head's slots.
std::vector<float> BiasesOf(const Case& c, const PlaneShape& b, uint32_t head,
                            uint32_t n_tokens) {
  const RowSource source =
      HeadSource(b, c.biases.memory, c.biases.tables, head);
  std::vector<float> biases(n_tokens);
  for (uint32_t t = 0; t < n_tokens; ++t) {
    std::memcpy(&biases[t], source.Row(t), sizeof(float));
  }
  return biases;
}

// What became of fitted biases.
struct Sides {
  uint32_t n_free = 0, n_least = 0, n_most = 0;
};

// Those of kept slots are at the minimum within their limits, where every slope is 0
// or points beyond the limit that the bias is at. Others are as they were.
void CompareBiases(const oracle_fit& in, const std::vector<float>& now,
                   bool is_idle, uint32_t turn, Sides* sides) {
  std::vector<double> pulls(in.n_keep), bounds(in.n_keep);
  if (!is_idle) oracle_fit_bias_pulls(&in, pulls.data(), bounds.data());
  uint32_t i = 0;
  for (uint32_t t = 0; t < in.n_tokens; ++t) {
    const bool stays = i < in.n_keep && in.keep[i] == static_cast<int32_t>(t);
    if (is_idle || !stays) {
      if (now[t] != in.biases[t]) Fail("case %u: bias %u changed", turn, t);
      i += stays;
      continue;
    }
    const double change = double{now[t]} - in.biases[t];
    const double rounding = 0x1p-23 * std::abs(now[t]);
    const bool is_least = change <= rounding - kMostBiasChange;
    const bool is_most = change >= kMostBiasChange - rounding;
    if (!(std::abs(change) <= kMostBiasChange + rounding) ||
        !(is_least || pulls[i] <= bounds[i]) ||
        !(is_most || pulls[i] >= -bounds[i])) {
      Fail(
          "case %u: bias %u changes by %.9g, and is pulled by %.3g, bound %.3g",
          turn, t, change, pulls[i], bounds[i]);
    }
    ++(is_least ? sides->n_least : is_most ? sides->n_most : sides->n_free);
    ++i;
  }
}

// Compares a head's values with the oracle's. Returns the largest change, in bounds.
double Compare(const Case& c, const PlaneShape& k, const PlaneShape& v,
               const PlaneShape& b, Sides* sides, const ListTable& tokens,
               const ListTable& counts, uint32_t head, uint32_t turn) {
  const uint32_t list = c.p.n_lists == 1 ? 0 : head;
  const uint32_t n_tokens = tokens.Of(0, head);
  const uint32_t n_keep = counts.Of(0, list);
  const uint32_t n = c.p.group * c.p.n_queries;
  const int32_t* const keep = c.keep.data() + list * size_t{k.n_most};
  // NaN in a key changes nothing in its head.
  bool is_idle = n_keep == 0 || n_keep == n_tokens;
  for (uint32_t t = 0; t < n_tokens; ++t) {
    const float* const key = c.keys.Row(k, head, t);
    is_idle = is_idle || std::any_of(key, key + k.head_dim,
                                     [](float x) { return std::isnan(x); });
  }
  std::vector<float> sinks;
  for (uint32_t i = 0; i < n && !c.sinks.empty(); ++i) {
    sinks.push_back(c.sinks[head * c.p.group + i / c.p.n_queries]);
  }
  std::vector<double> want(size_t{n_keep} * v.head_dim), bounds(want.size());
  std::vector<float> now, kept;
  if (c.has_biases) now = BiasesOf(c, b, head, n_tokens);
  for (uint32_t i = 0; i < n_keep && c.has_biases; ++i) {
    kept.push_back(now[static_cast<size_t>(keep[i])]);
  }
  const oracle_fit in = {&c.rows[size_t{head} * n * k.head_dim],
                         sinks.empty() ? nullptr : sinks.data(),
                         c.keys.Row(k, head, 0),
                         c.values.Row(v, head, 0),
                         n,
                         n_tokens,
                         k.head_dim,
                         v.head_dim,
                         double{kScale},
                         c.p.cap / 1.44269504,
                         keep,
                         n_keep,
                         c.p.ridge,
                         c.has_biases ? c.biases.Row(b, head, 0) : nullptr,
                         c.has_biases ? kept.data() : nullptr};
  if (c.has_biases) {
    CompareBiases(in, now, is_idle || !c.fits_biases, turn, sides);
  }
  if (!is_idle) (void)oracle_fit_values(&in, want.data(), bounds.data());
  const RowSource source =
      HeadSource(v, c.values.memory, c.values.tables, head);
  double most = 0.0;
  uint32_t i = 0;
  for (uint32_t t = 0; t < n_tokens; ++t) {
    const bool stays = i < n_keep && keep[i] == static_cast<int32_t>(t);
    for (uint32_t e = 0; e < v.head_dim; ++e) {
      uint32_t bits = 0;
      std::memcpy(&bits, source.Row(t) + source.Element(e),
                  static_cast<size_t>(v.element_bytes()));
      const double got = Decoded(v.dtype, bits);
      const double old = c.values.Row(v, head, t)[e];
      if (is_idle || !stays) {
        if (got != old) Fail("case %u: slot %u changed", turn, t);
        continue;
      }
      const size_t at = size_t{i} * v.head_dim + e;
      const double bound = bounds[at] + StoreError(v.dtype, want[at]);
      if (!(std::abs(got - want[at]) <= bound)) {
        Fail("case %u: head %u, slot %u, element %u is %.9g, not %.9g to %.3g",
             turn, head, t, e, got, want[at], bound);
      }
      most = std::max(most, std::abs(want[at] - old) / bound);
    }
    i += stays;
  }
  return most;
}

// `round`: 0: no biases; 1: biases; 2: biases are fitted.
double Check(const PlaneShape& k, bool is_long, uint32_t round, Random& random,
             uint32_t turn, Sides* sides) {
  PlaneShape v = k;
  v.head_dim = 1 + random.Below(50);
  v.group = 0;
  v.gap = random.Below(3);
  v.transposed = random.Below(4) == 0 && v.gap == 0;
  PlaneShape b = k;
  b.dtype = cuda::kF32;
  b.head_dim = 1;
  b.group = 0;
  b.transposed = false;
  b.gap = random.Below(3);
  const uint32_t heads = k.n_heads;
  const bool has_counts = random.Below(2) == 0;
  ListTable tokens(heads, has_counts, 2);
  tokens.AddLayer(
      1, is_long || turn % 4 == 1 ? k.n_most : 2 + random.Below(k.n_most - 1),
      random);
  Case c;
  std::vector<float> odd;
  if (turn % 6 == 5) odd = {kNan};
  c.keys = MakeCacheLayer(k, tokens, 0, odd, random);
  c.values = MakeCacheLayer(v, tokens, 0, {}, random, false, &c.keys.tables);
  cuda::FitParams& p = c.p;
  c.has_biases = round > 0;
  c.fits_biases = round == 2;
  if (c.has_biases) {
    c.biases = MakeCacheLayer(b, tokens, 0, {}, random, false, &c.keys.tables);
    p.biases = b.cache_rows().layout;
    p.bias_base = Address(c.biases.memory.data());
  }
  p.n_lists = has_counts || random.Below(2) == 0 ? heads : 1;
  ListTable counts(p.n_lists, has_counts, 1);
  for (uint32_t list = 0; list < p.n_lists; ++list) {
    const uint32_t n_held = tokens.Of(0, list);
    const uint32_t n_keep = is_long
                                ? std::min(n_held, turn % 2 == 0 ? 270u : 20u)
                            : has_counts    ? random.Below(n_held + 1)
                            : turn % 4 == 1 ? n_held - n_held / 5
                                            : n_held / 2;
    p.n_keep = std::max(p.n_keep, n_keep);
    counts.AddList(n_keep);
    std::vector<int32_t> slots;
    for (uint32_t t = 0; t < n_held; ++t) {
      const auto need = n_keep - static_cast<uint32_t>(slots.size());
      if (random.Below(n_held - t) < need) {
        slots.push_back(static_cast<int32_t>(t));
      }
    }
    slots.resize(k.n_most, -1);
    c.keep.insert(c.keep.end(), slots.begin(), slots.end());
  }
  if (p.n_keep == 0) return 0.0;
  p.group = 1 + random.Below(3);
  p.n_queries = 1 + random.Below(turn % 2 == 0 ? 10 : 40);
  // Some solve for several blocks of unknowns.
  if (turn % 4 == 1) p.n_queries = 72 / p.group;
  if (is_long) p.n_queries = turn % 2 == 0 ? 12 / p.group : 270 / p.group;
  const uint32_t n = p.group * p.n_queries;
  p.n_unknowns = std::min(n, p.n_keep);
  p.keys = k.cache_rows();
  p.values = v.cache_rows();
  p.key_base = Address(c.keys.memory.data());
  p.value_base = Address(c.values.memory.data());
  p.block_table = Address(c.keys.tables.data());
  p.keep = Address(c.keep.data());
  p.keep_stride = k.n_most;
  p.tokens = tokens.table();
  p.counts = counts.table();
  p.n_tokens = c.keys.n_tokens;
  p.k_dim = k.head_dim;
  p.v_dim = v.head_dim;
  // With a small ridge whole steps lead to and fro, unless the search shortens
  // them.
  p.ridge = turn % 3 == 0 ? 0.5 : turn % 3 == 1 && round == 2 ? 0.001 : 0.01;
  p.query_scale = kScale * 1.44269504f;
  if (turn % 5 == 1) {
    p.cap = 4.0f * 1.44269504f;
    p.query_scale = kScale / 4.0f;
  }
  if (turn % 4 == 3) {
    for (uint32_t h = 0; h < heads * p.group; ++h) {
      c.sinks.push_back(0.5f * static_cast<float>(h));
    }
    p.sinks = Address(c.sinks.data());
  }
  // A ring of query rows, which begins in its middle.
  p.ring_rows = p.n_queries + random.Below(5);
  p.first_row = random.Below(p.ring_rows);
  const size_t row = size_t{heads} * p.group * p.k_dim;
  c.queries.assign(p.ring_rows * row, 1e30f);
  c.rows.resize(size_t{heads} * n * p.k_dim);
  for (uint32_t h = 0; h < heads * p.group; ++h) {
    for (uint32_t i = 0; i < p.n_queries; ++i) {
      const size_t from =
          (p.first_row + i) % p.ring_rows * row + size_t{h} * p.k_dim;
      for (uint32_t e = 0; e < p.k_dim; ++e) {
        c.queries[from + e] = random.Gaussian() * 2.0f;
        c.rows[(size_t{h} * p.n_queries + i) * p.k_dim + e] =
            c.queries[from + e];
      }
    }
  }
  p.given = Address(c.queries.data());
  p.given_row_stride = static_cast<int64_t>(row * sizeof(float));
  p.given_head_stride = int64_t{p.k_dim} * 4;
  p.given_element_stride = 4;
  p.given_dtype = cuda::kF32;
  p.queries = c.Floats(size_t{heads} * n * p.k_dim);
  p.reads = c.Floats(size_t{heads} * n * p.v_dim);
  p.references = c.Floats(size_t{heads} * n);
  p.inverses = c.Floats(size_t{heads} * n);
  p.residuals = c.Doubles(size_t{heads} * n * p.v_dim);
  p.matrix = c.Doubles(size_t{heads} * p.n_unknowns * (p.n_unknowns + p.v_dim));
  p.weights = c.Floats(size_t{heads} * cuda::kFitRows * p.n_unknowns);
  c.states.assign(heads, cuda::kFitFailed);
  p.state = Address(c.states.data());
  Run(cuda::fit_queries, {(n + cuda::kFitWarps - 1) / cuda::kFitWarps, heads},
      cuda::kFitThreads, p, Schedule(turn));
  ExpectSame(c.scratch_f[0], c.rows, "queries", turn);
  for (uint32_t h = 0; h < heads && !c.has_biases; ++h) {
    ReadAll(c, k, v, h, tokens.Of(0, h),
            c.scratch_f[1].data() + size_t{h} * n * p.v_dim);
  }
  if (c.fits_biases) {
    p.gram = c.Doubles(size_t{heads} * p.n_unknowns * (p.n_unknowns + 1));
    p.masses = c.Doubles(size_t{heads} * n);
    p.point = c.Doubles(size_t{heads} * p.n_unknowns);
    p.wanted = c.Doubles(size_t{heads} * p.n_keep);
    p.next_wanted = c.Doubles(size_t{heads} * p.n_keep);
    p.held = c.Doubles(size_t{heads} * p.n_keep);
    p.bias_ridges = c.Doubles(heads);
  }
  if (c.has_biases) {
    Run(cuda::fit_read_all,
        {(n + cuda::kFitWarps - 1) / cuda::kFitWarps, heads}, cuda::kFitThreads,
        p, Schedule(turn));
  }
  Launcher launcher(&c, heads, turn);
  if (c.fits_biases) launcher.FitBiases();
  launcher.FitValues();
  double most = 0.0;
  for (uint32_t h = 0; h < heads; ++h) {
    most = std::max(most, Compare(c, k, v, b, sides, tokens, counts, h, turn));
  }
  return most;
}

void TestFit() {
  Random random(TestSeed("fit_values"));
  constexpr uint32_t kDims[] = {1, 3, 8, 16, 33, 40, 20};
  double most = 0.0;
  Sides sides;
  for (uint32_t turn = 0; turn < 48; ++turn) {
    // Some have more rows of X, or of X', than are added up at a time.
    const bool is_long = turn % 24 == 7 || turn % 24 == 8;
    const PlaneShape k = RandomPlane(
        DTypeOfTurn(turn), kDims[turn / kNDTypes % std::size(kDims)],
        1 + random.Below(2), is_long ? 300 : 80, random);
    // Without biases, then with them.
    const uint32_t round = turn < 48 / 2 ? 0 : turn % 3 == 0 ? 1 : 2;
    most = std::max(most, Check(k, is_long, round, random, turn, &sides));
  }
  if (sides.n_free == 0 || sides.n_least == 0 || sides.n_most == 0) {
    Fail("%u biases are free, %u at the least, %u at the most", sides.n_free,
         sides.n_least, sides.n_most);
  }
  if (most < 100.0) Fail("changes are at most %g bounds", most);
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestFit(); }
