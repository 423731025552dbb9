// Recall after eviction equals the numbers of an independent prototype.
#include "tests/tools/recall_table.h"
#include "tools/commands/recall_demo.h"

namespace kvevict::tools {
namespace {

const std::vector<RecallRow> kShortRows = {
    {"none", 1.00, 1.00, 1},
    {"snapkv:budget=1024", 1.00, 0.49, 2},
    {"snapkv:budget=512", 1.00, 0.17, 4},
    {"snapkv:budget=256", 1.00, 0.06, 8},
    {"streaming-llm:budget=1024", 0.50, 0.47, 2},
    {"streaming-llm:budget=512", 0.25, 0.21, 4},
    {"streaming-llm:budget=256", 0.06, 0.08, 8},
    // The prototype gave the layers 1.5 and 0.5 budgets, sinks and window included;
    // ours spreads what is selected, so alpha = (0.5 B - 36) / (1.5 B - 36).
    {"pyramidkv:budget=1024,alpha=0.317333333333", 1.00, 0.17, 2},
    {"pyramidkv:budget=512,alpha=0.300546448087", 1.00, 0.06, 4},
    {"pyramidkv:budget=256,alpha=0.264367816092", 0.79, 0.01, 8},
    // Half of what stays is recent.
    {"h2o:budget=1024,recent=512", 0.40, 0.27, 2},
    {"h2o:budget=512,recent=256", 0.10, 0.10, 4},
    {"h2o:budget=256,recent=128", 0.00, 0.02, 8},
    // The prototype has lists by head and a window of 32 beside.
    {"tova:budget=1024,scope=head,sink=4,recent=32", 0.35, 0.47, 2},
    {"tova:budget=512,scope=head,sink=4,recent=32", 0.23, 0.28, 4},
    // Everything fits.
    {"snapkv:budget=2048", 1.00, 1.00, 1},
};

Test(recall_policies, f32_recalls_what_the_prototype_recalled) {
  ExpectRecall(2048, KVEVICT_DTYPE_F32, kShortRows);
}

Test(recall_policies, asked_recall_survives_16_bit_caches) {
  for (kvevict_dtype dtype : {KVEVICT_DTYPE_BF16, KVEVICT_DTYPE_F16}) {
    ExpectRecall(2048, dtype,
                 {{"none", 1.00, 1.00, 1}, {"snapkv:budget=256", 1.00, {}, 8}});
  }
}

// Half of the questions lie before a window of 16.
Test(recall_policies, a_short_window_sees_half_of_the_questions) {
  const Policy policy = ParsePolicy("snapkv:budget=256,window=16", 1.0);
  ThreadPool pool(2);
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    RecallExperiment experiment(MakeWorkload(2048, seed), KVEVICT_DTYPE_F32,
                                std::span(&policy, 1), pool);
    experiment.Prefill();
    const double asked = experiment.Evaluate(0).asked;
    cr_expect(asked >= 0.50 && asked <= 0.5625, "%g", asked);
  }
}

// The needles that reference queries ask for are found, half of the unasked ones
// or all, and beside the window those of the prompt's questions too.
Test(recall_policies, reference_queries_find_what_they_ask_for) {
  const std::vector<Policy> policies = {
      ParsePolicy("snapkv:budget=512,reference=24", 1.0),
      ParsePolicy("snapkv:budget=512,reference=48,reference_weight=0.75", 1.0)};
  ThreadPool pool(2);
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    RecallExperiment experiment(MakeWorkload(2048, seed), KVEVICT_DTYPE_F32,
                                policies, pool);
    experiment.Prefill();
    const double half = experiment.Evaluate(0).unasked;
    const RecallResult both = experiment.Evaluate(1);
    cr_expect(half >= 0.5 && half < 0.75, "half: %g", half);
    cr_expect(both.asked == 1.0 && both.unasked == 1.0, "both: %g, %g",
              both.asked, both.unasked);
  }
}

// A needle survives if its value's slot does, which is the share that is selected.
Test(recall_policies, random_recalls_its_share) {
  ThreadPool pool(2);
  for (uint32_t budget : {1024u, 512u, 256u}) {
    constexpr uint32_t kPolicies = 8;
    std::vector<Policy> policies;
    for (uint32_t seed = 0; seed < kPolicies; ++seed) {
      policies.push_back(ParsePolicy(
          "random:sink=0,recent=32,seed=" + std::to_string(seed), budget));
    }
    RecallExperiment experiment(MakeWorkload(2048, 1), KVEVICT_DTYPE_F32,
                                policies, pool);
    experiment.Prefill();
    double found = 0;
    for (uint32_t i = 0; i < kPolicies; ++i) {
      const RecallResult result = experiment.Evaluate(i);
      found += result.asked * kQuestions;
      found += result.unasked * (kNeedles - kQuestions);
    }
    const double n = kNeedles * kPolicies;
    const double share = (budget - 36) / (2048.0 - 36);
    const double sigma = std::sqrt(share * (1 - share) / n);
    cr_expect(std::fabs(found / n - share) < 4 * sigma, "%u: %g, not %g",
              budget, found / n, share);
  }
}

Test(recall_policies, the_demo_hands_the_simd_target_on) {
  DemoOptions options;
  options.tokens = 256;
  options.simd = "MMX";
  try {
    RunRecallDemo(options);
    cr_assert(false, "was accepted");
  } catch (const KvevictError& error) {
    cr_expect(std::string(error.what()).starts_with("simd_target \"MMX\""));
  }
}

}  // namespace
}  // namespace kvevict::tools
