// Window attention against double precision, over shapes around tiles and vectors.
#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/kernels/window_attention_layout.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

void ExpectOracle(const oracle::WindowAttentionInput& in) {
  const oracle::WindowAttentionResult expected = oracle::WindowAttention(in);
  ForEachTarget([&](SimdTarget simd) {
    ExpectWeights(in, expected, RunKernel(simd, in), simd.name);
  });
}

// Queries and keys of any dtypes, in any layouts.
void ExpectOracle(uint32_t n_tokens, uint32_t window, uint32_t group,
                  uint32_t head_dim, Random& random) {
  constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  RowLayout queries = AnyLayout(random, kDTypes[random.Below(3)]);
  queries.grouped = false;  // groups would reach across heads
  const RowLayout keys = AnyLayout(random, kDTypes[random.Below(3)]);
  const oracle::WindowAttentionInput in = RandomInput(
      n_tokens, window, group, head_dim, random, queries.dtype, keys.dtype);
  const oracle::WindowAttentionResult expected = oracle::WindowAttention(in);
  ForEachTarget([&](SimdTarget simd) {
    ExpectWeights(in, expected, RunKernel(simd, in, queries, keys), simd.name);
  });
}

TestSuite(window_attention);

Test(window_attention, matches_the_oracle_around_tiles) {
  Random random(TestSeed("window_attention/matches_the_oracle_around_tiles"));
  for (uint32_t n_tokens :
       {1u, 2u, 15u, 16u, 17u, 63u, 64u, 65u, 127u, 128u, 129u, 259u}) {
    const std::set<uint32_t> windows = {1u, std::min(n_tokens, 3u),
                                        std::min(n_tokens, 33u), n_tokens};
    for (uint32_t window : windows) {
      for (uint32_t group : {1u, 3u}) {
        ExpectOracle(n_tokens, window, group, 8, random);
      }
    }
  }
}

// Rows see all keys, as within a chunk.
Test(window_attention, of_rows_that_see_all_keys_matches_the_oracle) {
  Random random(TestSeed("window_attention/of_rows_that_see_all_keys"));
  for (uint32_t n_tokens : {1u, 2u, 17u, 63u, 64u, 65u, 129u, 256u}) {
    for (uint32_t group : {1u, 3u}) {
      oracle::WindowAttentionInput in =
          RandomInput(n_tokens, n_tokens, group, 8, random);
      in.chunk = n_tokens;
      ExpectOracle(in);
    }
  }
}

Test(window_attention, matches_the_oracle_for_any_head_dim) {
  Random random(
      TestSeed("window_attention/matches_the_oracle_for_any_head_dim"));
  for (uint32_t head_dim :
       {1u,  2u,  3u,  4u,  5u,   7u,   8u,   15u,  16u,  17u,
        31u, 64u, 80u, 96u, 127u, 128u, 129u, 256u, 576u, 1024u}) {
    ExpectOracle(131, 9, 2, head_dim, random);
  }
}

Test(window_attention, matches_the_oracle_for_any_number_of_query_rows) {
  Random random(TestSeed(
      "window_attention/matches_the_oracle_for_any_number_of_query_rows"));
  for (uint32_t group : {1u, 2u, 3u, 4u, 7u, 8u}) {
    for (uint32_t window = 1; window <= 17; ++window) {
      ExpectOracle(70, window, group, 16, random);
    }
  }
}

Test(window_attention, matches_the_oracle_on_random_shapes) {
  Random random(
      TestSeed("window_attention/matches_the_oracle_on_random_shapes"));
  for (int i = 0; i < 150; ++i) {
    const uint32_t n_tokens = 1 + random.Below(400);
    const uint32_t window = 1 + random.Below(std::min(n_tokens, 80u));
    ExpectOracle(n_tokens, window, 1 + random.Below(8), 1 + random.Below(140),
                 random);
  }
}

