#include "tools/recall/workload.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>
#include <span>

#include "tools/recall/random.h"
#include "tools/recall/vocabulary.h"

namespace kvevict::tools {
namespace {

// Needles stay away from both ends of the body.
constexpr uint32_t kHeadMargin = 16;
constexpr uint32_t kTailMargin = 64;

std::vector<int32_t> ShuffledRange(SplitMix64& random, int32_t first,
                                   uint32_t n) {
  std::vector<int32_t> range(n);
  std::iota(range.begin(), range.end(), first);
  random.Shuffle(std::span(range));
  return range;
}

}  // namespace

Workload MakeWorkload(uint32_t n_tokens, uint64_t seed) {
  assert(n_tokens >= kMinTokens && n_tokens <= kMaxTokens);
  SplitMix64 random(seed);
  Workload workload;
  std::vector<int32_t>& tokens = workload.tokens;
  tokens.push_back(kBos);
  while (tokens.size() < n_tokens) {
    tokens.push_back(kFirstFiller +
                     static_cast<int32_t>(random.Below(kFillers)));
  }

  const std::vector<int32_t> keys = ShuffledRange(random, kFirstKey, kKeys);
  const std::vector<int32_t> values = ShuffledRange(random, kFirstValue, kKeys);
  const uint32_t end = n_tokens - kQuestionTokens - kTailMargin;
  const double slot = static_cast<double>(end - kHeadMargin) / kNeedles;
  const uint32_t slack =
      static_cast<uint32_t>(std::max(1.0, std::floor(slot) - 2));
  for (uint32_t n = 0; n < kNeedles; ++n) {
    const uint32_t position = kHeadMargin +
                              static_cast<uint32_t>(std::floor(n * slot)) +
                              random.Below(slack);
    tokens[position] = keys[n];
    tokens[position + 1] = values[n];
    workload.needles.push_back({position, keys[n], values[n], false});
  }

  // The middle needle of every four.
  constexpr uint32_t kStep = kNeedles / kQuestions;
  for (uint32_t i = 0; i < kQuestions; ++i) {
    workload.questions.push_back(i * kStep + kStep / 2);
  }
  random.Shuffle(std::span(workload.questions));
  for (uint32_t i = 0; i < kQuestions; ++i) {
    Needle& needle = workload.needles[workload.questions[i]];
    needle.asked = true;
    tokens[workload.QuestionPosition(i)] = needle.key;
    tokens[workload.QuestionPosition(i) + 1] = kSeparator;
  }
  return workload;
}

}  // namespace kvevict::tools
