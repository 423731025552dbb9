// Values fitted to queries in any layout, against double precision.
#include "cuda/kernels/fit_values.cu"

#include <cmath>
#include <limits>

#include "tests/cuda/kernels/cache_layer.h"
#include "tests/oracle/fit.h"

namespace kvevict {
namespace {

constexpr float kScale = 0.05f;

struct Case {
  cuda::FitParams p = {};
  CacheLayer keys, values;
  std::vector<int32_t> keep;                  // [n_lists, n_most]
  std::vector<float> queries;                 // [ring, heads * group, k_dim]
  std::vector<float> rows;                    // the same by KV head and query
  std::vector<float> sinks;                   // [heads * group]
  std::vector<std::vector<float>> scratch_f;  // parts of the scratch
  std::vector<std::vector<double>> scratch_d;
  std::vector<uint32_t> failed;

  uint64_t Floats(size_t n) {
    scratch_f.emplace_back(n, std::numeric_limits<float>::quiet_NaN());
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

void Launch(Case& c, uint32_t heads, uint32_t turn) {
  using namespace cuda;  // NOLINT: the kernels' names
  FitParams& p = c.p;
  const uint32_t n = p.group * p.n_queries;
  const auto blocks = [](uint32_t a, uint32_t b) { return (a + b - 1) / b; };
  const auto run = [&](void (*kernel)(const FitParams&), simt::Dim3 grid) {
    Run(kernel, grid, kFitThreads, p, Schedule(turn));
  };
  run(fit_read, {blocks(n, kFitWarps), heads});
  const uint32_t across = blocks(p.n_unknowns, kFitTile);
  const uint32_t tiles = FitTiles(p.n_unknowns, p.v_dim);
  const uint32_t columns = blocks(p.v_dim, 32);
  for (p.first = 0; p.first < std::max(n, p.n_keep); p.first += kFitRows) {
    run(fit_weights, {across, kFitRows / kFitTile, heads});
    run(fit_sums, {tiles, heads});
  }
  for (p.first = 0; p.first < p.n_unknowns; p.first += kFitTile) {
    run(fit_panel, {heads});
    run(fit_update, {tiles, heads});
  }
  run(fit_solve, {columns, heads});
  p.only_slots = 1;
  for (p.first = 0; p.first < p.n_keep; p.first += kFitRows) {
    run(fit_weights, {across, kFitRows / kFitTile, heads});
    run(fit_change, {columns, kFitRows / kFitTile, heads});
  }
}

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

// Compares a head's values with the oracle's. Returns the largest change, in bounds.
double Compare(const Case& c, const PlaneShape& k, const PlaneShape& v,
               const ListTable& tokens, const ListTable& counts, uint32_t head,
               uint32_t turn) {
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
                         nullptr,
                         nullptr};
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

double Check(const PlaneShape& k, bool is_long, Random& random, uint32_t turn) {
  PlaneShape v = k;
  v.head_dim = 1 + random.Below(50);
  v.group = 0;
  v.gap = random.Below(3);
  v.transposed = random.Below(4) == 0 && v.gap == 0;
  const uint32_t heads = k.n_heads;
  const bool has_counts = random.Below(2) == 0;
  ListTable tokens(heads, has_counts, 2);
  tokens.AddLayer(
      1, is_long || turn % 4 == 1 ? k.n_most : 2 + random.Below(k.n_most - 1),
      random);
  Case c;
  std::vector<float> odd;
  if (turn % 6 == 5) odd = {std::numeric_limits<float>::quiet_NaN()};
  c.keys = MakeCacheLayer(k, tokens, 0, odd, random);
  c.values = MakeCacheLayer(v, tokens, 0, {}, random, false, &c.keys.tables);
  cuda::FitParams& p = c.p;
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
  p.ridge = turn % 3 == 0 ? 0.5 : 0.01;
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
  c.failed.assign(heads, 1);
  p.failed = Address(c.failed.data());
  Run(cuda::fit_queries, {(n + cuda::kFitWarps - 1) / cuda::kFitWarps, heads},
      cuda::kFitThreads, p, Schedule(turn));
  ExpectSame(c.scratch_f[0], c.rows, "queries", turn);
  for (uint32_t h = 0; h < heads; ++h) {
    ReadAll(c, k, v, h, tokens.Of(0, h),
            c.scratch_f[1].data() + size_t{h} * n * p.v_dim);
  }
  Launch(c, heads, turn);
  double most = 0.0;
  for (uint32_t h = 0; h < heads; ++h) {
    most = std::max(most, Compare(c, k, v, tokens, counts, h, turn));
  }
  return most;
}

void TestFit() {
  Random random(TestSeed("fit_values"));
  constexpr uint32_t kDims[] = {1, 3, 8, 16, 33, 40, 20};
  double most = 0.0;
  for (uint32_t turn = 0; turn < Turns(24); ++turn) {
    // Some have more rows of X, or of X', than are added up at a time.
    const bool is_long = turn == 7 || turn == 8;
    const PlaneShape k = RandomPlane(
        DTypeOfTurn(turn), kDims[turn / kNDTypes % std::size(kDims)],
        1 + random.Below(2), is_long ? 300 : 80, random);
    most = std::max(most, Check(k, is_long, random, turn));
  }
  if (most < 100.0) Fail("changes are at most %g bounds", most);
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestFit(); }