// Caps bend the logits little, or to nearly one size. Sinks lie far below and above
// them, and some heads have none.
Test(window_attention, of_capped_logits_and_sinks_matches_the_oracle) {
  Random random(TestSeed("window_attention/of_capped_logits_and_sinks"));
  for (const float softcap : {0.0f, 0.1f, 1.5f, 50.0f}) {
    for (const float sink : {-40.0f, 0.0f, 3.0f, 90.0f}) {
      for (const uint32_t n_tokens : {9u, 64u, 200u}) {
        oracle::WindowAttentionInput in =
            RandomInput(n_tokens, 9, 3, 24, random);
        in.softcap = softcap;
        in.past_only = n_tokens == 200 && softcap == 1.5f;
        in.sinks = {sink, sink + random.Gaussian(), -INFINITY};
        ExpectOracle(in);
      }
    }
  }
}

Test(window_attention, of_the_largest_logits_has_their_largest_sink) {
  Random random(TestSeed("window_attention/of_the_largest_logits"));
  oracle::WindowAttentionInput in = RandomInput(150, 12, 6, 16, random);
  in.group = 2;
  in.logit_heads = 3;
  in.softcap = 0.7f;
  for (uint32_t h = 0; h < 6; ++h) in.sinks.push_back(random.Gaussian());
  ExpectOracle(in);
}

// Biases lie far below and above logits, which may be capped before.
Test(window_attention, of_biased_logits_matches_the_oracle) {
  Random random(TestSeed("window_attention/of_biased_logits"));
  for (const float softcap : {0.0f, 1.5f}) {
    for (const float reach : {0.5f, 20.0f}) {
      for (const uint32_t n_tokens : {9u, 64u, 200u}) {
        oracle::WindowAttentionInput in =
            RandomInput(n_tokens, 9, 4, 24, random);
        in.softcap = softcap;
        in.past_only = n_tokens == 200 && softcap == 1.5f;
        for (uint32_t j = 0; j < n_tokens; ++j) {
          in.biases.push_back(reach * random.Gaussian());
        }
        if (reach == 0.5f) in.sinks = {0.0f, 1.0f, -1.0f, 3.0f};
        ExpectOracle(in);
        in.group = 2;
        in.logit_heads = 2;
        ExpectOracle(in);
      }
    }
  }
}

// Rows that only see -infinity leave everything to their sink.
Test(window_attention, of_logits_of_minus_infinity_is_the_sinks) {
  Random random(TestSeed("window_attention/of_logits_of_minus_infinity"));
  oracle::WindowAttentionInput in = RandomInput(80, 4, 1, 8, random);
  for (float& q : in.queries) q = std::abs(q) + 0.1f;
  for (float& k : in.keys) k = -INFINITY;
  in.sinks = {0.5f};
  ForEachTarget([&](SimdTarget simd) {
    for (const float weight : RunKernel(simd, in)) cr_assert(weight == 0.0f);
  });
}

// PERFORMANCE: 2e-5 relative, even if the oracle's tolerance would allow more.
Test(window_attention, is_within_2e_5_on_realistic_data) {
  Random random(TestSeed("window_attention/is_within_2e_5_on_realistic_data"));
  const oracle::WindowAttentionInput in = RandomInput(4096, 64, 4, 128, random);
  const oracle::WindowAttentionResult expected = oracle::WindowAttention(in);
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> weights = RunKernel(simd, in);
    double worst = 0.0;
    for (size_t i = 0; i < weights.size(); ++i) {
      worst = std::max(worst, std::abs(weights[i] / expected.weights[i] - 1.0));
    }
    std::fprintf(stderr, "%s: largest relative error %.2g\n", simd.name, worst);
    cr_assert(worst <= 2e-5, "%s: %g", simd.name, worst);
    ExpectWeights(in, expected, weights, simd.name);
  });
}

Test(window_attention, of_equal_keys_is_uniform) {
  Random random(TestSeed("window_attention/of_equal_keys_is_uniform"));
  oracle::WindowAttentionInput in = RandomInput(200, 5, 2, 24, random);
  for (size_t i = 0; i < in.keys.size(); ++i) in.keys[i] = in.keys[i % 24];
  ExpectOracle(in);
}

