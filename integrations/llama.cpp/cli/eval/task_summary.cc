#include <algorithm>
#include <cmath>

#include "summary.h"

namespace kvevict::llama_cli::eval {
namespace {

using nlohmann::json;

// A ratio of sums over contexts, and its standard error.
Mean Ratio(const std::vector<double>& parts,
           const std::vector<double>& wholes) {
  double part = 0, whole = 0, squares = 0;
  for (const double x : parts) part += x;
  for (const double x : wholes) whole += x;
  Mean ratio;
  if (whole == 0) {
    ratio.mean = std::nan("");
    return ratio;
  }
  ratio.mean = part / whole;
  const auto n = static_cast<double>(parts.size());
  if (n < 2) return ratio;
  for (size_t i = 0; i < parts.size(); ++i) {
    squares += std::pow(parts[i] - ratio.mean * wholes[i], 2);
  }
  ratio.error = std::sqrt(squares * n / (n - 1)) / whole;
  return ratio;
}

// Sums up the index-th candidate over all contexts.
Recall RecallOf(const json& tasks, size_t index, const char* mode) {
  std::vector<double> right, answered, lp, kl;
  for (const json& task : tasks) {
    const json& full = task["full"][mode];
    const json& evicted = task["evicted"][index][mode];
    const size_t n = full["exact"].size();
    right.push_back(0), answered.push_back(0), lp.push_back(0), kl.push_back(0);
    for (size_t q = 0; q < n; ++q) {
      const auto is_answered = full["exact"][q].get<double>();
      answered.back() += is_answered;
      right.back() += is_answered * evicted["exact"][q].get<double>();
      lp.back() +=
          (evicted["lp"][q].get<double>() - full["lp"][q].get<double>()) /
          static_cast<double>(n);
      kl.back() += evicted["kl"][q].get<double>() / static_cast<double>(n);
    }
  }
  return {Ratio(right, answered), MeanOf(lp), MeanOf(kl)};
}

}  // namespace

TaskSummary SummarizeTasks(const json& document) {
  TaskSummary summary;
  const json& tasks = document["tasks"];
  if (tasks.empty()) return summary;
  summary.n_contexts = tasks.size();
  for (const json& task : tasks) {
    const std::string kind = task["kind"];
    auto at = std::find_if(summary.ceilings.begin(), summary.ceilings.end(),
                           [&](const Ceiling& c) { return c.kind == kind; });
    if (at == summary.ceilings.end()) {
      at = summary.ceilings.insert(at, Ceiling{kind});
    }
    for (const json& exact : task["full"]["unseen"]["exact"]) {
      at->n_right += exact.get<size_t>();
      ++at->n_asked;
    }
  }
  for (size_t i = 0; i < tasks[0]["evicted"].size(); ++i) {
    const json& first = tasks[0]["evicted"][i];
    summary.rows.push_back({first["policy"], first["share"],
                            RecallOf(tasks, i, "seen"),
                            RecallOf(tasks, i, "unseen")});
  }
  std::stable_sort(summary.rows.begin(), summary.rows.end(),
                   [](const TaskRow& a, const TaskRow& b) {
                     return a.share != b.share
                                ? a.share > b.share
                                : a.unseen.lp.mean > b.unseen.lp.mean;
                   });
  return summary;
}

}  // namespace kvevict::llama_cli::eval
