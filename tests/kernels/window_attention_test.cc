// Window attention against double precision: shapes around tiles and vectors, all
// options, any layout, any scratch, and numbers that are not finite.
#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/kernels/window_attention_layout.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void ExpectOracle(const oracle::WindowAttentionInput& in) {
  const oracle::WindowAttentionResult expected = oracle::WindowAttention(in);
  ForEachTarget([&](SimdTarget simd) {
    ExpectWeights(in, expected, RunKernel(simd, in), simd.name);
  });
}

TestSuite(window_attention);

// ---- One life of random calls ----

struct Shape {
  uint32_t n_tokens, window, group, head_dim;
};

template <class Number, size_t n>
Number OneOf(Random& random, const Number (&numbers)[n]) {
  return numbers[random.Below(n)];
}

Shape DrawShape(Random& random) {
  constexpr uint32_t kEdges[] = {1,  2,  15,  16,  17,  63,
                                 64, 65, 127, 128, 129, 259};
  constexpr uint32_t kDims[] = {1,  2,  3,  4,  5,  7,   8,   15,  16,
                                17, 31, 64, 80, 96, 127, 128, 129, 256};
  Shape s;
  s.n_tokens =
      random.Below(2) == 0 ? OneOf(random, kEdges) : 1 + random.Below(400);
  const uint32_t n = s.n_tokens;
  const uint32_t windows[] = {1, std::min(n, 3u), std::min(n, 33u), n,
                              1 + random.Below(std::min(n, 80u))};
  s.window = OneOf(random, windows);
  s.group = 1 + random.Below(8);
  s.head_dim = OneOf(random, kDims);
  return s;
}

// Caps bend the logits little, or to nearly one size. Sinks and biases lie far below
// and above them, and some heads have no sink.
void DrawOptions(Random& random, oracle::WindowAttentionInput* in) {
  constexpr float kCaps[] = {0.0f, 0.0f, 0.1f, 1.5f, 50.0f};
  const uint32_t options = random.Below(2) * random.Below(16);
  in->past_only = (options & 1) != 0;
  in->weigh_by_past = (options & 2) != 0;
  in->max_of_rows = (options & 4) != 0;
  if ((options & 8) != 0) {
    in->logit_heads = in->group % 2 == 0 ? in->group / 2 : in->group;
    in->group /= in->logit_heads;
  }
  in->softcap = OneOf(random, kCaps);
  if (random.Below(3) == 0) {
    const float sinks[] = {-40, 0, 3, 90, random.Gaussian(), -kInfinity};
    for (uint32_t h = 0; h < in->group * in->logit_heads; ++h) {
      in->sinks.push_back(OneOf(random, sinks));
    }
  }
  if (random.Below(3) != 0) return;
  const float reach = !in->sinks.empty() || random.Below(2) == 0 ? 0.5f : 20.0f;
  for (uint32_t j = 0; j < in->n_tokens; ++j) {
    in->biases.push_back(reach * random.Gaussian());
  }
}

// NaN spoils the rows that see it. Infinite logits are NaN, or weigh nothing below 0;
// biases may hide the first slots, all that some rows see, or all.
void DrawOdd(Random& random, oracle::WindowAttentionInput* in) {
  const uint32_t n = in->n_tokens, dim = in->head_dim;
  const uint32_t token = random.Below(n);
  in->softcap = 0.0f;
  switch (random.Below(6)) {
    case 0:
      in->queries[random.Below(static_cast<uint32_t>(in->queries.size()))] =
          kNan;
      break;
    case 1:
      in->keys[size_t{token} * dim + random.Below(dim)] = kNan;
      break;
    case 2:
      in->keys[size_t{token} * dim] = kInfinity;
      break;
    case 3:  // a run of the first slots, or some
      for (float& q : in->queries) q = std::abs(q);
      for (uint32_t j = 0; j < n; ++j) {
        if (j <= token || random.Below(9) == 0) {
          in->keys[size_t{j} * dim] = -kInfinity;
        }
      }
      break;
    default:
      in->biases.assign(n, 0.25f);
      std::fill_n(in->biases.begin(), random.Below(3) == 0 ? n : token,
                  -kInfinity);
      if (random.Below(2) == 0) in->keys[0] = kNan;
  }
}

