#include "candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace kvevict::llama_cli::eval {

namespace {

std::string WithBudget(const std::string& policy, uint32_t budget) {
  return fmt::format("{}{}budget={}", policy,
                     policy.find(':') == std::string::npos ? ':' : ',', budget);
}

// A reason of the library's, said of a policy and a budget that the user named.
std::string LeftOut(const Candidate& candidate, std::string why) {
  const std::string of_library = "policy text: ";
  if (why.starts_with(of_library)) why.erase(0, of_library.size());
  return fmt::format("{} at {:g} %: {}", candidate.policy,
                     100 * candidate.share, why);
}

}  // namespace

uint32_t Candidate::QueryRows(uint32_t n_prompt, uint32_t n_behind) const {
  const uint32_t n_rows = tools::Policy(text).Resolve(1).n_query_rows;
  if (n_rows == 0) return 0;
  const bool all =
      n_rows == KVEVICT_QUERY_ROWS_ALL || n_rows == KVEVICT_QUERY_ROWS_ANY;
  return (all ? n_prompt : n_rows) + n_behind;
}

std::vector<std::string> DefaultPolicies() {
  return {"snapkv",
          "h2o:sink=0,recent=0.5",
          "expected-attention",
          "tova:scope=head",
          "streaming-llm",
          "keydiff",
          "knorm",
          "random"};
}

void CheckPolicies(std::span<const std::string> policies, Engine engine) {
  for (const std::string& policy : policies) {
    if (policy.find("budget=") != std::string::npos) {
      throw std::runtime_error(fmt::format(
          "policy \"{}\": the budgets are those of --keep", policy));
    }
    // With so much room only a policy that cannot work fails.
    constexpr uint32_t kRoom = 1 << 20;
    Resolve(WithBudget(policy, kRoom), kRoom, engine);
  }
}

Candidates MakeCandidates(std::span<const std::string> policies,
                          std::span<const double> shares, uint32_t n_prompt,
                          Engine engine) {
  Candidates candidates;
  for (const std::string& policy : policies) {
    for (const double share : shares) {
      Candidate c{policy, share, 0, ""};
      // A budget of 1 would be a share.
      c.budget = std::max(2u, static_cast<uint32_t>(share * n_prompt));
      c.text = WithBudget(policy, c.budget);
      try {
        Resolve(c.text, n_prompt, engine);
        candidates.all.push_back(c);
      } catch (const std::runtime_error& error) {
        candidates.left_out.push_back(LeftOut(c, error.what()));
      }
    }
  }
  return candidates;
}

}  // namespace kvevict::llama_cli::eval
