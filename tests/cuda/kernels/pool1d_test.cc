// Pooling in place and reduction, with the bits of core/kernels/pool1d.
#include "core/kernels/pool1d.h"

#include <bit>
#include <cmath>
#include <limits>

#include "cuda/kernels/pool1d.cu"
#include "tests/cuda/kernels/launch.h"

namespace kvevict {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Weights, as attention makes them; sometimes what it should not make, and
// zeros of both signs.
std::vector<float> RandomRow(size_t n, bool special, Random& random) {
  constexpr float kSpecial[] = {std::numeric_limits<float>::quiet_NaN(),
                                kInfinity,
                                -kInfinity,
                                0.0f,
                                -0.0f,
                                std::numeric_limits<float>::denorm_min()};
  std::vector<float> row(n);
  for (float& f : row) {
    f = std::exp(3.0f * random.Gaussian());
    if (special && random.Below(3) == 0) f = kSpecial[random.Below(6)];
  }
  return row;
}

// A NaN has any bits.
std::vector<uint32_t> Bits(const std::vector<float>& floats) {
  std::vector<uint32_t> bits;
  for (float f : floats) {
    bits.push_back(std::isnan(f) ? 0x7FC00000u : std::bit_cast<uint32_t>(f));
  }
  return bits;
}

// ---- pool_rows ----

struct Pooled {
  uint32_t n_tokens;
  uint32_t n_pooled;
};

// A launch over layers of several rows each; `lead` words before the first row.
void PoolAndCompare(const std::vector<Pooled>& layers, uint32_t n_rows,
                    uint32_t kernel, uint32_t lead, bool special,
                    Random& random, uint32_t turn) {
  cuda::PoolParams p = {};
  p.n_rows = n_rows;
  p.kernel = kernel;
  p.is_max = turn & 1;
  p.edge_shrinks = turn >> 1 & 1;
  const Pool pool = p.is_max != 0 ? Pool::kMax : Pool::kAvg;
  const PoolEdge edge =
      p.edge_shrinks != 0 ? PoolEdge::kShrink : PoolEdge::kPad;
  std::vector<std::vector<float>> rows, expected;
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto [n, n_pooled] = layers[l];
    rows.push_back(RandomRow(lead + n_rows * n, special, random));
    expected.push_back(rows[l]);
    for (uint32_t r = 0; r < n_rows; ++r) {
      const size_t row = lead + size_t{r} * n;
      if (kernel > 1) {
        Pool1d(SimdTargetAt(0), &rows[l][row], n_pooled, kernel, pool, edge,
               &expected[l][row]);
      }
      for (uint32_t i = n_pooled; i < n; ++i) expected[l][row + i] = kInfinity;
    }
    p.layers[l] = {Address(rows[l].data() + lead), n, n_pooled};
  }
  // Every mode meets every schedule.
  Run(cuda::pool_rows, {n_rows, static_cast<uint32_t>(layers.size())},
      cuda::kPoolThreads, p, Schedule(turn + turn / 4));
  for (size_t l = 0; l < layers.size(); ++l) {
    ExpectSame(Bits(rows[l]), Bits(expected[l]), "pool_rows", turn);
  }
}

// Rows are walked in tiles of 4,096 scores.
void TestPoolRows() {
  Random random(TestSeed("pool1d/pool_rows"));
  uint32_t turn = 0;
  for (uint32_t kernel : {1u, 3u, 7u, 63u, 1023u}) {
    for (uint32_t n : {1u, 2u, 5u, 600u, 4094u, 4096u, 4099u, 9000u}) {
      for (uint32_t mode = 0; mode < 4; ++mode, ++turn) {
        if (random.Below(60) >= Turns(60)) continue;
        PoolAndCompare({{n, n}}, 1, kernel, random.Below(4), turn / 4 % 2 == 0,
                       random, turn);
      }
    }
  }
}

void TestPoolLayers() {
  Random random(TestSeed("pool1d/layers"));
  for (uint32_t turn = 0; turn < 16; ++turn) {
    PoolAndCompare({{100, 68}, {4200, 4097}, {7, 0}, {64, 1}}, 3, 7,
                   random.Below(4), turn % 3 == 0, random, turn);
  }
}

// ---- reduce_rows ----

struct Reduced {
  uint32_t n_out_rows;
  uint32_t n_terms;
  bool in_place;
  uint32_t lead;
  Reduce reduce;
};

void ReduceAndCompare(const std::vector<Pooled>& layers, const Reduced& c,
                      Random& random, uint32_t turn) {
  cuda::ReduceParams p = {};
  p.n_out_rows = c.n_out_rows;
  p.n_terms = c.n_terms;
  p.is_max = c.reduce == Reduce::kMax;
  p.scale =
      c.reduce == Reduce::kMean ? 1.0f / static_cast<float>(c.n_terms) : 1.0f;
  uint32_t longest = 0;
  std::vector<std::vector<float>> in, out, expected;
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto [n, n_reduced] = layers[l];
    longest = std::max(longest, n);
    in.push_back(RandomRow(c.lead + size_t{c.n_out_rows} * c.n_terms * n,
                           turn % 2 == 0, random));
    out.push_back(c.in_place ? in[l]
                             : RandomRow(c.lead + size_t{c.n_out_rows} * n,
                                         false, random));
    expected.push_back(out[l]);
    for (uint32_t r = 0; r < c.n_out_rows; ++r) {
      float* const row = expected[l].data() + c.lead + size_t{r} * n;
      ReduceRows(SimdTargetAt(0),
                 in[l].data() + c.lead + size_t{r} * c.n_terms * n, c.n_terms,
                 n, n_reduced, c.reduce, row);
      std::fill(row + n_reduced, row + n, kInfinity);
    }
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    const float* const to = c.in_place ? in[l].data() : out[l].data();
    p.layers[l] = {Address(in[l].data() + c.lead), Address(to + c.lead),
                   layers[l].n_tokens, layers[l].n_pooled};
  }
  Run(cuda::reduce_rows,
      {cuda::ReduceBlocks(longest), c.n_out_rows,
       static_cast<uint32_t>(layers.size())},
      cuda::kReduceThreads, p, Schedule(turn));
  for (size_t l = 0; l < layers.size(); ++l) {
    ExpectSame(Bits(c.in_place ? in[l] : out[l]), Bits(expected[l]),
               "reduce_rows", turn);
  }
}

void TestReduceRows() {
  Random random(TestSeed("pool1d/reduce_rows"));
  uint32_t turn = 0;
  for (Reduce reduce : {Reduce::kMean, Reduce::kMax, Reduce::kSum}) {
    for (uint32_t n_terms : {1u, 2u, 5u, 8u}) {
      for (uint32_t lead : {0u, 1u}) {
        for (bool in_place : {false, true}) {
          const Reduced c = {in_place ? 1u : 2u, n_terms, in_place, lead,
                             reduce};
          ReduceAndCompare({{1024, 1000}, {2052, 2050}, {3, 3}, {40, 0}}, c,
                           random, turn++);
          ReduceAndCompare({{1023, 1022}, {2050, 1}, {8, 8}}, c, random,
                           turn++);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::TestPoolRows();
  kvevict::TestPoolLayers();
  kvevict::TestReduceRows();
}