void ExpectSameWithLess(SimdTarget simd, const oracle::WindowAttentionInput& in,
                        const RowLayout& queries, const RowLayout& keys,
                        const std::vector<float>& best, uint32_t n_tiles_less,
                        std::optional<Reduce> reduce) {
  const size_t tile = size_t{in.group} * in.window * 64 * sizeof(float);
  std::vector<float> expected = best;
  if (reduce) {
    expected.resize(in.n_tokens);
    ReduceRows(simd, best.data(), in.group, in.n_tokens, in.n_tokens, *reduce,
               expected.data());
  }
  for (const size_t less : {n_tiles_less * (tile + 64), SIZE_MAX}) {
    cr_assert(
        SameBytes(RunKernel(simd, in, queries, keys, less, reduce), expected),
        "%s: %u tokens, window %u, group %u, head_dim %u, %zu bytes less",
        simd.name, in.n_tokens, in.window, in.group, in.head_dim, less);
  }
}

// Results that scratch has no room for are computed again, to the same bytes, whether
// heads are reduced or not.
void Try(Random& random, const Shape& s) {
  constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  constexpr std::optional<Reduce> kReduces[] = {
      {}, {}, Reduce::kMean, Reduce::kMax, Reduce::kSum};
  RowLayout queries = AnyLayout(random, OneOf(random, kDTypes));
  queries.grouped = false;  // groups would reach across heads
  const RowLayout keys = AnyLayout(random, OneOf(random, kDTypes));
  oracle::WindowAttentionInput in =
      RandomInput(s.n_tokens, s.window, s.group, s.head_dim, random,
                  queries.dtype, keys.dtype);
  if (in.window == in.n_tokens && random.Below(3) == 0) {
    in.chunk = in.n_tokens;  // rows see all keys
  } else {
    DrawOptions(random, &in);
  }
  if (in.chunk == 0 && random.Below(4) == 0) DrawOdd(random, &in);
  if (random.Below(12) == 0) {
    for (size_t i = 0; i < in.keys.size(); ++i)
      in.keys[i] = in.keys[i % s.head_dim];
  }
  const oracle::WindowAttentionResult expected = oracle::WindowAttention(in);
  const uint32_t less = random.Below(s.n_tokens / 64 + 3);
  const std::optional<Reduce> reduce = OneOf(random, kReduces);
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> weights = RunKernel(simd, in, queries, keys);
    ExpectWeights(in, expected, weights, simd.name);
    ExpectSameWithLess(simd, in, queries, keys, weights, less, reduce);
  });
}

// One batch has all rows, or there are three by heads, or two by rows of each head's
// window.
constexpr Shape kBatchings[] = {
    {150, 9, 3, 40}, {130, 100, 9, 1024}, {200, 150, 2, 3000}};

