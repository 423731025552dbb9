#include <fmt/format.h>

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

// What a task has of a policy at a share; nullptr if its context has no room.
const json* EvictedOf(const json& task, const std::string& policy,
                      double share) {
  for (const json& row : task["evicted"]) {
    if (row["policy"] == policy && row["share"] == share) return &row;
  }
  return nullptr;
}

// Sums up a policy at a share, which every context has room for.
Recall RecallOf(const json& tasks, const std::string& policy, double share,
                const char* mode) {
  std::vector<double> right, answered, lp, kl;
  for (const json& task : tasks) {
    const json& full = task["full"][mode];
    const json& evicted = (*EvictedOf(task, policy, share))[mode];
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
  return {Ratio(right, answered), MeanOf(lp), MeanOf(kl), lp};
}

// "snapkv (-0.52 ± 0.21 nats per token of the answer; keydiff is within two
// standard errors)", of the rows of one share.
std::string Best(const std::vector<const TaskRow*>& rows,
                 Recall TaskRow::*mode) {
  const TaskRow& best = **std::max_element(
      rows.begin(), rows.end(), [mode](const TaskRow* a, const TaskRow* b) {
        return (a->*mode).lp.mean < (b->*mode).lp.mean;
      });
  std::string names;
  size_t n = 0;
  for (const TaskRow* row : rows) {
    if (row == &best ||
        !AreClose((row->*mode).lp_of_context, (best.*mode).lp_of_context)) {
      continue;
    }
    names += (n++ == 0 ? "" : ", ") + row->policy;
  }
  if (n > 0) {
    names += n == 1 ? " is" : " are";
    names = "; " + names + " within two standard errors";
  }
  return fmt::format("{} ({} nats per token{})", best.policy,
                     WithError((best.*mode).lp, 2), names);
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
  for (const json& name : document["setup"]["policies"]) {
    for (const json& percent : document["setup"]["task_keep"]) {
      const std::string policy = name;
      const double share = percent.get<double>() / 100;
      const auto n_without = static_cast<size_t>(
          std::count_if(tasks.begin(), tasks.end(), [&](const json& task) {
            return EvictedOf(task, policy, share) == nullptr;
          }));
      if (n_without > 0) {
        summary.left_out.push_back(
            fmt::format("{} at {:g} %: {} of {} contexts have no room for it",
                        policy, 100 * share, n_without, tasks.size()));
        continue;
      }
      summary.rows.push_back({policy, share,
                              RecallOf(tasks, policy, share, "seen"),
                              RecallOf(tasks, policy, share, "unseen")});
    }
  }
  std::stable_sort(summary.rows.begin(), summary.rows.end(),
                   [](const TaskRow& a, const TaskRow& b) {
                     return a.share != b.share
                                ? a.share > b.share
                                : a.unseen.lp.mean > b.unseen.lp.mean;
                   });
  return summary;
}

std::string TasksVerdict(const TaskSummary& summary) {
  std::string text;
  for (auto begin = summary.rows.begin(); begin != summary.rows.end();) {
    std::vector<const TaskRow*> rows;
    auto end = begin;
    for (; end != summary.rows.end() && end->share == begin->share; ++end) {
      rows.push_back(&*end);
    }
    text += fmt::format(
        "With {:g} % of the bytes answers lose least with {} if the question "
        "is seen, and with {} if it is not.\n",
        100 * begin->share, Best(rows, &TaskRow::seen),
        Best(rows, &TaskRow::unseen));
    begin = end;
  }
  size_t n_right = 0;
  for (const Ceiling& c : summary.ceilings) n_right += c.n_right;
  if (n_right == 0) {
    text +=
        "The full cache answers none of the questions, so they say little "
        "about this model.\n";
  }
  return text;
}

}  // namespace kvevict::llama_cli::eval
