// The forward pass against a double-precision oracle, on every SIMD target.
// tests/llama_cpp/logits_test.cc has it against llama.cpp.
#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>

#include "tests/tools/engine_test_util.h"
#include "tests/tools/llama_oracle.h"
#include "tests/tools/llama_synthetic.h"

namespace kvevict::tools {
namespace {

double MaxDifference(std::span<const float> a, std::span<const float> b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  }
  return worst;
}

// Relative to the logits' size. A logit passes through some 10 products of at
// most 96 terms; 32 * 2^-24 leaves room for their rounding, not for a wrong
// term.
constexpr double kOracleTolerance = 32 * 0x1p-24;

// Columns lie around the 8 to 32 of a panel of products, and chunks of rows around its
// blocks of 4 and its items of 64.
Test(llama_model, equals_the_oracle_on_every_target) {
  ThreadPool pool(2);
  const SyntheticShape shapes[] = {
      {},
      {.n_kv_heads = 4},                                // No grouping.
      {.n_kv_heads = 1, .rope_dims = 8, .tied = true},  // Partial RoPE.
      {.n_layers = 1,
       .d_model = 32,
       .d_ff = 32,
       .n_q_heads = 1,
       .n_kv_heads = 1,
       .head_dim = 32,
       .rope_dims = 32},
      {.n_kv_heads = 1, .head_dim = 32},  // Heads wider than d_model.
      {.d_model = 33, .d_ff = 31},
  };
  const std::vector<int32_t> ids = RandomIds(71, kSyntheticVocab);
  for (const SyntheticShape& shape : shapes) {
    LlamaModel model(Synthetic(shape), pool);
    const LlamaWeights weights = Synthetic(shape);
    LlamaOracle oracle(weights);
    std::vector<double> expected;
    for (const int32_t id : ids) {
      const LlamaOracle::Row row = oracle.Step(id);
      expected.insert(expected.end(), row.begin(), row.end());
    }
    double largest = 0;
    for (const double x : expected) largest = std::max(largest, std::abs(x));
    ForEachTarget([&](const char* target) {
      for (const size_t chunk : {70, 17}) {
        const std::vector<float> logits =
            AllLogits(model, ids, KVEVICT_DTYPE_F32, chunk);
        double worst = 0;
        for (size_t i = 0; i < expected.size(); ++i) {
          worst = std::max(worst, std::abs(logits[i] - expected[i]));
        }
        cr_expect(worst <= kOracleTolerance * largest,
                  "%s, chunks of %zu: logits up to %g are off by up to %g",
                  target, chunk, largest, worst);
      }
    });
  }
}

Test(llama_model, threads_do_not_change_a_bit) {
  const std::vector<int32_t> ids = RandomIds(300, kSyntheticVocab);
  std::vector<float> expected;
  for (const uint32_t n_threads : {1, 2, 5}) {
    ThreadPool pool(n_threads);
    LlamaModel model(Synthetic({}), pool);
    const std::vector<float> logits =
        AllLogits(model, ids, KVEVICT_DTYPE_F32, 128);
    if (expected.empty()) expected = logits;
    cr_expect(logits == expected, "%u threads: off by %g", n_threads,
              MaxDifference(logits, expected));
  }
}

Test(llama_model, chunks_do_not_matter) {
  const std::vector<int32_t> ids = RandomIds(300, kSyntheticVocab);
  ThreadPool pool(2);
  LlamaModel model(Synthetic({}), pool);
  const std::vector<float> expected =
      AllLogits(model, ids, KVEVICT_DTYPE_F32, 256);
  float largest = 0;
  for (const float x : expected) largest = std::max(largest, std::abs(x));
  for (const size_t chunk : {64, 7, 1}) {
    const double worst = MaxDifference(
        AllLogits(model, ids, KVEVICT_DTYPE_F32, chunk), expected);
    cr_expect(worst <= kOracleTolerance * double{largest},
              "chunk %zu: off by %g", chunk, worst);
  }
}

// The norms that weigh tokens, from Wo as it is in the file.
Test(llama_model, projected_norms_are_those_of_their_definition) {
  ThreadPool pool(2);
  const LlamaWeights weights = Synthetic({});
  LlamaModel model(Synthetic({}), pool);
  const LlamaConfig& c = model.config();
  TestRandom random(3);
  constexpr uint32_t kRows = 5;
  std::vector<float> values(size_t{kRows} * c.n_kv_heads * c.head_dim);
  for (float& v : values) {
    v = static_cast<float>(random.Below(2001)) / 1000 - 1;
  }
  const std::vector<float> norms =
      model.ProjectedNorms(1, values.data(), kRows);
  const uint32_t group = c.n_q_heads / c.n_kv_heads;
  cr_assert(norms.size() == size_t{c.n_kv_heads} * kRows);
  for (uint32_t head = 0; head < c.n_kv_heads; ++head) {
    for (uint32_t row = 0; row < kRows; ++row) {
      double expected = 0;
      for (uint32_t g = 0; g < group; ++g) {
        for (size_t o = 0; o < c.d_model; ++o) {
          double sum = 0;
          for (uint32_t i = 0; i < c.head_dim; ++i) {
            const size_t input = (head * group + g) * size_t{c.head_dim} + i;
            sum +=
                double{values[(row * c.n_kv_heads + head) * c.head_dim + i]} *
                weights.layers[1].wo.elems[input * c.d_model + o];
          }
          expected += std::abs(sum) / group;
        }
      }
      const double got = norms[head * kRows + row];
      cr_expect(std::abs(got - expected) <= 1e-5 * expected,
                "head %u, row %u: %g, not %g", head, row, got, expected);
    }
  }
}

}  // namespace
}  // namespace kvevict::tools