// Logits are several hundred: most exponentials are 0, and references rise often.
Test(window_attention, survives_peaked_softmax) {
  Random random(TestSeed("window_attention/survives_peaked_softmax"));
  for (float factor : {10.0f, 1e3f, 1e6f, -1e3f}) {
    oracle::WindowAttentionInput in = RandomInput(300, 7, 3, 32, random);
    in.scale *= factor;
    // Powers of two make products and sums exact, so that tolerances, which grow
    // with the logits, stay meaningful.
    for (float& q : in.queries) q = std::exp2(std::round(q)) / 64.0f;
    for (float& k : in.keys) k = std::round(k);
    in.scale = std::exp2(std::round(std::log2(std::abs(in.scale)))) *
               (factor < 0 ? -1.0f : 1.0f);
    ExpectOracle(in);
  }
}

// Every tile exceeds the one before by far more than the margin of the reference.
Test(window_attention, follows_a_rising_maximum) {
  oracle::WindowAttentionInput in;
  in.n_tokens = 640;
  in.window = 2;
  in.group = 1;
  in.head_dim = 1;
  in.scale = 1.0f;
  in.queries = {1.0f, -1.0f};
  for (uint32_t j = 0; j < in.n_tokens; ++j) {
    in.keys.push_back(0.5f * static_cast<float>(j) - 100.0f);
  }
  ExpectOracle(in);
}

// Results that scratch has no room for are computed again, to the same bytes.
Test(window_attention, gives_the_same_bytes_in_any_scratch) {
  Random random(
      TestSeed("window_attention/gives_the_same_bytes_in_any_scratch"));
  for (uint32_t n_tokens : {1u, 63u, 64u, 65u, 128u, 333u, 1000u}) {
    const uint32_t window = std::min(n_tokens, 21u);
    oracle::WindowAttentionInput in =
        RandomInput(n_tokens, window, 3, 72, random);
    if (n_tokens == 333) in.keys[72 * 100] = NAN;  // seen by every row
    const size_t tile_bytes = size_t{3} * window * 64 * sizeof(float);
    ForEachTarget([&](SimdTarget simd) {
      const std::vector<float> best = RunKernel(simd, in);
      for (size_t less = tile_bytes; less < (n_tokens / 64 + 2) * tile_bytes;
           less += tile_bytes + 64) {
        cr_assert(SameBytes(RunKernel(simd, in, {}, {}, less), best),
                  "%s: %u tokens, %zu bytes less", simd.name, n_tokens, less);
      }
    });
  }
}

// The heads of a group do not affect each other.
Test(window_attention, of_a_group_equals_its_heads_alone) {
  Random random(TestSeed("window_attention/of_a_group_equals_its_heads_alone"));
  const oracle::WindowAttentionInput in = RandomInput(150, 11, 4, 40, random);
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> together = RunKernel(simd, in);
    for (uint32_t g = 0; g < in.group; ++g) {
      oracle::WindowAttentionInput alone = in;
      alone.group = 1;
      const size_t n = size_t{in.window} * in.head_dim;
      alone.queries.assign(in.queries.begin() + g * n,
                           in.queries.begin() + (g + 1) * n);
      const std::vector<float> expected(
          together.begin() + g * in.n_tokens,
          together.begin() + (g + 1) * in.n_tokens);
      cr_assert(SameBytes(RunKernel(simd, alone), expected), "%s: head %u",
                simd.name, g);
    }
  });
}

// One batch has all rows, or there are three by heads, or two by rows of each head's
// window.
struct Batching {
  uint32_t n_tokens, window, group, head_dim;
};
constexpr Batching kBatchings[] = {
    {150, 9, 3, 40}, {130, 100, 9, 1024}, {200, 150, 2, 3000}};

Test(window_attention, matches_the_oracle_in_batches) {
  Random random(TestSeed("window_attention/matches_the_oracle_in_batches"));
  for (const Batching& b : kBatchings) {
    ExpectOracle(b.n_tokens, b.window, b.group, b.head_dim, random);
  }
}

