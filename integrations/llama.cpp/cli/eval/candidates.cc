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

Candidates MakeCandidates(std::span<const std::string> policies,
                          std::span<const double> shares, uint32_t n_prompt,
                          Engine engine) {
  Candidates candidates;
  for (const std::string& policy : policies) {
    if (policy.find("budget=") != std::string::npos) {
      throw std::runtime_error(fmt::format(
          "policy \"{}\": the budgets are those of --keep", policy));
    }
    // With room for every token only a policy that cannot work fails.
    Resolve(WithBudget(policy, n_prompt), n_prompt, engine);
    for (const double share : shares) {
      Candidate c{policy, share, 0, ""};
      // A budget of 1 would be a share.
      c.budget = std::max(2u, static_cast<uint32_t>(share * n_prompt));
      c.text = WithBudget(policy, c.budget);
      try {
        Resolve(c.text, n_prompt, engine);
        candidates.all.push_back(c);
      } catch (const std::runtime_error& error) {
        candidates.left_out.push_back(error.what());
      }
    }
  }
  if (candidates.all.empty()) {
    throw std::runtime_error(candidates.left_out.empty()
                                 ? "no policy to compare"
                                 : "no policy has room: " +
                                       candidates.left_out.front());
  }
  return candidates;
}

}  // namespace kvevict::llama_cli::eval
