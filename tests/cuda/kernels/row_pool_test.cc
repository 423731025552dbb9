// Rows pooled one by one and reduced, against double precision.
#include "cuda/kernels/row_pool.cu"

#include <algorithm>
#include <cmath>

#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

struct Case {
  uint32_t n_kv_heads;
  uint32_t kernel;
  bool pool_is_max;
  bool shrinks;
  bool keeps_mass;
  bool rows_are_max;
  bool heads_are_max;
  bool has_masses;
};

std::vector<double> PoolOf(const Case& c, const float* row, uint32_t n) {
  std::vector<double> out(n);
  const int64_t half = c.kernel / 2;
  double before = 0.0;
  double after = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    double v = c.pool_is_max ? -1.0 : 0.0;
    int64_t n_terms = 0;
    for (int64_t j = std::max<int64_t>(0, i - half);
         j <= std::min<int64_t>(n - 1, i + half); ++j, ++n_terms) {
      v = c.pool_is_max ? std::max(v, double{row[j]}) : v + row[j];
    }
    if (!c.pool_is_max)
      v /= static_cast<double>(c.shrinks ? n_terms : c.kernel);
    out[static_cast<size_t>(i)] = v;
    before += row[i];
    after += v;
  }
  if (c.keeps_mass && after != 0.0) {
    for (double& v : out) v *= before / after;
  }
  return out;
}

void Check(const Case& c, uint32_t turn, Random& random) {
  const uint32_t group = 1 + random.Below(3);
  const uint32_t window = 1 + random.Below(5);
  const uint32_t n_tokens = window + 1 + random.Below(turn % 4 == 0 ? 600 : 60);
  const uint32_t n_unpooled = random.Below(2) == 0 ? window : 0;
  ListTable tokens(c.n_kv_heads, random.Below(2) == 0, 2);
  tokens.AddLayer(window + 1, n_tokens, random);
  const size_t n_rows = size_t{c.n_kv_heads} * group * window;
  std::vector<float> rows(n_rows * n_tokens);
  for (float& v : rows) v = std::exp(random.Gaussian());
  if (turn % 5 == 0) std::fill_n(rows.begin(), n_tokens, 0.0f);
  std::vector<float> factors(n_rows, -1.0f);
  std::vector<float> out(size_t{c.n_kv_heads} * n_tokens, -1.0f);
  std::vector<float> masses = out;
  cuda::RowPoolParams p = {};
  p.rows = Address(rows.data());
  p.factors = c.keeps_mass ? Address(factors.data()) : 0;
  p.out = Address(out.data());
  p.masses = c.has_masses ? Address(masses.data()) : 0;
  p.tokens = tokens.table();
  p.first_count = tokens.FirstOf(0);
  p.n_tokens = n_tokens;
  p.group = group;
  p.window = window;
  p.n_unpooled = n_unpooled;
  p.kernel = c.kernel;
  p.pool_is_max = c.pool_is_max;
  p.edge_shrinks = c.shrinks;
  p.rows_are_max = c.rows_are_max;
  p.heads_are_max = c.heads_are_max;
  p.mass_divisor = static_cast<float>(group * window);
  p.row_scale = c.rows_are_max ? 1.0f : 1.0f / static_cast<float>(window);
  p.head_scale = c.heads_are_max ? 1.0f : 1.0f / static_cast<float>(group);
  if (c.keeps_mass) {
    Run(cuda::row_factors, {group * window, c.n_kv_heads},
        cuda::kRowPoolThreads, p, Schedule(turn));
  }
  Run(cuda::pool_window_rows,
      {(n_tokens + cuda::kRowPoolThreads - 1) / cuda::kRowPoolThreads,
       c.n_kv_heads},
      cuda::kRowPoolThreads, p, Schedule(turn));
  for (uint32_t h = 0; h < c.n_kv_heads; ++h) {
    const uint32_t n = tokens.Of(0, h) - n_unpooled;
    std::vector<double> expected(n, 0.0);
    std::vector<double> mean(n, 0.0);
    for (uint32_t g = 0; g < group; ++g) {
      std::vector<double> of_head(n, 0.0);
      for (uint32_t w = 0; w < window; ++w) {
        const size_t number = (size_t{h} * group + g) * window + w;
        const float* const row = &rows[number * n_tokens];
        const std::vector<double> pooled = PoolOf(c, row, n);
        for (uint32_t i = 0; i < n; ++i) {
          mean[i] += row[i] / double(group * window);
          of_head[i] = c.rows_are_max ? std::max(of_head[i], pooled[i])
                                      : of_head[i] + pooled[i] / window;
        }
      }
      for (uint32_t i = 0; i < n; ++i) {
        expected[i] = c.heads_are_max ? std::max(expected[i], of_head[i])
                                      : expected[i] + of_head[i] / group;
      }
    }
    // Sums of positive terms: of a row, of its pooled ones, and of a kernel.
    const double error = (n / 128.0 + 2.0 * c.kernel + 64.0) * 0x1p-24;
    for (uint32_t i = 0; i < n_tokens; ++i) {
      const size_t at = size_t{h} * n_tokens + i;
      const bool is_pooled = i < n;
      if (is_pooled ? std::abs(out[at] - expected[i]) <= error * expected[i]
                    : out[at] == -1.0f) {
        const bool is_right =
            !is_pooled || !c.has_masses ||
            std::abs(masses[at] - mean[i]) <= 64.0 * 0x1p-24 * mean[i];
        if (is_right) continue;
      }
      Fail("case %u, head %u, slot %u of %u: %.9g and %.9g", turn, h, i, n,
           double{out[at]}, double{masses[at]});
    }
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::Random random(kvevict::TestSeed("row_pool"));
  for (uint32_t turn = 0; turn < 48; ++turn) {
    kvevict::Case c = {};
    c.n_kv_heads = 1 + random.Below(3);
    c.kernel = 2 * random.Below(turn % 3 == 0 ? 40 : 4) + 1;
    c.pool_is_max = random.Below(4) == 0;
    c.shrinks = !c.pool_is_max && random.Below(3) == 0;
    c.keeps_mass = !c.pool_is_max && !c.shrinks && random.Below(2) == 0;
    c.rows_are_max = random.Below(2) == 0;
    c.heads_are_max = random.Below(2) == 0;
    c.has_masses = random.Below(2) == 0;
    kvevict::Check(c, turn, random);
  }
}