Test(window_attention, reduces_heads_in_any_scratch_to_the_same_bytes) {
  Random random(TestSeed(
      "window_attention/reduces_heads_in_any_scratch_to_the_same_bytes"));
  for (const Batching& b : kBatchings) {
    const oracle::WindowAttentionInput in =
        RandomInput(b.n_tokens, b.window, b.group, b.head_dim, random);
    ForEachTarget([&](SimdTarget simd) {
      const std::vector<float> heads = RunKernel(simd, in);
      cr_assert(SameBytes(RunKernel(simd, in, {}, {}, SIZE_MAX), heads),
                "%s: group %u", simd.name, b.group);
      for (Reduce reduce : {Reduce::kMean, Reduce::kMax, Reduce::kSum}) {
        std::vector<float> expected(b.n_tokens);
        ReduceRows(simd, heads.data(), b.group, b.n_tokens, b.n_tokens, reduce,
                   expected.data());
        for (size_t less : {size_t{0}, SIZE_MAX}) {
          cr_assert(
              SameBytes(RunKernel(simd, in, {}, {}, less, reduce), expected),
              "%s: group %u, reduce %d, %zu bytes less", simd.name, b.group,
              static_cast<int>(reduce), less);
        }
      }
    });
  }
}

// Sets other options of rows, alone and together.
void SetOptions(uint32_t options, oracle::WindowAttentionInput* in) {
  in->past_only = (options & 1) != 0;
  in->weigh_by_past = (options & 2) != 0;
  in->max_of_rows = (options & 4) != 0;
  if ((options & 8) == 0) return;
  in->logit_heads = in->group;
  in->group = 1;
}

Test(window_attention, options_of_rows_match_the_oracle) {
  Random random(TestSeed("window_attention/options_of_rows"));
  for (uint32_t options = 1; options < 16; ++options) {
    for (const Batching& b : kBatchings) {
      oracle::WindowAttentionInput in =
          RandomInput(b.n_tokens, b.window, b.group, b.head_dim, random);
      SetOptions(options, &in);
      ExpectOracle(in);
    }
    oracle::WindowAttentionInput whole = RandomInput(70, 70, 3, 24, random);
    SetOptions(options, &whole);
    ExpectOracle(whole);
  }
}

// Shapes whose windows can be measured, around tiles and vectors.
template <class Body>
void ForEachMeasuredCase(const char* seed, const Body& body) {
  Random random(TestSeed(seed));
  for (uint32_t n_tokens : {3u, 17u, 64u, 65u, 70u, 131u, 200u, 700u}) {
    for (uint32_t window : {2u, 9u, 32u, 64u}) {
      if (window > n_tokens) continue;
      oracle::WindowAttentionInput in = RandomInput(
          n_tokens, window, 1 + random.Below(5), 1 + random.Below(40), random);
      in.past_only = random.Below(3) == 0 && window < n_tokens;
      in.spread = random.Below(3) == 0 ? 0.0f : 200.0f;
      in.n_first = random.Below(6);
      in.n_last = random.Below(n_tokens);
      body(in);
    }
  }
}

Test(window_attention, adds_the_variance_of_rows_as_the_oracle) {
  ForEachMeasuredCase("window_attention/adds_the_variance_of_rows",
                      [](const auto& in) { ExpectOracle(in); });
  Random random(TestSeed("window_attention/variance in batches"));
  oracle::WindowAttentionInput in = RandomInput(130, 64, 20, 1024, random);
  in.spread = 3.0f;
  ExpectOracle(in);
}

void ExpectMeasure(const char* what, const char* target, double value,
                   const oracle::WindowAttentionResult::Measure& expected) {
  cr_assert(std::abs(value - expected.value) <= expected.tolerance,
            "%s: %s is %.9g, expected %.9g, tolerance %.3g", target, what,
            value, expected.value, expected.tolerance);
}

