// Attention in any layout, in splits and blocks of rows, against double precision.
#include "cuda/kernels/attention.cu"
#include "cuda/kernels/attention_few.cu"

#include <cmath>
#include <cstring>

#include "tests/cuda/kernels/cache_layer.h"
#include "tests/oracle/attention.h"

namespace kvevict {
namespace {

constexpr float kGuard = -77.0f;
constexpr float kLog2E = 1.44269504088896340736f;

// A launch of one or two layers and its arguments.
struct Case {
  PlaneShape keys;
  PlaneShape values;
  ListTable tokens;
  uint32_t group;
  uint32_t n_queries;
  uint32_t window;
  bool non_causal;
  bool sums_are_shared;
  float scale;
  float cap;

  uint32_t n_q_heads() const { return keys.n_heads * group; }
};

struct Layer {
  CacheLayer keys;
  CacheLayer values;
  std::vector<float> queries;  // [query, q head, element]
  std::vector<float> sinks;    // maybe none
  std::vector<float> out;      // [q head, query, element + 1]
  std::vector<float> lse;      // [query, q head]
  std::vector<float> sums;     // [slot, sum head]
};

Layer MakeLayer(const Case& c, size_t l, const std::vector<float>& odd,
                Random& random) {
  Layer layer;
  layer.keys = MakeCacheLayer(c.keys, c.tokens, l, {}, random);
  layer.values = MakeCacheLayer(c.values, c.tokens, l, odd, random, false,
                                &layer.keys.tables);
  const size_t n_rows = size_t{c.n_q_heads()} * c.n_queries;
  layer.queries.resize(n_rows * c.keys.head_dim);
  for (float& v : layer.queries) v = random.Gaussian();
  if (random.Below(2) == 0) {
    for (uint32_t h = 0; h < c.n_q_heads(); ++h) {
      layer.sinks.push_back(4.0f * random.Gaussian());
    }
  }
  layer.out.assign(n_rows * (c.values.head_dim + 1), kGuard);
  layer.lse.assign(n_rows, kGuard);
  layer.sums.assign(size_t{layer.keys.n_tokens} * c.n_q_heads(), kGuard);
  return layer;
}

cuda::AttendParams ParamsOf(const Case& c, std::vector<Layer>& layers) {
  cuda::AttendParams p = {};
  const int64_t dim = c.keys.head_dim;
  p.queries.layout = {c.n_q_heads() * dim * 4, dim * 4, 4, 0, 0, 0};
  p.queries.dtype = cuda::kF32;
  p.queries.head_dim = c.keys.head_dim;
  p.queries.wide = c.keys.head_dim % 4 == 0 ? 16 : 0;
  p.keys = c.keys.cache_rows();
  p.values = c.values.cache_rows();
  p.out_element_stride = 4;
  p.out_row_stride = (int64_t{c.values.head_dim} + 1) * 4;
  p.out_head_stride = p.out_row_stride * c.n_queries;
  p.lse_head_stride = 4;
  p.lse_row_stride = int64_t{c.n_q_heads()} * 4;
  p.sum_head_stride = 4;
  p.sum_slot_stride = int64_t{c.n_q_heads()} * 4;
  p.tokens = c.tokens.table();
  p.out_dtype = cuda::kF32;
  p.n_queries = c.n_queries;
  p.group = c.group;
  p.window = c.window;
  p.non_causal = c.non_causal;
  p.sums_are_shared = c.sums_are_shared;
  p.query_scale = c.cap == 0.0f ? c.scale * kLog2E : c.scale / c.cap;
  p.cap = c.cap * kLog2E;
  for (size_t l = 0; l < layers.size(); ++l) {
    Layer& layer = layers[l];
    p.layers[l] = {Address(layer.queries.data()),
                   Address(layer.keys.memory.data()),
                   Address(layer.values.memory.data()),
                   Address(layer.keys.tables.data()),
                   layer.sinks.empty() ? 0 : Address(layer.sinks.data()),
                   Address(layer.out.data()),
                   Address(layer.lse.data()),
                   Address(layer.sums.data()),
                   layer.keys.n_tokens,
                   c.tokens.FirstOf(l)};
  }
  return p;
}

// Runs as cuda/attend.cc does, some blocks of rows at a time. Sometimes it uses
// attend_few.
void RunAll(const Case& c, cuda::AttendParams p, uint32_t n_layers,
            uint32_t most_splits, uint32_t turn, uint32_t order) {
  const uint32_t n_heads = c.keys.n_heads;
  const uint32_t dim = c.values.head_dim;
  const uint32_t rows = cuda::kAttendRows;
  const uint32_t n_blocks = (c.n_queries * c.group + rows - 1) / rows;
  const uint32_t most = 1 + turn % 2;
  p.most_splits = most_splits;
  for (uint32_t l = 0; l < n_layers; ++l) {
    p.n_splits =
        std::max(p.n_splits, cuda::SplitsOf(p.layers[l].n_tokens, most_splits));
  }
  std::vector<float> states(size_t{n_layers} * n_heads * most * p.n_splits *
                                rows * cuda::AttendStateFloats(dim),
                            NAN);
  p.states = Address(states.data());
  const uint32_t chunks = (dim + cuda::kAttendValues - 1) / cuda::kAttendValues;
  for (; p.first_block < n_blocks; p.first_block += most) {
    p.n_blocks = std::min(most, n_blocks - p.first_block);
    if (cuda::TakeFew(p) && turn % 7 != 6) {
      Run(cuda::attend_few, {p.n_splits, n_heads, n_layers},
          cuda::kAttendThreads, p, Schedule(order));
    } else {
      Run(cuda::attend_split,
          {p.n_splits * p.n_blocks * chunks, n_heads, n_layers},
          cuda::kAttendThreads, p, Schedule(order));
    }
    Run(cuda::attend_finish, {p.n_blocks * rows, n_heads, n_layers},
        cuda::kAttendFinishThreads, p, Schedule(order));
  }
  Run(cuda::attend_sums,
      {(c.keys.n_most + cuda::kAttendSlots - 1) / cuda::kAttendSlots, n_heads,
       n_layers},
      cuda::kAttendThreads, p, Schedule(order));
}

void Expect(double got, double want, double tolerance, const char* what,
            uint32_t turn, uint32_t head, uint32_t query, uint32_t e) {
  if (std::isnan(want) || std::isinf(want)) {
    // Infinite values whose weights round to either sign give either.
    if (std::isfinite(want) == std::isfinite(got)) return;
  }
  if (got == want || std::abs(got - want) <= tolerance) return;
  Fail("case %u, %s of head %u, query %u, element %u: %.9g, not %.9g by %.3g",
       turn, what, head, query, e, got, want, tolerance);
}

void Compare(const Case& c, const Layer& layer, size_t l, uint32_t turn) {
  const uint32_t dim = c.values.head_dim;
  const uint32_t n = layer.keys.n_tokens;
  for (uint32_t h = 0; h < c.keys.n_heads; ++h) {
    const uint32_t held = c.tokens.Of(l, h);
    std::vector<double> sums(n), tolerances(n);
    for (uint32_t g = h * c.group; g < (h + 1) * c.group; ++g) {
      for (uint32_t i = 0; i < c.n_queries; ++i) {
        const size_t row = size_t{i} * c.n_q_heads() + g;
        std::vector<double> out(dim), tolerance(dim), weights(n), off(n);
        oracle_query in = {};
        in.query = &layer.queries[row * c.keys.head_dim];
        in.keys = layer.keys.Row(c.keys, h, 0);
        in.values = layer.values.Row(c.values, h, 0);
        in.n_tokens = held;
        in.k_dim = c.keys.head_dim;
        in.v_dim = in.value_stride = dim;
        in.slot = int64_t{held} - c.n_queries + i;
        in.window = c.window;
        in.non_causal = c.non_causal;
        in.scale = c.scale;
        in.softcap = c.cap;
        if (!layer.sinks.empty()) in.sink = &layer.sinks[g];
        oracle_attended want = {out.data(), tolerance.data(), 0.0,
                                0.0,        weights.data(),   off.data()};
        oracle_attend(&in, &want);
        const float* const got =
            &layer.out[(size_t{g} * c.n_queries + i) * (dim + 1)];
        // The device's 2^x and logarithm are off by 2 ulp.
        for (uint32_t e = 0; e < dim; ++e) {
          Expect(got[e], out[e], 2.0 * tolerance[e], "out", turn, g, i, e);
        }
        if (got[dim] != kGuard) Fail("case %u: written beside", turn);
        Expect(layer.lse[row], want.lse, want.lse_tolerance + 1e-6, "lse", turn,
               g, i, 0);
        for (uint32_t t = 0; t < held; ++t) {
          sums[t] += weights[t];
          tolerances[t] += 2.0 * off[t] + 2e-6 * weights[t];
        }
      }
      const bool is_last = g + 1 == (h + 1) * c.group;
      if (c.sums_are_shared && !is_last) continue;
      const uint32_t head = c.sums_are_shared ? h : g;
      for (uint32_t t = 0; t < n; ++t) {
        Expect(layer.sums[size_t{t} * c.n_q_heads() + head], sums[t],
               tolerances[t] + 1e-6 * sums[t], "sum", turn, g, 0, t);
      }
      std::fill(sums.begin(), sums.end(), 0.0);
      std::fill(tolerances.begin(), tolerances.end(), 0.0);
    }
  }
}

void TestAttention() {
  constexpr uint32_t kDims[] = {1, 8, 24, 32, 40, 64, 65, 136};
  constexpr uint32_t kQueries[] = {1, 1, 2, 5, 17, 33};
  constexpr uint32_t kGroups[] = {1, 4, 3, 8};
  Random random(TestSeed("attention"));
  for (uint32_t turn = 0; turn < Turns(48); ++turn) {
    const uint32_t batch = turn / kNDTypes;
    // A few of every dtype and of few rows and of more, with more slots than
    // attend_few has room for at a time, run in every order of threads.
    const bool is_long = (2 * batch + turn) % 3 == 2;
    // Long rows of a decoded token, a hybrid's.
    const bool is_wide = (2 * batch + turn) % 6 == 1;
    const uint32_t n_orders = is_long ? std::size(simt::kPolicies) : 1;
    const uint32_t n_heads = is_long ? 1 : 1 + random.Below(2);
    const uint32_t n_most = is_long ? cuda::kFewSlots + 90 : 200;
    const uint32_t dtype = DTypeOfTurn(turn);
    PlaneShape keys = RandomPlane(dtype,
                                  is_long   ? 32
                                  : is_wide ? 256
                                            : kDims[batch % std::size(kDims)],
                                  n_heads, n_most, random);
    PlaneShape values = RandomPlane(
        is_long || is_wide || random.Below(2) == 0 ? dtype : AnyDType(random),
        is_long   ? 32
        : is_wide ? 256
                  : kDims[random.Below(std::size(kDims))],
        n_heads, n_most, random);
    if (is_long || is_wide) {  // as attend_few takes them
      keys.gap = keys.group = values.gap = values.group = 0;
      keys.transposed = values.transposed = false;
    }
    values.block_size = keys.block_size;
    values.table_heads = keys.table_heads;
    Case c = {keys,
              values,
              ListTable(n_heads, random.Below(2) == 0, 2),
              is_long   ? 4u
              : is_wide ? 6u + 2 * random.Below(2)
                        : kGroups[random.Below(std::size(kGroups))],
              is_long   ? 1 + batch / 3 % 2
              : is_wide ? 1
                        : kQueries[random.Below(std::size(kQueries))],
              !is_long && random.Below(3) == 0 ? 1 + random.Below(150) : 0,
              random.Below(4) == 0,
              random.Below(2) == 0,
              0.5f / std::sqrt(static_cast<float>(keys.head_dim)),
              random.Below(3) == 0 ? 6.0f : 0.0f};
    const uint32_t n_layers = is_long ? 1 : 1 + turn % 2;
    std::vector<float> odd;
    if (random.Below(3) == 0) odd = {NAN, INFINITY, -INFINITY};
    std::vector<Layer> layers;
    for (size_t l = 0; l < n_layers; ++l) {
      c.tokens.AddLayer(0, n_most - random.Below(is_long ? 80 : n_most + 1),
                        random);
      layers.push_back(MakeLayer(c, l, odd, random));
    }
    const uint32_t most_splits = is_long ? 1 : 1 + random.Below(5);
    std::vector<float> first;
    for (uint32_t order = turn; order < turn + n_orders; ++order) {
      RunAll(c, ParamsOf(c, layers), n_layers, most_splits, turn, order);
      for (size_t l = 0; l < n_layers; ++l) Compare(c, layers[l], l, turn);
      const std::vector<float>& out = layers[0].out;
      if (order == turn) first = out;
      if (std::memcmp(out.data(), first.data(), 4 * out.size()) != 0) {
        Fail("case %u: other bits in another order of threads", turn);
      }
    }
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestAttention(); }
