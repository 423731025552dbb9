#include "tools/recall/recall_demo.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/engine/progress_bar.h"
#include "tools/engine/text_table.h"
#include "tools/recall/experiment.h"

namespace kvevict::tools {
namespace {

constexpr uint32_t kDefaultTokens = 16384;

// Sinks, observation window and something to choose.
constexpr uint32_t kMinDefaultBudget = 64;

double Shrink(const Evictor::Report& report) {
  return static_cast<double>(report.bytes_before) /
         static_cast<double>(report.bytes_after);
}

std::string Table(const std::vector<NamedPolicy>& policies,
                  const std::vector<RecallResult>& results) {
  using Align = TextTable::Align;
  TextTable table({{"policy", Align::kLeft},
                   {"KV MiB"},
                   {"after"},
                   {"shrink"},
                   {"evict ms"},
                   {"asked"},
                   {"unasked"},
                   {"tokens/s"}});
  constexpr double kMiB = 1 << 20;
  for (size_t i = 0; i < results.size(); ++i) {
    const RecallResult& r = results[i];
    const Evictor::Report& e = r.eviction;
    table.AddRow(
        {policies[i].label,
         fmt::format("{:.2f}", static_cast<double>(e.bytes_before) / kMiB),
         fmt::format("{:.2f}", static_cast<double>(e.bytes_after) / kMiB),
         fmt::format("{:.1f}", Shrink(e)),
         fmt::format("{:.2f}", e.milliseconds), fmt::format("{:.2f}", r.asked),
         fmt::format("{:.2f}", r.unasked),
         fmt::format("{:.0f}", r.decode_tokens_per_s)});
  }
  return fmt::format(
      "{}\nasked:   recall of the {} needles that the end of the prompt asks "
      "for\nunasked: recall of the other {}\n",
      table.ToString(), kQuestions, kNeedles - kQuestions);
}

std::string Json(const std::vector<NamedPolicy>& policies,
                 const std::vector<RecallResult>& results, uint32_t n_tokens,
                 uint32_t budget) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t i = 0; i < results.size(); ++i) {
    const RecallResult& r = results[i];
    rows.push_back({{"policy", policies[i].label},
                    {"kv_bytes_before", r.eviction.bytes_before},
                    {"kv_bytes_after", r.eviction.bytes_after},
                    {"shrink", Shrink(r.eviction)},
                    {"evict_ms", r.eviction.milliseconds},
                    {"recall_asked", r.asked},
                    {"recall_unasked", r.unasked},
                    {"decode_tokens_per_s", r.decode_tokens_per_s}});
  }
  const nlohmann::ordered_json document = {
      {"n_tokens", n_tokens}, {"budget", budget}, {"results", rows}};
  return document.dump(2) + "\n";
}

}  // namespace

std::string RunRecallDemo(const DemoOptions& options) {
  const uint32_t n_tokens = options.tokens.value_or(kDefaultTokens);
  if (n_tokens < kMinTokens || n_tokens > kMaxTokens) {
    throw std::invalid_argument(
        fmt::format("--tokens {}: the recall model reads {} to {} tokens",
                    n_tokens, kMinTokens, kMaxTokens));
  }
  const uint32_t budget = options.budget
                              ? BudgetTokens(*options.budget, n_tokens)
                              : std::max(n_tokens / 8, kMinDefaultBudget);
  const std::vector<kvevict_policy> policies =
      ParsePolicies(options.policies, budget, n_tokens, kLayers);

  ThreadPool pool(options.threads);
  RecallExperiment experiment(MakeWorkload(n_tokens, options.seed),
                              options.dtype, policies, pool,
                              options.simd_target());
  const auto start = std::chrono::steady_clock::now();
  {
    ProgressBar bar("prefill", n_tokens);
    experiment.Prefill([&](uint32_t n_done) { bar.Update(n_done); });
  }
  const std::chrono::duration<double> prefill =
      std::chrono::steady_clock::now() - start;
  std::vector<RecallResult> results;
  for (size_t i = 0; i < policies.size(); ++i) {
    results.push_back(experiment.Evaluate(i));
  }

  if (options.json) return Json(options.policies, results, n_tokens, budget);
  return fmt::format(
      "recall model: {} tokens prefilled in {:.1f} s, {} thread{}; "
      "budget {} tokens\n\n{}",
      n_tokens, prefill.count(), pool.n_threads(),
      pool.n_threads() == 1 ? "" : "s", budget,
      Table(options.policies, results));
}

}  // namespace kvevict::tools
