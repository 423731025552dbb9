// Pooling in place and reduction have the bits of core/kernels/pool1d.
#include "core/kernels/pool1d.h"

#include <cmath>

#include "cuda/kernels/pool1d.cu"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

// Weights as attention makes them, and sometimes rare numbers.
std::vector<float> RandomRow(size_t n, bool special, Random& random) {
  std::vector<float> row(n);
  for (float& f : row) {
    f = special && random.Below(3) == 0 ? DrawRare(random)
                                        : std::exp(3.0f * random.Gaussian());
  }
  return row;
}

// ---- pool_rows ----

// A launch over layers of several rows each, `n_terms` per list, with `lead` words
// before the first row.
struct Pooled {
  std::vector<uint32_t> layers;  // tokens, of any list the most
  uint32_t n_lists;
  uint32_t n_terms;
  uint32_t n_unpooled;
  bool has_counts;
};

void PoolAndCompare(const Pooled& c, uint32_t kernel, uint32_t lead,
                    bool special, Random& random, uint32_t turn) {
  const std::vector<uint32_t>& layers = c.layers;
  const uint32_t n_rows = c.n_lists * c.n_terms;
  ListTable tokens(c.n_lists, c.has_counts, 2);
  cuda::PoolParams p = {};
  p.n_rows = n_rows;
  p.n_terms = c.n_terms;
  p.n_unpooled = c.n_unpooled;
  p.kernel = kernel;
  p.is_max = turn & 1;
  p.edge_shrinks = turn >> 1 & 1;
  const PoolKind pool = p.is_max != 0 ? PoolKind::kMax : PoolKind::kAvg;
  const PoolEdge edge =
      p.edge_shrinks != 0 ? PoolEdge::kShrink : PoolEdge::kPad;
  std::vector<std::vector<float>> rows, expected;
  for (uint32_t n : layers) tokens.AddLayer(c.n_unpooled, n, random);
  for (size_t l = 0; l < layers.size(); ++l) {
    const uint32_t n = layers[l];
    rows.push_back(RandomRow(lead + n_rows * n, special, random));
    expected.push_back(rows[l]);
    for (uint32_t r = 0; r < n_rows; ++r) {
      const size_t row = lead + size_t{r} * n;
      const uint32_t n_own = tokens.Of(l, r / c.n_terms);
      const uint32_t n_pooled = n_own - c.n_unpooled;
      if (kernel > 1) {
        Pool1d(SimdTargetAt(0), &rows[l][row], n_pooled, kernel, pool, edge,
               &expected[l][row]);
      }
      for (uint32_t i = n_pooled; i < n_own; ++i) {
        expected[l][row + i] = kInfinity;
      }
    }
    p.layers[l] = {Address(rows[l].data() + lead), n, tokens.FirstOf(l)};
  }
  p.tokens = tokens.table();
  // Every mode meets every schedule.
  Run(cuda::pool_rows, {n_rows, static_cast<uint32_t>(layers.size())},
      cuda::kPoolThreads, p, Schedule(turn + turn / 4));
  for (size_t l = 0; l < layers.size(); ++l) {
    ExpectSame(rows[l], expected[l], "pool_rows", turn);
  }
}

// Rows are walked in tiles of 4,096 scores.
void TestPoolRows() {
  Random random(TestSeed("pool1d/pool_rows"));
  uint32_t turn = 0;
  for (uint32_t kernel : {1u, 3u, 7u, 63u, 1023u}) {
    for (uint32_t n : {1u, 2u, 5u, 600u, 4094u, 4096u, 4099u, 9000u}) {
      for (uint32_t mode = 0; mode < 4; ++mode, ++turn) {
        PoolAndCompare({{n}, 1, 1, 0, false}, kernel, random.Below(4),
                       turn / 4 % 2 == 0, random, turn);
      }
    }
  }
}