Test(window_attention, measures_what_the_oracle_does) {
  ForEachMeasuredCase(
      "window_attention/measures_what_the_oracle_does", [](const auto& in) {
        const oracle::WindowAttentionResult expected =
            oracle::WindowAttention(in);
        ForEachTarget([&](SimdTarget simd) {
          const std::vector<float> plain = RunKernel(simd, in);
          for (size_t less : {size_t{0}, SIZE_MAX}) {
            WindowMeasure dynamics;
            cr_assert(SameBytes(
                RunKernel(simd, in, {}, {}, less, {}, {}, &dynamics), plain));
            ExpectMeasure("entropy", simd.name, dynamics.first,
                          expected.entropy);
            ExpectMeasure("variance", simd.name, dynamics.variance,
                          expected.variance);
            WindowMeasure ends{true, in.n_first, in.n_last};
            cr_assert(SameBytes(
                RunKernel(simd, in, {}, {}, less, {}, {}, &ends), plain));
            ExpectMeasure("ends", simd.name, ends.first, expected.ends);
          }
        });
      });
}

// Equal weights have no variance in spite of rounding.
Test(window_attention, of_equal_keys_has_no_variance) {
  Random random(TestSeed("window_attention/of_equal_keys_has_no_variance"));
  oracle::WindowAttentionInput in = RandomInput(200, 32, 2, 24, random);
  in.past_only = true;
  in.spread = 200.0f;
  for (size_t i = 0; i < in.keys.size(); ++i) in.keys[i] = in.keys[i % 24];
  ForEachTarget([&](SimdTarget simd) {
    WindowMeasure measure;
    RunKernel(simd, in, {}, {}, 0, {}, {}, &measure);
    cr_assert(measure.variance == 0.0, "%s: %g", simd.name, measure.variance);
  });
}

Test(window_attention, the_largest_logit_is_nan_if_one_is) {
  Random random(TestSeed("window_attention/the_largest_logit"));
  oracle::WindowAttentionInput in = RandomInput(100, 5, 3, 8, random);
  in.logit_heads = 3;
  in.group = 1;
  in.queries[(1 * 5 + 2) * 8 + 3] = NAN;  // head 1, row 2
  in.max_of_rows = true;
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> weights = RunKernel(simd, in);
    for (uint32_t j = 0; j < 100; ++j) {
      cr_assert(std::isnan(weights[j]) == (j < 98), "%s: key %u is %g",
                simd.name, j, static_cast<double>(weights[j]));
    }
  });
}

std::vector<float> LogSumExps(const oracle::WindowAttentionInput& in) {
  std::vector<float> lse;
  for (size_t row = 0; row < size_t{in.group} * in.window; ++row) {
    double sum = 0.0;
    for (size_t j = 0; j <= in.n_tokens - in.window + row % in.window; ++j) {
      double dot = 0.0;
      for (uint32_t d = 0; d < in.head_dim; ++d) {
        dot += double{in.queries[row * in.head_dim + d]} *
               in.keys[j * in.head_dim + d];
      }
      sum += std::exp(dot * in.scale);
    }
    lse.push_back(static_cast<float>(std::log(sum)));
  }
  return lse;
}

// There is one pass, without room for exponentials.
Test(window_attention, takes_log_sum_exps_in_place_of_a_pass) {
  Random random(TestSeed("window_attention/takes_log_sum_exps"));
  for (const Batching& b :
       {kBatchings[0], kBatchings[1], kBatchings[2], Batching{700, 700, 2, 64},
        Batching{64, 64, 3, 5}, Batching{1, 1, 1, 3}}) {
    oracle::WindowAttentionInput in =
        RandomInput(b.n_tokens, b.window, b.group, b.head_dim, random);
    const oracle::WindowAttentionResult expected = oracle::WindowAttention(in);
    const std::vector<float> lse = LogSumExps(in);
    ForEachTarget([&](SimdTarget simd) {
      const std::vector<float> weights =
          RunKernel(simd, in, {}, {}, SIZE_MAX, {}, lse);
      ExpectWeights(in, expected, weights, simd.name);
      cr_assert(SameBytes(RunKernel(simd, in, {}, {}, 0, {}, lse), weights),
                "%s", simd.name);
    });
    // The given log-sum-exps count, not those that could be computed.
    std::vector<float> other = lse;
    for (float& v : other) v += 1.0f;
    const std::vector<float> less =
        RunKernel(SimdTargetAt(0), in, {}, {}, SIZE_MAX, {}, other);
    cr_assert(std::abs(less[0] - expected.weights[0] / std::exp(1.0)) <=
              1e-3 * expected.weights[0]);
    other[0] = INFINITY;
    cr_assert(std::isnan(
        RunKernel(SimdTargetAt(0), in, {}, {}, SIZE_MAX, {}, other)[0]));
  }
}