Test(window_attention, matches_the_oracle) {
  Random random(TestSeed("window_attention/matches_the_oracle"));
  for (int i = 0; i < 700; ++i) {
    const Shape s = DrawShape(random);
    if (uint64_t{s.n_tokens} * s.window * s.group * s.head_dim > 6000000)
      continue;
    Try(random, s);
  }
  for (int i = 0; i < 18; ++i) Try(random, kBatchings[i % 3]);
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

// ---- Measures ----

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
          ExpectWeights(in, expected, plain, simd.name);
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
  Random random(TestSeed("window_attention/variance in batches"));
  oracle::WindowAttentionInput in = RandomInput(130, 64, 20, 1024, random);
  in.spread = 3.0f;
  ExpectOracle(in);
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

// ---- Log-sum-exps ----

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
  for (const Shape& b :
       {kBatchings[0], kBatchings[1], kBatchings[2], Shape{700, 700, 2, 64},
        Shape{64, 64, 3, 5}, Shape{1, 1, 1, 3}}) {
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

// ---- Numbers that are not finite ----

oracle::WindowAttentionInput Input() {
  Random random(7);
  return RandomInput(150, 20, 2, 8, random);
}

size_t CountNan(const std::vector<float>& weights, uint32_t head) {
  const auto begin = weights.begin() + head * 150;
  return static_cast<size_t>(
      std::count_if(begin, begin + 150, [](float w) { return std::isnan(w); }));
}

// A NaN can hide a larger logit from a maximum, and its payload could look like an
// exponent. Tries any place in a tile and any payload.
Test(window_attention, nan_is_never_lost) {
  for (uint32_t token = 0; token < 64; ++token) {
    oracle::WindowAttentionInput in = Input();
    uint32_t bits = 0x7FC00001u + token;
    std::memcpy(&in.keys[token * 8], &bits, sizeof(bits));
    for (uint32_t d = 0; d < 8; ++d)
      in.keys[(token + 16) % 64 * 8 + d] *= 300.0f;
    ForEachTarget([&](SimdTarget simd) {
      cr_assert(CountNan(RunKernel(simd, in), 1) == 150, "%s: %u", simd.name,
                token);
    });
  }
}

Test(window_attention, rows_of_log_sum_exp_minus_infinity_add_nothing) {
  oracle::WindowAttentionInput in = Input();
  in.group = 1;
  in.queries.resize(size_t{20} * 8);
  ForEachTarget([&](SimdTarget simd) {
    std::vector<float> lse(20, 5.0f);
    in.biases.assign(150, -kInfinity);
    in.biases[150 - 4] = 0.5f;  // seen by the last four rows
    std::fill_n(lse.begin(), 20 - 4, -kInfinity);
    std::vector<float> weights = RunKernel(simd, in, {}, {}, 0, {}, lse);
    for (uint32_t j = 0; j < 150; ++j) {
      cr_assert(j == 150 - 4 ? weights[j] > 0.0f : weights[j] == 0.0f,
                "%s: %u is %g", simd.name, j, static_cast<double>(weights[j]));
    }
    // What is given counts, but NaN stays.
    in.biases.assign(150, 80.0f);
    std::fill_n(lse.begin(), 20, -kInfinity);
    for (const float w : RunKernel(simd, in, {}, {}, 0, {}, lse)) {
      cr_assert(w == 0.0f, "%s: %g", simd.name, static_cast<double>(w));
    }
    in.biases[9] = kNan;
    weights = RunKernel(simd, in, {}, {}, 0, {}, lse);
    cr_assert(std::isnan(weights[9]), "%s", simd.name);
    lse[2] = kInfinity;
    weights = RunKernel(simd, in, {}, {}, 0, {}, lse);
    cr_assert(CountNan(weights, 0) == 150 - 20 + 3, "%s", simd.name);
  });
}

// Products that overflow f32 are infinite to the kernel, not to the oracle. The
// kernel only promises to return and to leave the other head alone.
Test(window_attention, overflow_is_confined) {
  oracle::WindowAttentionInput in = Input();
  in.queries[4 * 8] = 3e38f;
  in.keys[9 * 8] = 3e38f;
  for (uint32_t w = 0; w < 20; ++w) in.queries[(20 + w) * 8] = 0.0f;
  ForEachTarget([&](SimdTarget simd) {
    cr_assert(CountNan(RunKernel(simd, in), 1) == 0, "%s", simd.name);
  });
}

Test(window_attention, scale_may_be_zero_or_nan) {
  oracle::WindowAttentionInput in = Input();
  in.scale = 0.0f;
  ExpectOracle(in);
  in.scale = kNan;
  ExpectOracle(in);
}

// ---- Scratch ----

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
