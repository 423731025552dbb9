// The specified numbers of the model and its prompt.
#include <criterion/criterion.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "tools/recall/experiment.h"
#include "tools/recall/model.h"
#include "tools/recall/random.h"
#include "tools/recall/vocabulary.h"
#include "tools/recall/weights.h"
#include "tools/recall/workload.h"

namespace kvevict::tools {
namespace {

Test(recall_model, splitmix64_is_the_published_generator) {
  SplitMix64 random(1);
  cr_expect(random.Next() == 0x910a2dec89025cc1);
  cr_expect(random.Next() == 0xbeeb8da1658eec67);
}

Test(recall_model, gauss_has_its_first_values_and_its_deviation) {
  const std::vector<float> values = Gauss(11, 10000, 1);
  const double expected[] = {-0.48278159, -0.69693088, -0.49234551};
  for (int i = 0; i < 3; ++i) {
    // The specification has eight digits.
    cr_expect(std::fabs(double{values[i]} - expected[i]) < 1e-7);
  }
  double squares = 0;
  for (float value : values) squares += double{value} * double{value};
  // The variance of a squared value is 1.7: 5 sigma.
  cr_expect(std::fabs(squares / 10000 - 1) < 5 * 1.3 / 100);
  cr_expect(Gauss(11, 1, 0.5)[0] == values[0] / 2);
}

Test(recall_model, codes_are_the_specified_ones_and_apart) {
  const auto& codes = TokenCodes();
  cr_expect(codes[0] == 0x8ce6945b);
  cr_expect(codes[1] == 0x34cb0ced);
  cr_expect(codes[2] == 0x355117a4);
  cr_expect(codes[64] == 0x4a77d909);
  cr_expect(codes[128] == 0x4792dec2);
  cr_expect(codes[192] == 0x18a3db4d);
  cr_expect(codes[319] == 0xd4fa85e5);
  for (uint32_t a = 0; a < kVocabulary; ++a) {
    for (uint32_t b = 0; b < a; ++b) {
      const int distance = std::popcount(codes[a] ^ codes[b]);
      cr_expect(distance >= 10 && distance <= 22);
    }
  }
  // 0x8ce6945b ends in ...1011.
  const float unit = 1 / std::sqrt(32.0f);
  cr_expect(CodeValue(kBos, 0) == unit);
  cr_expect(CodeValue(kBos, 2) == -unit);
}

Test(recall_model, the_workload_is_the_specified_one) {
  const Workload workload = MakeWorkload(2048, 1);
  const int32_t first[] = {0, 257, 295, 286, 203, 249};
  const int32_t last[] = {97, 1, 86, 1, 113, 1, 118, 1};
  cr_assert(workload.tokens.size() == 2048);
  cr_expect(
      std::equal(std::begin(first), std::end(first), workload.tokens.begin()));
  cr_expect(
      std::equal(std::begin(last), std::end(last), workload.tokens.end() - 8));
  const Needle& n0 = workload.needles[0];
  cr_expect(n0.position == 21 && n0.key == 91 && n0.value == 177);
  const Needle& n1 = workload.needles[1];
  cr_expect(n1.position == 68 && n1.key == 124 && n1.value == 156);
}

// For every length, needles are in the prompt, apart from each other, and a
// quarter of them is asked for.
Test(recall_model, needles_and_questions_stand_in_the_prompt) {
  for (uint32_t n_tokens : {256u, 257u, 300u, 2048u, 16384u, 32768u}) {
    const Workload workload = MakeWorkload(n_tokens, 5);
    cr_assert(workload.tokens.size() == n_tokens);
    cr_assert(workload.needles.size() == kNeedles);
    uint32_t free = 1;
    uint32_t n_asked = 0;
    for (const Needle& needle : workload.needles) {
      cr_assert(needle.position >= free);
      free = needle.position + 2;
      cr_assert(free < n_tokens - kQuestionTokens);
      cr_expect(workload.tokens[needle.position] == needle.key);
      cr_expect(workload.tokens[needle.position + 1] == needle.value);
      n_asked += needle.asked;
    }
    cr_expect(n_asked == kQuestions);
    for (uint32_t i = 0; i < kQuestions; ++i) {
      const Needle& needle = workload.needles[workload.questions[i]];
      cr_expect(needle.asked);
      cr_expect(workload.tokens[workload.QuestionPosition(i)] == needle.key);
    }
  }
}

// The heads' logits, from the weights alone.
class HeadLogits {
 public:
  // The logit in layer 0 of q head h for a query `distance` after the key.
  static double PreviousToken(uint32_t head, int distance) {
    static const Weights weights = MakeWeights();
    const LayerWeights& w = weights.layers[0];
    double logit = 0;
    for (uint32_t f = 0; f < kRopePairs; ++f) {
      const double angle = distance * RopeFrequency(f);
      const double q1 = w.wq.row(kConstDim)[head * kHeadDim + f];
      const double q2 = w.wq.row(kConstDim)[head * kHeadDim + f + kRopePairs];
      const double k = w.wk.row(kConstDim)[f];
      // The key has no second half, so only the difference of the rotations matters.
      logit += k * (q1 * std::cos(angle) - q2 * std::sin(angle));
    }
    return logit / std::sqrt(double{kHeadDim});
  }
};

Test(recall_model, layer_0_attends_to_the_tokens_one_and_two_back) {
  for (uint32_t head : {0u, 1u}) {
    const int target = static_cast<int>(head) + 1;
    cr_expect(std::fabs(HeadLogits::PreviousToken(head, target) - 300) < 1e-3);
    double best_other = 0;
    for (int distance = 0; distance < 131072; ++distance) {
      if (distance == target) continue;
      best_other =
          std::max(best_other, HeadLogits::PreviousToken(head, distance));
    }
    cr_expect(best_other <= 274.6 + 0.05, "%g", best_other);
  }
}

// RecallExperiment::Prefill throws if an answer is wrong.
Test(recall_model, the_full_cache_answers_the_prompts_questions) {
  ThreadPool pool(2);
  for (kvevict_dtype dtype :
       {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16, KVEVICT_DTYPE_BF16}) {
    for (uint32_t n_tokens : {256u, 2048u}) {
      RecallExperiment experiment(MakeWorkload(n_tokens, 1), dtype, {}, pool);
      cr_expect_no_throw(experiment.Prefill(), std::runtime_error);
    }
  }
}

// A prompt in chunks leaves the cache that one chunk leaves, except for rounding.
Test(recall_model, chunks_do_not_matter) {
  ThreadPool pool(2);
  const Workload workload = MakeWorkload(512, 2);
  RecallModel model(512, pool);
  KvCache whole(RecallModel::CacheShape(KVEVICT_DTYPE_F32, 512));
  const std::vector<int32_t> expected =
      model.Forward(workload.tokens, 0, whole);
  for (uint32_t chunk : {1u, 7u, 100u}) {
    KvCache cache(whole.shape());
    std::vector<int32_t> got;
    for (uint32_t done = 0; done < 512;) {
      const uint32_t n = std::min(chunk, 512 - done);
      const auto next = model.Forward(
          std::span(workload.tokens).subspan(done, n), done, cache);
      got.insert(got.end(), next.begin(), next.end());
      done += n;
    }
    cr_expect(got == expected, "chunks of %u", chunk);
  }
}

}  // namespace
}  // namespace kvevict::tools