void TestPoolLayers() {
  Random random(TestSeed("pool1d/layers"));
  for (uint32_t turn = 0; turn < 16; ++turn) {
    const uint32_t n_unpooled = turn % 4 == 0 ? 0 : random.Below(8);
    PoolAndCompare(
        {{100, 4200, 7, 64}, 3, 1 + turn % 2, n_unpooled, turn / 2 % 2 == 0}, 7,
        random.Below(4), turn % 3 == 0, random, turn);
  }
}

// ---- reduce_rows ----

struct Reduced {
  std::vector<uint32_t> layers;  // tokens, of any row the most
  uint32_t n_unpooled;
  uint32_t n_out_rows;
  uint32_t n_terms;
  bool in_place;
  uint32_t lead;
  Reduce reduce;
};

void ReduceAndCompare(const Reduced& c, Random& random, uint32_t turn) {
  const std::vector<uint32_t>& layers = c.layers;
  ListTable tokens(c.n_out_rows, turn % 3 == 0, 2);
  for (uint32_t n : layers) tokens.AddLayer(c.n_unpooled, n, random);
  cuda::ReduceParams p = {};
  p.n_unpooled = c.n_unpooled;
  p.tokens = tokens.table();
  p.n_out_rows = c.n_out_rows;
  p.n_terms = c.n_terms;
  p.is_max = c.reduce == Reduce::kMax;
  p.scale =
      c.reduce == Reduce::kMean ? 1.0f / static_cast<float>(c.n_terms) : 1.0f;
  uint32_t longest = 0;
  std::vector<std::vector<float>> in, out, expected;
  for (size_t l = 0; l < layers.size(); ++l) {
    const uint32_t n = layers[l];
    longest = std::max(longest, n);
    in.push_back(RandomRow(c.lead + size_t{c.n_out_rows} * c.n_terms * n,
                           turn % 2 == 0, random));
    out.push_back(c.in_place ? in[l]
                             : RandomRow(c.lead + size_t{c.n_out_rows} * n,
                                         false, random));
    expected.push_back(out[l]);
    for (uint32_t r = 0; r < c.n_out_rows; ++r) {
      float* const row = expected[l].data() + c.lead + size_t{r} * n;
      const uint32_t n_own = tokens.Of(l, r);
      const uint32_t n_reduced = n_own - c.n_unpooled;
      ReduceRows(SimdTargetAt(0),
                 in[l].data() + c.lead + size_t{r} * c.n_terms * n, c.n_terms,
                 n, n_reduced, c.reduce, row);
      std::fill(row + n_reduced, row + n_own, kInfinity);
    }
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    const float* const to = c.in_place ? in[l].data() : out[l].data();
    p.layers[l] = {Address(in[l].data() + c.lead), Address(to + c.lead),
                   layers[l], tokens.FirstOf(l)};
  }
  Run(cuda::reduce_rows,
      {cuda::ReduceBlocks(longest), c.n_out_rows,
       static_cast<uint32_t>(layers.size())},
      cuda::kReduceThreads, p, Schedule(turn));
  for (size_t l = 0; l < layers.size(); ++l) {
    ExpectSame(c.in_place ? in[l] : out[l], expected[l], "reduce_rows", turn);
  }
}

void TestReduceRows() {
  Random random(TestSeed("pool1d/reduce_rows"));
  uint32_t turn = 0;
  for (Reduce reduce : {Reduce::kMean, Reduce::kMax, Reduce::kSum}) {
    for (uint32_t n_terms : {1u, 2u, 5u, 8u}) {
      for (uint32_t lead : {0u, 1u}) {
        for (bool in_place : {false, true}) {
          Reduced c = {{1024, 2052, 3, 40},
                       turn / 2 % 4,
                       in_place ? 1u : 2u,
                       n_terms,
                       in_place,
                       lead,
                       reduce};
          ReduceAndCompare(c, random, turn++);
          c.layers = {1023, 2050, 8};
          ReduceAndCompare(c, random, turn++);
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
