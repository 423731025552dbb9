// The model's prompts, and what it reads of them in chunks. recall_policies_test.cc has
// what an independent prototype recalled with the same weights and prompts.
#include <criterion/criterion.h>

#include <algorithm>

#include "tools/recall/model.h"
#include "tools/recall/workload.h"

namespace kvevict::tools {
namespace {

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