Test(window_attention, has_scratch_that_serves_any_window) {
  for (uint32_t n_tokens : {1u, 64u, 1000u, 5000u}) {
    for (uint32_t group : {1u, 3u, 16u, 127u}) {
      for (uint32_t head_dim : {3u, 128u, 1024u}) {
        const WindowAttentionScratchSize any =
            WindowAttentionScratchOfAnyWindow(n_tokens, group, head_dim);
        for (uint32_t window = 1; window <= n_tokens;
             window += 1 + window / 7) {
          const WindowAttentionScratchSize one =
              WindowAttentionScratchBytes(n_tokens, window, group, head_dim);
          cr_assert(any.least >= one.least && any.best >= one.best,
                    "%u tokens, window %u, group %u, head_dim %u", n_tokens,
                    window, group, head_dim);
        }
      }
    }
  }
}

Test(window_attention, batches_have_every_row_once) {
  for (uint32_t head_dim : {1u, 64u, 128u, 576u, 8192u}) {
    for (uint32_t window : {1u, 32u, 63u, 64u, 65u, 256u, 5000u}) {
      for (uint32_t group : {1u, 4u, 16u, 127u}) {
        const RowBatches batches(window, group, head_dim, 1);
        const RowBatch first = batches.First();
        uint64_t n = 0;  // rows before the batch, head after head
        for (RowBatch b = first; b.head < group; b = batches.After(b)) {
          cr_assert(uint64_t{b.head} * window + b.row == n &&
                        b.row % kRowsPerSum == 0 && b.size() > 0 &&
                        b.size() <= first.size() &&
                        (b.n_heads == 1 || b.n_rows == window),
                    "head_dim %u, window %u, group %u: batch at %llu", head_dim,
                    window, group, static_cast<unsigned long long>(n));
          n += b.size();
        }
        cr_assert_eq(n, uint64_t{window} * group);
        cr_assert(first.size() <= kRowsPerSum ||
                  first.size() * (head_dim + 2 * kTileKeys) * sizeof(float) <=
                      RowBatches::kBytes);
      }
    }
  }
}

Test(window_attention, scratch_is_at_best_for_a_batch_and_at_least_for_a_tile) {
  const WindowAttentionScratchSize some =
      WindowAttentionScratchBytes(16384, 64, 4, 128);
  const size_t exps = size_t{16384} * 64 * 4 * sizeof(float);
  cr_assert(some.best >= exps && some.best < exps + exps / 16);
  // 128 heads in batches of 23 at most.
  const WindowAttentionScratchSize mla =
      WindowAttentionScratchBytes(131072, 32, 128, 576);
  cr_assert(mla.best < size_t{131072 + 8192} * 32 * 23 * sizeof(float));
  for (uint32_t window : {1u, 32u, 256u, 131072u}) {
    for (uint32_t group : {1u, 4u, 16u, 128u, 5000u}) {
      for (uint32_t head_dim : {1u, 64u, 128u, 576u, 65536u}) {
        const size_t least =
            WindowAttentionScratchBytes(131072, window, group, head_dim).least;
        cr_assert(least < (size_t{7} << 19) + 131072 * sizeof(float) +
                              size_t{672} * head_dim,
                  "window %u, group %u, head_dim %u: at least %zu bytes",
                  window, group, head_dim, least);
      }
    }
  }
}

}  // namespace
}  // namespace kvevict
