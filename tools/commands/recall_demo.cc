#include "tools/commands/recall_demo.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/engine/progress_bar.h"
#include "tools/engine/text_table.h"
#include "tools/recall/experiment.h"

namespace kvevict::tools {
namespace {

constexpr uint32_t kDefaultTokens = 16384;

// Sinks, observation window and some tokens to select.
constexpr uint32_t kMinDefaultBudget = 64;

// A policy whose scores are not a mass has no budget.
using BudgetsForMass = std::vector<std::optional<uint32_t>>;

std::string Table(const DemoOptions& options,
                  const std::vector<RecallResult>& results,
                  const BudgetsForMass& budgets) {
  std::vector<TextTable::Column> columns =
      EvictionColumns(options.decode.has_value(), options.is_quantized());
  for (const char* title : {"asked", "unasked", "tokens/s"}) {
    columns.push_back({title});
  }
  if (options.mass) columns.push_back({fmt::format("for {}", *options.mass)});
  TextTable table(columns);
  for (size_t i = 0; i < results.size(); ++i) {
    const RecallResult& r = results[i];
    std::vector<std::string> cells =
        EvictionCells(options.policies[i].label, r.evictions,
                      options.decode.has_value(), options.is_quantized(), 2);
    cells.push_back(fmt::format("{:.2f}", r.asked));
    cells.push_back(fmt::format("{:.2f}", r.unasked));
    cells.push_back(fmt::format("{:.0f}", r.decode_tokens_per_s));
    if (options.mass) {
      cells.push_back(budgets[i] ? std::to_string(*budgets[i]) : "-");
    }
    table.AddRow(cells);
  }
  std::string text = fmt::format(
      "{}\nasked:   recall of the {} needles that the end of the prompt asks "
      "for\nunasked: recall of the other {}\n",
      table.ToString(), kQuestions, kNeedles - kQuestions);
  if (options.is_quantized()) {
    text +=
        "of f32:  shrink of the prompt in f32, scales and minima included\n";
  }
  if (options.mass) {
    text += fmt::format(
        "for {}: tokens per KV head that keep so much of what the policy's "
        "scores add up to\n",
        *options.mass);
  }
  return text;
}

std::string Json(const DemoOptions& options,
                 const std::vector<RecallResult>& results,
                 const BudgetsForMass& budgets, uint32_t n_tokens,
                 uint32_t budget) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t i = 0; i < results.size(); ++i) {
    const RecallResult& r = results[i];
    const Evictor::Report& prompt = r.evictions.of_prompt;
    rows.push_back({{"policy", options.policies[i].label},
                    {"kv_bytes_before", prompt.bytes_before},
                    {"kv_bytes_after", prompt.bytes_after},
                    {"shrink", r.evictions.Shrink()},
                    {"shrink_of_f32", r.evictions.ShrinkOfF32()},
                    {"evict_ms", prompt.milliseconds},
                    {"recall_asked", r.asked},
                    {"recall_unasked", r.unasked},
                    {"decode_tokens_per_s", r.decode_tokens_per_s}});
    nlohmann::ordered_json& row = rows.back();
    if (options.decode) {
      row["kv_bytes_at_end"] = r.evictions.bytes_at_end;
      row["decode_evictions"] = r.evictions.n;
      row["decode_evict_ms"] = r.evictions.MillisecondsEach();
    }
    if (!options.mass) continue;
    row["budget_for_mass"] = nullptr;
    if (budgets[i]) row["budget_for_mass"] = *budgets[i];
  }
  const nlohmann::ordered_json document = {{"n_tokens", n_tokens},
                                           {"budget", budget},
                                           {"cache", options.cache},
                                           {"results", rows}};
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
  const std::vector<Policy> policies =
      ParsePolicies(options.policies, budget, n_tokens, kLayers,
                    /*has_weights=*/true, kNeedles - kQuestions);

  const uint32_t n_decoded = options.decode.value_or(0);
  if (n_decoded >= n_tokens) {
    throw std::invalid_argument(
        fmt::format("--decode {}: the prompt has {} tokens, and the last ones "
                    "of them are decoded",
                    n_decoded, n_tokens));
  }
  if (options.decode) CheckDecoding(options.policies, policies);

  ThreadPool pool(options.threads);
  RecallExperiment experiment(
      MakeWorkload(n_tokens, options.seed), options.dtype, policies, pool,
      options.simd_target(), n_decoded, options.layout());
  const auto start = std::chrono::steady_clock::now();
  {
    ProgressBar bar("prefill", n_tokens);
    experiment.Prefill([&](uint32_t n_done) { bar.Update(n_done); });
  }
  const std::chrono::duration<double> prefill =
      std::chrono::steady_clock::now() - start;
  std::vector<RecallResult> results;
  BudgetsForMass budgets(policies.size());
  for (size_t i = 0; i < policies.size(); ++i) {
    if (options.mass && ScoresAreMass(policies[i])) {
      budgets[i] = experiment.BudgetForMass(i, *options.mass);
    }
    results.push_back(experiment.Evaluate(i));
  }

  if (options.json) return Json(options, results, budgets, n_tokens, budget);
  return fmt::format(
      "recall model: {} tokens prefilled in {:.1f} s, {} thread{}; "
      "budget {} tokens\n\n{}",
      n_tokens, prefill.count(), pool.n_threads(),
      pool.n_threads() == 1 ? "" : "s", budget,
      Table(options, results, budgets));
}

}  // namespace kvevict::tools
