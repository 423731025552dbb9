#include "summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvevict::llama_cli::eval {
namespace {

using nlohmann::json;

// A number of the index-th candidate in each window.
std::vector<double> Column(const json& windows, size_t index, const char* key) {
  std::vector<double> values;
  for (const json& window : windows) {
    values.push_back(window["evicted"][index][key].get<double>());
  }
  return values;
}

std::vector<double> Minus(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

std::vector<double> FullNll(const json& windows) {
  std::vector<double> values;
  for (const json& window : windows) {
    values.push_back(window["full"]["nll"].get<double>());
  }
  return values;
}

Row MakeRow(const json& document, size_t i) {
  const json& windows = document["windows"];
  const json& timings = document["timings"]["windows"];
  const json& first = windows[0]["evicted"][i];
  Row row;
  row.policy = first["policy"];
  row.share = first["share"];
  row.cells = first["cells"];
  row.bytes = first["bytes"];
  row.kl = MeanOf(Column(windows, i, "kl"));
  row.agree = MeanOf(Column(windows, i, "agree"));
  const std::vector<double> nll = Column(windows, i, "nll");
  row.perplexity = std::exp(MeanOf(nll).mean);
  row.nll_difference = MeanOf(Minus(nll, FullNll(windows)));
  const bool has_mass =
      std::all_of(windows.begin(), windows.end(), [&](const json& window) {
        return window["evicted"][i]["mass"].is_number();
      });
  if (has_mass) row.mass = MeanOf(Column(windows, i, "mass")).mean;
  row.evict_ms = MeanOf(Column(timings, i, "evict_ms")).mean;
  row.tokens_per_s = timings[0]["evicted"][i].value("tokens_per_s", 0.0);
  return row;
}

// Ranks rows of one share, and sorts them.
void Rank(std::vector<Row>::iterator begin, std::vector<Row>::iterator end) {
  std::stable_sort(begin, end, [](const Row& a, const Row& b) {
    return a.agree.mean > b.agree.mean;
  });
  for (auto row = begin; row != end; ++row) {
    row->rank = static_cast<uint32_t>(row - begin);
  }
  std::stable_sort(begin, end, [](const Row& a, const Row& b) {
    return a.kl.mean < b.kl.mean;
  });
  for (auto row = begin; row != end; ++row) {
    row->rank += static_cast<uint32_t>(row - begin);
  }
  std::stable_sort(begin, end,
                   [](const Row& a, const Row& b) { return a.rank < b.rank; });
  for (auto row = begin; row != end; ++row) {
    row->rank = static_cast<uint32_t>(row - begin) + 1;
  }
}

// KL by window of a policy at a share.
std::vector<double> KlOf(const json& windows, const Row& row) {
  const json& candidates = windows[0]["evicted"];
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i]["policy"] == row.policy &&
        candidates[i]["share"] == row.share) {
      return Column(windows, i, "kl");
    }
  }
  return {};
}

// The policies whose KL is within two standard errors of the best one's.
std::string Equals(const json& windows, const Row& best,
                   std::vector<Row>::const_iterator begin,
                   std::vector<Row>::const_iterator end) {
  std::string names;
  for (auto row = begin; row != end; ++row) {
    if (AreClose(KlOf(windows, *row), KlOf(windows, best))) {
      names += (names.empty() ? "" : ", ") + row->policy;
    }
  }
  return names;
}

}  // namespace

Mean MeanOf(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  Mean result;
  for (const double x : values) result.mean += x / n;
  if (values.size() < 2) return result;
  double squares = 0;
  for (const double x : values) squares += std::pow(x - result.mean, 2);
  result.error = std::sqrt(squares / (n - 1) / n);
  return result;
}

bool AreClose(const std::vector<double>& a, const std::vector<double>& b) {
  const Mean gap = MeanOf(Minus(a, b));
  return gap.error && std::abs(gap.mean) <= 2 * *gap.error;
}

std::string WithError(const Mean& mean, int digits, double scale) {
  const std::string text = fmt::format("{:.{}f}", scale * mean.mean, digits);
  if (!mean.error) return text;
  return fmt::format("{} ± {:.{}f}", text, scale * *mean.error, digits);
}

Summary Summarize(const json& document) {
  Summary summary;
  const json& windows = document["windows"];
  if (windows.empty()) return summary;
  const json& timings = document["timings"]["windows"];
  summary.n_windows = windows.size();
  summary.n_predictions =
      windows.size() * (document["setup"]["predict"].get<size_t>() - 1);
  summary.full_bytes = windows[0]["full"]["bytes"];
  summary.full_perplexity = std::exp(MeanOf(FullNll(windows)).mean);
  summary.full_tokens_per_s = timings[0].value("full_tokens_per_s", 0.0);
  for (const json& time : timings) {
    summary.prefill_s +=
        time["prefill_s"].get<double>() / static_cast<double>(windows.size());
  }
  for (size_t i = 0; i < windows[0]["evicted"].size(); ++i) {
    summary.rows.push_back(MakeRow(document, i));
  }
  std::stable_sort(
      summary.rows.begin(), summary.rows.end(),
      [](const Row& a, const Row& b) { return a.share > b.share; });
  for (auto begin = summary.rows.begin(); begin != summary.rows.end();) {
    const double share = begin->share;
    const auto end = std::find_if(begin, summary.rows.end(), [&](const Row& r) {
      return r.share != share;
    });
    Rank(begin, end);
    summary.shares.push_back(share);
    begin = end;
  }
  return summary;
}

std::string Verdict(const json& document, const Summary& summary) {
  std::string text;
  const json& windows = document["windows"];
  for (const double share : summary.shares) {
    const auto begin =
        std::find_if(summary.rows.begin(), summary.rows.end(),
                     [&](const Row& row) { return row.share == share; });
    const auto end = std::find_if(begin, summary.rows.end(), [&](const Row& r) {
      return r.share != share;
    });
    Mean changed = begin->agree;
    changed.mean = 1 - changed.mean;
    text += fmt::format(
        "With {:g} % of the bytes {} changes the most likely token in {} % of "
        "the predictions, and moves them by {} nats (KL).",
        100 * share, begin->policy, WithError(changed, 1, 100),
        WithError(begin->kl, 3));
    const std::string equals = Equals(windows, *begin, begin + 1, end);
    if (!equals.empty()) {
      text += fmt::format(" Within two standard errors of its KL: {}.", equals);
    }
    text += "\n";
  }
  if (summary.n_windows == 1) {
    text += "One window gives no standard error: --windows asks for more.\n";
  } else if (summary.n_windows > 1) {
    text += fmt::format(
        "Errors are standard errors over {} windows, {} predictions in all.\n",
        summary.n_windows, summary.n_predictions);
  }
  return text;
}

}  // namespace kvevict::llama_cli::eval
